"""Lines of a Winograd tile that are not finite, computed again as sums of products.

The transforms add inputs of the whole tile: NaN and infinity would reach results whose windows exclude them, and sums
of large inputs overflow where the convolution does not. The transformed weights determine the weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from sardonyx.compiler.codegen.kernel_builder import Kernel
from sardonyx.compiler.kernels.conv.window_sweep import Image
from sardonyx.compiler.llvm.ir_builder import Emitter, vector
from sardonyx.compiler.tiling.toom_cook import Matrix, ShortConvolution, emit_combination, inverse
from sardonyx.compiler.tiling.windows import Number
from sardonyx.compiler.tiling.winograd import Winograd


@dataclass(frozen=True)
class Line:
    """Adjacent results of a row.

    Attributes:
        image: The number of the image.
        row: The row of the image.
        column: The first column.
        group: The group of filters.
        member: The vector of filters in the group.
    """

    image: Number
    row: Number
    column: Number
    group: Number
    member: Number


class Overflow:
    """The repetition of lines, in a function of its own.

    Args:
        kernel: The kernel.
        plan: The convolution, of floats.
        x: The image, blocked.
        padding: Rows above and columns left of the image.
        weights: Address of the weights in the order of the plan.
    """

    def __init__(self, kernel: Kernel, plan: Winograd, x: Image, padding: tuple[Number, Number], weights: str) -> None:
        self._kernel = kernel
        self._plan = plan
        sizes = [kernel.size(size) for size in x.sizes]
        numbers = zip(("%height", "%width", "%top", "%left"), (*sizes, *padding), strict=True)
        self._fixed = [("%x", "ptr", x.pointer), ("%weights", "ptr", weights)]
        self._fixed += [(name, "i64", str(number)) for name, number in numbers]
        names = [*((type, name) for name, type, _ in self._fixed), ("ptr", "%room"), ("i64", "%count")]
        line = Line(*(f"%{field.name}" for field in fields(Line)))
        names += [("i64", str(number)) for number in astuple(line)]
        with kernel.outlined("again", names) as e, e.loop(0, "%count") as column:
            results = e.address("%room", "float", e.mul(column, plan.lanes))
            e.store(vector(plan.lanes, "float"), _Code(e, plan).sum(line, column), results, 4)

    def is_finite(self, results: Sequence[str]) -> str:
        """Write and return the test that all results, vectors of filters, are finite."""
        e, lanes = self._kernel.emitter, self._plan.lanes
        type, values = vector(lanes, "float"), list(results)
        while len(values) > 1:
            pairs = zip(values[::2], values[1::2], strict=False)
            values = [e.let(f"fadd {type} {a}, {b}") for a, b in pairs] + values[len(values) & ~1 :]
        # The difference of infinity or NaN and itself is NaN.
        difference = e.let(f"fsub {type} {values[0]}, {values[0]}")
        ordered = e.let(f"fcmp ord {type} {difference}, {difference}")
        return e.call("i1", f"llvm.vector.reduce.and.v{lanes}i1", [(vector(lanes, "i1"), ordered)])

    def repeat(self, line: Line, room: str, count: Number) -> None:
        """Write the sums of products of the first ``count`` results of a line to ``room``."""
        numbers = [("i64", number) for number in (count, *astuple(line))]
        self._kernel.call_outlined(
            "again", [*((type, value) for _, type, value in self._fixed), ("ptr", room), *numbers]
        )


@dataclass(frozen=True)
class _Code:
    """The emitter of sums, whose operands are the parameters of the function."""

    e: Emitter
    plan: Winograd

    @property
    def type(self) -> str:
        """LLVM's type of a vector of filters."""
        return vector(self.plan.lanes, "float")

    def sum(self, line: Line, column: Number) -> str:
        """Write the sum of the products of a window and the weights of a vector of filters; return it."""
        e, plan = self.e, self.plan
        top, left = e.sub(line.row, "%top"), e.sub(e.add(line.column, column), "%left")
        total = e.variable(self.type, "zeroinitializer")
        with e.loop(0, plan.channel_blocks) as block, e.loop(0, plan.lanes) as lane:
            channel = e.add(e.mul(block, plan.lanes), lane)
            plane = e.mul(e.add(e.mul(line.image, plan.channel_blocks), block), "%height")
            for (i, j), weight in self._weights(line, channel).items():
                y, x = e.add(top, i), e.add(left, j)
                inside = [e.let(f"icmp ult i64 {at}, {size}") for at, size in ((y, "%height"), (x, "%width"))]
                with e.when(e.let(f"and i1 {inside[0]}, {inside[1]}")):
                    at = e.add(e.mul(e.add(e.mul(e.add(plane, y), "%width"), x), plan.lanes), lane)
                    value = e.load("float", e.address("%x", "float", at), 4)
                    spread = e.spread(value, plan.lanes, "float")
                    total.set(e.multiply_add(self.type, spread, weight, total.get()))
        return total.get()

    def _weights(self, line: Line, channel: Number) -> dict[tuple[int, int], str]:
        """Return the weights of a vector of filters for a channel, by row and column of the window."""
        e, plan = self.e, self.plan
        width = plan.vectors * plan.lanes
        down, across = plan.algorithms
        first, depth = e.mul(line.member, plan.lanes), plan.channel_blocks * plan.lanes
        numbers = itertools.product(range(down.taps), range(across.taps))
        if plan.fresh:
            start = e.mul(e.add(e.mul(line.group, depth), channel), down.taps * across.taps * width)
            return {(i, j): self._load(e.add(start, first), (i * across.taps + j) * width) for i, j in numbers}
        start = e.mul(e.add(e.mul(line.group, plan.points * depth), channel), width)
        rows = [
            [self._load(e.add(start, first), (i * across.n + j) * depth * width) for j in range(across.taps)]
            for i in range(down.taps)
        ]
        inner = [self._inverted(across, row) for row in rows]
        columns = [self._inverted(down, [row[j] for row in inner]) for j in range(across.taps)]
        return {(i, j): columns[j][i] for i, j in numbers}

    def _load(self, start: Number, offset: int) -> str:
        return self.e.load(self.type, self.e.address("%weights", "float", self.e.add(start, offset)), 4)

    def _inverted(self, algorithm: ShortConvolution, values: Sequence[str]) -> list[str]:
        """Return the weights whose transform at the first points has these values."""
        matrix: Matrix = inverse(algorithm.weight[: algorithm.taps])
        return [emit_combination(self.e, self.type, row, values) for row in matrix]
