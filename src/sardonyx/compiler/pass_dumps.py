"""Dumps of the results of passes, for ``SARDONYX_DEBUG``; see :mod:`sardonyx.compiler.pass_runner`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.llvm.object_code import assembly, module_text
from sardonyx.compiler.lower.context import FunctionContext
from sardonyx.compiler.lower.groups import Lowering
from sardonyx.compiler.lower.launch import NAME, Count, Launch, Prepared, Relaid, Scratch, Stage, all_launches
from sardonyx.compiler.pass_runner import ASSEMBLY, CORE, GROUPS, LLVM_IR
from sardonyx.compiler.plan.compiled_function import KernelCode
from sardonyx.compiler.plan.segments import Segment, Step
from sardonyx.compiler.schedule.fusion import Grouping
from sardonyx.compiler.target.description import Target
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.ir.printer import function_text
from sardonyx.errors import UnsupportedError

_MANY_ELEMENTS = re.compile(r'(bytes"[^"]{16})[^"]*"')

Parts = Iterator[tuple[int, Callable[[], str]]]
"""Parts of a dump: the lowest debug level that prints the part, and a function for its text."""


def dump_core(function: Function, before: Function, *_: Any) -> Parts:
    """Dump a Core function if the pass changed it; long constants are abbreviated."""
    yield CORE, lambda: "  (unchanged)" if function.results == before.results else _core_text(function)


def _core_text(function: Function) -> str:
    try:
        return _MANY_ELEMENTS.sub(r'\1…"', function_text(function))
    except UnsupportedError as error:
        return f"  (no text: {error.problem})"


def dump_groups(grouping: Grouping, *_: Any) -> Parts:
    """Dump the groups, and the interpreted values."""
    yield GROUPS, lambda: "\n".join(_group_lines(grouping))


def _group_lines(grouping: Grouping) -> Iterator[str]:
    for number, group in enumerate(grouping.groups):
        members = ", ".join(value.op for value in grouping.order if value in group.members)
        yield f"  group {number}: {group.kind} → {_named(group.root)}: {members} (ends because: {group.reason})"
    for value, reason in grouping.host.items():
        yield f"  interpreter: {_named(value)} ({reason})"


def dump_layouts(whole: FunctionContext, *_: Any) -> Parts:
    """Dump the values in blocked layout."""
    yield (
        GROUPS,
        lambda: "\n".join(f"  {_named(value)}: blocks of {block} channels" for value, block in whole.blocks.items()),
    )


def dump_launches(lowering: Lowering, *_: Any) -> Parts:
    """Dump the launches, and new constraints on the next grouping."""
    yield GROUPS, lambda: "\n".join([*_refusal_lines(lowering), *map(_launch_line, lowering.launches)])


def _refusal_lines(lowering: Lowering) -> Iterator[str]:
    for value, reason in (*lowering.unfusable.items(), *lowering.refused.items()):
        yield f"  refused: {_named(value)}: {reason}"


def _launch_line(launch: Launch) -> str:
    buffers = ", ".join(map(_buffer_text, launch.buffers))
    sizes = "".join(f", {size}" for size in launch.sizes)
    return f"  {launch.title} × {launch.items} → {_named(launch.writes)}: ({buffers}{sizes})"


def _buffer_text(buffer: Any) -> str:
    match buffer:
        case Prepared(source, form):
            return f"{form} of {source.type}"
        case Scratch(size):
            return f"scratch {size}"
        case Relaid(source, block, dtype):
            return f"{_named(source)} as {dtype.name.lower()} in blocks of {block}"
        case Stage(source, size):
            return f"stage of {_named(source)}, {size} bytes"
        case Count(source):
            return f"count of {_named(source)}"
        case Value():
            return _named(buffer)
    return str(buffer)


def dump_prepared(prepared: Mapping[Any, np.ndarray], *_: Any) -> Parts:
    """Dump the forms and sizes of prepared constants."""
    yield (
        GROUPS,
        lambda: "\n".join(
            f"  {_buffer_text(key)}: {array.dtype}{list(array.shape)}" for key, array in prepared.items()
        ),
    )


def dump_steps(steps: Sequence[Step], *_: Any) -> Parts:
    """Dump the steps: segments of kernels, and interpreted values."""
    yield GROUPS, lambda: "\n".join(f"  step {number}: {_step_text(step)}" for number, step in enumerate(steps))


def _step_text(step: Step) -> str:
    if not isinstance(step, Segment):
        return f"interpreter: {_named(step)}"
    runs = [
        f"{launch.title} (with the next {launch.concurrent_loops - 1})" if launch.concurrent_loops > 1 else launch.title
            for launch in step.launches]  # fmt: skip
    return ", ".join(runs)


def dump_kernels(code: KernelCode, launches: Sequence[Launch], target: Target, *_: Any) -> Parts:
    """Dump the LLVM IR and the assembly of kernels."""
    kernels = list({launch.text: launch for launch in all_launches(launches) if not launch.bodies}.values())
    yield LLVM_IR, lambda: "\n".join(f"; {launch.title}\n{launch.text}" for launch in kernels)
    yield (
        ASSEMBLY,
        lambda: "\n".join(
            assembly(module_text(target, [launch.text.replace(NAME, "kernel")], launch.declarations), target)
            for launch in kernels
        ),
    )


def _named(value: Value) -> str:
    return f"{value.op} {value.type}" + (f" “{value.origin}”" if value.origin else "")
