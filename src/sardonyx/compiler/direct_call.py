"""Direct calls: single-segment programs as generated Python functions (:mod:`.native_entry`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.base.signals import INTERRUPTS
from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.call import interpreted
from sardonyx.compiler.call.call_context import Context
from sardonyx.compiler.call.fault import Fault
from sardonyx.compiler.call.host_epilogue import HostTailEntry, find_host_tail
from sardonyx.compiler.call.native_entry import Entry, Input, Word, again_entry, call_entry, output
from sardonyx.compiler.executor.tape_player import player
from sardonyx.compiler.plan.segments import Segment
from sardonyx.compiler.program import Program
from sardonyx.compiler.target.alignment import aligned_empty
from sardonyx.core.ir.graph import Value
from sardonyx.errors import ShapeError, UnsupportedError


def direct(program: Program, names: Sequence[str], arrays: Sequence[np.ndarray]) -> Entry | HostTailEntry | None:
    """Return a generated function of a dict of arrays, for a program.

    The result is None unless the program is one native segment, optionally followed by host functions. Results may be
    constants too, and may repeat.

    Args:
        program: The program.
        names: Names of the inputs.
        arrays: Arrays of a call.
    """
    inputs, results = program.function.inputs, program.function.results
    if not program.in_one and _starts_native(program):
        computed = tuple(program.plan(0).makes)
    else:
        computed = tuple(dict.fromkeys(value for value in results if not value.is_constant))
    constants = [value for value in results if value.is_constant]
    tail = find_host_tail(program.steps, results, (*inputs, *computed, *constants))
    context = None if tail is None else _own_context(program, arrays, computed)
    if tail is None or context is None:
        return None
    shapes = context.plan.shapes
    input_words = [
        Input(name, dtype_of(value).numpy(), shapes[value], array.shape, context.words(value))
        for name, value, array in zip(names, inputs, arrays, strict=True)
    ]
    outputs = [output(context, value) for value in computed]
    entry = _listen_to_signals(
        program, call_entry(program.target, _words(program, context), input_words, outputs, context, [program]), context
    )
    by_name = dict(zip(names, inputs, strict=True))
    return entry if not tail and computed == tuple(results) else HostTailEntry(entry, computed, by_name, tail, results)


def binding(
    program: Program, arrays: Sequence[np.ndarray], results: Sequence[np.ndarray | None], *, trial: bool = True
) -> tuple[Entry, list[Any]]:
    """Return a function for calls with fixed input and result arrays, and the result arrays.

    Args:
        program: The program.
        arrays: A value for each input.
        results: Arrays for results, which may be arrays of inputs (:mod:`.overwriting`); None allocates one.
        trial: If True, the program runs once, with results of its own: arrays without a result are refused.

    Raises:
        UnsupportedError: Calls need more than native code.
    """
    first = program.run(arrays) if trial else [None] * len(results)
    context = _own_context(program, arrays, program.function.results) if program.in_one else None
    if context is None:
        raise UnsupportedError("expected a model that is one native call; an interpreted part cannot be bound.")
    outputs = [
        bound if bound is not None else array if array is not None else _empty(context, value)
        for array, bound, value in zip(first, results, program.function.results, strict=True)
    ]
    env = dict(zip((*program.function.inputs, *program.function.results), (*arrays, *outputs), strict=True))
    words, values = context.plan.value_words
    context.tape[words] = [env[value].ctypes.data for value in values]
    entry = again_entry(program.target, _words(program, context), context, [program, env])
    return _listen_to_signals(program, entry, context), outputs


def planned_bytes(program: Program, arrays: Sequence[np.ndarray]) -> int | None:
    """Return the bytes of the values of a call, in the arena and in results; None if the call is not one native call.

    Args:
        program: The program.
        arrays: Arrays whose sizes are planned for; nothing is computed.

    Raises:
        ShapeError: The program has no result for these sizes.
    """
    if not program.in_one or not _starts_native(program):
        return None
    sizes = interpreted.sizes_in(program.function.inputs, arrays)
    try:
        context = program.plan(0).prepared(sizes)
    except Fault as fault:
        raise ShapeError(f"the sizes have no result: {fault}.") from fault
    needed = context.needed
    context.leave()
    return needed


def _empty(context: Context, value: Value) -> np.ndarray:
    return aligned_empty(context.shape(value), dtype_of(value).numpy())


def _listen_to_signals(program: Program, entry: Entry, context: Context) -> Entry:
    """Let a signal end the loops of an entry, whose call then returns None; return the entry."""
    if program.repeating:
        play = entry.call

        def call(*feeds: Any) -> Any:
            with INTERRUPTS.listening(context.stop):
                return play(*feeds)

        entry.call = call
    return entry


def _starts_native(program: Program) -> bool:
    first = program.steps[0] if program.steps else None
    return isinstance(first, Segment) and not first.is_alone


def _own_context(program: Program, arrays: Sequence[np.ndarray], results: Sequence[Value]) -> Context | None:
    """Return a context for arrays of these shapes, used by one native call alone; None if not possible."""
    known = {*program.function.inputs, *results}
    tensors = all(interpreted.is_tensor(value) for value in known)
    if not _starts_native(program) or not tensors or len(set(results)) != len(results):
        return None
    linked = program.plan(0)
    computed = all(value in linked.outside and value.op != "input" for value in results)
    if not computed or not known.issuperset(linked.outside) or program.symbols is None:
        return None
    if not linked.plan.symbols.keys() <= program.symbols:
        return None
    context = linked.prepared(interpreted.sizes_in(program.function.inputs, arrays))
    # Each call claims the arena anew.
    context.leave()
    return context


def _words(program: Program, context: Context) -> dict[Word, int]:
    return {
        Word.PLAY: player(program.target).code.address("play_flushing" if program.flushes else "play"),
        Word.TAPE: context.address,
        Word.KERNELS: context.plan.kernels,
        Word.POOL: program.pool.address,
        Word.FAULT: ctypes.addressof(context.fault),
    }
