"""State of lowering: the function around a group, and the kernel that is being written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sardonyx.compiler.analysis.primitive_traits import dtype_of, is_elementwise, is_splat
from sardonyx.compiler.analysis.strided_views import MOVEMENTS, Memory, View, shape_of, view
from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.element_reader import Reader
from sardonyx.compiler.codegen.kernel_builder import Kernel
from sardonyx.compiler.codegen.loop_nest import Unfusable
from sardonyx.compiler.lower.launch import FAULT, NAME, Buffer, Launch, Relaid, Stage
from sardonyx.compiler.schedule.fusion import Grouping
from sardonyx.compiler.schedule.groups import Group
from sardonyx.compiler.schedule.image_extremes import images_with_extremes
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling.choice import Choice
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value


class FunctionContext:
    """Facts about the function while one of its groups is lowered.

    Args:
        grouping: The groups of the function.
        target: The processor.
        blocks: Channels of a block, for each image in blocked layout.
        threads: Number of threads that share the work.
        iteration: The iteration number if the function is the body of a loop.
        in_place: Inputs and results that may be in the same memory.

    Attributes:
        relaid: Copies of images already written, in another layout or type.
        reduced: Images of convolutions that are reduced to their extremes.
        extremes: Those of these images whose extremes are in memory, with the memory.
    """

    def __init__(
        self,
        grouping: Grouping,
        target: Target,
        blocks: Mapping[Value, int],
        threads: int,
        iteration: Value | None = None,
        in_place: frozenset[Value] = frozenset(),
    ) -> None:
        self.grouping = grouping
        self.target = target
        self.blocks = blocks
        self.threads = threads
        self.iteration = iteration
        self.in_place = in_place
        self.relaid: set[Relaid] = set()
        self.reduced = images_with_extremes(grouping.groups)
        self.extremes: dict[Value, Stage] = {}
        self._roots = frozenset(root for group in grouping.groups for root in group.roots)

    @property
    def function(self) -> Function:
        """The Core function."""
        return self.grouping.function

    def in_memory(self, value: Value) -> bool:
        """Return True if a value is in memory when a kernel outside of its group runs."""
        if value.op == "constant":
            return not is_splat(value)
        if value.op == "dims":
            return len(value.params["sizes"]) > 1
        if value.op == "input" or value in self.grouping.host:
            return True
        if value.op == "get":
            return self.grouping.is_native(value.operands[0])
        group = self.grouping.group(value)
        return group is not None and value in group.roots

    def keep(self, launches: Sequence[Launch]) -> None:
        """Note the copies and extremes of images that launches write."""
        for launch in launches:
            for buffer in launch.buffers:
                if isinstance(buffer, Relaid):
                    self.relaid.add(buffer)
                elif isinstance(buffer, Stage) and buffer.source in self.reduced and buffer.source is launch.writes:
                    self.extremes[buffer.source] = buffer

    def require_memory(self, value: Value) -> None:
        """Raise an error unless a value is in memory.

        Raises:
            Unfusable: The value is only an expression.
        """
        if not self.in_memory(value):
            raise Unfusable(value)

    def operand(self, value: Value) -> View:
        """Return an operand of a template as a view of memory.

        Raises:
            Unfusable: The operand must be written to memory, or to NCHW, first.
        """
        operand = view(value, self._roots)
        if (not self.in_memory(operand.base) and not operand.base.is_constant) or operand.base in self.blocks:
            raise Unfusable(value if operand.base in self.blocks else operand.base)
        return operand

    def image(self, value: Value, blocked: bool, dtype: t.DType) -> Value | Relaid:
        """Return an image in the layout and type of a kernel: the value itself, or a copy to be written."""
        if (value in self.blocks) == blocked and dtype_of(value) == dtype:
            return value
        return Relaid(value, self.target.lanes(32) if blocked else 1, dtype)


class KernelWriter:
    """The kernel of a group while its code is emitted.

    Args:
        context: Facts about the function.
        group: The group.
        lanes: Lanes of the kernel's vectors; by default the lanes of the target for 32 bits.

    Attributes:
        choice: The kernel's schedule and the rejected candidates; None without a choice.
        fusion_choice: The choice of fusion to leave work out of the kernel, e.g. the gates of a product; None without.
    """

    def __init__(self, context: FunctionContext, group: Group, lanes: int | None = None) -> None:
        self.context = context
        self.group = group
        self.kernel = Kernel(context.target)
        self.choice: Choice[Any] | None = None
        self.fusion_choice: Choice[Any] | None = None
        self._buffers: dict[Buffer, str] = {}
        self._memories: dict[Value, Memory | None] = {}
        self.reader = Reader(
            self.kernel, lanes or context.target.lanes(32), self.memory, lambda: self.pointer(FAULT), self.computes
        )

    def pointer(self, buffer: Buffer) -> str:
        """Return the kernel argument for a buffer."""
        if buffer not in self._buffers:
            self._buffers[buffer] = self.kernel.buffer(shared=buffer in self.context.in_place)
        return self._buffers[buffer]

    def computes(self, value: Value) -> bool:
        """Return True unless a value is in memory before the kernel runs."""
        return value in self.group.members or not self.context.in_memory(value)

    def memory(self, value: Value) -> Memory | None:
        """Return the memory of a value if in memory before the kernel runs; otherwise None."""
        if value not in self._memories:
            self._memories[value] = None if self.computes(value) else self.located(value)
        return self._memories[value]

    def located(self, value: Value) -> Memory:
        """Return the memory of a value that the kernel reads or writes."""
        return Memory(self.pointer(value), dtype_of(value), shape_of(value), self.context.blocks.get(value, 0))

    def prepare_numbers(self) -> None:
        """Compute the numbers that all elements share before the loops; LLVM leaves them in the loops.

        A store in a loop may change memory from which a number is read, as far as LLVM knows.
        """
        waiting, seen = [*self.group.roots], {self.group.anchor}
        while waiting:
            value = waiting.pop()
            if value in seen or not self.computes(value) or not (is_elementwise(value) or value.op in MOVEMENTS):
                continue
            seen.add(value)
            waiting += value.operands
            if any(size != 1 for size in shape_of(value)):
                self.reader.prepare(value)

    def launch(self, items: Size, title: str, writes: Value | None = None) -> Launch:
        """Return the finished kernel with its arguments."""
        choices = self.choice, self.fusion_choice
        return Launch(
            self.kernel.definition(NAME), tuple(self.kernel.emitter.declarations), tuple(self._buffers),
            self.kernel.sizes, items, writes or self.group.root, title, self.group, other_writes=self.group.others,
            work=self.kernel.work, choices=lambda: choices,
        )  # fmt: skip


def storage_bits(value: Value) -> int:
    """Return the bits of an element in a register."""
    register = load_store.register_type(dtype_of(value))
    return {"float": 32, "double": 64, "i1": 8}.get(register) or int(register[1:])
