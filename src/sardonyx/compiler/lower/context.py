"""A kernel while it is written: its arguments, where values are, and what is known of the function around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sardonyx.compiler.analysis.primitive_traits import dtype_of, is_splat
from sardonyx.compiler.analysis.strided_views import Memory, View, shape_of, view
from sardonyx.compiler.codegen.element_reader import Reader
from sardonyx.compiler.codegen.kernel_builder import Kernel
from sardonyx.compiler.codegen.loop_nest import Unfusable
from sardonyx.compiler.lower.launch import FAULT, NAME, Buffer, Launch, Relaid
from sardonyx.compiler.schedule.fusion import Schedule
from sardonyx.compiler.schedule.groups import Group
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling.choice import Choice
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value


class Whole:
    """What is known of the whole function while one of its groups is lowered.

    Args:
        schedule: The groups.
        target: What the kernels are for.
        blocks: Channels in a block, of values that are images in blocked layout.
        threads: How many threads will share the work.
        iteration: The number of the iteration, where the function is the body of a loop.

    Attributes:
        relaid: Images that kernels have written once more, in another layout or type.
    """

    def __init__(
        self,
        schedule: Schedule,
        target: Target,
        blocks: Mapping[Value, int],
        threads: int,
        iteration: Value | None = None,
    ) -> None:
        self.schedule = schedule
        self.target = target
        self.blocks = blocks
        self.threads = threads
        self.iteration = iteration
        self.relaid: set[Relaid] = set()
        self._roots = frozenset(root for group in schedule.groups for root in group.roots)

    @property
    def function(self) -> Function:
        """The function."""
        return self.schedule.function

    def in_memory(self, value: Value) -> bool:
        """Whether a value is in memory when a kernel outside of its group runs."""
        if value.op == "constant":
            return not is_splat(value)
        if value.op == "dims":
            return len(value.params["sizes"]) > 1
        if value.op == "input" or value in self.schedule.host:
            return True
        if value.op == "get":
            return self.schedule.is_native(value.operands[0])
        group = self.schedule.group(value)
        return group is not None and value in group.roots

    def require_memory(self, value: Value) -> None:
        """Refuse that a value is no more than an expression.

        Raises:
            Unfusable: It is not in memory.
        """
        if not self.in_memory(value):
            raise Unfusable(value)

    def operand(self, value: Value) -> View:
        """An operand of a template as a view of memory.

        Raises:
            Unfusable: It has to be moved first.
        """
        found = view(value, self._roots)
        if (not self.in_memory(found.base) and not found.base.is_constant) or found.base in self.blocks:
            raise Unfusable(value if found.base in self.blocks else found.base)
        return found

    def image(self, value: Value, blocked: bool, dtype: t.DType) -> Value | Relaid:
        """An image in the layout and of the type that a kernel needs: as it is in memory, or written once more."""
        if (value in self.blocks) == blocked and dtype_of(value) == dtype:
            return value
        return Relaid(value, self.target.lanes(32) if blocked else 1, dtype)


class Writing:
    """One kernel while its group is lowered.

    Args:
        whole: What is known of the whole function.
        group: The group.
        lanes: Lanes of the kernel's vectors; by default what the target has for 32 bits.

    Attributes:
        choice: The kernel's schedule and the rejected candidates; None where there is no choice.
    """

    def __init__(self, whole: Whole, group: Group, lanes: int | None = None) -> None:
        self.whole = whole
        self.group = group
        self.kernel = Kernel(whole.target)
        self.choice: Choice[Any] | None = None
        self._buffers: dict[Buffer, str] = {}
        self._memories: dict[Value, Memory | None] = {}
        self.reader = Reader(self.kernel, lanes or whole.target.lanes(32), self.memory, lambda: self.pointer(FAULT))

    def pointer(self, buffer: Buffer) -> str:
        """The argument that points to a buffer."""
        if buffer not in self._buffers:
            self._buffers[buffer] = self.kernel.buffer()
        return self._buffers[buffer]

    def memory(self, value: Value) -> Memory | None:
        """Where a value is, for those that are in memory before the kernel runs."""
        if value not in self._memories:
            absent = value in self.group.members or not self.whole.in_memory(value)
            self._memories[value] = None if absent else self.located(value)
        return self._memories[value]

    def located(self, value: Value) -> Memory:
        """Where a value is or goes."""
        return Memory(self.pointer(value), dtype_of(value), shape_of(value), self.whole.blocks.get(value, 0))

    def launch(self, items: Size, title: str, writes: Value | None = None) -> Launch:
        """The finished kernel with its arguments."""
        return Launch(
            self.kernel.definition(NAME), tuple(self.kernel.emitter.declarations), tuple(self._buffers),
            self.kernel.sizes, items, writes or self.group.root, title, self.group, also=self.group.others,
            work=self.kernel.work, choice=self.choice,
        )  # fmt: skip
