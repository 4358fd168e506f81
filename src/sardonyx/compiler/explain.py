"""Explanation of a program: kernels with contents and costs, and interpreted values."""

from __future__ import annotations

import functools
import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sardonyx.compiler.analysis.primitive_traits import ELEMENTWISE
from sardonyx.compiler.analysis.strided_views import MOVEMENTS, shape_of
from sardonyx.compiler.lower.launch import Launch, Prepared, Relaid, Stage, all_launches
from sardonyx.compiler.program import Program
from sardonyx.compiler.schedule.groups import Group
from sardonyx.core.dim import Size, ceil_div, evaluate, require_symbols, symbols
from sardonyx.core.ir.graph import CLOSED, Function, Value, functions_of
from sardonyx.core.ir.types import TensorType
from sardonyx.core.transform.cost import cost, elements, nbytes
from sardonyx.errors import ShapeError

_ELEMENT_BY_ELEMENT = MOVEMENTS | ELEMENTWISE
"""Primitives that read at most one element of an operand for each element of their result."""


@dataclass(frozen=True)
class CandidateNote:
    """A rejected schedule.

    Attributes:
        text: The schedule in one line.
        cost: Estimated cost in the unit of :attr:`ChoiceNote.cost`; None if sizes are open.
        reason: The reason for the rejection.
    """

    text: str
    cost: float | None
    reason: str


@dataclass(frozen=True)
class ChoiceNote:
    """The schedule of a kernel.

    Attributes:
        problem: The problem in one line: the key of overrides.
        schedule: The schedule as plain data, in the format of overrides.
        text: The schedule in one line.
        reason: The rule behind the choice.
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
        title: Short description of the computation.
        result: Type of the written value; the kernel may write only a part.
        tensors: Names of the model's tensors computed in the kernel, in order; the last is the result.
        primitives: Number of primitives in the kernel, by name; for a loop or a choice, of kernels in its bodies.
        reason: The reason why the fusion ended here.
        operations: Arithmetic operations of the chosen algorithm (for Winograd, of the products); None if sizes are
            unknown.
        read: Minimum bytes to read: each element once, weights in packed form.
        written: Bytes to write.
        main: Name of the tensor with the most operations; empty if the kernel computes no named tensor.
        choices: The kernel's schedule, if there was a choice, and the choice of fusion to leave work to another kernel;
            for control flow, those of its bodies.
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
    """An interpreted value.

    Attributes:
        primitive: Name of the primitive; for a host function, also the name of the function.
        tensor: Name of the model's tensor; empty without a name.
        reason: The reason for the lack of a kernel.
    """

    primitive: str
    tensor: str
    reason: str


@dataclass(frozen=True)
class Explanation:
    """Explanation of a program.

    Attributes:
        target: Name of the target.
        threads: Number of threads that share the work.
        kernels: The kernels, in execution order.
        interpreted: The interpreted values, in order.
    """

    target: str
    threads: int
    kernels: tuple[KernelNote, ...]
    interpreted: tuple[InterpretedNote, ...]


def explain(program: Program, sizes: Mapping[str, int] | None = None) -> Explanation:
    """Return an explanation of a program.

    Args:
        program: The program.
        sizes: Assumed values of open sizes; costs that depend on other open sizes are None.

    Raises:
        OptionError: A name is not an open size of the program.
    """
    require_symbols(sizes or {}, _open_sizes(program.function.inputs), _open_sizes(_values_of(program.function)))
    explainer = _Explainer(program, sizes or {})
    interpreted = [
        InterpretedNote(_name(value), value.origin, program.grouping.host[value])
        for value in program.function.values
        if value in program.grouping.host
    ]
    kernels = tuple(explainer.note(launch) for launch in program.launches)
    return Explanation(program.target.name, program.pool.threads, kernels, tuple(interpreted))


def _values_of(function: Function) -> Iterator[Value]:
    """Yield the values of a function, and those of its bodies and branches."""
    for value in function.values:
        yield value
        for nested in functions_of(value):
            yield from _values_of(nested)


def _open_sizes(values: Iterable[Value]) -> list[str]:
    sizes = (size for value in values if isinstance(value.type, TensorType) for size in value.type.shape or ())
    return list(dict.fromkeys(name for size in sizes for name in sorted(symbols(size))))


def _name(value: Value) -> str:
    return f"host {value.params['function'].name}" if value.op == "host" else value.op


@dataclass
class _Content:
    """The values in a kernel, and the elements needed of each operand; None if sizes are unknown."""

    values: list[Value]
    needs: dict[Value, int | None]


class _Explainer:
    """Describes the kernels of a program.

    Args:
        program: The program.
        sizes: Assumed values of open sizes.
    """

    def __init__(self, program: Program, sizes: Mapping[str, int]) -> None:
        self.program = program
        self.sizes = sizes
        self._position = {value: i for i, value in enumerate(program.function.values)}
        self._launches: dict[int, list[Launch]] = {}
        for launch in program.launches:
            self._launches.setdefault(id(launch.group), []).append(launch)

    def note(self, launch: Launch) -> KernelNote:
        """Return the description of a kernel."""
        if launch.bodies:
            return self._control(launch)
        group = launch.group
        starts = self._starts(launch)
        content = self._content(starts, group)
        tensors = [value.origin for value in (*content.values, group.root) if value.origin]
        if not group.root.origin and (name := self._tensor_name(group.root)):
            tensors.append(name)
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
        """Return the description of a loop or choice, with all kernels of its bodies; weights count once."""
        root, launches = launch.writes, list(all_launches([launch]))
        values = [value for body in launch.bodies for value in body.function.values]
        prepared = dict.fromkeys(b for inner in launches for b in inner.buffers if isinstance(b, Prepared))
        read = [self.number(nbytes(operand.type)) for operand in root.operands]
        titles = Counter(inner.title for inner in launches)
        return KernelNote(
            root.op,
            str(root.type),
            tuple(dict.fromkeys(value.origin for value in (*values, *launch.all_writes) if value.origin)),
            dict(titles),
            launch.group.reason,
            self.number(cost(root).operations),
            _sum([*read, *map(self.program.prepared_bytes, prepared)]),
            _sum(self.number(nbytes(result.type)) for result in launch.all_writes),
            next((result.origin for result in launch.all_writes if result.origin), ""),
            _describe_choices(launches),
        )

    def _tensor_name(self, value: Value) -> str:
        """Return the name of a value, or of the first tensor of the model that depends on the value."""
        waiting, seen = [value], {value}
        while waiting:
            # In order of computation, so that the name of the nearest dependent tensor is returned.
            user = min(waiting, key=self._position.__getitem__)
            if user.origin:
                return user.origin
            waiting.remove(user)
            waiting += [next_user for next_user in self._users.get(user, ()) if next_user not in seen]
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
        """Return the name of the tensor with the most operations."""
        sums: dict[str, int] = {}
        for value in dict.fromkeys(values):
            if (operations := self._operations_of(launch, value)) and (name := self._tensor_name(value)):
                sums[name] = sums.get(name, 0) + operations
        return max(sums, key=lambda name: sums[name], default=self._tensor_name(launch.group.root))

    def number(self, size: Size) -> int | None:
        """Return the value of a size; None if unknown."""
        try:
            return int(evaluate(size, self.sizes))
        except ShapeError:
            return None

    # The contents of a kernel.

    def _starts(self, launch: Launch) -> Sequence[Value]:
        """Return the values that a kernel writes: the group's root, or operands of a root written in parts."""
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
        """Return the values computed in a kernel, and the elements read from memory."""
        most = self._count(group.root)
        required: dict[Value, int | None] = {}
        queue: list[int] = []
        for value in starts:
            own = self._count(value)
            self._require(value, own if own is None or most is None else min(own, most), required, queue)
        values: list[Value] = []
        needs: dict[Value, int | None] = {}
        order = self.program.function.values
        while queue:
            value = order[-heapq.heappop(queue)]
            if value not in group.roots and (self.program.in_memory(value) or value.is_constant):
                needs[value] = required[value]
                continue
            if value.level == CLOSED and value not in group.members:
                continue
            values.append(value)
            for number, operand in enumerate(value.operands):
                count = self._count(operand)
                elementwise = value.op in _ELEMENT_BY_ELEMENT or (value.op == "gather" and number == 0)
                needed = required[value]
                fewer = count if not elementwise or count is None or needed is None else min(count, needed)
                self._require(operand, fewer, required, queue)
        return _Content(values[::-1], needs)

    def _require(self, value: Value, count: int | None, required: dict[Value, int | None], queue: list[int]) -> None:
        if value not in required:
            required[value] = count
            heapq.heappush(queue, -self._position[value])
            return
        before, full = required[value], self._count(value)
        unknown = before is None or count is None or full is None
        required[value] = None if unknown else min(full, before + count)  # type: ignore[type-var, operator]

    def _count(self, value: Value) -> int | None:
        """Return the number of elements of a value; None for several results."""
        return self.number(elements(value.type)) if isinstance(value.type, TensorType) else None

    # Costs.

    def _operations(self, launch: Launch, content: _Content) -> int | None:
        if not _is_final(launch):
            return 0
        return _sum(self._operations_of(launch, value) for value in content.values)

    def _operations_of(self, launch: Launch, value: Value) -> int | None:
        if value.op in ("call", "host"):
            # The kernel of a call or host function does much less than the definition.
            return None
        if value.op != "convolve":
            return self.number(cost(value).operations)
        if launch.title.startswith("winograd"):
            assert launch.choice is not None
            convolution = next(c for c in self.program.grouping.convolutions.values() if c.core is value)
            tile = launch.choice.schedule.winograd_tile
            batch, _, *out = shape_of(convolution.result)
            tiles = math.prod((batch, *(ceil_div(size, m) for size, m in zip(out, tile, strict=True))))
            tile_elements = math.prod(1 if m == 1 else m + 2 for m in tile)
            filters, channels = shape_of(convolution.weights)[1:3]
            return self.number(2 * tile_elements * filters * channels * tiles)
        inserted = math.prod(value.params["base_dilation"])
        operations = self.number(cost(value).operations)
        return None if operations is None else operations // inserted

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
        return _sum(self.number(nbytes(result.type)) for result in launch.all_writes)

    def _bytes(self, value: Value, count: int | None) -> int | None:
        full, total = self._count(value), self.number(nbytes(value.type))
        if count is None or full is None or total is None:
            return None
        return total * count // full if full else 0


def _describe_choices(launches: Iterable[Launch]) -> tuple[ChoiceNote, ...]:
    """Return the schedules of launches, one for each problem."""
    notes: dict[str, ChoiceNote] = {}
    for launch in launches:
        for choice in filter(None, (launch.choice, launch.fusion_choice)):
            rejected = tuple(
                CandidateNote(str(candidate.schedule), candidate.cost, candidate.reason)
                for candidate in choice.candidates
            )
            problem, schedule = str(choice.problem), choice.schedule
            notes[problem] = ChoiceNote(
                problem, schedule.to_dict(), str(schedule), choice.reason, choice.cost, rejected
            )
    return tuple(notes.values())


def _is_final(launch: Launch) -> bool:
    """Return True if a kernel writes the result of its group, or a part."""
    return launch.writes in launch.buffers


def _staged(launch: Launch) -> Relaid | Stage | None:
    """Return the buffer that a preparing kernel writes for its group; None for the final kernel."""
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
