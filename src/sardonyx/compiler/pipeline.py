"""The compiler's pipeline: from a Core function to a compiled function, pass by pass.

This file is the table of contents of the compiler. :data:`PASSES` lists the passes in order, each with its contract;
:func:`compile_function` runs the passes. ``SARDONYX_DEBUG`` prints their results
(:mod:`sardonyx.compiler.pass_runner`).

Passes from :data:`FUSE` to :data:`LOWER_GROUPS` repeat: if a value must be in memory, or has no kernel, lowering fails,
and the function is scheduled again with this constraint. Bodies of native loops and branches run through the same
passes while the enclosing group is lowered.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sardonyx.base.artifact_store import store
from sardonyx.base.blake import blake2b
from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.base.cpu_count import thread_count
from sardonyx.base.mapped_files import count_read
from sardonyx.compiler.analysis.control_flow import CONTROL, is_of_tensors
from sardonyx.compiler.analysis.shape_guards import collect_guards
from sardonyx.compiler.analysis.shape_stable_loops import shape_stability
from sardonyx.compiler.llvm.elf_loader import Code, loaded
from sardonyx.compiler.llvm.object_code import CodeGenerationError, is_valid, module_text
from sardonyx.compiler.llvm.parallel_build import Build, Module
from sardonyx.compiler.lower.concurrent_loops import order_concurrent_loops
from sardonyx.compiler.lower.context import FunctionContext
from sardonyx.compiler.lower.groups import Lowering, internal_error
from sardonyx.compiler.lower.kernel_store import KernelStore
from sardonyx.compiler.lower.launch import NAME, Body, Launch, Prepared, all_launches
from sardonyx.compiler.lower.shared_kernels import SharedKernels
from sardonyx.compiler.lower.unstored_sizes import bounds_of_unstored
from sardonyx.compiler.pass_contracts import (
    CANONICAL_IMAGES,
    CODE,
    GROUPS,
    LAUNCHES,
    LAYOUTS,
    LEGAL_CORE,
    NO_LOOP_SLICES,
    NO_OPEN_CALLS,
    PREPARED,
    RUNNABLE,
    SEGMENTS,
)
from sardonyx.compiler.pass_dumps import (
    dump_core,
    dump_groups,
    dump_kernels,
    dump_launches,
    dump_layouts,
    dump_prepared,
    dump_steps,
)
from sardonyx.compiler.pass_runner import LLVM_IR, Pass, debug_level
from sardonyx.compiler.passes.canonicalize import canonicalize
from sardonyx.compiler.passes.code_movements import move_codes
from sardonyx.compiler.passes.inline_calls import inline_calls
from sardonyx.compiler.passes.loop_slices import replace_loop_slices
from sardonyx.compiler.passes.merge_matmuls import merge_matmuls
from sardonyx.compiler.plan.compiled_function import CompiledFunction, KernelCode
from sardonyx.compiler.plan.reweight import has_own_constants, match_bodies, match_values, rebuild_constants
from sardonyx.compiler.plan.segments import Segment, Step, find_interpreted, split_segments
from sardonyx.compiler.plan.shared_weights import prepare_weight
from sardonyx.compiler.schedule.fault_coverage import FaultCoverage
from sardonyx.compiler.schedule.fusion import Grouping
from sardonyx.compiler.schedule.layout_assignment import blocked_images
from sardonyx.compiler.segment_planning import PLAN_SEGMENT
from sardonyx.compiler.target.alignment import aligned
from sardonyx.compiler.target.denormals import Denormals, holds_denormals
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.target.description import host as host_target
from sardonyx.compiler.tiling import overrides
from sardonyx.core.eval.run_context import tracing
from sardonyx.core.ir.graph import Function, Value, bodies_of, function
from sardonyx.core.ir.types import TensorType
from sardonyx.core.transform.conditions import rewritten_with_conditions
from sardonyx.errors import UnsupportedError

_log = logging.getLogger(__name__)

Pairs = Sequence[tuple[int, int]]
"""Positions of an input and a result each."""

# The passes.


def _assign_layouts(
    grouping: Grouping, threads: int, iteration: Value | None, in_place: frozenset[Value]
) -> FunctionContext:
    blocks = blocked_images(grouping, grouping.target)
    return FunctionContext(grouping, grouping.target, blocks, threads, iteration, in_place)


def _prepare_constants(launches: Sequence[Launch]) -> dict[Any, np.ndarray]:
    """Return all constants of launches in the form that kernels read."""
    prepared: dict[Any, np.ndarray] = {}
    for launch in all_launches(launches):
        raise_if_cancelled()
        results = [result for body in launch.bodies for result in body.function.results]
        for buffer in (*launch.buffers, *results):
            if isinstance(buffer, Prepared) and buffer not in prepared:
                prepared[buffer] = prepare_weight(buffer)
                count_read(prepared[buffer].nbytes)
            elif isinstance(buffer, Value) and buffer.is_constant and buffer not in prepared:
                prepared[buffer] = aligned(np.asarray(buffer.known))
    return prepared


def _compile_kernels(launches: Sequence[Launch], target: Target, build: Build) -> KernelCode:
    """Compile the kernels that other threads have not compiled yet, and load all."""
    names: dict[str, str] = {}
    modules: list[Module] = []
    for launch in all_launches(launches):
        if not launch.bodies and launch.text not in names:
            names[launch.text], module = _module(launch, target)
            modules.append(module)
    code = Code(build.objects(modules))
    return KernelCode.of(code, names, loaded(code, target))


def _split_segments(lowering: Lowering) -> list[Step]:
    return split_segments(lowering.grouping.computed, lowering.launches, lowering.grouping.host)


def _order_concurrent_loops(steps: Sequence[Step], target: Target, threads: int) -> list[Step]:
    return [
        replace(step, launches=order_concurrent_loops(step.launches, target, threads))
        if isinstance(step, Segment)
        else step
        for step in steps
    ]


def _compile_bodies(
    controls: Sequence[Value], target: Target, threads: int, denormals: Denormals, stores_kernels: bool = False
) -> dict[Value, list[CompiledFunction]]:
    """Compile the bodies of interpreted control flow."""
    return {
        control: [
            compile_function(body, target=target, threads=threads, denormals=denormals, stores_kernels=stores_kernels)
            for body in bodies_of(control)
        ]
        for control in controls
    }


INLINE_CALLS = Pass(
    "inline calls", inline_calls, requires=(LEGAL_CORE,), ensures=(LEGAL_CORE, NO_OPEN_CALLS), dump=dump_core
)
"""Inline the calls of functions without a kernel."""

REPLACE_LOOP_SLICES = Pass(
    "replace loop slices",
    replace_loop_slices,
    requires=(LEGAL_CORE, NO_OPEN_CALLS),
    ensures=(LEGAL_CORE, NO_OPEN_CALLS, NO_LOOP_SLICES),
    dump=dump_core,
)
"""Replace slices at the iteration number of a loop by elements, so that sizes in the loop are known before."""

MOVE_CODES = Pass("move codes", move_codes, requires=(LEGAL_CORE,), ensures=(LEGAL_CORE, NO_OPEN_CALLS), dump=dump_core)
"""Move 8-bit codes instead of dequantized values, and drop quantizations that undo a dequantization."""

CANONICALIZE = Pass(
    "canonicalize",
    canonicalize,
    requires=(LEGAL_CORE, NO_OPEN_CALLS),
    ensures=(LEGAL_CORE, CANONICAL_IMAGES),
    dump=dump_core,
)
"""Rewrite each construct with a kernel template to one canonical form.

Examples: a convolution reads and writes images; a product of dequantized values becomes a product of int8 codes.
"""

MERGE_MATMULS = Pass(
    "merge matmuls", merge_matmuls, requires=(LEGAL_CORE,), ensures=(LEGAL_CORE, CANONICAL_IMAGES), dump=dump_core
)
"""Merge products that share an operand into one."""

FUSE = Pass("fuse", Grouping, requires=(CANONICAL_IMAGES,), ensures=(GROUPS,), dump=dump_groups)
"""Partition the values into groups; each group becomes one kernel."""

ASSIGN_LAYOUTS = Pass("assign layouts", _assign_layouts, requires=(GROUPS,), ensures=(LAYOUTS,), dump=dump_layouts)
"""Choose the values in memory that have blocked layout."""

LOWER_GROUPS = Pass("lower groups", Lowering, requires=(LAYOUTS,), ensures=(LAUNCHES,), dump=dump_launches)
"""Emit the LLVM IR and the launches of each group, once for each canonical form; other threads begin to compile."""

PREPARE_CONSTANTS = Pass("prepare constants", _prepare_constants, ensures=(PREPARED,), dump=dump_prepared)
"""Pack weights, and compute all other values that depend only on constants."""

COMPILE_KERNELS = Pass("compile kernels", _compile_kernels, ensures=(CODE,), dump=dump_kernels)
"""Compile LLVM IR to object code, or read the code from the store, and load the code."""

SPLIT_SEGMENTS = Pass("split segments", _split_segments, requires=(LAUNCHES,), ensures=(SEGMENTS,))
"""Split the launches at values and sizes that native code does not compute."""

ORDER_CONCURRENT_LOOPS = Pass(
    "order concurrent loops", _order_concurrent_loops, requires=(SEGMENTS,), ensures=(SEGMENTS,), dump=dump_steps
)
"""Reorder launches so that identical loops are adjacent, and run concurrently with one thread each."""

COMPILE_BODIES = Pass("compile bodies", _compile_bodies)
"""Compile the bodies of interpreted control flow."""

ASSEMBLE = Pass("assemble", CompiledFunction, ensures=(RUNNABLE,))
"""Assemble the record from which a program is built."""

"""Write the tape and memory plan of a segment, for any sizes; runs at the first run of the segment."""

PASSES = (
    INLINE_CALLS,
    REPLACE_LOOP_SLICES,
    MOVE_CODES,
    CANONICALIZE,
    MERGE_MATMULS,
    FUSE,
    ASSIGN_LAYOUTS,
    LOWER_GROUPS,
    PREPARE_CONSTANTS,
    COMPILE_KERNELS,
    SPLIT_SEGMENTS,
    ORDER_CONCURRENT_LOOPS,
    COMPILE_BODIES,
    ASSEMBLE,
    PLAN_SEGMENT,
)
"""All passes, in the order in which they first run."""


# From a function to a compiled function.


def compile_function(
    function: Function,
    *,
    target: Target | None = None,
    threads: int | None = None,
    denormals: Denormals = "auto",
    in_place: Pairs = (),
    stores_kernels: bool = False,
) -> CompiledFunction:
    """Compile a function.

    Args:
        function: The function.
        target: The processor to compile for; by default the host's.
        threads: Number of threads that share the work; by default the number of available processors.
        denormals: The treatment of denormal numbers.
        in_place: Positions of inputs and results that may be in the same memory, see :mod:`.plan.overwriting`.
        stores_kernels: True to take lowered kernels from the store, and to put new ones there.
    """
    target, threads = target or host_target(), thread_count(threads)
    schedules = overrides.fingerprint()
    function = rewritten_with_conditions(function, function.conditions, lambda inner: rewrite_core(inner, target))
    stores_kernels = stores_kernels and not schedules
    lowering, prepared, kernels = _compile_launches(function, target, threads, in_place, stores_kernels)
    steps = ORDER_CONCURRENT_LOOPS(SPLIT_SEGMENTS(lowering), target, threads)
    host: Mapping[Value, str] = lowering.grouping.host
    controls = [value for value in host if value.op in CONTROL and is_of_tensors(value)]
    bodies = COMPILE_BODIES(controls, target, threads, denormals, stores_kernels)
    reads, inner = find_interpreted(host, function.results, lowering.context.in_memory)
    return ASSEMBLE(
        function=function,
        around=function.free_symbols,
        steps=steps,
        blocks=lowering.blocks,
        host=host,
        reads=reads,
        inner=inner,
        guards=list(dict.fromkeys([*collect_guards(function), *function.conditions, *lowering.fault_guards])),
        bodies=bodies,
        kernels=kernels,
        prepared=prepared,
        target=target,
        threads=threads,
        denormals=denormals,
        has_denormals=holds_denormals(prepared.values()),
        whole=lowering.context,
        overrides=schedules if schedules == overrides.fingerprint() else None,
    )


def _compile_launches(
    function: Function, target: Target, threads: int, in_place: Pairs, stores_kernels: bool
) -> tuple[Lowering, dict[Any, np.ndarray], KernelCode]:
    """Lower a function, and compile the kernels; leave a group whose kernel LLVM refuses to the interpreter."""
    refused: dict[Value, str] = {}
    has_store = stores_kernels and store().folder is not None
    stored = KernelStore(store(), target, threads, debug_level() >= LLVM_IR) if has_store else None
    while True:
        kernels = SharedKernels(stored)
        with Build(target, store()) as build:
            # Other threads compile each kernel as soon as it is emitted.
            submit = functools.partial(_submit, target=target, build=build)
            lowering = lower_function(function, target, threads, submit, refused, in_place, kernels)
            prepared = PREPARE_CONSTANTS(lowering.launches)
            try:
                code = COMPILE_KERNELS(lowering.launches, target, build)
            except CodeGenerationError as error:
                invalid = _find_invalid_groups(lowering.launches, target)
                if not invalid:
                    raise
                for value in invalid:
                    refused[value] = reason = internal_error(error)
                    _log.warning("%s has no kernel: %s", value, reason)
            else:
                kernels.keep()
                return lowering, prepared, code


def _find_invalid_groups(launches: Sequence[Launch], target: Target) -> list[Value]:
    """Return the anchor or root of each group with a kernel that LLVM refuses."""
    return [
        launch.group.anchor or launch.group.root
        for launch in launches
        if not all(is_valid(_module(part, target)[1].text()) for part in all_launches([launch]) if not part.bodies)
    ]


def rewrite_core(function: Function, target: Target) -> Function:
    """Return the canonical form of a function for a target; bodies of control flow are unchanged."""
    with tracing():
        function = INLINE_CALLS(function)
        function = REPLACE_LOOP_SLICES(function)
        function = MOVE_CODES(function)
        function = CANONICALIZE(function, target)
        return MERGE_MATMULS(function)


def without_reshaped_results(inner: Function, first: int = 0, target: Target | None = None) -> Function:
    """Return the canonical form of a function whose results have the sizes in which kernels write them.

    A result that is a reshape of a computed tensor is replaced by that tensor: the elements are the same in the same
    order, and no kernel copies them. A reshape from open to known sizes stays, which checks the sizes.

    Args:
        inner: The function.
        first: Results before this one are left as they are.
        target: The processor; by default the host.
    """
    canonical = rewrite_core(inner, target or host_target())
    results = list(canonical.results)
    for i, result in enumerate(results[first:], first):
        while result.op == "reshape" and (not _has_fixed_sizes(result) or _has_fixed_sizes(result.operands[0])):
            result = result.operands[0]
        if result.op not in ("input", "constant") and result not in results:
            results[i] = result
    return function(canonical.name, canonical.inputs, results, canonical.level)


def _has_fixed_sizes(value: Value) -> bool:
    return isinstance(value.type, TensorType) and all(isinstance(size, int) for size in value.type.shape or ())


def lower_function(
    function: Function,
    target: Target,
    threads: int,
    emit: Callable[[Launch], None] = lambda launch: None,
    refused: Mapping[Value, str] | None = None,
    in_place: Pairs = (),
    kernels: SharedKernels | None = None,
) -> Lowering:
    """Lower a function in canonical form, and the bodies of its loops and branches.

    Args:
        function: The function.
        target: The processor.
        threads: Number of threads that share the work.
        emit: Receives each kernel as soon as the kernel is emitted; a later schedule may drop the kernel.
        refused: Values without a kernel, with the reason.
        in_place: Positions of inputs and results that may be in the same memory.
        kernels: The kernels of other functions, which groups of the same form share.
    """
    shared = frozenset(value for i, j in in_place for value in (function.inputs[i], function.results[j]))
    bodies = _Bodies(target, threads, emit, kernels or SharedKernels())
    return _lower(function, target, threads, bodies, None, refused, shared)


def _lower(
    function: Function,
    target: Target,
    threads: int,
    bodies: _Bodies,
    iteration: Value | None,
    without_kernel: Mapping[Value, str] | None = None,
    in_place: frozenset[Value] = frozenset(),
) -> Lowering:
    """Schedule and lower a function until lowering adds no constraint.

    Args:
        function: The function, in canonical form.
        target: The processor.
        threads: Number of threads that share the work.
        bodies: The lowered bodies of control flow.
        iteration: The iteration number if the function is the body of a loop.
        without_kernel: Values without a kernel, with the reason.
        in_place: Inputs and results that may be in the same memory.
    """
    in_memory: dict[Value, str] = {}
    refused = dict(without_kernel or {})
    while True:
        grouping = FUSE(function, in_memory, refused, target, threads)
        coverage = FaultCoverage(grouping)
        if not coverage.stored.keys() <= in_memory.keys():
            in_memory |= coverage.stored
            continue
        whole = ASSIGN_LAYOUTS(grouping, threads, iteration, in_place)
        lowering = LOWER_GROUPS(whole, bodies.lowered, bodies.emit, bodies.shared)
        if not lowering.unfusable and not lowering.refused:
            loops = (body for launch in lowering.launches if launch.writes.op == "loop" for body in launch.bodies)
            of_bodies = [pair for body in loops for pair in body.fault_guards]
            lowering.fault_guards = [*coverage.guards, *bounds_of_unstored(whole), *of_bodies]
            return lowering
        if not lowering.refused and lowering.unfusable.keys() <= in_memory.keys():
            for value in lowering.unfusable:
                refused[lowering.blocked[value]] = reason = f"it requires {value.op} in memory, which is never stored"
                _log.warning("%s has no kernel: %s", lowering.blocked[value], reason)
        in_memory |= lowering.unfusable
        refused |= lowering.refused


class _Bodies:
    """Lowered bodies of loops and branches, one entry for each function.

    Args:
        target: The processor.
        threads: Number of threads that share the work.
        emit: Receives each kernel as soon as the kernel is emitted.
        shared: The kernels of the function and of all bodies.

    Attributes:
        emit: See above.
        shared: See above.
    """

    def __init__(self, target: Target, threads: int, emit: Callable[[Launch], None], shared: SharedKernels) -> None:
        self._target = target
        self._threads = threads
        self.emit = emit
        self.shared = shared
        self._bodies: dict[Function, Body | str] = {}

    def lowered(self, function: Function, repeats: bool) -> Body:
        """Return the launches of a body.

        Args:
            function: The body.
            repeats: True for the body of a loop, whose first input is the iteration number.

        Raises:
            UnsupportedError: A part of the body has no kernel.
        """
        body = self._bodies.get(function)
        if body is None:
            body = self._bodies[function] = self._lower(rewrite_core(function, self._target), repeats)
        if isinstance(body, str):
            raise UnsupportedError(body)
        return body

    def _lower(self, function: Function, repeats: bool) -> Body | str:
        if function.defined_symbols:
            return f"{function.name} computes sizes"
        lowering = _lower(function, self._target, self._threads, self, function.inputs[0] if repeats else None)
        if lowering.grouping.host:
            return f"in {function.name}: {next(iter(lowering.grouping.host.values()))}"
        if any(
            launch.writes.op == "loop" and shape_stability(launch.writes) is not None for launch in lowering.launches
        ):
            return f"in {function.name}: the state of a loop may change its sizes"
        launches = order_concurrent_loops(lowering.launches, self._target, self._threads)
        guards = [*collect_guards(function), *lowering.fault_guards]
        return Body(function, tuple(launches), lowering.blocks, guards, lowering.fault_guards)


def _module(launch: Launch, target: Target) -> tuple[str, Module]:
    """Return the name of a kernel's function, a digest of its text, and its module."""
    name = f"k{blake2b(launch.text.encode(), digest_size=20).hexdigest()}"

    def text() -> str:
        return module_text(target, [launch.text.replace(NAME, name)], launch.declarations)

    return name, Module("\n".join((name, *launch.declarations)), len(launch.text), text)


def _submit(launch: Launch, target: Target, build: Build) -> None:
    if not launch.bodies:
        build.add(_module(launch, target)[1])


# Derivation of compiled functions.


def compile_bodies(compiled: CompiledFunction, control: Value) -> list[CompiledFunction]:
    """Compile the bodies of a loop or choice of a function, for the function's target."""
    return COMPILE_BODIES([control], compiled.target, compiled.threads, compiled.denormals)[control]


def reweight(compiled: CompiledFunction, function: Function) -> CompiledFunction | None:
    """Return the compiled form of a function with other weights, without compilation.

    The result is None if the functions differ in more than the elements of constants, or if code depends on elements.

    Args:
        compiled: The compiled function.
        function: The other function, as an argument of :func:`compile_function`.
    """
    if not compiled.can_be_reweighted:
        return None
    canonical = functools.partial(rewrite_core, target=compiled.target)
    substitution = match_values(compiled.function, canonical(function))
    if substitution is None or not match_bodies(compiled.launches, substitution, canonical):
        return None
    if has_own_constants(compiled.prepared, substitution):
        return None
    arrays = rebuild_constants(compiled.prepared, substitution, compiled.substitution, compiled.function.results)
    if arrays is None:
        return None
    prepared = {key: aligned(array) for key, array in arrays.items()}
    return replace(
        compiled, substitution=substitution, prepared=prepared, has_denormals=holds_denormals(prepared.values())
    )
