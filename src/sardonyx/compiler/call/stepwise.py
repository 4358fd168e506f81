"""A call of a program: its steps one by one, native code and what the interpreter computes between.

Several native calls in a row are as common as data that tell sizes, so what stands between two of them is kept short:
one generated function a plan takes the arrays that it reads and gives those that it makes (:func:`.connect_entry`).
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from sardonyx.base.signals import INTERRUPTS
from sardonyx.base.span_recorder import record_span
from sardonyx.compiler.analysis.control_flow import CONTROL
from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.shape_stable_loops import Settling
from sardonyx.compiler.call import interpreted
from sardonyx.compiler.call.call_context import Context, Fault, Linked
from sardonyx.compiler.call.native_entry import connect_entry
from sardonyx.compiler.executor.tape_player import Ended
from sardonyx.compiler.executor.thread_pool import Pool
from sardonyx.compiler.lower.launch import Launch
from sardonyx.compiler.plan.segments import Segment, Step
from sardonyx.compiler.plan.tape import UNLIMITED, stored_shape
from sardonyx.core.dim import evaluate
from sardonyx.core.eval.interpreter import Sizes
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.eval.tensor import constant
from sardonyx.core.ir.graph import Function, Value

_REMEMBERED = 256
"""Sizes of inputs of which it is remembered what they mean."""

_FIRST_ROOM = 1 << 20
"""Bytes that a loop may collect before it is begun again with more room, where its length is not known before."""

_ABSENT: Any = object()

_Found = TypeVar("_Found")


def remembered(table: dict[Any, _Found], key: Hashable, find: Callable[[], _Found]) -> _Found:
    """What a table has for a key, or what is found and put there; a table that is full begins anew.

    Threads share tables: what one of them looks up another may clear away just before.
    """
    found: _Found = table.get(key, _ABSENT)
    if found is _ABSENT:
        found = find()
        if len(table) >= _REMEMBERED:
            table.clear()
        table[key] = found
    return found


class Callee(Protocol):
    """What a call asks of a program; see :class:`.Program`."""

    function: Function
    steps: list[Step]
    in_one: bool
    repeating: frozenset[int]
    around: frozenset[str]
    blocks: Mapping[Value, int]
    pool: Pool
    flushes: bool
    row_bytes: dict[tuple[int, ...], int]
    settlings: dict[tuple[int, ...], Sizes | None]

    def plan(self, number: int, names: Collection[str] | None = None, but: str = "") -> Linked:
        """The plan of a step."""

    def compiled(self, control: Value) -> Sequence[Callee] | None:
        """The compiled bodies of control flow that the interpreter has."""

    def run(
        self, arrays: Sequence[Any], context: RunContext | None = None, around: Mapping[str, int] | None = None
    ) -> list[Any]:
        """Compute the results."""


class Call:
    """A call of a program.

    Args:
        program: What is called.
        env: The values that there are; what is computed joins them.
        sizes: Numbers for symbols; what is found joins them.
        run: The limits of the call.
    """

    def __init__(self, program: Callee, env: dict[Value, Any], sizes: Sizes, run: RunContext) -> None:
        self.program = program
        self._env = env
        self._sizes = sizes
        self._run = run

    def results(self) -> list[Any]:
        """Take all steps; raises as :meth:`.Program.run` does."""
        recorder = self._run.recorder
        with running(self._run):
            for number, step in enumerate(self.program.steps):
                if not isinstance(step, Segment):
                    with record_span(recorder, step):
                        self.interpret(step)
                elif step.settling is not None:
                    with record_span(recorder, step.launches[0]):
                        self._play_settled(number, step, step.settling)
                else:
                    self._play_segment(number, step)
            if recorder is not None:
                recorder.sizes[id(self.program)] = self._sizes
            return [interpreted.result(value, self._env, self._sizes) for value in self.program.function.results]

    # What the interpreter computes.

    def interpret(self, value: Value) -> None:
        """Compute a value that has no kernel, and the sizes that it tells, from the values that there are."""
        compiled = self.program.compiled(value) if value.op in CONTROL else None
        bodies = None if compiled is None else [self._body(each) for each in compiled]
        interpreted.interpret(value, self._env, self._sizes, bodies)
        found = self._env[value]
        if isinstance(found, np.ndarray) and value.op != "bind":
            self._made(value, found)

    def _body(self, program: Callee) -> interpreted.Body:
        """A compiled body of control flow that is left to the interpreter."""
        around = {symbol: self._sizes[symbol] for symbol in sorted(program.around & self._sizes.keys())}
        dtypes = [dtype_of(result) for result in program.function.results]

        def body(arguments: Sequence[Value]) -> Sequence[Value]:
            arrays = [argument.known for argument in arguments]
            ordered = [array if array.flags.c_contiguous else np.array(array, order="C") for array in arrays]
            found = program.run(ordered, self._run, around)
            return [constant(array, dtype) for array, dtype in zip(found, dtypes, strict=True)]

        return body

    def _made(self, value: Value, array: np.ndarray) -> None:
        """Note an array outside of the arena; of several native calls, the others' count as in use."""
        self._env[value] = array
        if not self.program.in_one:
            self._run.track(array, array.nbytes)

    # Segments.

    def _play_segment(self, number: int, segment: Segment) -> None:
        if segment.counted is None:
            self._play(number, segment, self._sizes, self._run.max_loop_iterations)
        elif segment.counted.op == "host":
            self._play_picked(number, segment, segment.counted)
        else:
            self._play_counted(number, segment, segment.counted)

    def _play(self, number: int, segment: Segment, sizes: Sizes, limit: int | None) -> None:
        # Of what is counted there is room for the most at first.
        program, env = self.program, self._env
        linked = program.plan(number, sizes.keys(), segment.symbol)
        context = linked.prepared(sizes)
        try:
            read = [env[value] if value in env else self._read(value) for value in linked.reads]
            made = _connected(context, read)
            if made is None:
                # Arrays of other types than numpy's own, such as maps of files.
                read = [np.asarray(array) for array in read]
                made = _connected(context, read)
                assert made is not None
            for value, array in zip(linked.makes, made, strict=True):
                self._made(value, array)
            context.limit.value = UNLIMITED if limit is None else limit
            if number in program.repeating:
                self._play_until_ended(context, segment.launches)
            else:
                context.play(segment.launches, program.pool, self._run.recorder, flush=program.flushes)
            if segment.counted is not None and linked.plan.count is not None:
                env[segment.counted] = ctypes.c_int64.from_address(context.place(linked.plan.count)).value
        finally:
            context.leave()
            ended, context.fault.value = context.fault.value, 0
            linked.free.append(context)
        if ended:
            raise Fault

    def _read(self, value: Value) -> np.ndarray:
        """A value that kernels read and the interpreter has: inside of what it computes."""
        found: np.ndarray = interpreted.as_value(value, self._env, self._sizes).known
        self._env[value] = found
        return found

    def _play_until_ended(self, context: Context, launches: Sequence[Launch]) -> None:
        """Play loops, which who ends the run and signals for the main thread end."""
        program, run = self.program, self._run
        play = functools.partial(context.play, launches, program.pool, run.recorder, flush=program.flushes)
        with run.on_end(context.stop), INTERRUPTS.listening(context.stop):
            play()
            while context.fault.value == Ended.STOPPED:
                run.check_time()
                # It was a signal, and whoever handles it lets the run go on.
                context.fault.value = 0
                play()

    # Sizes that are counted.

    def _play_counted(self, number: int, segment: Segment, loop: Value) -> None:
        """Play a loop that counts its iterations: with room for some, then with more."""
        env, sizes, symbol = self._env, self._sizes, segment.symbol
        collected = [value for value in segment.launches[0].makes if value.params["index"] >= loop.params["carried"]]
        limit = self._run.max_loop_iterations
        most = max(int(interpreted.as_value(loop.operands[0], env, sizes).known), 0)
        allowed = most if limit is None else min(most, limit)
        one = remembered(self.program.row_bytes, (number, *sizes.values()), lambda: self._row_bytes(collected, symbol))
        room = 1 << min(max(_FIRST_ROOM // max(one, 1), 16).bit_length(), max(most - 1, 0).bit_length())
        while True:
            self._run.reserve(one * room, "what a loop collects")
            try:
                self._play(number, segment, {**sizes, symbol: room}, min(room, allowed))
                break
            except Fault:
                if env[loop] < room or room >= allowed:
                    raise
                room *= 2
        sizes[symbol] = env.pop(loop)
        for value in collected:
            found = env[value][: sizes[symbol]]
            # A few rows do not keep the memory of many.
            env[value] = found if 2 * len(found) > room else found.copy()

    def _row_bytes(self, collected: Sequence[Value], symbol: str) -> int:
        """Bytes of what an iteration collects."""
        sizes = {**self._sizes, symbol: 1}
        shapes = [(stored_shape(value, self.program.blocks, sizes), dtype_of(value)) for value in collected]
        return sum(math.prod(shape) * dtype.numpy().itemsize for shape, dtype in shapes)

    def _play_picked(self, number: int, segment: Segment, picking: Value) -> None:
        """Play a host function that has kernels: its results are one behind the other, in room for the most."""
        env, sizes = self._env, self._sizes
        (result,) = segment.launches[-1].makes
        self._play(number, segment, {**sizes, segment.symbol: evaluate(segment.most, sizes)}, None)
        sizes[segment.symbol] = env.pop(picking)
        room = env[result].reshape(-1)
        shape = stored_shape(result, self.program.blocks, sizes)
        found = room[: math.prod(shape)].reshape(shape)
        # A few results do not keep the memory of many.
        env[result] = found if 2 * found.size > room.size else found.copy()

    # Loops that settle.

    def _play_settled(self, number: int, segment: Segment, settling: Settling) -> None:
        """Play a loop where its state keeps its sizes; else the interpreter repeats its body."""
        env, sizes = self._env, self._sizes
        (launch,) = segment.launches
        loop = launch.writes
        settled = remembered(self.program.settlings, (number, *sizes.values()), lambda: settling.settled(sizes))
        if settled is not None:
            before = dict(sizes)
            sizes |= settled
            self._play_segment(number, segment)
            collected = [value for value in launch.makes if value.params["index"] >= loop.params["carried"]]
            if not settling.rows or all(len(env[value]) for value in collected if value in env):
                return
            sizes.clear()
            sizes |= before
        self.interpret(loop)
        found = env.pop(loop)
        for value in launch.makes:
            env[value] = np.asarray(found[value.params["index"]].known, order="C")


def _connected(context: Context, arrays: Sequence[Any]) -> list[np.ndarray] | None:
    """Point the tape of a context to arrays outside of the arena, for the sizes that it is ready for.

    Args:
        context: The context.
        arrays: Those that it reads, in the order of ``linked.reads``; they stay while it is played.

    Returns:
        Those that it makes, in the order of ``linked.makes``; None where something is of another type than arrays.
    """
    if context.connect is None:
        context.connect = connect_entry(context).call
    return context.connect(tuple(arrays))
