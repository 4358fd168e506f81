"""Direct convolutions: a register tile of neighbouring outputs times blocks of output channels.

Each step of the inner loop takes one input channel (of integers, as many as are multiplied at once) at one tap: a
vector of weights for each block of output channels, and each output's input value in all lanes. Nothing is laid out or
copied; rows above and below the image are left out of the loop over taps, and places beside it are read from a block of
zeros.

Groups of channels need no form of their own. A group of output blocks sees a run of input blocks that holds all its
groups' channels, with weights of zero for the channels that are another group's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sardonyx.compiler.codegen.integer_dot import dot_add, each_entry
from sardonyx.compiler.codegen.kernel_builder import Epilogue
from sardonyx.compiler.kernels.conv.weight_layouts import APART_NUMBERS
from sardonyx.compiler.kernels.conv.window_sweep import Image, Phase, Row, Sweep, block_of, steps
from sardonyx.compiler.llvm.ir_builder import Variable, vector
from sardonyx.compiler.tiling.convolution import Tile
from sardonyx.compiler.tiling.windows import Number, block_count

_UNROLLED = 112
"""About how many multiplications stand in the text of an inner loop: enough to hide the loop itself."""


_FEWEST = 4
"""The last channels of an image of floats are multiplied so many at a time."""

_SPAN = 256
"""Most places of a row that a tile of a plain image gathers on the stack."""

_LINE = 64
"""Bytes of a cache line."""

_CLIPPED = 8
"""Most taps of a row that are written one by one at the ends of rows, to leave out what lies outside."""


class DirectConvolution:
    """Writes one; see :func:`sardonyx.compiler.kernels.conv.convolution.convolution`."""

    def __init__(self, sweep: Sweep, x: Image, weights: str, tile: Tile, epilogue: Epilogue) -> None:
        self.sweep, self.x, self.weights, self.tile, self.epilogue = sweep, x, weights, tile, epilogue
        self.emitter = e = sweep.kernel.emitter
        self.element, self.type = tile.element, vector(tile.lanes, tile.element)
        self.window = sweep.window
        depth, height, width = sweep.axes
        # From place to place, from row to row, from slice to slice, from channel to channel, from block to block.
        self.place_step = tile.inner if tile.blocked else 1
        self.row_step = e.mul(width.size, self.place_step)
        self.slice_step = e.mul(self.row_step, height.size)
        volume = e.mul(self.slice_step, depth.size)
        self.channel_step, self.block_step = (1, volume) if tile.blocked else (volume, e.mul(volume, tile.inner))
        # The channels of the last input block, where they do not fill it.
        self._fewest = _FEWEST if tile.dot_width == 1 else 1
        rest = -(-(tile.channels % tile.inner) // self._fewest) * self._fewest % tile.inner
        self._rest = rest if tile.groups == 1 else 0
        self.unrolled = min(tile.inner, self._fewest) if self._rest else tile.inner
        # On processors that do a wide operation in two, half a vector costs half.
        self.half = vector(tile.lanes // 2, tile.element) if sweep.kernel.target.vector_bits >= 512 else None
        self.gathered = ""
        self.lines = ""
        self.taps = self.window[0] * self.window[1] * self.window[2]

    def write(self) -> None:
        """Write the kernel."""
        self.sweep.rows(self._row)

    def _row(self, row: Row) -> None:
        """A row of outputs: the last group of blocks may be smaller than the others."""
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
        """The outputs of a row in blocks of these types."""
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
        lowest = width.place(e, first)
        with steps(e, 0, tile.depth, opaque=True) as block:
            plane = e.address(image, self.element, e.mul(block, self.block_step))
            packed = e.address(weights, self.element, e.mul(block, self.taps * tile.inner * vectors))
            channels = self._channels_of(block)
            if self._passes_once():
                self._prefetch(plane, row, lowest, size)
            with self.sweep.lines(row, plane, self.element, self.slice_step, self.row_step) as (line, tap):
                of_row = e.address(packed, self.element, e.mul(tap, tile.inner * vectors))
                self._taps(width, line, of_row, lowest, channels, sums, guarded)
        if tile.corrects_overflow and self.sweep.sees_all_taps:
            self._apart(row, image, lowest, sums, guarded)
        for b in range(len(types)):
            channel = e.mul(e.add(e.mul(row.block, tile.blocks), b), tile.lanes)
            with self.sweep.side_by_side(row):
                for i in range(size):
                    index = self.sweep.index(row, channel, e.add(first, i), tile.lanes)
                    self.epilogue(index, self._whole(sums[i][b]), None)

    def _apart(self, row: Row, image: str, lowest: Number, sums: list[list[Variable]], guarded: bool) -> None:
        """Multiply by the weights that follow the others, see :func:`.apart_weights`."""
        e, tile, element = self.emitter, self.tile, self.element
        start = tile.depth * self.taps * tile.inner * tile.output_blocks * tile.lanes
        with each_entry(
            e, e.address(self.weights, element, start), row.block, tiles=tile.tiles, columns=tile.blocks * tile.lanes,
            lanes=tile.lanes, numbers=APART_NUMBERS,
        ) as ((block, z, y, x, channel), weights):  # fmt: skip
            plane = e.address(image, element, e.mul(block, self.block_step))
            with self.sweep.line(row, plane, element, self.slice_step, self.row_step, (z, y)) as line:
                width = row.phases[2]
                place, far = e.add(lowest, e.mul(x, width.offset_step)), range(len(sums))
                if guarded:
                    inputs = self._gathered(line, [e.add(place, i * width.advance) for i in far])
                else:
                    begin = e.address(line, element, e.mul(place, self.place_step))
                    inputs = Inputs(begin, [i * width.advance * self.place_step for i in far], 1)
                inputs = replace(inputs, start=e.address(inputs.start, element, channel))
                self._channels(inputs, weights, 1, sums, 1)

    def _passes_once(self) -> bool:
        """Whether each step from input block to input block reads places that no step before has brought near."""
        return self.taps == 1 and self.tile.blocked and self.tile.depth > 1

    def _prefetch(self, plane: str, row: Row, lowest: Number, size: int) -> None:
        """Ask for the places of the following input block: they lie an image apart, where no processor looks ahead."""
        e, step = self.emitter, row.phases[2].advance * self.place_step
        line = e.add(e.mul(row.places[0], self.slice_step), e.mul(row.places[1], self.row_step))
        there = e.add(e.add(line, self.block_step), e.mul(lowest, self.place_step))
        start = e.address(plane, self.element, there)
        # A cache line holds several places of few bytes; the first one and the last may be in the middle of one.
        every = max(1, _LINE // (4 * step)) if isinstance(step, int) else 1
        for i in sorted({*range(0, size, every), size - 1}):
            e.prefetch(e.address(start, self.element, i * step))

    def _whole(self, sum: Variable) -> str:
        """A sum as a whole block."""
        if sum.type == self.type:
            return sum.get()
        half = self.tile.lanes // 2
        lanes = ", ".join(f"i32 {min(lane, half)}" for lane in range(self.tile.lanes))
        zeros = f"{sum.type} zeroinitializer"
        return self.emitter.let(f"shufflevector {sum.type} {sum.get()}, {zeros}, <{self.tile.lanes} x i32> <{lanes}>")

    def _channels_of(self, block: Number) -> Number:
        """How many channels of an input block are to be multiplied: those past the last are zeros."""
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
        """The taps of a row of the window; where places are known, those outside are left out."""
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
                    # A loop even where it has one step: over several taps at once, LLVM would read too far ahead, and
                    # keep the inputs that taps share in the registers of the sums.
                    self._channels(inputs, factors, e.opaque("i64", channels), [sums[i] for i in inside], self.unrolled)
            return
        span = (len(sums) - 1) * step + (self.window[2] - 1) * width.offset_step + 1
        channel_step = self.channel_step
        if guarded and not self.tile.blocked and span <= _SPAN:
            start, channel_step, guarded = self._gathered_line(line, lowest, span), _SPAN, False
        with steps(e, 0, width.taps, opaque=True) as tap:
            place = e.mul(tap, width.offset_step)
            if guarded:
                inputs = self._gathered(line, [e.add(e.add(lowest, place), i * step) for i in range(len(sums))])
            else:
                distances = [i * step * place_step for i in range(len(sums))]
                inputs = Inputs(e.address(start, self.element, e.mul(place, place_step)), distances, channel_step)
            self._channels(
                inputs, e.address(weights, self.element, e.mul(tap, width.tap_step * vectors)), channels, sums,
                self.unrolled,
            )  # fmt: skip

    @staticmethod
    def _few(taps: Number) -> bool:
        return isinstance(taps, int) and taps <= _CLIPPED

    def _gathered_line(self, line: str, lowest: Number, span: int) -> str:
        """A piece of a row of each plane on the stack, with zeros for places outside."""
        e, tile = self.emitter, self.tile
        if not self.lines:
            self.lines = e.array(self.element, _SPAN * tile.inner)
        size = e.spread(str(self.sweep.axes[2].size), tile.lanes, "i64")
        places = vector(tile.lanes, "i64")
        for far in range(0, span, tile.lanes):
            first = e.spread(str(e.add(lowest, far)), tile.lanes, "i64")
            place = e.let(f"add {places} {first}, {e.lane_numbers(tile.lanes)}")
            inside = e.let(f"icmp ult {places} {place}, {size}")
            for u in range(tile.inner):
                source = e.address(line, self.element, e.add(e.add(lowest, far), e.mul(u, self.channel_step)))
                target = e.address(self.lines, self.element, u * _SPAN + far)
                e.store(self.type, e.masked_load(self.type, source, 4, inside, tile.lanes), target, 4)
        return self.lines

    def _gathered(self, line: str, places: Sequence[Number]) -> Inputs:
        """The channels of some places in slots of the stack, zeros for places outside of the row."""
        e, tile = self.emitter, self.tile
        if not self.gathered:
            self.gathered = e.array(self.element, tile.outputs * tile.inner)
        type, copies = (vector(tile.inner, self.element), 1) if tile.blocked else (self.element, tile.inner)
        outside = block_of(e, self.element, "0.0" if self.element == "float" else "0", tile.lanes)
        for slot, place in enumerate(places):
            inside = e.let(f"icmp ult i64 {place}, {self.sweep.axes[2].size}")
            address = e.address(line, self.element, e.mul(place, self.place_step))
            for u in range(copies):
                channel = e.address(address, self.element, e.mul(u, self.channel_step))
                source = e.let(f"select i1 {inside}, ptr {channel}, ptr {outside}")
                target = e.address(self.gathered, self.element, slot * tile.inner + u)
                e.store(type, e.load(type, source, 4), target, 4)
        return Inputs(self.gathered, [slot * tile.inner for slot in range(len(places))], 1)

    def _channels(
        self, inputs: Inputs, weights: str, channels: Number, sums: list[list[Variable]], together: int
    ) -> None:
        """Multiply and add so many channels of an input block at one tap, some of which stand in the text together."""
        e, tile = self.emitter, self.tile
        blocks = len(sums[0])
        while together > 1 and together * len(sums) * blocks > _UNROLLED:
            together //= 2
        with steps(e, 0, channels, together, opaque=True) as first:
            values = [[each.get() for each in of_output] for of_output in sums]
            for u in range(together):
                channel = e.add(first, u)
                start = e.address(weights, self.element, e.mul(channel, blocks * tile.lanes))
                factors = [
                    e.load(each.type, e.address(start, self.element, b * tile.lanes), 4 * tile.lanes)
                    for b, each in enumerate(sums[0])
                ]
                plane = e.address(inputs.start, self.element, e.mul(channel, inputs.channel_step))
                # Another name for it: a vector and its half, of one value, are a load each and no shuffle.
                again = e.opaque("ptr", plane) if sums[0][-1].type != self.type and blocks > 1 else plane
                for i, distance in enumerate(inputs.distances):
                    for types, begin in ((self.type, plane), (self.half, again)):
                        of_type = [b for b, each in enumerate(sums[i]) if each.type == types]
                        if of_type and types:
                            value = e.load(self.element, e.address(begin, self.element, distance), 4)
                            lanes = int(types[1:].split()[0])
                            spread = e.spread(value, lanes, self.element)
                            for b in of_type:
                                values[i][b] = self._multiply_add(lanes, spread, factors[b], values[i][b])
            for of_output, found in zip(sums, values, strict=True):
                for each, value in zip(of_output, found, strict=True):
                    each.set(value)

    def _multiply_add(self, lanes: int, a: str, b: str, c: str) -> str:
        if self.tile.dot_width > 1:
            return dot_add(self.emitter, lanes, self.tile.dot_width, a, b, c, saturates=self.tile.saturates)
        return self.emitter.multiply_add(vector(lanes, self.element), a, b, c)


@dataclass(frozen=True)
class Inputs:
    """Where the inputs of neighbouring outputs are: at fixed distances, channel by channel."""

    start: str
    distances: list[int]
    channel_step: Number
