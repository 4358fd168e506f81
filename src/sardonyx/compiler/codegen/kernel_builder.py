"""A kernel under construction: an LLVM function that computes a range of work items.

All kernels have one signature, ``void name(ptr arguments, i64 first, i64 last, i64 worker)``. ``arguments`` points to
slots of 8 bytes: the addresses of the buffers, then the sizes. The work items ``first … last`` are computed in order;
``worker`` is the number of the calling thread, for per-thread scratch memory. Results do not depend on how the work
items are divided, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.target.description import Target
from sardonyx.core.dim import Size


@dataclass(frozen=True)
class Index:
    """Positions of a vector's lanes along an axis: lane ``i`` is at ``base + i * lane``.

    Attributes:
        base: The position of the first lane, an ``i64`` or a number.
        lane: The stride between lanes, an ``i64`` or a number; 0 if all lanes are at one position.
        multiple: A known divisor of ``base``; ignored when indices are compared.
        vector: The position of every lane, an ``i64`` vector, if the stride is not constant; overrides the other
            fields.
        row: The stride between the rows of a block, added to ``base`` for each row; the reader knows the current row.
        repeat: Number of neighbouring lanes at one position; lane ``i`` is then at ``base + i // repeat * lane``.
        remainder: A number that differs from ``base`` by a multiple of ``modulus``; both ignored in comparisons.
        modulus: See ``remainder``; 1 if nothing but ``multiple`` is known.
    """

    base: str | int
    lane: str | int = 0
    multiple: int = field(default=1, compare=False)
    vector: str = ""
    row: str | int = 0
    repeat: int = 1
    remainder: int = field(default=0, compare=False)
    modulus: int = field(default=1, compare=False)

    @property
    def congruence(self) -> tuple[int, int]:
        """A modulus and the remainder of ``base``; the modulus is 0, and the remainder ``base``, if that is known."""
        if isinstance(self.base, int):
            return 0, self.base
        return (self.multiple, 0) if self.modulus == 1 else (self.modulus, self.remainder)

    @property
    def is_uniform(self) -> bool:
        """Return True if all lanes are at one position."""
        return not self.lane and not self.vector

    @property
    def is_origin(self) -> bool:
        """Return True if all lanes are at position 0."""
        return self.base == 0 and not self.lane and not self.vector and not self.row


Epilogue = Callable[[tuple[Index, ...], str, "str | None"], None]
"""Function that applies the fused epilogue to a vector of results and stores the vector.

Arguments: the position in the logical result, the register, and the mask of existing lanes (None: all).
"""


@dataclass(frozen=True)
class Gated:
    """Epilogue of a product whose columns are gates, applied to all gates of the same units at once.

    Attributes:
        count: Number of gates.
        units: Units of each gate.
        epilogue: Function that computes and stores some units. Arguments: the position, with the first unit instead of
            a column; the values gate by gate; the mask of existing lanes.
        prefetch: Emits prefetches of the epilogue's operands at an index, before the product.
    """

    count: int
    units: int
    epilogue: Callable[[tuple[Index, ...], Sequence[str], str | None], None]
    prefetch: Callable[[tuple[Index, ...]], None]


_OUTLINED = "outlined."
"""Prefix of the names of outlined functions until the kernel has its name."""


class Neighbours:
    """Queue of adjacent results that are stored by one call."""

    def __init__(self) -> None:
        self._store: Callable[[str, list[str]], None] | None = None
        self._pointer = ""
        self._results: list[str] = []

    def wait(self, pointer: str, result: str, most: int, store: Callable[[str, list[str]], None]) -> None:
        """Append a result whose address directly follows the previous one; store ``most`` results at once."""
        if not self._results:
            self._pointer, self._store = pointer, store
        self._results.append(result)
        if len(self._results) == most:
            self.store()

    def store(self) -> None:
        """Store the queued results."""
        if self._store is not None and self._results:
            self._store(self._pointer, self._results)
        self._results = []


class Kernel:
    """One kernel.

    Args:
        target: The target of the code.

    Attributes:
        target: The target of the code.
        emitter: Writes the body, in which ``%first``, ``%last`` and ``%worker`` are defined as ``i64``.
        work: Estimated cost of one work item in vector FMAs; 0 if unknown.
        neighbours: Queue of adjacent results, see :meth:`side_by_side`; None outside of this context.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.emitter = Emitter(converts_halves=target.converts_halves)
        self.work = 0
        self.neighbours: Neighbours | None = None
        self._buffers: list[bool] = []
        self._sizes: dict[Size, str] = {}
        self._outlined: dict[str, str] = {}

    def buffer(self, *, shared: bool = False) -> str:
        """Add a buffer argument and return its pointer.

        Args:
            shared: True if another argument may alias the buffer (a result that overwrites an operand).
        """
        self._buffers.append(shared)
        return f"%b{len(self._buffers) - 1}"

    @contextmanager
    def outlined(self, stem: str, parameters: Sequence[tuple[str, str]]) -> Iterator[Emitter]:
        """Write a function of its own for rare work, whose registers the kernel's loops need; yield its IR builder.

        Args:
            stem: Name of the function for :meth:`call_outlined`.
            parameters: LLVM types and names, with ``%``.
        """
        e = Emitter(converts_halves=self.target.converts_halves)
        yield e
        names = ", ".join(f"{type} {name}" for type, name in parameters)
        head = f"define internal void @{_OUTLINED}{stem}({names}) noinline nounwind {{"
        self._outlined[stem] = "\n".join([*e.globals.values(), head, e.text(), "  ret void", "}"])
        self.emitter.declarations.update(e.declarations)

    def call_outlined(self, stem: str, arguments: Sequence[tuple[str, object]]) -> None:
        """Write a call of a function of :meth:`outlined`, with LLVM types and values."""
        operands = ", ".join(f"{type} {value}" for type, value in arguments)
        self.emitter.line(f"call void @{_OUTLINED}{stem}({operands})")

    @contextmanager
    def side_by_side(self) -> Iterator[None]:
        """Declare that result vectors of the enclosed epilogues are adjacent in a blocked image.

        Instead of storing, an epilogue may append its results to :attr:`neighbours`, for a function with one store for
        several vectors.
        """
        self.neighbours = waiting = Neighbours()
        yield
        self.neighbours = None
        waiting.store()

    def size(self, size: Size) -> str | int:
        """Return a size as an operand of instructions: a number, or an argument that the caller computes."""
        if isinstance(size, int):
            return size
        return self._sizes.setdefault(size, f"%s{len(self._sizes)}")

    def argument(self, size: Size) -> str:
        """Return a size as an argument, even a known one, so that launches of other sizes share code."""
        return self._sizes.setdefault(size, f"%s{len(self._sizes)}")

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The expressions of the size arguments, in order."""
        return tuple(self._sizes)

    def definition(self, name: str) -> str:
        """Return the LLVM functions of the finished kernel: the entry ``name`` and the body."""
        buffers = [f"ptr {'' if shared else 'noalias '}%b{i}" for i, shared in enumerate(self._buffers)]
        sizes = [f"i64 {size}" for size in self._sizes.values()]
        work = ["i64 %first", "i64 %last", "i64 %worker"]
        entry = []
        for i in range(len(buffers) + len(sizes)):
            kind, stem = ("ptr", f"%b{i}") if i < len(buffers) else ("i64", f"%s{i - len(buffers)}")
            entry += [f"  %p{i} = getelementptr i64, ptr %arguments, i64 {i}", f"  {stem} = load {kind}, ptr %p{i}"]
        operands = ", ".join([*(f"ptr %b{i}" for i in range(len(buffers))), *sizes, *work])
        text = "\n".join(
            [
                *self.emitter.globals.values(),
                *self._outlined.values(),
                f"define internal void @{name}.body({', '.join([*buffers, *sizes, *work])}) nounwind {{",
                self.emitter.text(),
                "  ret void",
                "}",
                f"define void @{name}(ptr %arguments, {', '.join(work)}) nounwind {{",
                *entry,
                f"  call void @{name}.body({operands})",
                "  ret void",
                "}",
            ]
        )
        return text.replace(f"@{_OUTLINED}", f"@{name}.")
