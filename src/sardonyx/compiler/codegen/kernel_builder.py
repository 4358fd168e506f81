"""A kernel while it is written: an LLVM function over buffers and sizes, that does a range of work items.

All kernels have one signature, ``void name(ptr arguments, i64 first, i64 last, i64 worker)``. ``arguments`` points to
slots of 8 bytes: the addresses of the buffers, then the sizes. The work items ``first … last`` are done in order;
``worker`` tells which thread does them, for scratch memory of its own. However work is split, the results are the same
to the bit.
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
    """Where along an axis the lanes of a vector are: lane ``i`` is at ``base + i * lane``.

    Attributes:
        base: The first lane's, an ``i64`` or a number.
        lane: The step from lane to lane, an ``i64`` or a number; 0 where all are at one place.
        multiple: What ``base`` is known to be a multiple of; places are equal whatever is known of them.
        vector: Every lane's place, an ``i64`` vector, where they are not evenly apart; the others mean nothing then.
        row: The step from row to row of a block, to be added to ``base``: the reader tells which row is written.
        repeat: How many neighbouring lanes are at one place; then lane ``i`` is at ``base + i // repeat * lane``.
    """

    base: str | int
    lane: str | int = 0
    multiple: int = field(default=1, compare=False)
    vector: str = ""
    row: str | int = 0
    repeat: int = 1

    @property
    def is_uniform(self) -> bool:
        """Whether all lanes are at one place."""
        return not self.lane and not self.vector

    @property
    def is_origin(self) -> bool:
        """Whether all lanes are at the first place."""
        return self.base == 0 and not self.lane and not self.vector and not self.row


Epilogue = Callable[[tuple[Index, ...], str, "str | None"], None]
"""What becomes of a vector of results: its place in the logical result, its value, and the mask of its lanes that
exist (None: all). It applies what is fused behind and stores."""


@dataclass(frozen=True)
class Gated:
    """How a product of gates is handed on: the vectors of all gates of the same units together.

    Attributes:
        count: How many gates.
        units: Units of each.
        epilogue: What becomes of the vectors of some units: their place, with the first of them in place of a column,
            the values gate by gate, and the mask of the lanes that exist.
        prefetch: Emits prefetches of the operands that the epilogue reads at an index, before the product.
    """

    count: int
    units: int
    epilogue: Callable[[tuple[Index, ...], Sequence[str], str | None], None]
    prefetch: Callable[[tuple[Index, ...]], None]


class Neighbours:
    """Results that wait to be stored together: each a register, and the place of the first in memory."""

    def __init__(self) -> None:
        self._store: Callable[[str, list[str]], None] | None = None
        self._pointer = ""
        self._results: list[str] = []

    def wait(self, pointer: str, result: str, most: int, store: Callable[[str, list[str]], None]) -> None:
        """Have a result stored behind the one before; so many at once at most."""
        if not self._results:
            self._pointer, self._store = pointer, store
        self._results.append(result)
        if len(self._results) == most:
            self.store()

    def store(self) -> None:
        """Store those that wait."""
        if self._store is not None and self._results:
            self._store(self._pointer, self._results)
        self._results = []


class Kernel:
    """One kernel.

    Args:
        target: What the code is for.

    Attributes:
        target: What the code is for.
        emitter: Writes the body. ``%first``, ``%last`` and ``%worker`` are there as ``i64``.
        work: Multiply-adds of vectors that a work item takes as long as, about; 0 where that is not known.
        neighbours: Results that wait to be stored with their neighbours, see :meth:`side_by_side`.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.emitter = Emitter(converts_halves=target.converts_halves)
        self.work = 0
        self.neighbours: Neighbours | None = None
        self._buffers: list[bool] = []
        self._sizes: dict[Size, str] = {}

    def buffer(self, *, shared: bool = False) -> str:
        """A new buffer argument, as a pointer.

        Args:
            shared: Whether another argument may be the same memory (a result in the place of an operand).
        """
        self._buffers.append(shared)
        return f"%b{len(self._buffers) - 1}"

    @contextmanager
    def side_by_side(self) -> Iterator[None]:
        """Vectors of results that are handed on inside, in a blocked image lie one behind the other.

        An epilogue may put what it would store to the :attr:`neighbours`, for a function that stores several at once.
        """
        self.neighbours = waiting = Neighbours()
        yield
        self.neighbours = None
        waiting.store()

    def size(self, size: Size) -> str | int:
        """A size as the code knows it: the number itself, or an argument that the caller computes."""
        if isinstance(size, int):
            return size
        return self._sizes.setdefault(size, f"%s{len(self._sizes)}")

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The expressions of the sizes that it takes, in order."""
        return tuple(self._sizes)

    def definition(self, name: str) -> str:
        """The LLVM functions of the finished kernel: the entry of that name, and the body that it calls."""
        buffers = [f"ptr {'' if shared else 'noalias '}%b{i}" for i, shared in enumerate(self._buffers)]
        sizes = [f"i64 {each}" for each in self._sizes.values()]
        work = ["i64 %first", "i64 %last", "i64 %worker"]
        entry = []
        for i in range(len(buffers) + len(sizes)):
            kind, stem = ("ptr", f"%b{i}") if i < len(buffers) else ("i64", f"%s{i - len(buffers)}")
            entry += [f"  %p{i} = getelementptr i64, ptr %arguments, i64 {i}", f"  {stem} = load {kind}, ptr %p{i}"]
        given = ", ".join(
            [*(f"ptr %b{i}" for i in range(len(buffers))), *(f"i64 {each}" for each in self._sizes.values()), *work]
        )
        return "\n".join(
            [
                *self.emitter.globals.values(),
                f"define internal void @{name}.body({', '.join([*buffers, *sizes, *work])}) nounwind {{",
                self.emitter.text(),
                "  ret void",
                "}",
                f"define void @{name}(ptr %arguments, {', '.join(work)}) nounwind {{",
                *entry,
                f"  call void @{name}.body({given})",
                "  ret void",
                "}",
            ]
        )
