"""Transformation of Winograd's weights by a kernel, for weights that are replaced while a program runs.

The results have the bits of :func:`~sardonyx.compiler.tiling.winograd.transform_weights`: the same products and sums in
double precision, in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sardonyx.compiler.codegen.denormal_flags import DenormalFlag
from sardonyx.compiler.codegen.kernel_builder import Kernel
from sardonyx.compiler.llvm.ir_builder import Emitter, float_literal, splat, vector
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling.toom_cook import as_floats, short_convolution
from sardonyx.compiler.tiling.winograd import group_sizes


@dataclass(frozen=True)
class WeightTransform:
    """The transformation of weights [filters, channels, rows, columns] of float32.

    Attributes:
        tile: Rows and columns of a tile's results.
        filters: Number of filters.
        channels: Number of channels.
    """

    tile: tuple[int, int]
    filters: int
    channels: int

    def shape(self, target: Target) -> tuple[int, ...]:
        """Return the shape of the transformed weights."""
        width, groups, depth = group_sizes(self.filters, self.channels, target)
        down, across = (short_convolution(m).n for m in self.tile)
        return groups, down * across, depth, width

    def items(self, target: Target) -> int:
        """Return the number of work items of the kernel."""
        groups, _, depth, _ = self.shape(target)
        return groups * (depth // target.lanes(32))

    def emit(self, kernel: Kernel, target: Target) -> None:
        """Write the kernel, with buffers for the transformed weights, the weights and a flag of denormal numbers."""
        e, lanes = kernel.emitter, target.lanes(32)
        transformed, source, denormal = (kernel.buffer(shared=True) for _ in range(3))
        _, points, depth, width = self.shape(target)
        down, across = (as_floats(short_convolution(m).weight).tolist() for m in self.tile)
        rows, columns = len(down[0]), len(across[0])
        taps, blocks = rows * columns, depth // lanes
        floats, mask = vector(lanes, "float"), vector(lanes, "i1")
        numbers = e.lane_numbers(lanes)
        distances = e.let(f"mul {vector(lanes, 'i64')} {numbers}, {splat(str(self.channels * taps), lanes, 'i64')}")
        gather = f"llvm.masked.gather.v{lanes}f32.v{lanes}p0"
        e.declarations[f"declare {floats} @{gather}(<{lanes} x ptr>, i32, {mask}, {floats})"] = None
        flag = DenormalFlag(e, lanes)
        with e.loop("%first", "%last") as item:
            group, first_channel = e.div(item, blocks), e.mul(e.rem(item, blocks), lanes)
            with e.loop(first_channel, e.least(e.add(first_channel, lanes), self.channels)) as channel:
                for member in range(0, width, lanes):
                    first = e.add(e.mul(group, width), member)
                    below = e.lanes_below(e.most(0, e.sub(self.filters, first)), lanes)
                    start = e.address(source, "float", e.mul(e.add(e.mul(first, self.channels), channel), taps))
                    weights: list[list[str]] = []
                    for i in range(rows):
                        weights.append([])
                        for j in range(columns):
                            tap = e.address(start, "float", i * columns + j)
                            pointers = e.let(f"getelementptr float, ptr {tap}, {vector(lanes, 'i64')} {distances}")
                            loaded = e.let(
                                f"call {floats} @{gather}(<{lanes} x ptr> {pointers}, i32 4, {mask} {below},"
                                f" {floats} zeroinitializer)"
                            )
                            weights[-1].append(e.let(f"fpext {floats} {loaded} to {vector(lanes, 'double')}"))
                    halves = [[_sum(e, row, [w[j] for w in weights], lanes) for j in range(columns)] for row in down]
                    at = e.add(e.mul(e.add(e.mul(group, points * depth), channel), width), member)
                    for i, half in enumerate(halves):
                        for j, row in enumerate(across):
                            double = _sum(e, row, half, lanes)
                            result = e.let(f"fptrunc {vector(lanes, 'double')} {double} to {floats}")
                            number = (i * len(across) + j) * depth * width
                            e.store(floats, result, e.address(transformed, "float", e.add(at, number)), 4)
                            flag.add(result)
        flag.store(denormal)


def _sum(e: Emitter, coefficients: Sequence[float], terms: Sequence[str], lanes: int) -> str:
    """Emit the sum of products, without the terms of coefficient 0, each operation rounded."""
    kind, total = vector(lanes, "double"), ""
    for coefficient, term in zip(coefficients, terms, strict=True):
        if coefficient:
            literal = splat(float_literal(coefficient, "double"), lanes, "double")
            product = e.let(f"fmul {kind} {term}, {literal}")
            total = e.let(f"fadd {kind} {total}, {product}") if total else product
    return total
