"""Contexts: what one running call needs of a plan, made ready for its sizes by native code."""

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
    """A plan whose tape points to what is loaded in this process.

    Args:
        plan: The plan.
        player: What plays tapes.
        pool: The address of the pool.
        addresses: Of kernels, by their text.
        prepared: What is made of constants.

    Attributes:
        free: Contexts that no call uses.
        outside: The values that lie outside of the arena, and the words of the tape that hold their addresses.
        makes: The values that it makes outside of the arena.
        reads: The values outside of the arena that others made.
        peak: Most bytes that the values of one call took, of those that were prepared here.
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
        for word, value in zip(*plan.outside, strict=True):
            self.outside.setdefault(value, []).append(int(word))
        self.reads = [value for value in self.outside if value not in self.makes]
        self.words = plan.words.copy()
        self.words[[word for word, _ in plan.links]] = [address(link) for _, link in plan.links]

    def context(self) -> Context:
        """A context that no other call uses; whoever has done with it puts it back."""
        try:
            return self.free.pop()
        except IndexError:
            made = Context(self)
            with self._lock:
                self._contexts.add(made)
            return made

    def prepared(self, sizes: Mapping[str, int]) -> Context:
        """A context that no other call uses, ready for sizes; raises as its ``prepare`` does.

        Who has played it leaves its arena (:meth:`Context.leave`), then puts it back.
        """
        context = self.context()
        try:
            context.prepare(sizes)
        except (SardonyxError, Fault):
            self.free.append(context)
            raise
        return context

    def contexts(self) -> list[Context]:
        """The contexts that there are, those in use among them."""
        with self._lock:
            return list(self._contexts)


class Fault(Exception):
    """Data or sizes have no result, or a loop passes the limit of iterations; the interpreter says what is wrong."""


class Placed(NamedTuple):
    """Something that lies in the arena.

    Attributes:
        title: What it is.
        offset: Where it begins.
        bytes: How long it is.
        first: The kernel that writes it.
        last: The last kernel that reads it.
        inside: The title of what it is a part of, where a body computes it; empty otherwise.
    """

    title: str
    offset: int
    bytes: int
    first: int
    last: int
    inside: str


class Context:
    """A tape, an arena, and the numbers of the sizes that they are ready for.

    Args:
        linked: The plan.

    Attributes:
        linked: The plan.
        registers: The numbers of sizes.
        offsets: Where in the arena each buffer is.
        address: Of the tape.
        fault: Why the run ended before its end, see :class:`.Ended`; 0 where it did not.
        limit: How many iterations a loop may make.
        table: Where planning reads everything, see :class:`.PlanWord`.
        block: What the arena is, where it is not the context's own.
        connect: The function of the arrays that it reads, see :func:`.connect_entry`; made when it is first needed.
    """

    def __init__(self, linked: Linked) -> None:
        self.linked = linked
        self.plan = plan = linked.plan
        self._measure, self._fill, self._hold = linked.player.measure, linked.player.fill, linked.player.hold
        self.tape = linked.words.copy()
        self.address = int(self.tape.ctypes.data)
        self.tape[plan.own[:, 0]] = 8 * plan.own[:, 1] + self.address
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
            PlanWord.SIZE_WORDS: (plan.sizes, PlanWord.SIZE_WORD_COUNT),
            PlanWord.PLACE_WORDS: (plan.inside, PlanWord.PLACE_WORD_COUNT),
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
        """End the loops that run on the tape, from any thread."""
        self.fault.value = Ended.STOPPED

    def prepare(self, sizes: Mapping[str, int]) -> None:
        """Make the tape ready, and take the arena; whoever has played it calls :meth:`leave`.

        Args:
            sizes: Numbers for the symbols.

        Raises:
            ShapeError: Sizes do not go together.
            Fault: They do not, and the interpreter says where.
            ResourceError: The run may not have as much memory; none was taken.
            MemoryError: There is not as much.
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
            self._needed = self.needed
            self._require_memory()
            self.linked.peak = max(self.linked.peak, self._needed)
        self._numbers = None
        if not self._hold(self.table.ctypes.data):
            self.take()
        self._fill(self.table.ctypes.data)
        self._numbers = numbers

    def take(self) -> None:
        """Take an arena of the wanted bytes, for which the tape is to be filled.

        Where what this context needs has grown, room is made for twice what it was: memory that is not touched costs
        nothing.

        Raises:
            MemoryError: There is not as much.
        """
        wanted = self.arena
        room = max(wanted, 2 * self._most)
        self._most = max(self._most, wanted)
        if wanted <= arena.SHARED and self.block is None:
            # What it replaces goes first.
            self._memory = np.empty(0, np.uint8)
            self.table[PlanWord.CAPACITY] = 0
            self._memory, self.table[PlanWord.ARENA] = arena.memory_of(room)
            self.table[PlanWord.CAPACITY] = room
            return
        self._memory = np.empty(0, np.uint8)
        self.table[PlanWord.CAPACITY] = 0
        self.block = arena.BLOCKS.take(wanted, room, self.linked.player.seize)
        self.table[PlanWord.BLOCK], self.table[PlanWord.ARENA] = self.block.address, self.block.place

    def words(self, value: Value) -> list[int]:
        """The addresses of the words that hold the address of a value outside of the arena."""
        return [self.address + 8 * word for word in self.linked.outside.get(value, ())]

    def play(self, launches: Sequence[Launch], pool: Pool, recorder: Recorder | None, *, flush: bool) -> None:
        """Run the kernels of the tape.

        Args:
            launches: The kernels.
            pool: The threads.
            recorder: What notes when each of them runs; None for nothing.
            flush: Whether denormal numbers are taken for zero.
        """
        if recorder is not None:
            play_timed(self.linked.player.target, self.address, launches, pool, recorder, flush=flush)
            return
        player = self.linked.player
        play = player.play_flushing if flush else player.play
        play(self.address, len(launches), pool.address)

    def leave(self) -> None:
        """Let other calls have the arena, if it is one that they may have."""
        if self.block is not None:
            self.block.leave()

    @property
    def arena(self) -> int:
        """Bytes of the arena that the sizes need."""
        return int(self.table[PlanWord.WANTED])

    @property
    def capacity(self) -> int:
        """Bytes of an arena of its own."""
        return int(self.table[PlanWord.CAPACITY])

    @property
    def needed(self) -> int:
        """Bytes of the values of a call with the sizes that were measured last, in the arena and what it makes."""
        made = ((value, self.shape(value)) for value in self.plan.makes)
        return int(self.table[PlanWord.WANTED]) + sum(
            math.prod(shape) * dtype_of(value).numpy().itemsize for value, shape in made
        )

    def placed(self) -> list[Placed]:
        """What lies in the arena, what bodies compute among it, as the sizes that were measured last have it."""
        plan, offsets = self.plan, self.offsets.tolist()
        bytes_ = self.registers[plan.buffers[:, 0]].tolist()
        layouts = plan.layouts.tolist()
        found = []
        for rows, (begin, end, _, outer) in enumerate(layouts, 1):
            inside = plan.titles[outer] if rows < len(layouts) else ""
            for number in range(begin, end):
                first, last = plan.buffers[number, 1:].tolist()
                found.append(Placed(plan.titles[number], offsets[number], bytes_[number], first, last, inside))
        return found

    def _require_memory(self) -> None:
        run = current_run()
        if run is not None:
            run.reserve(self._needed, "the call")

    def place(self, buffer: int) -> int:
        """The address of a buffer in the arena."""
        return int(self.table[PlanWord.ARENA] + self.offsets[buffer])

    def shape(self, value: Value) -> tuple[int, ...]:
        """The sizes of an input, or of a value that is made elsewhere than in the arena."""
        found = self._shapes.get(value)
        if found is None:
            found = self._shapes[value] = tuple(self.registers[self.plan.shapes[value]].tolist())
        return found

    def _refusal(self, sizes: Mapping[str, int]) -> ShapeError | Fault:
        for dim in self.plan.dims:
            try:
                dim.evaluate(sizes)
            except ShapeError as error:
                return error
        for a, b in self.plan.equal:
            if evaluate(a, sizes) != evaluate(b, sizes):
                return Fault(f"{a} and {b} must be equal")
        given = ", ".join(f"{name} = {number}" for name, number in sizes.items())
        return SizeLimitError("what is computed passes 64 bits.", where=given, remedy="Give smaller inputs.")
