"""Windows over each channel on its own: the kernel skeleton of depthwise convolutions and pooling.

A vector holds the channels of a block at one position. A tile is a few adjacent outputs of a row; along the row, each
input vector is read once and combined into every output whose window contains the input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from sardonyx.compiler.codegen.kernel_builder import Epilogue
from sardonyx.compiler.kernels.conv.window_sweep import Image, Row, Sweep, block_of, steps
from sardonyx.compiler.llvm.ir_builder import Variable, splat, vector
from sardonyx.compiler.tiling.windows import Number

_UNROLLED = 128
"""Largest number of combinations of a row of taps that is fully unrolled."""

_PARTS = 4
"""Fewest independent accumulators of a tile, to hide the latency of a combination."""


class Channelwise(ABC):
    """Kernel over windows of single channels; subclasses define the identity and the combination.

    Args:
        sweep: The loop over the outputs; its blocks are the channel blocks of the image.
        x: The image.
        element: The LLVM type of the computation.
        lanes: Channels of a block.
        epilogue: Consumes the results.
        stored: The LLVM type of the elements in memory, if different.
    """

    def __init__(
        self,
        sweep: Sweep,
        x: Image,
        element: str,
        lanes: int,
        epilogue: Epilogue,
        stored: str | None = None,
    ) -> None:
        self.sweep, self.x, self.window, self.element, self.lanes = sweep, x, sweep.window, element, lanes
        self.stored = stored or element
        self.epilogue = epilogue
        self.emitter = e = sweep.kernel.emitter
        self.type = vector(lanes, element)
        depth, height, width = sweep.axes
        self.row_step = e.mul(width.size, lanes)
        self.slice_step = e.mul(self.row_step, height.size)
        self.block_step = e.mul(self.slice_step, depth.size)

    @abstractmethod
    def identity(self) -> str:
        """Return the initial value of a result."""

    def begin(self, row: Row, image: str) -> str:
        """Return the vector with which the results of a row begin."""
        return splat(self.identity(), self.lanes, self.element)

    def beside(self) -> str | None:
        """Return the vector of a position known to be left or right of the image; None if it changes no result."""
        return None

    def factors(self, row: Row, tap: Number) -> list[str]:
        """Return the operands of a tap (by number in the window) that do not depend on the input; read first."""
        return []

    def outside(self) -> str:
        """Return the element in memory for positions outside of the image."""
        return self.identity()

    def load(self, address: str) -> str:
        """Emit the load of a vector of inputs."""
        return self.emitter.load(self.type, address, 4)

    def prepare(self, value: str) -> list[str]:
        """Emit the computations on an input that all outputs share."""
        return [value]

    @abstractmethod
    def combine(self, result: str, values: list[str], factors: list[str]) -> str:
        """Emit the combination of a result with another input."""

    @abstractmethod
    def merge(self, first: str, second: str) -> str:
        """Emit the combination of two partial results."""

    def finish(self, result: str) -> str:
        """Emit the output of a combined result."""
        return result

    def write(self) -> None:
        """Write the kernel."""
        self.sweep.rows(self._row)

    def _row(self, row: Row) -> None:
        e = self.emitter
        block = e.add(e.mul(row.image, self.sweep.blocks), row.block)
        image = e.address(self.x.pointer, self.stored, e.mul(block, self.block_step))
        begin = self.begin(row, image)
        self.sweep.tiles(row, lambda first, size, guarded: self._tile(row, image, begin, first, size, guarded))

    def _tile(self, row: Row, image: str, begin: str, first: Number, size: int, guarded: bool) -> None:
        e = self.emitter
        identity = splat(self.identity(), self.lanes, self.element)
        # A tile of few outputs has several accumulators per output, so that combinations are independent.
        parts = max(1, _PARTS // size)
        starts = [begin, *[identity] * (parts - 1)]
        results = [[e.variable(self.type, start) for start in starts] for _ in range(size)]
        width = row.phases[2]
        lowest = width.input_index(e, first)
        together = min(width.taps, max(1, _UNROLLED // size)) if isinstance(width.taps, int) else 1
        with self.sweep.lines(row, image, self.stored, self.slice_step, self.row_step) as (line, tap):
            rest = width.taps % together if isinstance(width.taps, int) and together else 0
            for start, end, count in (
                (0, e.sub(width.taps, rest), together),
                (e.sub(width.taps, rest), width.taps, rest),
            ):
                if count:
                    with steps(e, start, end, count) as x:
                        position = e.add(lowest, e.mul(x, width.offset_step))
                        self._taps(row, line, position, e.add(tap, e.mul(x, width.tap_step)), count, results, guarded)
        with self.sweep.side_by_side(row):
            for i, of_output in enumerate(results):
                result, *others = [part.get() for part in of_output]
                for other in others:
                    result = self.merge(result, other)
                channel = e.mul(row.block, self.lanes)
                output = self.finish(result)
                self.epilogue(self.sweep.index(row, channel, e.add(first, i), self.lanes), output, None)

    def _taps(
        self,
        row: Row,
        line: str,
        lowest: Number,
        tap: Number,
        taps: int,
        results: list[list[Variable]],
        guarded: bool,
    ) -> None:
        """Emit some taps of a row; each input of the taps is read once."""
        e, width = self.emitter, row.phases[2]
        factors = [self.factors(row, e.add(tap, j * width.tap_step)) for j in range(taps)]
        seen: dict[int, list[tuple[int, int]]] = {}
        for i in range(len(results)):
            for j in range(taps):
                seen.setdefault(i * width.advance + j * width.offset_step, []).append((i, j))
        values = [[part.get() for part in of_output] for of_output in results]
        for distance in sorted(seen):
            position = e.add(lowest, distance)
            inside = not guarded
            beside = None
            if isinstance(position, int) and isinstance(self.sweep.axes[2].size, int):
                inside = 0 <= position < self.sweep.axes[2].size
                beside = None if inside else self.beside()
                if not inside and beside is None:
                    continue
            inputs = self.prepare(self.load(self._address(line, position, inside)) if beside is None else beside)
            for i, j in seen[distance]:
                part = j % len(values[i])
                values[i][part] = self.combine(values[i][part], inputs, factors[j])
        for of_output, results_of_output in zip(results, values, strict=True):
            for variable, value in zip(of_output, results_of_output, strict=True):
                variable.set(value)

    def _address(self, line: str, position: Number, inside: bool) -> str:
        e = self.emitter
        address = e.address(line, self.stored, e.mul(position, self.lanes))
        if inside:
            return address
        here = e.let(f"icmp ult i64 {position}, {self.sweep.axes[2].size}")
        outside = block_of(e, self.stored, self.outside(), self.lanes)
        return e.let(f"select i1 {here}, ptr {address}, ptr {outside}")
