"""What a program does: its kernels, what is in each, what that costs, and what is left to the interpreter."""

from __future__ import annotations

import functools
import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sardonyx.compiler.analysis.primitive_traits import ELEMENTWISE
from sardonyx.compiler.analysis.strided_views import MOVEMENTS, shape_of
from sardonyx.compiler.lower.launch import Launch, Prepared, Relaid, Stage, all_launches
from sardonyx.compiler.program import Program
from sardonyx.compiler.schedule.groups import Group
from sardonyx.core.dim import Size, ceil_div, evaluate
from sardonyx.core.ir.graph import CLOSED, Value
from sardonyx.core.ir.types import TensorType
from sardonyx.core.transform.cost import cost, elements, nbytes
from sardonyx.errors import ShapeError

_ALIKE = MOVEMENTS | ELEMENTWISE
"""Primitives that read an element of an operand for each element that is wanted of them, or fewer."""


@dataclass(frozen=True)
class CandidateNote:
    """A schedule that was considered and rejected.

    Attributes:
        text: The schedule in one line.
        cost: Estimated cost in the unit of :attr:`ChoiceNote.cost`; None if sizes are open.
        reason: Why another was chosen.
    """

    text: str
    cost: float | None
    reason: str


@dataclass(frozen=True)
class ChoiceNote:
    """The schedule of a kernel.

    Attributes:
        problem: The problem in one line: the key of overrides.
        schedule: The schedule as plain data, as overrides take it.
        text: The schedule in one line.
        reason: The rule that chose the schedule.
        cost: Estimated cost; see "Schedules and costs" in ``docs/design/engine.md``.
        candidates: The rejected alternatives.
    """

    problem: str
    schedule: Mapping[str, Any]
    text: str
    reason: str
    cost: float | None
    candidates: tuple[CandidateNote, ...]


@dataclass(frozen=True)
class KernelNote:
    """A kernel of a program.

    Attributes:
        title: What it computes, in a word or two.
        result: The type of the value that it writes, or a part of which.
        tensors: Names of the model's tensors that are computed in it, in order; the last is what it writes.
        primitives: How many of which primitives are in it; of a loop or a choice, which kernels are in its bodies.
        reason: Why what follows is in another kernel.
        operations: Arithmetic operations of the chosen algorithm: of Winograd's convolution those of the products. None
            where sizes are not known.
        read: Bytes that it reads at least, each element once, weights in the form in which they are kept.
        written: Bytes that it writes.
        main: The name of the tensor that takes most of the operations; empty where none of those in it has a name.
        choices: The kernel's schedule, if there was a choice; of control flow, those of the kernels in its bodies.
    """

    title: str
    result: str
    tensors: tuple[str, ...]
    primitives: Mapping[str, int]
    reason: str
    operations: int | None
    read: int | None
    written: int | None
    main: str = ""
    choices: tuple[ChoiceNote, ...] = ()

    @property
    def bytes(self) -> int | None:
        """Bytes read and written."""
        return None if self.read is None or self.written is None else self.read + self.written


@dataclass(frozen=True)
class InterpretedNote:
    """A value that the interpreter computes.

    Attributes:
        primitive: The primitive, and of a host function its name.
        tensor: The name of the model's tensor; empty where it has none.
        reason: Why it has no kernel.
    """

    primitive: str
    tensor: str
    reason: str


@dataclass(frozen=True)
class Explanation:
    """A program for people.

    Attributes:
        target: What it is compiled for.
        threads: How many threads share the work.
        kernels: In the order in which they run.
        interpreted: What has no kernel, in order.
    """

    target: str
    threads: int
    kernels: tuple[KernelNote, ...]
    interpreted: tuple[InterpretedNote, ...]


def explain(program: Program, sizes: Mapping[str, int] | None = None) -> Explanation:
    """What a program does.

    Args:
        program: The program.
        sizes: What open sizes are taken for; costs that depend on others are None.
    """
    reading = _Reading(program, sizes or {})
    interpreted = [
        InterpretedNote(_name(value), value.origin, program.schedule.host[value])
        for value in program.function.values
        if value in program.schedule.host
    ]
    kernels = tuple(reading.note(launch) for launch in program.launches)
    return Explanation(program.target.name, program.pool.threads, kernels, tuple(interpreted))


def _name(value: Value) -> str:
    return f"host {value.params['function'].name}" if value.op == "host" else value.op


@dataclass
class _Content:
    """What a kernel computes, and how many elements it needs of what is in memory; None where sizes are not known."""

    values: list[Value]
    needs: dict[Value, int | None]


class _Reading:
    """Reads a program.

    Args:
        program: The program.
        sizes: What open sizes are taken for.
    """

    def __init__(self, program: Program, sizes: Mapping[str, int]) -> None:
        self.program = program
        self.sizes = sizes
        self._position = {value: i for i, value in enumerate(program.function.values)}
        self._launches: dict[int, list[Launch]] = {}
        for launch in program.launches:
            self._launches.setdefault(id(launch.group), []).append(launch)

    def note(self, launch: Launch) -> KernelNote:
        """A kernel of the program."""
        if launch.bodies:
            return self._control(launch)
        group = launch.group
        starts = self._starts(launch)
        content = self._content(starts, group)
        tensors = [value.origin for value in (*content.values, group.root) if value.origin]
        if not group.root.origin and (whole := self._whole(group.root)):
            tensors.append(whole)
        return KernelNote(
            launch.title,
            str(group.root.type),
            tuple(dict.fromkeys(tensors)),
            dict(Counter(_name(value) for value in content.values if value.op not in ("constant", "input"))),
            group.reason,
            self._operations(launch, content),
            self._read(launch, content),
            self._written(launch, starts),
            self._main(launch, [*content.values, group.root]),
            _describe_choices([launch]),
        )

    def _control(self, launch: Launch) -> KernelNote:
        """A loop or a choice, with all that its bodies do; weights that they read count once."""
        root, launches = launch.writes, list(all_launches([launch]))
        values = [value for body in launch.bodies for value in body.function.values]
        prepared = dict.fromkeys(b for each in launches for b in each.buffers if isinstance(b, Prepared))
        read = [self.number(nbytes(operand.type)) for operand in root.operands]
        titles = Counter(each.title for each in launches)
        return KernelNote(
            root.op,
            str(root.type),
            tuple(dict.fromkeys(value.origin for value in (*values, *launch.all_writes) if value.origin)),
            dict(titles),
            launch.group.reason,
            self.number(cost(root).operations),
            _sum([*read, *map(self.program.prepared_bytes, prepared)]),
            _sum(self.number(nbytes(made.type)) for made in launch.all_writes),
            next((made.origin for made in launch.all_writes if made.origin), ""),
            _describe_choices(launches),
        )

    def _whole(self, value: Value) -> str:
        """The name of a value; of one that is computed on the way to a tensor of the model, that tensor's."""
        waiting, seen = [value], {value}
        while waiting:
            # The one that is computed first: what is made of it alone comes before what reads that.
            each = min(waiting, key=self._position.__getitem__)
            if each.origin:
                return each.origin
            waiting.remove(each)
            waiting += [user for user in self._users.get(each, ()) if user not in seen]
            seen.update(waiting)
        return ""

    @functools.cached_property
    def _users(self) -> dict[Value, list[Value]]:
        users: dict[Value, list[Value]] = {}
        for value in self.program.function.values:
            for operand in value.operands:
                users.setdefault(operand, []).append(value)
        return users

    def _main(self, launch: Launch, values: Sequence[Value]) -> str:
        """The tensor that most operations are for."""
        sums: dict[str, int] = {}
        for value in dict.fromkeys(values):
            if (operations := self._operations_of(launch, value)) and (name := self._whole(value)):
                sums[name] = sums.get(name, 0) + operations
        return max(sums, key=lambda name: sums[name], default=self._whole(launch.group.root))

    def number(self, size: Size) -> int | None:
        """A size; None where it is not known."""
        try:
            return int(evaluate(size, self.sizes))
        except ShapeError:
            return None

    # What is in a kernel.

    def _starts(self, launch: Launch) -> Sequence[Value]:
        """The values that a kernel computes to the end: the group's root, or operands of a root written in parts."""
        group, root = launch.group, launch.group.root
        if not _is_final(launch):
            return ()
        if root.op == "concat":
            return (root.operands[self._launches[id(launch.group)].index(launch)],)
        if launch.title == "fill":
            return ()
        if root.op == "pad" or (root.op == "scatter" and launch.title != "scatter"):
            return (root.operands[0],)
        return root.operands[1:] if root.op == "scatter" else group.roots

    def _content(self, starts: Sequence[Value], group: Group) -> _Content:
        """What is computed from memory on; values are taken after all that read them."""
        most = self._count(group.root)
        wanted: dict[Value, int | None] = {}
        queue: list[int] = []
        for value in starts:
            own = self._count(value)
            self._want(value, own if own is None or most is None else min(own, most), wanted, queue)
        values: list[Value] = []
        needs: dict[Value, int | None] = {}
        order = self.program.function.values
        while queue:
            value = order[-heapq.heappop(queue)]
            if value not in group.roots and (self.program.in_memory(value) or value.is_constant):
                needs[value] = wanted[value]
                continue
            if value.level == CLOSED and value not in group.members:
                continue
            values.append(value)
            for number, operand in enumerate(value.operands):
                count = self._count(operand)
                alike = value.op in _ALIKE or (value.op == "gather" and number == 0)
                here = wanted[value]
                fewer = count if not alike or count is None or here is None else min(count, here)
                self._want(operand, fewer, wanted, queue)
        return _Content(values[::-1], needs)

    def _want(self, value: Value, count: int | None, wanted: dict[Value, int | None], queue: list[int]) -> None:
        if value not in wanted:
            wanted[value] = count
            heapq.heappush(queue, -self._position[value])
            return
        before, full = wanted[value], self._count(value)
        unknown = before is None or count is None or full is None
        wanted[value] = None if unknown else min(full, before + count)  # type: ignore[type-var, operator]

    def _count(self, value: Value) -> int | None:
        """How many elements a value has; of several results together nothing is known."""
        return self.number(elements(value.type)) if isinstance(value.type, TensorType) else None

    # What it costs.

    def _operations(self, launch: Launch, content: _Content) -> int | None:
        if not _is_final(launch):
            return 0
        return _sum(self._operations_of(launch, value) for value in content.values)

    def _operations_of(self, launch: Launch, value: Value) -> int | None:
        if value.op in ("call", "host"):
            # A kernel of its own stands for the definition, and does much less.
            return None
        if value.op != "convolve":
            return self.number(cost(value).operations)
        if launch.title.startswith("winograd"):
            assert launch.choice is not None
            found = next(each for each in self.program.schedule.convolutions.values() if each.core is value)
            tile = launch.choice.schedule.winograd_tile
            batch, _, *out = shape_of(found.result)
            tiles = math.prod((batch, *(ceil_div(size, m) for size, m in zip(out, tile, strict=True))))
            places = math.prod(1 if m == 1 else m + 2 for m in tile)
            filters, channels = shape_of(found.weights)[1:3]
            return self.number(2 * places * filters * channels * tiles)
        inserted = math.prod(value.params["base_dilation"])
        found_operations = self.number(cost(value).operations)
        return None if found_operations is None else found_operations // inserted

    def _read(self, launch: Launch, content: _Content) -> int | None:
        return _sum(self._bytes_read(launch, buffer, content) for buffer in launch.buffers)

    def _bytes_read(self, launch: Launch, buffer: Any, content: _Content) -> int | None:
        if isinstance(buffer, Prepared):
            return self.program.prepared_bytes(buffer)
        if isinstance(buffer, (Relaid, Stage)):
            return 0 if buffer is _staged(launch) else self.number(buffer.bytes)
        if not isinstance(buffer, Value) or buffer in launch.all_writes:
            return 0
        return self._bytes(buffer, content.needs[buffer] if buffer in content.needs else self._count(buffer))

    def _written(self, launch: Launch, starts: Sequence[Value]) -> int | None:
        root = launch.group.root
        staged = _staged(launch)
        if staged is not None:
            return self.number(staged.bytes)
        if starts and root not in starts:
            part, most = self._count(starts[-1]), self._count(root)
            return self._bytes(root, part if part is None or most is None else min(part, most))
        return _sum(self.number(nbytes(made.type)) for made in launch.all_writes)

    def _bytes(self, value: Value, count: int | None) -> int | None:
        full, total = self._count(value), self.number(nbytes(value.type))
        if count is None or full is None or total is None:
            return None
        return total * count // full if full else 0


def _describe_choices(launches: Iterable[Launch]) -> tuple[ChoiceNote, ...]:
    """Return the schedules of launches, each problem once."""
    notes: dict[str, ChoiceNote] = {}
    for launch in launches:
        choice = launch.choice
        if choice is not None:
            rejected = tuple(CandidateNote(str(each.schedule), each.cost, each.reason) for each in choice.candidates)
            problem, schedule = str(choice.problem), choice.schedule
            notes[problem] = ChoiceNote(
                problem, schedule.to_dict(), str(schedule), choice.reason, choice.cost, rejected
            )
    return tuple(notes.values())


def _is_final(launch: Launch) -> bool:
    """Whether a kernel writes what its group is for, or a part of it."""
    return launch.writes in launch.buffers


def _staged(launch: Launch) -> Relaid | Stage | None:
    """What a kernel writes that only prepares what its group is computed from."""
    if _is_final(launch):
        return None
    stages: list[Relaid | Stage] = [buffer for buffer in launch.buffers if isinstance(buffer, Stage)]
    return (stages or [buffer for buffer in launch.buffers if isinstance(buffer, Relaid)])[0]


def _sum(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total
