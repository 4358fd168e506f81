"""Stepwise execution of a program: native segments, and interpreted values between them.

Data-dependent sizes lead to several native calls in a row, so the work between two of them is short: for each plan, one
generated function reads the addresses of arrays and allocates the results (:func:`.connect_entry`).
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
from sardonyx.compiler.analysis.shape_guards import Equal, select_known
from sardonyx.compiler.analysis.shape_stable_loops import ShapeStability
from sardonyx.compiler.call import interpreted
from sardonyx.compiler.call.call_context import Context, Linked
from sardonyx.compiler.call.fault import Fault
from sardonyx.compiler.call.native_entry import connect_entry
from sardonyx.compiler.executor.tape_player import Ended
from sardonyx.compiler.executor.thread_pool import Pool
from sardonyx.compiler.lower.launch import Launch
from sardonyx.compiler.plan.segments import Segment, Step
from sardonyx.compiler.plan.stored_shapes import stored_shape
from sardonyx.compiler.plan.tape import UNLIMITED
from sardonyx.core.dim import evaluate
from sardonyx.core.eval.interpreter import Body, Sizes
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.eval.tensor import constant
from sardonyx.core.ir.graph import Function, Value
from sardonyx.errors import ResourceError

TABLE_ENTRIES = 256
"""Most entries of a table."""

_FIRST_ROOM = 1 << 20
"""Bytes allocated first for the results of a loop of unknown length; more results need another run."""

_ABSENT: Any = object()

_T = TypeVar("_T")


def remembered(table: dict[Any, _T], key: Hashable, find: Callable[[], _T]) -> _T:
    """Return the entry of a key, computed on first use; a full table is cleared.

    Threads share tables: another thread may clear the table at any time.
    """
    entry: _T = table.get(key, _ABSENT)
    if entry is _ABSENT:
        entry = find()
        if len(table) >= TABLE_ENTRIES:
            table.clear()
        table[key] = entry
    return entry


class Callee(Protocol):
    """The interface of a program to its calls; see :class:`.Program`."""

    function: Function
    steps: list[Step]
    in_one: bool
    repeating: frozenset[int]
    around: frozenset[str]
    blocks: Mapping[Value, int]
    pool: Pool
    flushes: bool
    row_bytes: dict[tuple[int, ...], int]
    stable_sizes: dict[tuple[int, ...], Sizes | None]

    @property
    def unplanned_guards(self) -> Sequence[Equal]:
        """The pairs of sizes that no plan checks."""

    def plan(self, number: int, names: Collection[str] | None = None, but: str = "") -> Linked:
        """Return the plan of a step."""

    def compiled(self, control: Value) -> Sequence[Callee] | None:
        """Return the compiled bodies of control flow that the interpreter executes."""

    def run(
        self, arrays: Sequence[Any], context: RunContext | None = None, around: Mapping[str, int] | None = None
    ) -> list[Any]:
        """Compute the results."""


class Call:
    """A call of a program.

    Args:
        program: The called program.
        env: Values of the run; computed values are added.
        sizes: Values of the size symbols; computed sizes are added.
        run: Limits of the call.
    """

    def __init__(self, program: Callee, env: dict[Value, Any], sizes: Sizes, run: RunContext) -> None:
        self.program = program
        self._env = env
        self._sizes = sizes
        self._run = run

    def results(self) -> list[Any]:
        """Execute all steps; raises as :meth:`.Program.run` does."""
        recorder = self._run.recorder
        with running(self._run):
            for number, step in enumerate(self.program.steps):
                if not isinstance(step, Segment):
                    with record_span(recorder, step):
                        self.interpret(step)
                elif step.stability is not None:
                    with record_span(recorder, step.launches[0]):
                        self._play_shape_stable(number, step, step.stability)
                else:
                    self._play_segment(number, step)
            for a, b in select_known(self.program.unplanned_guards, frozenset(self._sizes)):
                if evaluate(a, self._sizes) != evaluate(b, self._sizes):
                    raise Fault(f"{a} and {b} must be equal")
            if recorder is not None:
                recorder.sizes[id(self.program)] = self._sizes
            return [interpreted.result(value, self._env, self._sizes) for value in self.program.function.results]

    # Interpreted values.

    def interpret(self, value: Value) -> None:
        """Compute a value without a kernel, and the sizes that the value defines."""
        compiled = self.program.compiled(value) if value.op in CONTROL else None
        bodies = None if compiled is None else [self._body(body) for body in compiled]
        interpreted.interpret(value, self._env, self._sizes, bodies)
        array = self._env[value]
        if isinstance(array, np.ndarray) and value.op != "bind":
            self._store(value, array)

    def _body(self, program: Callee) -> Body:
        """Return a compiled body of control flow that the interpreter executes."""
        around = {symbol: self._sizes[symbol] for symbol in sorted(program.around & self._sizes.keys())}
        dtypes = [dtype_of(result) for result in program.function.results]

        def compute(arguments: Sequence[Value]) -> Sequence[Value]:
            arrays = [argument.known for argument in arguments]
            ordered = [array if array.flags.c_contiguous else np.array(array, order="C") for array in arrays]
            outputs = program.run(ordered, self._run, around)
            return [constant(array, dtype) for array, dtype in zip(outputs, dtypes, strict=True)]

        return Body(program.function, compute)

    def _store(self, value: Value, array: np.ndarray) -> None:
        """Store an array outside of the arena; between several native calls, arrays count as memory in use."""
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
        # For counted results, room is allocated for the maximum.
        program, env = self.program, self._env
        linked = program.plan(number, sizes.keys(), segment.symbol)
        context = linked.prepared(sizes)
        try:
            read = [env[value] if value in env else self._read(value) for value in linked.reads]
            computed = _connected(context, read)
            if computed is None:
                # Arrays of other types than numpy's own, such as maps of files.
                read = [np.asarray(array) for array in read]
                computed = _connected(context, read)
                assert computed is not None
            for value, array in zip(linked.makes, computed, strict=True):
                self._store(value, array)
            context.limit.value = UNLIMITED if limit is None else limit
            if number in program.repeating:
                self._play_until_ended(context, segment.launches)
            else:
                context.play(segment.launches, program.pool, self._run.recorder, flush=program.flushes)
            if segment.counted is not None and linked.plan.count is not None:
                env[segment.counted] = ctypes.c_int64.from_address(context.buffer_address(linked.plan.count)).value
        finally:
            context.leave()
            ended, context.fault.value = context.fault.value, 0
            linked.free.append(context)
        if ended:
            raise Fault

    def _read(self, value: Value) -> np.ndarray:
        """Return a value that kernels read and the interpreter has inside of another value."""
        array: np.ndarray = interpreted.as_value(value, self._env, self._sizes).known
        self._env[value] = array
        return array

    def _play_until_ended(self, context: Context, launches: Sequence[Launch]) -> None:
        """Execute loops, which the end of the run or a signal for the main thread stops."""
        program, run = self.program, self._run
        play = functools.partial(context.play, launches, program.pool, run.recorder, flush=program.flushes)
        with run.on_end(context.stop), INTERRUPTS.listening(context.stop):
            play()
            while context.fault.value == Ended.STOPPED:
                run.check_time()
                # A signal handler returned without raising: the run continues.
                context.fault.value = 0
                play()

    # Counted sizes.

    def _play_counted(self, number: int, segment: Segment, loop: Value) -> None:
        """Execute a loop that counts its iterations: with room for some, then with more."""
        env, sizes, symbol = self._env, self._sizes, segment.symbol
        collected = [
            value for value in segment.launches[0].all_writes if value.params["index"] >= loop.params["carried"]
        ]
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
                if env.get(loop, 0) < room or room >= allowed:  # Sizes that kernels do not accept leave no count.
                    raise
                room *= 2
        sizes[symbol] = env.pop(loop)
        for value in collected:
            if value not in env:  # Later steps read the number of rows alone.
                continue
            rows = env[value][: sizes[symbol]]
            # Frees the memory of unused rows.
            env[value] = rows if 2 * len(rows) > room else rows.copy()

    def _row_bytes(self, collected: Sequence[Value], symbol: str) -> int:
        """Return the bytes that one iteration collects."""
        sizes = {**self._sizes, symbol: 1}
        shapes = [(stored_shape(value, self.program.blocks, sizes), dtype_of(value)) for value in collected]
        return sum(math.prod(shape) * dtype.numpy().itemsize for shape, dtype in shapes)

    def _play_picked(self, number: int, segment: Segment, picking: Value) -> None:
        """Execute a host function that has kernels: results are contiguous, in room for the maximum."""
        env, sizes = self._env, self._sizes
        (result,) = segment.launches[-1].all_writes
        self._play(number, segment, {**sizes, segment.symbol: evaluate(segment.max_results, sizes)}, None)
        sizes[segment.symbol] = env.pop(picking)
        if result not in env:  # Later steps read the number of results alone.
            return
        room = env[result].reshape(-1)
        shape = stored_shape(result, self.program.blocks, sizes)
        results = room[: math.prod(shape)].reshape(shape)
        # Frees the memory of unused results.
        env[result] = results if 2 * results.size > room.size else results.copy()

    # Shape-stable loops.

    def _play_shape_stable(self, number: int, segment: Segment, stability: ShapeStability) -> None:
        """Execute a loop natively if its state keeps its sizes; otherwise interpret the loop over its body."""
        env, sizes = self._env, self._sizes
        (launch,) = segment.launches
        loop = launch.writes
        resolved = remembered(self.program.stable_sizes, (number, *sizes.values()), lambda: stability.resolve(sizes))
        if resolved is not None:
            before = dict(sizes)
            sizes |= resolved
            self._play_segment(number, segment)
            collected = [value for value in launch.all_writes if value.params["index"] >= loop.params["carried"]]
            if not stability.rows or all(len(env[value]) for value in collected if value in env):
                return
            sizes.clear()
            sizes |= before
        self.interpret(loop)
        results = env.pop(loop)
        for value in launch.all_writes:
            env[value] = np.asarray(results[value.params["index"]].known, order="C")


def _connected(context: Context, arrays: Sequence[Any]) -> list[np.ndarray] | None:
    """Point the tape of a prepared context to arrays outside of the arena.

    Args:
        context: The context.
        arrays: The arrays to read, in the order of ``linked.reads``; they must outlive the execution.

    Returns:
        The result arrays, in the order of ``linked.makes``; None if an argument is not a plain array.

    Raises:
        ResourceError: A result exceeds the limits of arrays.
    """
    if context.connect is None:
        context.connect = connect_entry(context).call
    try:
        return context.connect(tuple(arrays))
    except ValueError as error:  # numpy refuses sizes whose product exceeds 64 bits, even if another size is 0.
        raise ResourceError("a shape exceeds the limits of arrays.", remedy="Give smaller sizes.") from error
