"""Convolutions to few filters: dot products whose lanes are input channels, summed at the end.

With output channels in the lanes, as in direct convolutions, most lanes would compute unused results.
"""

from __future__ import annotations

from sardonyx.compiler.codegen.kernel_builder import Epilogue
from sardonyx.compiler.kernels.conv.window_sweep import Image, Phase, Row, Sweep, block_of, steps
from sardonyx.compiler.llvm.ir_builder import Variable, vector
from sardonyx.compiler.tiling.convolution_tiles import Tile
from sardonyx.compiler.tiling.windows import Number


class DotConvolution:
    """The emitter of a dot-product convolution, see :func:`.convolution`."""

    def __init__(self, sweep: Sweep, x: Image, weights: str, tile: Tile, epilogue: Epilogue) -> None:
        self.sweep, self.x, self.weights, self.tile, self.epilogue = sweep, x, weights, tile, epilogue
        self.emitter = e = sweep.kernel.emitter
        self.type = vector(tile.lanes, "float")
        self.window = sweep.window
        self.taps = self.window[0] * self.window[1] * self.window[2]
        depth, height, width = sweep.axes
        self.row_step = e.mul(width.size, tile.lanes)
        self.slice_step = e.mul(self.row_step, height.size)
        self.block_step = e.mul(self.slice_step, depth.size)

    def write(self) -> None:
        """Write the kernel."""
        self.sweep.rows(self._row)

    def _row(self, row: Row) -> None:
        e = self.emitter
        first_block = e.mul(row.image, self.tile.depth)
        image = e.address(self.x.pointer, "float", e.mul(first_block, self.block_step))
        self.sweep.tiles(row, lambda first, size, guarded: self._tile(row, image, first, size, guarded))

    def _tile(self, row: Row, image: str, first: Number, size: int, guarded: bool) -> None:
        e, tile, width = self.emitter, self.tile, row.phases[2]
        sums = [[e.variable(self.type, "zeroinitializer") for _ in range(tile.filters)] for _ in range(size)]
        vectors = tile.filters * tile.lanes
        lowest = width.input_index(e, first)
        with steps(e, 0, tile.depth, opaque=True) as block:
            plane = e.address(image, "float", e.mul(block, self.block_step))
            packed = e.address(self.weights, "float", e.mul(block, self.taps * vectors))
            with (
                self.sweep.lines(row, plane, "float", self.slice_step, self.row_step) as (line, tap),
                steps(e, 0, width.taps, opaque=True) as x,
            ):
                position = e.add(lowest, e.mul(x, width.offset_step))
                number = e.add(tap, e.mul(x, width.tap_step))
                factors = e.address(packed, "float", e.mul(number, vectors))
                self._products(width, line, position, factors, sums, guarded)
        for i in range(size):
            value = self._sum_lanes([variable.get() for variable in sums[i]])
            self.epilogue(self.sweep.index(row, 0, e.add(first, i), tile.lanes), value, None)

    def _products(
        self, width: Phase, line: str, position: Number, weights: str, sums: list[list[Variable]], guarded: bool
    ) -> None:
        """Emit the multiply-adds of all outputs at one tap."""
        e, lanes = self.emitter, self.tile.lanes
        factors = [
            e.load(self.type, e.address(weights, "float", filter * lanes), 4 * lanes) for filter in range(len(sums[0]))
        ]
        start = e.address(line, "float", e.mul(position, lanes))
        for i, of_output in enumerate(sums):
            source = e.address(start, "float", i * width.advance * lanes)
            if guarded:
                here = e.let(f"icmp ult i64 {e.add(position, i * width.advance)}, {self.sweep.axes[2].size}")
                source = e.let(f"select i1 {here}, ptr {source}, ptr {block_of(e, 'float', '0.0', lanes)}")
            value = e.load(self.type, source, 4)
            for variable, factor in zip(of_output, factors, strict=True):
                variable.set(e.multiply_add(self.type, value, factor, variable.get()))

    def _sum_lanes(self, sums: list[str]) -> str:
        """Return a block of results: the lane sums of the vectors."""
        e, lanes = self.emitter, self.tile.lanes
        name = f"llvm.vector.reduce.fadd.v{lanes}f32"
        e.declarations[f"declare float @{name}(float, {self.type})"] = None
        block = "zeroinitializer"
        for lane, value in enumerate(sums):
            total = e.let(f"call reassoc float @{name}(float -0.0, {self.type} {value})")
            block = e.let(f"insertelement {self.type} {block}, float {total}, i64 {lane}")
        return block
