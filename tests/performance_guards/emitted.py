"""The emitted code of a kernel, for assertions that guard its speed."""

from __future__ import annotations

import re

from sardonyx.compiler.codegen.kernel_builder import Kernel
from sardonyx.compiler.llvm.object_code import assembly, module_text
from sardonyx.compiler.lower.launch import Launch
from sardonyx.compiler.target.description import Target

SPILLS = {"avx2": r"[xyz]mm\d+, .*\(%rsp\)", "avx512": r"[xyz]mm\d+, .*\(%rsp\)", "neon": r"st[rp]\s+q.*\[sp"}
"""Stores of a vector on the stack, by target."""

FMAS = {"avx2": "vfmadd", "avx512": "vfmadd", "neon": "fmla"}
"""Multiply-add instructions of vectors, by target."""


def assemble(kernel: Kernel) -> str:
    """Return the optimized assembly of a kernel."""
    text = module_text(kernel.target, [kernel.definition("kernel")], kernel.emitter.declarations)
    return assembly(text, kernel.target)


def basic_blocks(kernel: Kernel) -> list[str]:
    """Return the basic blocks of a kernel's optimized assembly."""
    return re.split(r"^\.?\w+:.*$", assemble(kernel), flags=re.M)


def innermost_loops(launch: Launch, target: Target) -> list[str]:
    """Return the bodies of the innermost loops of a launch, in optimized assembly."""
    text = assembly(module_text(target, [launch.text], launch.declarations), target)
    blocks = re.split(r"^(\.LBB\d+_\d+):.*\n", text, flags=re.M)
    loops = (
        re.match(rf"(.*?)\tj\w+\t{name}\n", body, re.S) for name, body in zip(blocks[1::2], blocks[2::2], strict=True)
    )
    return [body[1] for body in loops if body is not None]
