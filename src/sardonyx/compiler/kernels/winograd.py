"""Winograd's convolution (Lavin and Gray 2015, arXiv:1509.09308): 3x3 windows of stride 1, float32, blocked images.

The result is cut into tiles of m x m. A tile's n x n inputs (n = m + 2) are transformed, which makes the convolution a
product of matrices for each of the n x n places: ``M[place] = V[place] U[place]``, [tiles, channels] by
[channels, filters]; a tile's results are the inverse transform of its n x n sums. F(4,3) multiplies 4 times less than
the direct way.

Blocked images are ``[batch, ceil(channels / B), height, width, B]`` with ``B`` the target's lanes; the lanes past the
last channel hold zeros. Work items of :meth:`Winograd.convolve` own a block of tiles and all filters: they transform
its inputs into memory of their worker's, which stays in the second-level cache while the weights stream past it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from sardonyx.compiler.emitter import Emitter, float_literal, splat, vector
from sardonyx.compiler.kernels.kernel import Epilogue, Index, Kernel
from sardonyx.compiler.kernels.toom_cook import ShortConvolution, as_floats, short_convolution
from sardonyx.compiler.target import Target
from sardonyx.core.dim import Size, ceil_div

_UNROLL = 4
_PAD = 16
"""Elements between the planes of a transform: planes a power of two apart would share few cache sets."""


@dataclass(frozen=True)
class Image:
    """A blocked image.

    Attributes:
        pointer: Its first element.
        channels: How many channels it has, without those that fill the last block.
        height: Rows.
        width: Columns.
    """

    pointer: str
    channels: Size
    height: Size
    width: Size


@dataclass(frozen=True)
class Winograd:
    """One convolution: its sizes, and how it is cut.

    Attributes:
        target: What the code is for.
        m: Rows and columns of a tile's results: 2, 4 or 6.
        batch: Images.
        channels: Input channels.
        filters: Output channels.
        height: Rows of the result.
        width: Columns of the result.
        padding: Rows of zeros above the image, columns of zeros left of it.
        workers: How many threads will share the work: the number of work items is a multiple of it.
    """

    target: Target
    m: int
    batch: Size
    channels: Size
    filters: Size
    height: Size
    width: Size
    padding: tuple[int, int] = (1, 1)
    workers: int = 1

    @property
    def lanes(self) -> int:
        """Channels of a block of the images."""
        return self.target.lanes(32)

    @property
    def algorithm(self) -> ShortConvolution:
        """The matrices."""
        return short_convolution(self.m)

    @property
    def tiles(self) -> Size:
        """Tiles of all images."""
        return self.batch * ceil_div(self.height, self.m) * ceil_div(self.width, self.m)

    @property
    def vectors(self) -> int:
        """Vectors of filters that are computed together."""
        return filter_vectors(self.target, self.filters)

    @property
    def rows(self) -> int:
        """Tiles of a register tile: sums, one vector of each operand, and one spare fill the registers."""
        return tile_rows(self.target, self.vectors)

    @property
    def block(self) -> int:
        """The most tiles of a work item: transformed, they fill half of the second-level cache where they can."""
        if not isinstance(self.channels, int):
            return 2 * self.rows
        of_one = self.algorithm.n**2 * 4 * self.lanes * math.ceil(self.channels / self.lanes)
        return self.rows * max(1, min(3, self.target.l2 // 2 // (of_one * self.rows)))

    @property
    def items(self) -> Size:
        """Work items."""
        return ceil_div(ceil_div(self.tiles, self.block), self.workers) * self.workers

    @property
    def _input_plane(self) -> Size:
        return ceil_div(self.channels, self.lanes) * (self.block * self.lanes) + _PAD

    @property
    def _sum_plane(self) -> int:
        return self.block * self.vectors * self.lanes + _PAD

    @property
    def scratch(self) -> Size:
        """Bytes of memory that each worker needs for itself, a multiple of 64."""
        return self.algorithm.n**2 * 4 * (self._input_plane + self._sum_plane)

    def convolve(self, kernel: Kernel, image: Image, weights: str, scratch: str, epilogue: Epilogue) -> Size:
        """Emit the whole convolution.

        Args:
            kernel: Where to.
            image: What is convolved; its channels are this convolution's.
            weights: What :func:`transform_weights` made.
            scratch: Memory of :attr:`scratch` bytes for every worker.
            epilogue: Takes vectors of filters at (image, filter, row, column); the filter's base is a multiple of
                the lanes, and lanes past the last filter come with it.

        Returns:
            How many work items there are.
        """
        _Code(self, kernel, image, epilogue).convolve(weights, scratch)
        return self.items


def tile_rows(target: Target, vectors: int) -> int:
    """Rows of a register tile with so many vectors a row."""
    return max(1, (target.vector_registers - vectors - 1) // vectors)


def filter_vectors(target: Target, filters: Size) -> int:
    """Vectors of filters a register tile has: 2 or 3, whichever computes fewer that do not exist."""
    if not isinstance(filters, int):
        return 2
    blocks = math.ceil(filters / target.lanes(32))
    return min((2, 3, 1), key=lambda vectors: math.ceil(blocks / vectors) * vectors)


def transform_weights(
    weights: npt.NDArray[np.float32], m: int, target: Target, vectors: int | None = None
) -> npt.NDArray[np.float32]:
    """The weights as :meth:`Winograd.convolve` reads them.

    Args:
        weights: [filters, channels, 3, 3].
        m: Rows and columns of a tile's results.
        target: What the code is for.
        vectors: The convolution's :attr:`Winograd.vectors`, where its filters were not a number.

    Returns:
        [groups of filters, n * n places, channels, filters of a group]; channels and filters that fill blocks are zero.
    """
    filters, channels = weights.shape[:2]
    lanes = target.lanes(32)
    width = lanes * (vectors or filter_vectors(target, filters))
    algorithm = short_convolution(m)
    matrix = as_floats(algorithm.weight)
    transformed = np.einsum("xi,fcij,yj->xycf", matrix, weights.astype(np.float64), matrix, optimize=True)
    groups = -(-filters // width)
    padded = np.zeros((algorithm.n**2, -(-channels // lanes) * lanes, groups * width), np.float32)
    padded[:, :channels, :filters] = transformed.reshape(algorithm.n**2, channels, filters)
    return np.ascontiguousarray(padded.reshape(*padded.shape[:2], groups, width).transpose(2, 0, 1, 3))


def error_bound(m: int, channels: int) -> float:
    """An upper estimate of the largest error in proportion to the largest result, float32.

    Roundings are taken as independent: a product carries those of its transforms and of the sum over the channels,
    and the inverse transform amplifies them by the ratio that the matrices have
    (:attr:`~sardonyx.compiler.kernels.toom_cook.ShortConvolution.amplification`). Random inputs reach a half of it.
    """
    unit = 2.0**-24
    roundings = 2 * m + channels / 6
    return 2 * unit * math.sqrt(roundings) * short_convolution(m).amplification


class _Code:
    """The emission of one convolution."""

    def __init__(self, plan: Winograd, kernel: Kernel, image: Image, epilogue: Epilogue) -> None:
        self.plan = plan
        self.kernel = kernel
        self.e = kernel.emitter
        self.image = image
        self.epilogue = epilogue
        self.lanes = plan.lanes
        self.type = vector(plan.lanes, "float")
        self.n = plan.algorithm.n
        self.channel_blocks = kernel.size(ceil_div(plan.channels, plan.lanes))
        self.filter_blocks = kernel.size(ceil_div(plan.filters, plan.lanes))
        self.input_plane = kernel.size(plan._input_plane)
        self.tile_rows = kernel.size(ceil_div(plan.height, plan.m))
        self.tile_columns = kernel.size(ceil_div(plan.width, plan.m))
        self.patch = self.e.array("float", self.n**2 * self.lanes)
        self.partial = self.e.array("float", plan.m * self.n * self.lanes)
        self.row_results = self.e.array("float", plan.m * self.lanes)

    def at(self, pointer: str, index: str | int) -> str:
        """The address of an element of an array of floats."""
        return self.e.address(pointer, "float", index)

    def load(self, pointer: str, index: str | int = 0) -> str:
        """A vector; images and weights are aligned as their owners like."""
        return self.e.load(self.type, self.at(pointer, index), 4)

    def store(self, value: str, pointer: str, index: str | int = 0) -> None:
        """Store a vector."""
        self.e.store(self.type, value, self.at(pointer, index), 4)

    def convolve(self, weights: str, scratch: str) -> None:
        e, plan = self.e, self.plan
        own = e.address(scratch, "i8", e.mul("%worker", self.kernel.size(plan.scratch)))
        sums = self.at(own, e.mul(self.input_plane, self.n**2))
        items = self.kernel.size(plan.items)
        tiles = self.kernel.size(plan.tiles)
        group_size = e.mul(self.channel_blocks, self.n**2 * self.lanes * self.lanes * plan.vectors)
        with e.loop("%first", "%last") as item:
            start = e.div(e.mul(tiles, item), items)
            count = e.sub(e.div(e.mul(tiles, e.add(item, 1)), items), start)
            with e.when(e.let(f"icmp sgt i64 {count}, 0")):
                self.transform_inputs(own, start, count)
                groups = self.kernel.size(ceil_div(ceil_div(plan.filters, plan.lanes), plan.vectors))
                with e.loop(0, groups) as group:
                    self.multiply(own, self.at(weights, e.mul(group, group_size)), sums, count)
                    first = e.mul(group, plan.vectors)
                    with e.loop(0, e.least(plan.vectors, e.sub(self.filter_blocks, first))) as member:
                        place = self.at(sums, e.mul(member, self.lanes))
                        self.transform_outputs(place, start, count, e.add(first, member))

    # Tiles.

    def each_tile(self, start: str | int, count: str | int) -> Iterator[tuple[str, str, str, str]]:
        """Write a loop over tiles from ``start`` on: the tile's number in the block, its image, row and column."""
        e = self.e
        per_image = e.mul(self.tile_rows, self.tile_columns)
        within = e.rem(start, per_image)
        image = e.variable("i64", str(e.div(start, per_image)))
        row = e.variable("i64", str(e.div(within, self.tile_columns)))
        column = e.variable("i64", str(e.rem(within, self.tile_columns)))
        with e.loop(0, count) as number:
            at = image.get(), row.get(), column.get()
            yield number, *at
            next_column = str(e.add(at[2], 1))
            ends_row = e.let(f"icmp eq i64 {next_column}, {self.tile_columns}")
            column.set(e.let(f"select i1 {ends_row}, i64 0, i64 {next_column}"))
            next_row = str(e.add(at[1], e.let(f"zext i1 {ends_row} to i64")))
            ends_image = e.let(f"icmp eq i64 {next_row}, {self.tile_rows}")
            row.set(e.let(f"select i1 {ends_image}, i64 0, i64 {next_row}"))
            image.set(str(e.add(at[0], e.let(f"zext i1 {ends_image} to i64"))))

    # Inputs.

    def transform_inputs(self, planes: str, start: str | int, count: str | int) -> None:
        """Transform the inputs of a block of tiles: ``V[place][block of channels][tile][B]``."""
        e, m = self.e, self.plan.m
        top, left = self.plan.padding
        with e.loop(0, self.channel_blocks) as block:
            of_block = self.at(planes, e.mul(block, self.plan.block * self.lanes))
            for number, image, row, column in self.each_tile(start, count):
                y = e.sub(e.mul(row, m), top)
                x = e.sub(e.mul(column, m), left)
                plane = e.add(e.mul(image, self.channel_blocks), block)
                source, stride = self.inputs_of(plane, y, x)
                columns = []
                for j in range(self.n):
                    values = [self.load(self.at(source, e.mul(stride, i)), j * self.lanes) for i in range(self.n)]
                    columns.append(transform_input(e, self.type, self.plan.algorithm, values))
                target = self.at(of_block, e.mul(number, self.lanes))
                for i in range(self.n):
                    row_values = transform_input(e, self.type, self.plan.algorithm, [each[i] for each in columns])
                    for j, value in enumerate(row_values):
                        self.store(value, target, e.mul(self.input_plane, i * self.n + j))

    def inputs_of(self, plane: str | int, y: str | int, x: str | int) -> tuple[str, str]:
        """Where a tile's inputs begin, and elements from row to row: a copy with zeros where the padding is needed."""
        e, lanes, n = self.e, self.lanes, self.n
        height, width = self.kernel.size(self.image.height), self.kernel.size(self.image.width)
        corner = e.mul(e.add(e.mul(e.add(e.mul(plane, height), y), width), x), lanes)
        direct = self.at(self.image.pointer, corner)
        source = e.variable("ptr", direct)
        stride = e.variable("i64", str(e.mul(width, lanes)))
        row_begin, row_end = e.most(0, e.sub(0, y)), e.least(n, e.sub(height, y))
        begin, end = e.most(0, e.sub(0, x)), e.least(n, e.sub(width, x))
        rows, columns = e.sub(row_end, row_begin), e.sub(end, begin)
        whole = e.let(f"icmp sge i64 {e.least(rows, columns)}, {n}")
        with e.when(e.let(f"xor i1 {whole}, true")):
            for i in range(n * n):
                self.store("zeroinitializer", self.patch, i * lanes)
            with e.loop(row_begin, row_end) as row:
                from_row = self.at(direct, e.mul(row, e.mul(width, lanes)))
                to_row = self.at(self.patch, e.mul(row, n * lanes))
                with e.loop(begin, end) as column:
                    offset = e.mul(column, lanes)
                    self.store(self.load(from_row, offset), to_row, offset)
            source.set(self.patch)
            stride.set(str(n * lanes))
        return source.get(), stride.get()

    # Products.

    def multiply(self, planes: str, weights: str, sums: str, count: str | int) -> None:
        """``M[place][tile][filters of the group]`` for a block of tiles.

        The tiles are split evenly into passes of at most the register tile's rows; each number of rows that a pass may
        have is a piece of code of its own.
        """
        e, plan = self.e, self.plan
        width = plan.vectors * self.lanes
        of_place = e.mul(self.channel_blocks, self.lanes * width)
        passes = e.div(e.add(count, plan.rows - 1), plan.rows)
        rows, longer = e.div(count, passes), e.rem(count, passes)
        with e.loop(0, self.n**2) as place:
            plane = self.at(planes, e.mul(place, self.input_plane))
            factors = self.at(weights, e.mul(place, of_place))
            results = self.at(sums, e.mul(place, plan._sum_plane))
            with e.loop(0, passes) as number:
                first = e.add(e.mul(number, rows), e.least(number, longer))
                here = e.add(rows, e.let(f"zext i1 {e.let(f'icmp slt i64 {number}, {longer}')} to i64"))
                left = self.at(plane, e.mul(first, self.lanes))
                right = self.at(results, e.mul(first, width))
                for each in range(plan.rows, 0, -1):
                    with e.when(e.let(f"icmp eq i64 {here}, {each}")):
                        self.register_tile(left, factors, right, each)

    def register_tile(self, left: str, factors: str, right: str, rows: int) -> None:
        """Sums over all channels of some tiles, all of them in registers."""
        e, plan, lanes = self.e, self.plan, self.lanes
        sums = [[e.variable(self.type, "zeroinitializer") for _ in range(plan.vectors)] for _ in range(rows)]
        factor = e.variable("ptr", factors)
        with e.loop(0, self.channel_blocks) as block:
            of_block = self.at(left, e.mul(block, plan.block * lanes))
            with e.loop(0, lanes, _UNROLL) as channel:
                values = self.at(of_block, channel)
                here = factor.get()
                for step in range(_UNROLL):
                    loaded = [self.load(here, (step * plan.vectors + v) * lanes) for v in range(plan.vectors)]
                    for i, row in enumerate(sums):
                        scalar = e.load("float", self.at(values, i * lanes + step), 4)
                        spread = e.spread(scalar, lanes, "float")
                        for accumulator, weight in zip(row, loaded, strict=True):
                            accumulator.set(e.fma(self.type, spread, weight, accumulator.get()))
                factor.set(self.at(here, _UNROLL * plan.vectors * lanes))
        for i, row in enumerate(sums):
            for v, accumulator in enumerate(row):
                self.store(accumulator.get(), right, (i * plan.vectors + v) * lanes)

    # Results.

    def transform_outputs(self, sums: str, start: str | int, count: str | int, filter_block: str | int) -> None:
        """Transform the sums of a block of tiles and hand the results of one vector of filters on."""
        e, plan, lanes = self.e, self.plan, self.lanes
        m, n = plan.m, self.n
        height, width = self.kernel.size(plan.height), self.kernel.size(plan.width)
        for number, image, row, column in self.each_tile(start, count):
            y, x = e.mul(row, m), e.mul(column, m)
            of_tile = self.at(sums, e.mul(number, plan.vectors * lanes))
            for j in range(n):
                values = [self.load(of_tile, (i * n + j) * plan._sum_plane) for i in range(n)]
                for i, value in enumerate(transform_output(e, self.type, plan.algorithm, values)):
                    self.store(value, self.partial, (i * n + j) * lanes)
            with e.loop(0, e.least(m, e.sub(height, y))) as line:
                of_row = self.at(self.partial, e.mul(line, n * lanes))
                partial = [self.load(of_row, k * lanes) for k in range(n)]
                results = transform_output(e, self.type, plan.algorithm, partial)
                first = Index(image), Index(e.mul(filter_block, lanes), 1), Index(e.add(y, line)), Index(x)
                self.give_row(first, results, e.least(m, e.sub(width, x)))

    def give_row(self, first: tuple[Index, Index, Index, Index], results: Sequence[str], count: str | int) -> None:
        """Hand on the first ``count`` results of a row; ``first`` is where the first belongs."""
        e, m = self.e, self.plan.m
        *row, x = first
        with e.either(e.let(f"icmp eq i64 {count}, {m}")) as branches:
            next(branches)
            for k, value in enumerate(results):
                self.epilogue((*row, Index(e.add(x.base, k))), value, None)
            next(branches)
            for k, value in enumerate(results):
                self.store(value, self.row_results, k * self.lanes)
            with e.loop(0, count) as column:
                value = self.load(self.row_results, e.mul(column, self.lanes))
                self.epilogue((*row, Index(e.add(x.base, column))), value, None)
            next(branches, None)


def transform_input(e: Emitter, type: str, algorithm: ShortConvolution, values: Sequence[str]) -> list[str]:
    """``B^T`` times a vector of values: a pair of points shares its even and its odd part."""
    rows = algorithm.input
    results = [combination(e, type, rows[0], values)]
    for row in rows[1:-1:2]:
        even, odd = ([c if k % 2 == parity else Fraction(0) for k, c in enumerate(row)] for parity in (0, 1))
        factor = next(c for c in reversed(odd) if c)
        shared = combination(e, type, even, values), combination(e, type, [c / factor for c in odd], values)
        results += [combination(e, type, (1, sign * factor), shared) for sign in (1, -1)]
    return [*results, combination(e, type, rows[-1], values)]


def transform_output(e: Emitter, type: str, algorithm: ShortConvolution, values: Sequence[str]) -> list[str]:
    """``A^T`` times a vector of values: a pair of points is first added and subtracted."""
    inner = range(1, len(values) - 1, 2)
    added = [e.let(f"fadd {type} {values[k]}, {values[k + 1]}") for k in inner]
    subtracted = [e.let(f"fsub {type} {values[k]}, {values[k + 1]}") for k in inner]
    results = []
    for power, row in enumerate(algorithm.output):
        # The coefficients of a pair are equal, but for the sign where the power is odd.
        of_pairs = subtracted if power % 2 else added
        results.append(combination(e, type, [row[0], *row[1:-1:2], row[-1]], [values[0], *of_pairs, values[-1]]))
    return results


def combination(e: Emitter, type: str, coefficients: Sequence[Fraction | int], values: Sequence[str]) -> str:
    """A sum of products with constants, in as few instructions as they allow."""
    terms = [(c, value) for c, value in zip(coefficients, values, strict=True) if c]
    terms.sort(key=lambda term: (term[0] != 1, abs(term[0]) != 1))
    lanes = int(type[1:].split(" ")[0])

    def constant(c: Fraction | int) -> str:
        return splat(float_literal(float(c), "float"), lanes, "float")

    (first, total), *rest = terms
    if first != 1:
        total = e.let(f"fmul {type} {total}, {constant(first)}")
    for c, value in rest:
        if abs(c) == 1:
            total = e.let(f"{'fadd' if c > 0 else 'fsub'} {type} {total}, {value}")
        else:
            total = e.fma(type, value, constant(c), total)
    return total
