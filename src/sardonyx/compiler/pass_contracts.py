"""Contracts of the compiler's passes: properties of Core functions, schedules, launches and segments.

The verifier of Core (:mod:`sardonyx.core.eval.verifier`) defines a legal function; the checkers here define valid
intermediate results of the compiler.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.lower.context import FunctionContext
from sardonyx.compiler.lower.groups import Lowering
from sardonyx.compiler.lower.launch import Launch, Prepared, all_launches
from sardonyx.compiler.pass_runner import Contract
from sardonyx.compiler.passes.inline_calls import is_open_call
from sardonyx.compiler.passes.loop_slices import replace_slices
from sardonyx.compiler.plan.compiled_function import CompiledFunction, KernelCode
from sardonyx.compiler.plan.segments import Segment, Step
from sardonyx.compiler.schedule.fusion import Grouping
from sardonyx.compiler.target.alignment import ALIGNMENT
from sardonyx.core.eval import verifier
from sardonyx.core.ir.graph import Function, Value


def _core_faults(function: Function) -> Iterator[str]:
    around = function.free_symbols if function.level else frozenset[str]()
    yield from map(str, verifier.faults(function, around))


def _call_faults(function: Function) -> Iterator[str]:
    yield from (f"{value} is a call without a kernel" for value in function.values if is_open_call(value))


def _image_faults(function: Function) -> Iterator[str]:
    for value in function.values:
        if value.op == "convolve" and not value.operands[0].is_constant:
            (swap, split) = (value.operands[0], value.operands[0].operands[0] if value.operands[0].operands else None)
            if swap.op != "permute" or split is None or split.op != "reshape":
                yield f"the image of {value} is a {swap.op}, expected a permute of a reshape"


def _group_faults(grouping: Grouping) -> Iterator[str]:
    roots = [root for group in grouping.groups for root in group.roots]
    if len(set(roots)) != len(roots):
        yield "a value is the root of two groups"
    for group in grouping.groups:
        for member in group.members:
            if grouping.group(member) is not group:
                yield f"{member.op} is a member of one group, but computed by another"
        for root in group.roots:
            if root in grouping.host:
                yield f"{root.op} is the root of a group, but computed by the interpreter"
    missing = {*roots, *grouping.host} - set(grouping.computed)
    if missing:
        yield f"{', '.join(sorted(value.op for value in missing))} is missing in the order of computation"


def _layout_faults(whole: FunctionContext) -> Iterator[str]:
    for value, block in whole.blocks.items():
        if block != whole.target.lanes(32):
            yield f"{value.op} has blocks of {block} channels, expected {whole.target.lanes(32)}: the lanes of a vector"
        if not whole.in_memory(value):
            yield f"{value.op} has a blocked layout, but is not in memory"


def _launch_faults(lowering: Lowering) -> Iterator[str]:
    if lowering.unfusable or lowering.refused:
        return
    written = {value for launch in lowering.launches for value in launch.all_writes}
    for group in lowering.grouping.groups:
        for root in group.roots:
            if root.op not in ("call", "host", "cond", "loop") and root not in written and _has_readers(lowering, root):
                yield f"no launch writes {root.op}"
    yield from _order_faults(lowering.launches, set(lowering.grouping.host), written)


def _has_readers(lowering: Lowering, value: Value) -> bool:
    return any(value in launch.buffers for launch in lowering.launches) or value in lowering.function.results


def _order_faults(launches: Sequence[Launch], available: set[Value], written: set[Value]) -> Iterator[str]:
    """Yield reads of values that a later launch writes."""
    done = set(available)
    for launch in launches:
        for buffer in launch.buffers:
            if (
                isinstance(buffer, Value)
                and buffer in written
                and buffer not in done
                and buffer not in launch.all_writes
            ):
                yield f"{launch.title} reads {buffer.op} before a launch writes it"
        done.update(launch.all_writes)


def _segment_faults(steps: Sequence[Step]) -> Iterator[str]:
    launches = [launch for step in steps if isinstance(step, Segment) for launch in step.launches]
    if len({id(launch) for launch in launches}) != len(launches):
        yield "a launch is in two segments"
    written = {value for launch in launches for value in launch.all_writes}
    yield from _order_faults(launches, {step for step in steps if isinstance(step, Value)}, written)
    for step in steps:
        if isinstance(step, Segment):
            if not step.launches:
                yield "a segment has no launches"
            yield from _run_faults(step.launches)


def _run_faults(launches: Sequence[Launch]) -> Iterator[str]:
    for number, launch in enumerate(launches):
        run = launches[number : number + launch.concurrent_loops]
        if launch.concurrent_loops < 1 or len(run) < launch.concurrent_loops:
            yield f"{launch.title} begins a run of {launch.concurrent_loops} loops, but {len(run)} launches are left"
        elif launch.concurrent_loops > 1 and any(other.writes.op != "loop" for other in run):
            yield f"{launch.title} begins a run of concurrent loops that contains another launch"


def _code_faults(kernels: KernelCode) -> Iterator[str]:
    yield from (f"the kernel {kernels.names[text]} has no address" for text, at in kernels.addresses.items() if not at)


def _constant_faults(prepared: dict[Any, np.ndarray]) -> Iterator[str]:
    for key, array in prepared.items():
        name = key.form if isinstance(key, Prepared) else key.op
        if array.ctypes.data % ALIGNMENT and array.size:
            yield f"{name} does not begin on a cache line"
        if not array.flags.c_contiguous:
            yield f"{name} is not contiguous"


def _record_faults(compiled: CompiledFunction) -> Iterator[str]:
    for launch in all_launches(compiled.launches):
        if not launch.bodies and launch.text not in compiled.kernels.names:
            yield f"the kernel of {launch.title} is not compiled"
        for buffer in launch.buffers:
            constant = isinstance(buffer, Prepared) or (isinstance(buffer, Value) and buffer.is_constant)
            if constant and buffer not in compiled.prepared:
                yield f"a constant that {launch.title} reads is not prepared"
    for value in compiled.host:
        if value not in compiled.reads:
            yield f"the operands of {value.op} are unknown"


def _slice_faults(function: Function) -> Iterator[str]:
    for value in function.values:
        if value.op == "loop" and replace_slices(value.params["body"]) is not value.params["body"]:
            yield f"the body of {value.params['body'].name} slices at the iteration number"


LEGAL_CORE = Contract("the function is legal Core", _core_faults)
NO_OPEN_CALLS = Contract("every call has a kernel", _call_faults)
NO_LOOP_SLICES = Contract("no loop slices an operand at the iteration number", _slice_faults)
CANONICAL_IMAGES = Contract("convolutions read constants, or images [N, G * C, spatial]", _image_faults)
GROUPS = Contract("every value in memory is the root of one group, in the order of computation", _group_faults)
LAYOUTS = Contract("blocks have as many channels as vectors have lanes, and are in memory", _layout_faults)
LAUNCHES = Contract(
    "launches write what later launches read, unless the function has to be scheduled again", _launch_faults
)
PREPARED = Contract("constants are contiguous and begin on a cache line", _constant_faults)
CODE = Contract("every kernel has an address", _code_faults)
SEGMENTS = Contract("every launch is in one segment, after what it reads", _segment_faults)
RUNNABLE = Contract("every kernel is compiled and every constant prepared", _record_faults)
