"""Contexts: the tape and arena of one running call, prepared for its sizes by native code."""

from __future__ import annotations

import ctypes
import math
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sardonyx.base.span_recorder import Recorder
from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.call.fault import Fault
from sardonyx.compiler.executor import arena
from sardonyx.compiler.executor.fork_join import Field
from sardonyx.compiler.executor.profiling_player import play_timed
from sardonyx.compiler.executor.tape_planner import FAULT, PLACED_WORDS, PlanWord
from sardonyx.compiler.executor.tape_player import Ended, Player
from sardonyx.compiler.executor.thread_pool import Pool
from sardonyx.compiler.lower.launch import Launch
from sardonyx.compiler.plan.tape import Kernel, Link, Part, Plan
from sardonyx.core.dim import evaluate
from sardonyx.core.eval.run_context import current_run
from sardonyx.core.ir.graph import Value
from sardonyx.errors import SardonyxError, ShapeError, SizeLimitError

_TRUE = np.ones(1, np.bool_)


class Linked:
    """A plan whose tape points to code and constants loaded in this process.

    Args:
        plan: The plan.
        player: The generated code that executes tapes.
        pool: The address of the thread pool.
        addresses: Addresses of kernels, by text.
        prepared: Packed and other prepared constants.

    Attributes:
        free: Contexts that no call uses.
        outside: Values outside of the arena, with the indices of their address words in the tape.
        makes: Values outside of the arena that the plan computes.
        reads: Values outside of the arena that the plan reads.
        peak: Maximum bytes of the values of one call, among calls prepared here.
    """

    def __init__(
        self,
        plan: Plan,
        player: Player,
        pool: int,
        addresses: Mapping[str, int],
        prepared: Mapping[object, np.ndarray],
    ) -> None:
        self.plan = plan
        self.player = player
        parts = {
            Part.POOL: pool,
            Part.ALONE: pool + Field.ALONE,
            Part.LOOP: player.loop,
            Part.LOOPS: player.loops,
            Part.CHOICE: player.choice,
            Part.TRUE: int(_TRUE.ctypes.data),
        }

        def address(link: Link) -> int:
            if isinstance(link, Part):
                return parts[link]
            return addresses[link.text] if isinstance(link, Kernel) else int(prepared[link.buffer].ctypes.data)

        self.free: list[Context] = []
        self.peak = 0
        self._contexts: weakref.WeakSet[Context] = weakref.WeakSet()
        self._lock = threading.Lock()
        self.makes = list(plan.makes)
        self.outside: dict[Value, list[int]] = {}
        for word, value in zip(*plan.value_words, strict=True):
            self.outside.setdefault(value, []).append(int(word))
        self.reads = [value for value in self.outside if value not in self.makes]
        self.words = plan.words.copy()
        self.words[[word for word, _ in plan.links]] = [address(link) for _, link in plan.links]

    def context(self) -> Context:
        """Return a context for exclusive use; the caller puts the context back into ``free``."""
        try:
            return self.free.pop()
        except IndexError:
            context = Context(self)
            with self._lock:
                self._contexts.add(context)
            return context

    def prepared(self, sizes: Mapping[str, int]) -> Context:
        """Return a context that no other call uses, prepared for sizes.

        After execution, the caller releases the arena (:meth:`Context.leave`) and puts the context back into ``free``.

        Raises:
            SardonyxError: See :meth:`Context.prepare`.
            Fault: See :meth:`Context.prepare`.
            MemoryError: The system has too little memory.
        """
        context = self.context()
        try:
            context.prepare(sizes)
        except (SardonyxError, Fault):
            self.free.append(context)
            raise
        return context

    def contexts(self) -> list[Context]:
        """Return all contexts, including those in use."""
        with self._lock:
            return list(self._contexts)


class Placed(NamedTuple):
    """A buffer in the arena.

    Attributes:
        title: Title of the value.
        offset: Offset in the arena.
        bytes: Size.
        first: Index of the kernel writing the buffer.
        last: Index of the last kernel reading the buffer.
        inside: Title of the loop or choice whose body computes the value; empty outside of bodies.
    """

    title: str
    offset: int
    bytes: int
    first: int
    last: int
    inside: str


class Context:
    """A tape, an arena, and the sizes for which both are prepared.

    Args:
        linked: The plan.

    Attributes:
        linked: The plan.
        registers: Values of the size program's registers.
        offsets: Offset of each buffer in the arena.
        address: Address of the tape.
        fault: Reason for an early end of the run, see :class:`.Ended`; 0 without.
        limit: Iteration limit of loops.
        table: Addresses for the planning functions, see :class:`.PlanWord`.
        block: The arena's block, if the arena is shared by the process.
        connect: The function of :func:`.connect_entry`, created on first use.
    """

    def __init__(self, linked: Linked) -> None:
        self.linked = linked
        self.plan = plan = linked.plan
        self._measure, self._fill, self._hold = linked.player.measure, linked.player.fill, linked.player.hold
        self.tape = linked.words.copy()
        self.address = int(self.tape.ctypes.data)
        self.tape[plan.tape_words[:, 0]] = 8 * plan.tape_words[:, 1] + self.address
        self.fault = ctypes.c_int32.from_address(self.address + 8 * plan.fault)
        self.limit = ctypes.c_int64.from_address(self.address + 8 * plan.limit)
        self.registers = plan.start.copy()
        self.offsets = np.zeros(len(plan.buffers), np.int64)
        self._symbols = list(plan.symbols.values())
        self._numbers: list[int] | None = None
        self._shapes: dict[Value, tuple[int, ...]] = {}
        self._needed = 0
        self._most = 0
        self._memory = np.empty(0, np.uint8)
        self.block: arena.Block | None = None
        self.connect: Callable[[tuple[Any, ...]], list[np.ndarray] | None] | None = None
        order = np.arange(len(plan.buffers))
        placed = np.empty((len(plan.buffers), PLACED_WORDS), np.int64)
        self._alive = order, placed
        rows = {
            PlanWord.ROWS: (plan.instructions, PlanWord.ROW_COUNT),
            PlanWord.LAYOUTS: (plan.layouts, PlanWord.LAYOUT_COUNT),
            PlanWord.SIZE_WORDS: (plan.size_words, PlanWord.SIZE_WORD_COUNT),
            PlanWord.PLACE_WORDS: (plan.arena_words, PlanWord.PLACE_WORD_COUNT),
            PlanWord.ELEMENTS: (plan.elements, PlanWord.ELEMENT_COUNT),
        }
        arrays = {
            PlanWord.REGISTERS: self.registers, PlanWord.BUFFERS: plan.buffers, PlanWord.ORDER: order,
            PlanWord.PLACED: placed, PlanWord.OFFSETS: self.offsets, PlanWord.TAPE: self.tape,
        }  # fmt: skip
        self.table = np.zeros(len(PlanWord), np.int64)
        for word, (array, count) in rows.items():
            self.table[word], self.table[count] = array.ctypes.data, len(array)
        for word, array in arrays.items():
            self.table[word] = array.ctypes.data

    def stop(self) -> None:
        """End the loops that run on the tape; callable from any thread."""
        self.fault.value = Ended.STOPPED

    def prepare(self, sizes: Mapping[str, int]) -> None:
        """Prepare the tape and claim the arena; after execution, the caller calls :meth:`leave`.

        Args:
            sizes: Values of the size symbols.

        Raises:
            ShapeError: Sizes contradict each other.
            Fault: Sizes contradict each other, and the interpreter locates the error.
            ResourceError: The run exceeds its memory limit; nothing was allocated.
            MemoryError: The system has too little memory.
        """
        numbers = [sizes[name] for name in self.plan.symbols]
        if numbers == self._numbers:
            self._require_memory()
            if self.block is None or self._hold(self.table.ctypes.data):
                return
        else:
            self._numbers = None
            self._shapes.clear()
            self.registers[self._symbols] = numbers
            if self._measure(self.table.ctypes.data) == FAULT:
                raise self._refusal(sizes)
            needed = self.needed
            self._needed = max(needed, self._spanned)
            self._require_memory()
            self.linked.peak = max(self.linked.peak, needed)
        self._numbers = None
        if not self._hold(self.table.ctypes.data):
            self.take()
        self._fill(self.table.ctypes.data)
        self._numbers = numbers

    def take(self) -> None:
        """Claim or allocate an arena of the measured size; the tape must be filled afterwards.

        If the requirement of this context has grown, twice the former size is reserved: untouched memory costs nothing.

        Raises:
            MemoryError: The system has too little memory.
        """
        required = self.arena
        room = max(required, 2 * self._most)
        self._most = max(self._most, required)
        if required <= arena.SHARED and self.block is None:
            # Frees the old arena first.
            self._memory = np.empty(0, np.uint8)
            self.table[PlanWord.CAPACITY] = 0
            self._memory, self.table[PlanWord.ARENA] = arena.allocate_aligned(room)
            self.table[PlanWord.CAPACITY] = room
            return
        self._memory = np.empty(0, np.uint8)
        self.table[PlanWord.CAPACITY] = 0
        self.block = arena.BLOCKS.claim(required, room, self.linked.player.seize)
        self.table[PlanWord.BLOCK], self.table[PlanWord.ARENA] = self.block.address, self.block.memory_address

    def words(self, value: Value) -> list[int]:
        """Return the addresses of the words that hold the address of a value outside of the arena."""
        return [self.address + 8 * word for word in self.linked.outside.get(value, ())]

    def play(self, launches: Sequence[Launch], pool: Pool, recorder: Recorder | None, *, flush: bool) -> None:
        """Execute the kernels of the tape.

        Args:
            launches: The kernels.
            pool: The threads.
            recorder: Recorder of the time of each kernel; None for no recording.
            flush: Treat denormal numbers as zero.
        """
        if recorder is not None:
            play_timed(self.linked.player.target, self.address, launches, pool, recorder, flush=flush)
            return
        player = self.linked.player
        play = player.play_flushing if flush else player.play
        play(self.address, len(launches), pool.address)

    def leave(self) -> None:
        """Release the arena, if it is shared by the process."""
        if self.block is not None:
            self.block.release()

    @property
    def arena(self) -> int:
        """Size of the arena for the current sizes, in bytes."""
        return int(self.table[PlanWord.REQUIRED])

    @property
    def capacity(self) -> int:
        """Size of the context's own arena, in bytes."""
        return int(self.table[PlanWord.CAPACITY])

    @property
    def needed(self) -> int:
        """Bytes of the values of a call with the sizes measured last, in the arena and in results."""
        results = ((value, self.shape(value)) for value in self.plan.makes)
        return int(self.table[PlanWord.REQUIRED]) + sum(
            math.prod(shape) * dtype_of(value).numpy().itemsize for value, shape in results
        )

    def placed(self) -> list[Placed]:
        """Return the buffers in the arena, including those of bodies, for the sizes measured last."""
        plan, offsets = self.plan, self.offsets.tolist()
        bytes_ = self.registers[plan.buffers[:, 0]].tolist()
        layouts = plan.layouts.tolist()
        buffers = []
        for rows, (begin, end, _, outer) in enumerate(layouts, 1):
            inside = plan.titles[outer] if rows < len(layouts) else ""
            for number in range(begin, end):
                first, last = plan.buffers[number, 1:].tolist()
                buffers.append(Placed(plan.titles[number], offsets[number], bytes_[number], first, last, inside))
        return buffers

    def _require_memory(self) -> None:
        run = current_run()
        if run is not None:
            run.reserve(self._needed, "the call")

    @property
    def _spanned(self) -> int:
        """Bytes of the largest result if its empty axes had an element: kernels iterate over the other axes."""
        results = ((math.prod(max(size, 1) for size in self.shape(value)), value) for value in self.plan.makes)
        return max((count * dtype_of(value).numpy().itemsize for count, value in results), default=0)

    def buffer_address(self, buffer: int) -> int:
        """Return the address of a buffer in the arena."""
        return int(self.table[PlanWord.ARENA] + self.offsets[buffer])

    def shape(self, value: Value) -> tuple[int, ...]:
        """Return the sizes of an input, or of a value computed outside of the arena."""
        shape = self._shapes.get(value)
        if shape is None:
            shape = self._shapes[value] = tuple(self.registers[self.plan.shapes[value]].tolist())
        return shape

    def _refusal(self, sizes: Mapping[str, int]) -> ShapeError | Fault:
        for dim in self.plan.dims:
            try:
                dim.evaluate(sizes)
            except ShapeError as error:
                return error
        for a, b in self.plan.equal:
            if evaluate(a, sizes) != evaluate(b, sizes):
                return Fault(f"{a} and {b} must be equal")
        actual = ", ".join(f"{name} = {number}" for name, number in sizes.items())
        return SizeLimitError("a size exceeds 64 bits.", where=actual, remedy="Give smaller inputs.")
