"""Plans: what a run does, as a tape of machine words, for any sizes.

The words of kernels come first; arguments, and the tapes of loops' bodies, follow them in the same array. What depends
on sizes is a number of a register (:mod:`.size_table`) or a buffer in the arena, and is filled in where sizes are new
(:mod:`.context`); the addresses of inputs and results change from call to call.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sardonyx.compiler.analysis.shape_guards import Equal, known
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.executor.size_program import Operation, SizeTable
from sardonyx.compiler.executor.tape_planner import BUFFER_WORDS, ELEMENT_WORDS, LAYOUT_WORDS, WORD_WORDS
from sardonyx.compiler.executor.tape_player import COPY_WORDS, PATCH_WORDS, WORDS, IterationWord
from sardonyx.compiler.lower.launch import FAULT, Body, Count, Launch, Prepared, Relaid, Scratch, Stage
from sardonyx.compiler.target.alignment import ALIGNMENT
from sardonyx.core.dim import Dim, evaluate
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

UNLIMITED = (1 << 63) - 1
"""Iterations that a loop may make without a limit."""


class Part(enum.Enum):
    """What every tape may point to."""

    POOL = "pool"  # the threads' memory
    ALONE = "alone"  # that of one thread, for kernels of loops that have a thread each
    LOOP = "loop"  # the function of loops
    LOOPS = "loops"  # the function of several at the same time
    CHOICE = "choice"  # the function of choices
    TRUE = "true"  # a byte that is 1


@dataclass(frozen=True)
class Kernel:
    """The code of a kernel, by its text."""

    text: str


@dataclass(frozen=True)
class Constant:
    """What is prepared of a constant."""

    buffer: Value | Prepared


Link = Part | Kernel | Constant
"""What lies outside of tape and arena and is the same in all calls: whoever loads it knows where."""


@dataclass
class Plan:
    """A segment, for any sizes.

    Attributes:
        words: The words of the tape, with 0 for what is filled in.
        kernels: How many kernels.
        instructions: How sizes are computed, see :mod:`.size_table`.
        start: The registers before that.
        symbols: The registers of symbols, by name.
        dims: The expressions that are computed.
        buffers: What lies in the arena, ``BUFFER_WORDS`` each.
        layouts: Which of them lie together, ``LAYOUT_WORDS`` each.
        sizes: Words that are sizes, and their registers.
        inside: Words that are places in the arena, and the buffers.
        elements: Elements of tensors of sizes, ``ELEMENT_WORDS`` each.
        own: Words that are addresses of words of the tape, and which.
        links: Words that are addresses of what is the same in all calls.
        outside: Words that are addresses of what lies elsewhere, and which.
        makes: The values among those that it makes itself.
        shapes: The registers of the sizes of these, and of inputs.
        told: Where in the tape the tensors of sizes are that were asked for, by word.
        count: The buffer where a kernel leaves how many results there are, or a loop how many iterations it made.
        fault: The word that kernels set where data have no result.
        limit: The word that says how many iterations a loop may make.
        titles: What lies in the arena, for people.
        equal: Sizes that must be equal.
    """

    words: np.ndarray
    kernels: int
    instructions: np.ndarray
    start: np.ndarray
    symbols: dict[str, int]
    dims: list[Dim]
    buffers: np.ndarray
    layouts: np.ndarray
    sizes: np.ndarray
    inside: np.ndarray
    elements: np.ndarray
    own: np.ndarray
    links: list[tuple[int, Link]]
    outside: tuple[np.ndarray, list[Value]]
    makes: list[Value]
    shapes: dict[Value, list[int]]
    told: dict[Value, int]
    count: int | None
    fault: int
    limit: int
    titles: list[str] = field(default_factory=list)
    equal: Sequence[Equal] = ()


@dataclass(frozen=True)
class Inside:
    """A buffer in the arena."""

    buffer: int


@dataclass(frozen=True)
class Number:
    """A size, by its register."""

    register: int


@dataclass(frozen=True)
class Fixed:
    """A number that is the same in every call."""

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
    step: Location
    patches: list[tuple[int, Location, Location]] = field(compare=False)


Location = Inside | Number | Fixed | Own | Outside | Row | Part | Kernel | Constant
Locate = Callable[[int, object], Location]
Copy = tuple[Location, Location, Location, Location]
"""To, from, bytes, and bytes further to with each iteration."""


@dataclass(frozen=True)
class _State:
    """A buffer for what a loop carries, of two that change places."""

    number: int
    half: int


@dataclass
class _Layout:
    """Where what is in a piece of the arena, of one segment or of one body."""

    buffers: dict[Hashable, int]
    bodies: dict[tuple[int, int], _Layout]
    number: int
    bytes: int


@dataclass
class _Lifetime:
    """A buffer that is planned: the register of its bytes, and the steps in which it is alive."""

    bytes: int
    first: int
    last: int


_NUMBER = "number"

_CLAIMED = 6
"""Times a fork and a join that a thread should work, where it claims more than one chunk."""


class Planner:
    """Makes the plan of a segment.

    Args:
        threads: How many threads share the work.
        prepared: What is made of constants.
    """

    def __init__(self, threads: int, prepared: Mapping[object, np.ndarray]) -> None:
        self._threads = threads
        self._prepared = prepared
        self._table = SizeTable()
        self._words: list[int] = []
        self._sizes: list[tuple[int, int]] = []
        self._inside: list[tuple[int, int]] = []
        self._own: list[tuple[int, int]] = []
        self._elements: list[tuple[int, int, int]] = []
        self._links: list[tuple[int, Link]] = []
        self._outside: list[tuple[int, Value]] = []
        self._buffers: list[tuple[int, int, int]] = []
        self._titles: list[str] = []
        self._layouts: list[list[int]] = []
        self._fault = self._limit = Own(0)
        self._known: frozenset[str] = frozenset()

    def plan(
        self,
        launches: Sequence[Launch],
        blocks: Mapping[Value, int],
        elsewhere: Callable[[Value], bool],
        inputs: Sequence[Value] = (),
        equal: Sequence[Equal] = (),
        names: frozenset[str] = frozenset(),
        told: Sequence[Value] = (),
    ) -> Plan:
        """The plan.

        Args:
            launches: The kernels, in order.
            blocks: Channels in a block, of values that are images in blocked layout.
            elsewhere: Whether a value lies in memory that is not the segment's own, as what is read after it does.
            inputs: Values whose sizes are wanted though they may not be read.
            equal: Sizes that must be equal, whatever is chosen.
            names: The symbols that are known by then.
            told: Tensors of sizes that are wanted though no kernel reads them.
        """
        self._known = names
        start = self._put([Fixed(0)] * (WORDS * len(launches)))
        self._fault, self._limit = Own(self._put([Fixed(0)])), Own(self._put([Fixed(UNLIMITED)]))
        layout = self._layout(launches, blocks, elsewhere, ())
        self._tape(start, launches, layout, {}, Part.POOL)
        in_words = {value: self._sizes_in_words(value).word for value in told}
        values = [value for _, value in self._outside]
        made = {value for launch in launches for value in launch.makes}
        makes = [value for value in dict.fromkeys(values) if value in made]
        table = self._table
        shapes = {value: stored_registers(table, value, blocks) for value in (*makes, *inputs)}
        for pair in equal:
            table.require_equal(*pair)
        return Plan(
            words=np.array(self._words, np.int64), kernels=len(launches), instructions=table.rows(),
            start=table.start(), symbols=table.symbols, dims=list(table.dims), equal=equal,
            buffers=_rows(self._buffers, BUFFER_WORDS), layouts=_rows(self._layouts, LAYOUT_WORDS),
            sizes=_rows(self._sizes, WORD_WORDS), inside=_rows(self._inside, WORD_WORDS),
            elements=_rows(self._elements, ELEMENT_WORDS), own=_rows(self._own, WORD_WORDS), links=self._links,
            outside=(np.array([word for word, _ in self._outside], np.int64), values), makes=makes,
            shapes=shapes, told=in_words,
            count=next((layout.buffers[key] for key in layout.buffers if _is_count(key)), None),
            fault=self._fault.word, limit=self._limit.word,
            titles=self._titles,
        )  # fmt: skip

    def _bytes(self, value: Value, blocks: Mapping[Value, int]) -> int:
        """The register of the bytes of a value."""
        table = self._table
        itemsize = t.numpy_dtype(value.type.dtype).itemsize  # type: ignore[union-attr]
        return table.product([table.register(itemsize), *stored_registers(table, value, blocks)])

    def _number(self, size: object) -> Number:
        return Number(self._table.register(size))  # type: ignore[arg-type]

    # Memory.

    def _layout(
        self,
        launches: Sequence[Launch],
        blocks: Mapping[Value, int],
        elsewhere: Callable[[Value], bool],
        results: Sequence[Value],
    ) -> _Layout:
        lifetimes: dict[Hashable, _Lifetime] = {}
        bodies: dict[tuple[int, int], _Layout] = {}

        def used(buffer: Hashable, bytes_: Callable[[], int], at: int, last: int) -> None:
            if buffer in lifetimes:
                lifetimes[buffer].last = last
            else:
                lifetimes[buffer] = _Lifetime(bytes_(), at, last)

        for at, (first, end, launch) in enumerate(_played(launches)):
            for number, body in enumerate(launch.bodies):
                given = _written_in_place(launch, body)
                layout = bodies[at, number] = self._layout(
                    body.launches,
                    body.blocks,
                    lambda value, given=given: value.op == "input" or value in given,  # type: ignore[misc]
                    body.function.results,
                )
                lifetimes[at, number] = _Lifetime(layout.bytes, first, end)
            if launch.writes.op == "loop":
                lifetimes[at, _NUMBER] = _Lifetime(self._table.register(8), first, end)
                for slot in range(launch.writes.params["carried"]):
                    state = self._bytes(launch.writes.operands[2 + slot], {})
                    lifetimes.update({(at, _State(slot, half)): _Lifetime(state, first, end) for half in (0, 1)})
            for buffer in launch.buffers:
                if isinstance(buffer, Scratch):
                    lifetimes[at, buffer] = _Lifetime(self._scratch(buffer), first, end)
                elif isinstance(buffer, Count):
                    lifetimes[buffer] = _Lifetime(self._table.register(buffer.bytes), first, len(launches))
                elif isinstance(buffer, (Relaid, Stage)):
                    used(buffer, lambda buffer=buffer: self._table.register(buffer.bytes), first, end)  # type: ignore[misc]
                elif isinstance(buffer, Value) and not (buffer.is_constant or buffer.op == "dims" or elsewhere(buffer)):
                    last = len(launches) if buffer in results else end
                    used(buffer, lambda buffer=buffer: self._bytes(buffer, blocks), first, last)  # type: ignore[misc]
        return self._laid_out(lifetimes, bodies)

    def _scratch(self, buffer: Scratch) -> int:
        """The register of what all workers together need."""
        table = self._table
        one = table.up(table.sum([table.register(buffer.bytes), table.register(1)]), ALIGNMENT)
        return table.product([one, table.register(self._threads)])

    def _laid_out(self, lifetimes: Mapping[Hashable, _Lifetime], bodies: dict[tuple[int, int], _Layout]) -> _Layout:
        first = len(self._buffers)
        buffers = {buffer: first + number for number, buffer in enumerate(lifetimes)}
        self._buffers += [(each.bytes, each.first, each.last) for each in lifetimes.values()]
        self._titles += map(_title, lifetimes)
        for place, body in bodies.items():
            self._layouts[body.number][3] = buffers[place]
        bytes_ = self._table.reserved()
        self._layouts.append([first, len(self._buffers), bytes_, 0])
        return _Layout(buffers, bodies, len(self._layouts) - 1, bytes_)

    # Words.

    def _put(self, words: Sequence[Location]) -> int:
        """Append words; returns the place of the first."""
        start = len(self._words)
        self._words += [0] * len(words)
        self._put_at(start, words)
        return start

    def _put_at(self, word: int, words: Sequence[Location]) -> None:
        """Fill words that are there."""
        for offset, location in enumerate(words):
            self._set(word + offset, location)

    def _set(self, word: int, location: Location) -> None:
        match location:
            case Fixed(number):
                self._words[word] = number
            case Number(register):
                known = self._table.number(register)
                if known is None:
                    self._sizes.append((word, register))
                else:
                    self._words[word] = known
            case Inside(buffer):
                self._inside.append((word, buffer))
            case Part() | Kernel() | Constant():
                self._links.append((word, location))
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
        assert all(len(copy) == COPY_WORDS for copy in copies)
        return self._list(copies)

    def _tape(
        self, start: int, launches: Sequence[Launch], layout: _Layout, given: Mapping[Value, Location], pool: Part
    ) -> Locate:
        """Write a tape to words that are there; returns where its kernels find their buffers."""
        sources: dict[Value, Location] = {}

        def locate(at: int, buffer: object) -> Location:
            key = (at, buffer) if isinstance(buffer, Scratch) else buffer
            if isinstance(buffer, Value) and buffer in given:
                return given[buffer]
            if key in layout.buffers:
                return Inside(layout.buffers[key])
            if buffer in self._prepared:
                return Constant(buffer)  # type: ignore[arg-type]
            if buffer == FAULT:
                return self._fault
            assert isinstance(buffer, Value)
            if buffer.op == "dims" and buffer not in sources:
                sources[buffer] = self._sizes_in_words(buffer)
            return sources.get(buffer, Outside(buffer))

        together: list[int] = []
        for at, (first, end, launch) in enumerate(_played(launches)):
            code: Location
            inner = pool if first == end else Part.ALONE
            if launch.writes.op == "loop" and launch.bodies:
                code, arguments = Part.LOOP, self._loop(at, launch, layout, locate, inner)
            elif launch.bodies:
                code, arguments = Part.CHOICE, self._choice(at, launch, layout, locate, inner)
            else:
                code = Kernel(launch.text)
                buffers = [locate(at, buffer) for buffer in launch.buffers]
                arguments = self._put([*buffers, *map(self._number, launch.sizes)])
            entry: list[Location] = [code, Own(arguments), self._number(launch.items), self._grain(launch)]
            if first < end:
                # All are played where the first stands: each is a work item of that.
                together = [arguments] if at == first else [*together, arguments]
                entry[2:] = Fixed(0), Fixed(1)
            if at > first or first == end:
                self._put_at(start + WORDS * at, entry)
            if first < end == at:
                listed = Own(self._put([Own(each) for each in together]))
                self._put_at(start + WORDS * first, [Part.LOOPS, listed, Fixed(len(together)), Fixed(1)])
        return locate

    def _grain(self, launch: Launch) -> Location:
        """Items a chunk: each thread claims a few; of what is done soon, one, since a claim takes its time too."""
        items, worth = launch.items, launch.worth
        if worth is not None and worth < _CLAIMED * self._threads:
            assert isinstance(items, int)
            return Fixed(max(1, -(-items // max(1, min(worth, self._threads)))))
        table = self._table
        part = table.operation(Operation.DIVIDE, table.register(items), table.register(4 * self._threads))
        return Number(table.operation(Operation.GREATEST, table.register(1), part))

    def _sizes_in_words(self, value: Value) -> Own:
        """A tensor of sizes, in the tape."""
        width = t.numpy_dtype(value.params["dtype"]).itemsize
        sizes = value.params["sizes"]
        start = self._put([Fixed(0)] * -(-len(sizes) * width // 8))
        self._elements += [
            (8 * start + number * width, width, self._table.register(size)) for number, size in enumerate(sizes)
        ]
        return Own(start)

    def _body(self, body: Body, layout: _Layout, given: Mapping[Value, Location], pool: Part) -> tuple[Own, Locate]:
        """Append the tape of a body; returns its place, and where its kernels find their buffers."""
        start = self._put([Fixed(0)] * (WORDS * len(body.launches)))
        return Own(start), self._tape(start, body.launches, layout, given, pool)

    # Control flow.

    def _loop(self, at: int, launch: Launch, layout: _Layout, locate: Locate, pool: Part) -> int:
        """Append the arguments of a loop; see :class:`.LoopWord`."""
        (body,) = launch.bodies
        carried = launch.writes.params["carried"]
        operands = [locate(at, operand) for operand in launch.writes.operands]
        results = [locate(at, result) for result in launch.makes]
        sizes = [Number(self._bytes(result, {})) for result in body.function.results[1:]]
        number = Inside(layout.buffers[at, _NUMBER])
        halves = [[Inside(layout.buffers[at, _State(slot, half)]) for half in (0, 1)] for slot in range(carried)]
        changing = [
            slot for slot in range(carried) if body.function.results[1 + slot] is not body.function.inputs[2 + slot]
        ]
        fixed = {slot for slot in range(carried) if slot not in changing}
        in_place = _written_in_place(launch, body)
        words: list[Location] = [pool, operands[0], operands[1], number, self._fault, self._limit]
        nothing = Fixed(0)
        words.append(self._copies([(halves[slot][0], operands[2 + slot], sizes[slot], nothing) for slot in changing]))
        for half in (0, 1):
            patches: list[tuple[int, Location, Location]] = []
            given: dict[Value, Location] = {
                body.function.inputs[0]: number,
                body.function.inputs[1]: Part.TRUE,
                **dict(zip(body.function.inputs[2 + carried :], operands[2 + carried :], strict=True)),
            }
            for slot in range(carried):
                given[body.function.inputs[2 + slot]] = operands[2 + slot] if slot in fixed else halves[slot][half]
            for value, slot in in_place.items():
                given[value] = halves[slot][1 - half] if slot < carried else Row(results[slot], sizes[slot], patches)
            tape, found = self._body(body, layout.bodies[at, 0], given, pool)
            wanted = [found(-1, value) for value in body.function.results]
            copies: list[Copy] = [
                (halves[slot][1 - half], wanted[1 + slot], sizes[slot], nothing)
                for slot in changing
                if in_place.get(body.function.results[1 + slot]) != slot
            ]
            copies += [
                (results[slot], wanted[1 + slot], sizes[slot], sizes[slot])
                for slot in range(carried, len(results))
                if in_place.get(body.function.results[1 + slot]) != slot
            ]
            after: list[Copy] = [
                (results[slot], operands[2 + slot] if slot in fixed else halves[slot][half], sizes[slot], nothing)
                for slot in range(carried)
            ]
            listed = self._copies(copies)
            rows = [(Own(word), first, step) for word, first, step in patches]
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

    def _choice(self, at: int, launch: Launch, layout: _Layout, locate: Locate, pool: Part) -> int:
        """Append the arguments of a choice; see :class:`.ChoiceWord`."""
        condition, *operands = [locate(at, operand) for operand in launch.writes.operands]
        results = [locate(at, result) for result in launch.makes]
        words: list[Location] = [pool, condition, self._fault]
        for number, body in enumerate(launch.bodies):
            in_place = _written_in_place(launch, body)
            given = dict(zip(body.function.inputs, operands, strict=True))
            given |= {value: results[slot] for value, slot in in_place.items()}
            tape, found = self._body(body, layout.bodies[at, number], given, pool)
            copies: list[Copy] = [
                (results[slot], found(-1, value), Number(self._bytes(value, {})), Fixed(0))
                for slot, value in enumerate(body.function.results)
                if in_place.get(value) != slot
            ]
            misfits = Number(self._table.misfits(known(body.equal, self._known)))
            words += [tape, Fixed(len(body.launches)), self._copies(copies), misfits]
        return self._put(words)


def _played(launches: Sequence[Launch]) -> Iterator[tuple[int, int, Launch]]:
    """The launches, and the numbers of the first and the last of those that are played at the same time as each."""
    first = end = -1
    for at, launch in enumerate(launches):
        if at > end:
            first, end = at, at + launch.beside - 1
        yield first, end, launch


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


def stored_registers(table: SizeTable, value: Value, blocks: Mapping[Value, int]) -> list[int]:
    """The registers of the sizes of a value as it is stored, see :func:`stored_shape`."""
    shape = [table.register(size) for size in shape_of(value)]
    block = blocks.get(value, 0)
    if block:
        shape[1] = table.up(shape[1], block)
    return shape


def _title(buffer: Hashable) -> str:
    """What a buffer is, for people."""
    match buffer:
        case Value():
            return buffer.origin or buffer.op
        case Relaid() | Stage():
            return f"{buffer.source.origin or buffer.source.op}, in another form"
        case Count():
            return "a count"
        case (int(at), Scratch()):
            return f"scratch of kernel {at}"
        case (int(at), _State(slot, half)):
            return f"state {slot} of kernel {at}, {('even', 'odd')[half]} iterations"
        case (int(at), int(number)):
            return f"body {number} of kernel {at}"
        case (int(at), _):
            return f"the iteration of kernel {at}"
    return str(buffer)


def _is_count(buffer: Hashable) -> bool:
    return buffer == (0, _NUMBER) or isinstance(buffer, Count)


def _rows(rows: Sequence[Sequence[int]], words: int) -> np.ndarray:
    return np.array(rows, np.int64).reshape(-1, words)
