"""Direct convolutions: a register tile of adjacent outputs times blocks of output channels.

Each step of the inner loop multiplies one input channel (of integers and bfloat16, ``dot_width`` channels) at one tap:
a vector of weights for each block of output channels, and each output's input broadcast to all lanes. The input is read
in place; the loop over taps skips rows above and below the image, and positions left and right of the image are read
from a block of zeros.

Groups of channels need no form of their own: a group of output blocks reads a run of input blocks with all channels of
its groups, and weights are zero for the channels of other groups (:mod:`.group_isolation`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sardonyx.compiler.codegen.integer_dot import bfloat16_dot_add, dot_add, each_entry
from sardonyx.compiler.codegen.kernel_builder import Epilogue
from sardonyx.compiler.kernels.conv.group_isolation import isolate_groups
from sardonyx.compiler.kernels.conv.weight_layouts import CORRECTION_INDICES
from sardonyx.compiler.kernels.conv.window_sweep import Image, Phase, Row, Sweep, block_of, steps
from sardonyx.compiler.llvm.ir_builder import Variable, vector
from sardonyx.compiler.tiling.convolution_tiles import Tile
from sardonyx.compiler.tiling.windows import Number, block_count

_UNROLLED = 112
"""Approximate number of multiplications in the body of an unrolled loop, enough to hide loop overhead."""


_FEWEST = 4
"""Multiple to which the channels of the last input block are rounded up, for images of floats."""

_SPAN = 256
"""Largest number of elements of a row that a tile of an NCHW image copies to the stack."""

_LINE = 64
"""Bytes of a cache line."""

_MOST_FOLLOWED = 1024
"""Largest number of outputs of an image for which the next weights are prefetched: more read each weight often."""

_MOST_AHEAD = 8
"""Largest number of cache lines of the next weights that are prefetched at once."""

_CLIPPED = 8
"""Largest number of taps of a row for which taps outside of the image are skipped by unrolling."""


class DirectConvolution:
    """Emitter of a direct convolution; see :func:`sardonyx.compiler.kernels.conv.convolution.convolution`."""

    def __init__(self, sweep: Sweep, x: Image, weights: str, tile: Tile, epilogue: Epilogue) -> None:
        self.sweep, self.x, self.weights, self.tile, self.epilogue = sweep, x, weights, tile, epilogue
        self.emitter = e = sweep.kernel.emitter
        self.element, self.type = tile.element, vector(tile.lanes, tile.element)
        self.window = sweep.window
        depth, height, width = sweep.axes
        # Strides of positions, rows, slices, channels and channel blocks, in elements.
        self.place_step = tile.inner if tile.blocked else 1
        self.row_step = e.mul(width.size, self.place_step)
        self.slice_step = e.mul(self.row_step, height.size)
        volume = e.mul(self.slice_step, depth.size)
        self.channel_step, self.block_step = (1, volume) if tile.blocked else (volume, e.mul(volume, tile.inner))
        # Channels of a last input block that is not full, else 0.
        self._fewest = _FEWEST if tile.dot_width == 1 else 1
        rest = -(-(tile.channels % tile.inner) // self._fewest) * self._fewest % tile.inner
        self._rest = rest if tile.groups == 1 else 0
        self.unrolled = min(tile.inner, self._fewest) if self._rest else tile.inner
        # On processors that split a 512-bit operation in two, half a vector costs half.
        self.half = vector(tile.lanes // 2, tile.element) if sweep.kernel.target.vector_bits >= 512 else None
        self.gathered = ""
        self.lines = ""
        self.taps = self.window[0] * self.window[1] * self.window[2]

    def write(self) -> None:
        """Write the kernel."""
        self.sweep.rows(self._row)

    def _row(self, row: Row) -> None:
        """Emit a row of outputs; the last group of blocks may be smaller than the others."""
        tile, e = self.tile, self.emitter
        full = [self.type] * tile.blocks
        last = full[: tile.output_blocks - (tile.tiles - 1) * tile.blocks]
        if self.half and 0 < tile.filters % tile.lanes <= tile.lanes // 2:
            last[-1] = self.half
        if tile.tiles == 1 or last == full:
            self._outputs(row, last)
            return
        with e.either(e.let(f"icmp slt i64 {row.block}, {tile.tiles - 1}")) as branches:
            for _, types in zip(branches, (full, last), strict=True):
                self._outputs(row, types)

    def _outputs(self, row: Row, types: list[str]) -> None:
        """Emit the outputs of a row, in blocks of the LLVM types ``types``."""
        tile, e = self.tile, self.emitter
        group_step = tile.depth * self.taps * tile.inner * tile.blocks * tile.lanes
        weights = e.address(self.weights, self.element, e.mul(row.block, group_step))
        images = block_count(tile.channels, tile.inner)
        block = e.add(e.mul(row.image, images), tile.first_input_at(e, row.block))
        image = e.address(self.x.pointer, self.element, e.mul(block, self.block_step))
        self.sweep.tiles(
            row,
            lambda first, size, guarded: self._tile(row, image, weights, first, size, types, guarded),
        )

    def _tile(
        self, row: Row, image: str, weights: str, first: Number, size: int, types: list[str], guarded: bool
    ) -> None:
        e, tile = self.emitter, self.tile
        sums = [[e.variable(type, "zeroinitializer") for type in types] for _ in range(size)]
        vectors = len(types) * tile.lanes
        width = row.phases[2]
        lowest = width.input_index(e, first)
        with steps(e, 0, tile.depth, opaque=True) as block:
            plane = e.address(image, self.element, e.mul(block, self.block_step))
            packed = e.address(weights, self.element, e.mul(block, self.taps * tile.inner * vectors))
            channels = self._channels_of(block)
            if self._passes_once():
                self._prefetch(plane, row, lowest, size)
            with self.sweep.lines(row, plane, self.element, self.slice_step, self.row_step) as (line, tap):
                of_row = e.address(packed, self.element, e.mul(tap, tile.inner * vectors))
                self._prefetch_weights(row, e.add(e.mul(block, self.taps), tap), first, size)
                self._taps(width, line, of_row, lowest, channels, sums, guarded)
        if tile.groups > 1 and tile.dot_width == 1:
            isolate_groups(self, row, image, weights, lowest, sums)
        if tile.corrects_overflow and self.sweep.sees_all_taps:
            self._correct_overflow(row, image, lowest, sums, guarded)
        for b in range(len(types)):
            channel = e.mul(e.add(e.mul(row.block, tile.blocks), b), tile.lanes)
            with self.sweep.side_by_side(row):
                for i in range(size):
                    index = self.sweep.index(row, channel, e.add(first, i), tile.lanes)
                    self.epilogue(index, self._whole(sums[i][b]), None)

    def _correct_overflow(
        self, row: Row, image: str, lowest: Number, sums: list[list[Variable]], guarded: bool
    ) -> None:
        """Multiply by the overflow corrections that follow the weights, see :func:`.correction_weights`."""
        e, tile, element = self.emitter, self.tile, self.element
        start = tile.depth * self.taps * tile.inner * tile.output_blocks * tile.lanes
        with each_entry(
            e, e.address(self.weights, element, start), row.block, tiles=tile.tiles, columns=tile.blocks * tile.lanes,
            lanes=tile.lanes, numbers=CORRECTION_INDICES,
        ) as ((block, z, y, x, channel), weights):  # fmt: skip
            plane = e.address(image, element, e.mul(block, self.block_step))
            with self.sweep.line(row, plane, element, self.slice_step, self.row_step, (z, y)) as line:
                width = row.phases[2]
                position, far = e.add(lowest, e.mul(x, width.offset_step)), range(len(sums))
                if guarded:
                    inputs = self._gather(line, [e.add(position, i * width.advance) for i in far])
                else:
                    begin = e.address(line, element, e.mul(position, self.place_step))
                    inputs = Inputs(begin, [i * width.advance * self.place_step for i in far], 1)
                inputs = replace(inputs, start=e.address(inputs.start, element, channel))
                self._channels(inputs, weights, 1, sums, 1)

    def _passes_once(self) -> bool:
        """Return True if every input block is read only once, so never cached by an earlier step."""
        return self.taps == 1 and self.tile.blocked and self.tile.depth > 1

    def _prefetch(self, plane: str, row: Row, lowest: Number, size: int) -> None:
        """Prefetch the next input block, which is an image away, where no hardware prefetcher reaches."""
        e, step = self.emitter, row.phases[2].advance * self.place_step
        line = e.add(e.mul(row.inputs[0], self.slice_step), e.mul(row.inputs[1], self.row_step))
        there = e.add(e.add(line, self.block_step), e.mul(lowest, self.place_step))
        start = e.address(plane, self.element, there)
        # A cache line holds several positions of few bytes; the first and the last may be in the middle of a line.
        every = max(1, _LINE // (4 * step)) if isinstance(step, int) else 1
        for i in sorted({*range(0, size, every), size - 1}):
            e.prefetch(e.address(start, self.element, i * step))

    def _prefetch_weights(self, row: Row, tap: Number, first: Number, size: int) -> None:
        """Prefetch a share of the weights that the next group of blocks reads at a row of taps.

        The share is that of the tile's outputs in those of the image. Weights of all layers exceed L2, so that the
        first outputs of each group would wait for theirs.

        Args:
            row: The row of outputs.
            tap: The first tap of the row, counted in all input blocks.
            first: The first output of the tile.
            size: Outputs of the tile.
        """
        e, tile, outputs = self.emitter, self.tile, [axis.out for axis in self.sweep.axes]
        count = math.prod(size for size in outputs if isinstance(size, int))
        if tile.tiles == 1 or not all(isinstance(size, int) for size in outputs) or not 0 < count <= _MOST_FOLLOWED:
            return
        of_tap = 4 * tile.inner * tile.blocks * tile.lanes
        of_taps = self.window[2] * of_tap
        lines = -(-of_taps * size // (count * _LINE))
        if lines > _MOST_AHEAD:
            return
        z, y = row.outputs
        output = e.add(e.mul(e.add(e.mul(z, outputs[1]), y), outputs[2]), first)
        following = e.mul(e.add(e.mul(e.add(row.block, 1), tile.depth * self.taps), tap), of_tap)
        start = e.address(self.weights, "i8", e.add(following, e.div(e.mul(output, of_taps), count)))
        for line in range(lines):
            e.prefetch(e.address(start, "i8", line * _LINE), level=2)

    def _whole(self, sum: Variable) -> str:
        """Return a sum as a whole block, zero-padded if the sum is half a block."""
        if sum.type == self.type:
            return sum.get()
        half = self.tile.lanes // 2
        lanes = ", ".join(f"i32 {min(lane, half)}" for lane in range(self.tile.lanes))
        zeros = f"{sum.type} zeroinitializer"
        return self.emitter.let(f"shufflevector {sum.type} {sum.get()}, {zeros}, <{self.tile.lanes} x i32> <{lanes}>")

    def _channels_of(self, block: Number) -> Number:
        """Return the number of channels of an input block to multiply, without the zeros of its padding."""
        e, tile = self.emitter, self.tile
        if not self._rest:
            return tile.inner
        if tile.depth == 1:
            return self._rest
        last = e.let(f"icmp eq i64 {block}, {tile.depth - 1}")
        return e.let(f"select i1 {last}, i64 {self._rest}, i64 {tile.inner}")

    def _taps(
        self,
        width: Phase,
        line: str,
        weights: str,
        lowest: Number,
        channels: Number,
        sums: list[list[Variable]],
        guarded: bool,
    ) -> None:
        """Emit the taps of a row of the window; taps known to be outside of the image are skipped."""
        e, size, place_step = self.emitter, self.sweep.axes[2].size, self.place_step
        step, vectors = width.advance, len(sums[0]) * self.tile.lanes * self.tile.inner
        start = e.address(line, self.element, e.mul(lowest, place_step))
        if guarded and isinstance(lowest, int) and isinstance(size, int) and self._few(width.taps):
            for x in range(int(width.taps)):
                distances = [x * width.offset_step + i * step for i in range(len(sums))]
                inside = [i for i, far in enumerate(distances) if 0 <= lowest + far < size]
                inputs = Inputs(e.opaque("ptr", start), [distances[i] * place_step for i in inside], self.channel_step)
                factors = e.address(weights, self.element, x * width.tap_step * vectors)
                if inside:
                    # The loop is emitted even for one step: across several taps, LLVM would hoist loads too far and
                    # keep the inputs that taps share in registers that the sums need.
                    self._channels(inputs, factors, e.opaque("i64", channels), [sums[i] for i in inside], self.unrolled)
            return
        span = (len(sums) - 1) * step + (self.window[2] - 1) * width.offset_step + 1
        channel_step = self.channel_step
        if guarded and not self.tile.blocked and span <= _SPAN:
            start, channel_step, guarded = self._gather_line(line, lowest, span), _SPAN, False
        with steps(e, 0, width.taps, opaque=True) as tap:
            position = e.mul(tap, width.offset_step)
            if guarded:
                inputs = self._gather(line, [e.add(e.add(lowest, position), i * step) for i in range(len(sums))])
            else:
                distances = [i * step * place_step for i in range(len(sums))]
                inputs = Inputs(e.address(start, self.element, e.mul(position, place_step)), distances, channel_step)
            self._channels(
                inputs, e.address(weights, self.element, e.mul(tap, width.tap_step * vectors)), channels, sums,
                self.unrolled,
            )  # fmt: skip

    @staticmethod
    def _few(taps: Number) -> bool:
        return isinstance(taps, int) and taps <= _CLIPPED

    def _gather_line(self, line: str, lowest: Number, span: int) -> str:
        """Emit a copy of a part of a row of each channel on the stack, with zeros outside; return its address."""
        e, tile = self.emitter, self.tile
        if not self.lines:
            self.lines = e.array(self.element, _SPAN * tile.inner)
        size = e.spread(str(self.sweep.axes[2].size), tile.lanes, "i64")
        indices_type = vector(tile.lanes, "i64")
        for far in range(0, span, tile.lanes):
            first = e.spread(str(e.add(lowest, far)), tile.lanes, "i64")
            index = e.let(f"add {indices_type} {first}, {e.lane_numbers(tile.lanes)}")
            inside = e.let(f"icmp ult {indices_type} {index}, {size}")
            for u in range(tile.inner):
                source = e.address(line, self.element, e.add(e.add(lowest, far), e.mul(u, self.channel_step)))
                target = e.address(self.lines, self.element, u * _SPAN + far)
                e.store(self.type, e.masked_load(self.type, source, 4, inside, tile.lanes), target, 4)
        return self.lines

    def _gather(self, line: str, positions: Sequence[Number]) -> Inputs:
        """Emit copies of the channels at some positions on the stack, zeros outside of the row."""
        e, tile = self.emitter, self.tile
        if not self.gathered:
            self.gathered = e.array(self.element, tile.outputs * tile.inner)
        type, copies = (vector(tile.inner, self.element), 1) if tile.blocked else (self.element, tile.inner)
        outside = block_of(e, self.element, "0.0" if self.element == "float" else "0", tile.lanes)
        for slot, position in enumerate(positions):
            inside = e.let(f"icmp ult i64 {position}, {self.sweep.axes[2].size}")
            address = e.address(line, self.element, e.mul(position, self.place_step))
            for u in range(copies):
                channel = e.address(address, self.element, e.mul(u, self.channel_step))
                source = e.let(f"select i1 {inside}, ptr {channel}, ptr {outside}")
                target = e.address(self.gathered, self.element, slot * tile.inner + u)
                e.store(type, e.load(type, source, 4), target, 4)
        return Inputs(self.gathered, [slot * tile.inner for slot in range(len(positions))], 1)

    def _channels(
        self, inputs: Inputs, weights: str, channels: Number, sums: list[list[Variable]], unroll: int
    ) -> None:
        """Emit the multiply-adds of some channels of an input block at one tap.

        Args:
            inputs: The inputs.
            weights: Address of the weights of the tap.
            channels: Number of channels.
            sums: The sums, by output and block.
            unroll: Largest number of channels per iteration.
        """
        e, tile = self.emitter, self.tile
        blocks = len(sums[0])
        while unroll > 1 and unroll * len(sums) * blocks > _UNROLLED:
            unroll //= 2
        with steps(e, 0, channels, unroll, opaque=True) as first:
            values = [[variable.get() for variable in of_output] for of_output in sums]
            for u in range(unroll):
                channel = e.add(first, u)
                start = e.address(weights, self.element, e.mul(channel, blocks * tile.lanes))
                factors = [
                    e.load(variable.type, e.address(start, self.element, b * tile.lanes), 4 * tile.lanes)
                    for b, variable in enumerate(sums[0])
                ]
                plane = e.address(inputs.start, self.element, e.mul(channel, inputs.channel_step))
                # An opaque copy of the address: the vector and its half are then two broadcast loads, not a shuffle.
                again = e.opaque("ptr", plane) if sums[0][-1].type != self.type and blocks > 1 else plane
                for i, distance in enumerate(inputs.distances):
                    for types, begin in ((self.type, plane), (self.half, again)):
                        of_type = [b for b, variable in enumerate(sums[i]) if variable.type == types]
                        if of_type and types:
                            value = e.load(self.element, e.address(begin, self.element, distance), 4)
                            lanes = int(types[1:].split()[0])
                            spread = e.spread(value, lanes, self.element)
                            for b in of_type:
                                values[i][b] = self._multiply_add(lanes, spread, factors[b], values[i][b])
            for of_output, results in zip(sums, values, strict=True):
                for variable, value in zip(of_output, results, strict=True):
                    variable.set(value)

    def _multiply_add(self, lanes: int, a: str, b: str, c: str) -> str:
        if self.tile.bfloat16:
            return bfloat16_dot_add(self.emitter, lanes, a, b, c)
        if self.tile.dot_width > 1:
            return dot_add(self.emitter, lanes, self.tile.dot_width, a, b, c, saturates=self.tile.saturates)
        return self.emitter.multiply_add(vector(lanes, self.element), a, b, c)


@dataclass(frozen=True)
class Inputs:
    """The inputs of adjacent outputs: at fixed distances from an address, channel by channel.

    Attributes:
        start: Address of the first channel.
        distances: Distance of each output's input, in elements.
        channel_step: Stride of channels, in elements.
    """

    start: str
    distances: list[int]
    channel_step: Number
