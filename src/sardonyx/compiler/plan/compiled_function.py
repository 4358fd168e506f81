"""The record of a compiled function: everything that a program is, and what a program image holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sardonyx.compiler.analysis.shape_guards import Equal
from sardonyx.compiler.llvm.elf_loader import Code, MappedCode
from sardonyx.compiler.llvm.object_code import LoadedCode
from sardonyx.compiler.lower.context import Whole
from sardonyx.compiler.lower.launch import Launch
from sardonyx.compiler.plan.reweight import Meaning
from sardonyx.compiler.plan.segments import Step, is_of_constants, launches_of
from sardonyx.compiler.target.denormals import Denormals
from sardonyx.compiler.target.description import Target
from sardonyx.core.ir.graph import Function, Value


@dataclass(frozen=True, eq=False)
class KernelCode:
    """Kernels as machine code in memory.

    Attributes:
        code: The object code.
        names: The kernels' functions in the code, by the kernels' text.
        loaded: The code in memory.
        addresses: The addresses of the kernels' functions in memory, by the kernels' text.
    """

    code: Code
    names: Mapping[str, str]
    loaded: MappedCode | LoadedCode
    addresses: Mapping[str, int]

    @classmethod
    def of(cls, code: Code, names: Mapping[str, str], loaded: MappedCode | LoadedCode) -> KernelCode:
        """Return kernels of loaded code, with their addresses."""
        return cls(code, names, loaded, {text: loaded.address(name) for text, name in names.items()})


@dataclass(frozen=True, eq=False)
class CompiledFunction:
    """A compiled function.

    Attributes:
        function: Inputs and results; with all values in between where ``whole`` is not None.
        around: The size symbols that come from outside of the function.
        steps: Segments of kernels, and values that the interpreter computes, in order.
        blocks: Channels per block, of values that are images in blocked layout.
        host: The values that the interpreter computes, each with the reason.
        reads: The values in memory that the interpreter reads for each of these.
        inner: All values that the interpreter computes on its way, these among them.
        guards: Sizes that must be equal in a call.
        bodies: Compiled bodies of control flow that the interpreter executes.
        kernels: The machine code.
        prepared: What kernels read of constants.
        target: The processor that the code is for.
        threads: Threads that share the work.
        denormals: The treatment of denormal numbers, as an option.
        has_denormals: True if constants that kernels read hold denormal numbers.
        whole: Groups and layouts; None in a function that was read from an image.
        meaning: What the function's values stand for, where weights were replaced; others stand for themselves.
        overrides: Fingerprint of the user's schedules that were active during compilation; None if these changed
            meanwhile, or for a function from an image.
    """

    function: Function
    around: frozenset[str]
    steps: Sequence[Step]
    blocks: Mapping[Value, int]
    host: Mapping[Value, str]
    reads: Mapping[Value, Sequence[Value]]
    inner: frozenset[Value]
    guards: Sequence[Equal]
    bodies: Mapping[Value, Sequence[CompiledFunction]]
    kernels: KernelCode
    prepared: Mapping[Any, np.ndarray]
    target: Target
    threads: int
    denormals: Denormals
    has_denormals: bool
    whole: Whole | None = None
    meaning: Meaning = field(default_factory=dict)
    overrides: str | None = None

    @property
    def launches(self) -> list[Launch]:
        """The kernels, in the order of execution."""
        return launches_of(self.steps)

    @property
    def can_be_reweighted(self) -> bool:
        """True if nothing but prepared constants depends on the elements of weights, as far as the form tells."""
        return self.whole is not None and not (self.host or self.bodies or any(map(is_of_constants, self.steps)))
