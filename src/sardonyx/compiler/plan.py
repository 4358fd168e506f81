"""Plans: what a run does, as a tape of machine words, for one set of sizes.

The words of kernels come first; arguments, and the tapes of loops' bodies, follow them in the same array. Only the
addresses of inputs and results change from call to call.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sardonyx.compiler.launch import FAULT, Body, Count, Launch, Relaid, Scratch, Stage
from sardonyx.compiler.memory_plan import ALIGNMENT, Lifetime, offsets
from sardonyx.compiler.player import COPY_WORDS, PATCH_WORDS, WORDS, IterationWord, Player
from sardonyx.compiler.views import shape_of
from sardonyx.core import types as t
from sardonyx.core.dim import evaluate
from sardonyx.core.graph import Value

UNLIMITED = (1 << 63) - 1
"""Iterations that a loop may make without a limit."""

_FIXED_BYTES = 16
"""What is behind the arena: the fault flag, and the limit on iterations."""


@dataclass
class Plan:
    """A segment for one set of sizes.

    Attributes:
        tape: The words, with 0 for what changes.
        kernels: How many kernels.
        arena: Bytes of memory.
        inside: Words that are places in the arena, and those places.
        own: Words that are addresses of words of the tape, and which.
        outside: Words that are addresses of what lies elsewhere, and which.
        count: Where in the arena a kernel leaves how many results there are, or a loop how many iterations it made.
        makes: The values among those that it makes itself, with their shapes and element types.
        free: Contexts that no call uses.
    """

    tape: np.ndarray
    kernels: int
    arena: int
    inside: tuple[np.ndarray, np.ndarray]
    own: tuple[np.ndarray, np.ndarray]
    outside: tuple[np.ndarray, list[Value]]
    count: int | None
    makes: list[tuple[Value, tuple[int, ...], np.dtype]] = field(default_factory=list)
    free: list[Context] = field(default_factory=list)


class Context:
    """What one running call needs of a plan: its own tape and arena."""

    def __init__(self, plan: Plan) -> None:
        self.memory = np.empty(plan.arena + _FIXED_BYTES + ALIGNMENT, np.uint8)
        self.base = -(-self.memory.ctypes.data // ALIGNMENT) * ALIGNMENT
        self.tape = plan.tape.copy()
        self.address = self.tape.ctypes.data
        self.fault = ctypes.c_int32.from_address(self.base + plan.arena)
        self.fault.value = 0
        self.limit = ctypes.c_int64.from_address(self.base + plan.arena + 8)
        self.limit.value = UNLIMITED
        words, at = plan.inside
        self.tape[words] = at + self.base
        words, at = plan.own
        self.tape[words] = 8 * at + self.address


@dataclass(frozen=True)
class Inside:
    """A place in the arena."""

    offset: int


@dataclass(frozen=True)
class Fixed:
    """An address, or a number, that is the same in every call."""

    number: int


@dataclass(frozen=True)
class Own:
    """A word of the tape."""

    word: int


@dataclass(frozen=True)
class Outside:
    """A value that lies in memory of its own."""

    value: Value


@dataclass(frozen=True)
class Row:
    """A place that goes further with each iteration.

    Attributes:
        first: Where it is in the first.
        step: Bytes from one to the next.
        patches: Takes the words that are such places.
    """

    first: Location
    step: int
    patches: list[tuple[int, Location, int]] = field(compare=False)


Location = Inside | Fixed | Own | Outside | Row
Locate = Callable[[int, object], Location]
Copy = tuple[Location, Location, int, int]
"""To, from, bytes, and bytes further to with each iteration."""


@dataclass(frozen=True)
class _State:
    """A buffer for what a loop carries, of two that change places."""

    number: int
    half: int


@dataclass
class _Layout:
    """Where what is in a piece of the arena, of one segment or of one body."""

    places: dict[Hashable, int]
    bodies: dict[tuple[int, int], _Layout]
    bytes: int


_TRUE = np.ones(1, np.bool_)
_NUMBER = "number"


class Planner:
    """Makes the plan of a segment.

    Args:
        sizes: Numbers for the symbols.
        threads: How many threads share the work.
        pool: The address of the pool.
        player: What plays tapes.
        addresses: Of kernels, by their text.
        prepared: What is made of constants.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        threads: int,
        pool: int,
        player: Player,
        addresses: Mapping[str, int],
        prepared: Mapping[object, np.ndarray],
    ) -> None:
        self._sizes = sizes
        self._threads = threads
        self._pool = pool
        self._player = player
        self._addresses = addresses
        self._prepared = prepared
        self._words: list[int] = []
        self._inside: list[tuple[int, int]] = []
        self._own: list[tuple[int, int]] = []
        self._outside: list[tuple[int, Value]] = []
        self._arena = 0

    def plan(
        self,
        launches: Sequence[Launch],
        blocks: Mapping[Value, int],
        elsewhere: Callable[[Value], bool],
        stays: Callable[[Value], bool],
    ) -> Plan:
        """The plan.

        Args:
            launches: The kernels, in order.
            blocks: Channels in a block, of values that are images in blocked layout.
            elsewhere: Whether a value lies in memory that is not the segment's own.
            stays: Whether a value is read after the segment.
        """
        layout = self._layout(launches, blocks, elsewhere, stays)
        self._arena = layout.bytes
        self._tape(launches, layout, 0, {})
        return Plan(
            np.array(self._words, np.int64),
            len(launches),
            layout.bytes,
            _columns(self._inside),
            _columns(self._own),
            (np.array([word for word, _ in self._outside], np.int64), [value for _, value in self._outside]),
            next((at for key, at in layout.places.items() if key == (0, _NUMBER) or isinstance(key, Count)), None),
        )

    def _number(self, size: object) -> int:
        return int(evaluate(size, self._sizes))  # type: ignore[arg-type]

    def _bytes(self, value: Value, blocks: Mapping[Value, int]) -> int:
        return math.prod(stored_shape(value, blocks, self._sizes)) * t.numpy_dtype(value.type.dtype).itemsize  # type: ignore[union-attr]

    # Memory.

    def _layout(
        self,
        launches: Sequence[Launch],
        blocks: Mapping[Value, int],
        elsewhere: Callable[[Value], bool],
        stays: Callable[[Value], bool],
    ) -> _Layout:
        lifetimes: dict[Hashable, Lifetime] = {}
        bodies: dict[tuple[int, int], _Layout] = {}
        for at, launch in enumerate(launches):
            for number, body in enumerate(launch.bodies):
                given = _written_in_place(launch, body)
                bodies[at, number] = self._layout(
                    body.launches,
                    body.blocks,
                    lambda value, given=given: value.op == "input" or value in given,  # type: ignore[misc]
                    body.function.results.__contains__,
                )
                lifetimes[at, number] = Lifetime(bodies[at, number].bytes, at, at)
            if launch.writes.op == "loop":
                lifetimes[at, _NUMBER] = Lifetime(8, at, at)
                for slot in range(launch.writes.params["carried"]):
                    state = self._bytes(launch.writes.operands[2 + slot], {})
                    lifetimes.update({(at, _State(slot, half)): Lifetime(state, at, at) for half in (0, 1)})
            for buffer in launch.buffers:
                if isinstance(buffer, Scratch):
                    bytes_ = self._number(buffer.bytes) + ALIGNMENT
                    lifetimes[at, buffer] = Lifetime(bytes_ // ALIGNMENT * ALIGNMENT * self._threads, at, at)
                elif isinstance(buffer, Count):
                    lifetimes[buffer] = Lifetime(buffer.bytes, at, len(launches))
                elif isinstance(buffer, (Relaid, Stage)):
                    first = lifetimes[buffer].first if buffer in lifetimes else at
                    lifetimes[buffer] = Lifetime(self._number(buffer.bytes), first, at)
                elif isinstance(buffer, Value) and not (buffer.is_constant or buffer.op == "dims" or elsewhere(buffer)):
                    first = lifetimes[buffer].first if buffer in lifetimes else at
                    last = len(launches) if stays(buffer) else at
                    lifetimes[buffer] = Lifetime(self._bytes(buffer, blocks), first, last)
        placed, total = offsets(list(lifetimes.values()))
        return _Layout(dict(zip(lifetimes, placed, strict=True)), bodies, total)

    # Words.

    def _put(self, words: Sequence[Location]) -> int:
        """Append words; returns the place of the first."""
        start = len(self._words)
        self._words += [0] * len(words)
        for at, location in enumerate(words):
            self._set(start + at, location)
        return start

    def _set(self, word: int, location: Location) -> None:
        match location:
            case Fixed(number):
                self._words[word] = number
            case Inside(offset):
                self._inside.append((word, offset))
            case Own(other):
                self._own.append((word, other))
            case Outside(value):
                self._outside.append((word, value))
            case Row(first, step, patches):
                patches.append((word, first, step))

    def _list(self, rows: Sequence[Sequence[Location]]) -> Own:
        """Append a list of rows of words, its length first."""
        return Own(self._put([Fixed(len(rows)), *(word for row in rows for word in row)]))

    def _copies(self, copies: Sequence[Copy]) -> Own:
        rows = [(to, source, Fixed(count), Fixed(step)) for to, source, count, step in copies]
        assert all(len(row) == COPY_WORDS for row in rows)
        return self._list(rows)

    def _tape(
        self, launches: Sequence[Launch], layout: _Layout, base: int, given: Mapping[Value, Location]
    ) -> tuple[Own, Locate]:
        """Append a tape; returns its place, and where its kernels find their buffers."""
        start = self._put([Fixed(0)] * (WORDS * len(launches)))
        sources: dict[Value, Location] = {}

        def locate(at: int, buffer: object) -> Location:
            key = (at, buffer) if isinstance(buffer, Scratch) else buffer
            if isinstance(buffer, Value) and buffer in given:
                return given[buffer]
            if key in layout.places:
                return Inside(base + layout.places[key])
            if buffer in self._prepared:
                return Fixed(self._prepared[buffer].ctypes.data)
            if buffer == FAULT:
                return Inside(self._arena)
            assert isinstance(buffer, Value)
            if buffer.op == "dims" and buffer not in sources:
                sources[buffer] = self._sizes_in_words(buffer)
            return sources.get(buffer, Outside(buffer))

        for at, launch in enumerate(launches):
            if launch.writes.op == "loop" and launch.bodies:
                code, arguments = self._player.loop, self._loop(at, launch, layout, base, locate)
            elif launch.bodies:
                code, arguments = self._player.choice, self._choice(at, launch, layout, base, locate)
            else:
                code = self._addresses[launch.text]
                arguments = self._put(
                    [
                        *(locate(at, buffer) for buffer in launch.buffers),
                        *(Fixed(self._number(s)) for s in launch.sizes),
                    ]
                )
            items = self._number(launch.items)
            grain = max(1, items // (4 * self._threads))
            entry: list[Location] = [Fixed(code), Own(arguments), Fixed(items), Fixed(grain)]
            for word, location in enumerate(entry):
                self._set(start + WORDS * at + word, location)
        return Own(start), locate

    def _sizes_in_words(self, value: Value) -> Own:
        """A tensor of sizes, written into the tape."""
        numbers = np.array([self._number(size) for size in value.params["sizes"]], np.int64)
        raw = numbers.astype(t.numpy_dtype(value.params["dtype"])).tobytes()
        words = np.frombuffer(raw + bytes(-len(raw) % 8), np.int64)
        return Own(self._put([Fixed(int(word)) for word in words]))

    # Control flow.

    def _loop(self, at: int, launch: Launch, layout: _Layout, base: int, locate: Locate) -> int:
        """Append the arguments of a loop; see :class:`.LoopWord`."""
        (body,) = launch.bodies
        carried = launch.writes.params["carried"]
        operands = [locate(at, operand) for operand in launch.writes.operands]
        results = [locate(at, result) for result in launch.makes]
        sizes = [self._bytes(result, {}) for result in body.function.results[1:]]
        number = Inside(base + layout.places[at, _NUMBER])
        halves = [[Inside(base + layout.places[at, _State(slot, half)]) for half in (0, 1)] for slot in range(carried)]
        changing = [
            slot for slot in range(carried) if body.function.results[1 + slot] is not body.function.inputs[2 + slot]
        ]
        fixed = {slot for slot in range(carried) if slot not in changing}
        in_place = _written_in_place(launch, body)
        words: list[Location] = [Fixed(self._pool), operands[0], operands[1], number, Inside(self._arena)]
        words.append(Inside(self._arena + 8))
        words.append(self._copies([(halves[slot][0], operands[2 + slot], sizes[slot], 0) for slot in changing]))
        for half in (0, 1):
            patches: list[tuple[int, Location, int]] = []
            given: dict[Value, Location] = {
                body.function.inputs[0]: number,
                body.function.inputs[1]: Fixed(_TRUE.ctypes.data),
                **dict(zip(body.function.inputs[2 + carried :], operands[2 + carried :], strict=True)),
            }
            for slot in range(carried):
                given[body.function.inputs[2 + slot]] = operands[2 + slot] if slot in fixed else halves[slot][half]
            for value, slot in in_place.items():
                given[value] = halves[slot][1 - half] if slot < carried else Row(results[slot], sizes[slot], patches)
            tape, found = self._tape(body.launches, layout.bodies[at, 0], base + layout.places[at, 0], given)
            wanted = [found(-1, value) for value in body.function.results]
            copies: list[Copy] = [
                (halves[slot][1 - half], wanted[1 + slot], sizes[slot], 0)
                for slot in changing
                if in_place.get(body.function.results[1 + slot]) != slot
            ]
            copies += [
                (results[slot], wanted[1 + slot], sizes[slot], sizes[slot])
                for slot in range(carried, len(results))
                if in_place.get(body.function.results[1 + slot]) != slot
            ]
            after: list[Copy] = [
                (results[slot], operands[2 + slot] if slot in fixed else halves[slot][half], sizes[slot], 0)
                for slot in range(carried)
            ]
            listed = self._copies(copies)
            rows = [(Own(word), first, Fixed(step)) for word, first, step in patches]
            assert all(len(row) == PATCH_WORDS for row in rows)
            iteration: list[Location] = [
                tape,
                Fixed(len(body.launches)),
                wanted[0],
                self._list(rows),
                listed,
                self._copies(after),
            ]
            assert len(iteration) == len(IterationWord)
            words += iteration
        return self._put(words)

    def _choice(self, at: int, launch: Launch, layout: _Layout, base: int, locate: Locate) -> int:
        """Append the arguments of a choice; see :class:`.ChoiceWord`."""
        condition, *operands = [locate(at, operand) for operand in launch.writes.operands]
        results = [locate(at, result) for result in launch.makes]
        words: list[Location] = [Fixed(self._pool), condition]
        for number, body in enumerate(launch.bodies):
            in_place = _written_in_place(launch, body)
            given = dict(zip(body.function.inputs, operands, strict=True))
            given |= {value: results[slot] for value, slot in in_place.items()}
            place = base + layout.places[at, number]
            tape, found = self._tape(body.launches, layout.bodies[at, number], place, given)
            copies: list[Copy] = [
                (results[slot], found(-1, value), self._bytes(value, {}), 0)
                for slot, value in enumerate(body.function.results)
                if in_place.get(value) != slot
            ]
            words += [tape, Fixed(len(body.launches)), self._copies(copies)]
        return self._put(words)


def _written_in_place(launch: Launch, body: Body) -> dict[Value, int]:
    """The results of a body that its kernels write where they are wanted, and the number of the result.

    Others, such as inputs, constants, and what is two results at once, are copied.
    """
    skipped = 1 if launch.writes.op == "loop" else 0
    made = body.makes
    found: dict[Value, int] = {}
    for slot, value in enumerate(body.function.results[skipped:]):
        if value in made:
            found.setdefault(value, slot)
    return found


def stored_shape(value: Value, blocks: Mapping[Value, int], sizes: Mapping[str, int]) -> list[int]:
    """The sizes of a value as it is stored: channels are filled up to whole blocks."""
    shape = [int(evaluate(size, sizes)) for size in shape_of(value)]
    block = blocks.get(value, 0)
    if block:
        shape[1] = -(-shape[1] // block) * block
    return shape


def _columns(pairs: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return table[:, 0].copy(), table[:, 1].copy()
