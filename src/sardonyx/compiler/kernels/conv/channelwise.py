"""Windows that combine each channel with itself alone: the walk that depthwise convolutions and pooling share.

A vector holds the channels of a block at one place. A tile is some neighbouring outputs of a row; along the row, each
input vector is read once and combined into every output that sees it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from sardonyx.compiler.codegen.kernel_builder import Epilogue
from sardonyx.compiler.kernels.conv.window_sweep import Image, Row, Sweep, block_of, steps
from sardonyx.compiler.llvm.ir_builder import Variable, splat, vector
from sardonyx.compiler.tiling.windows import Number

_UNROLLED = 128
"""Most combinations of a row of taps that stand in the text one by one."""

_PARTS = 4
"""Fewest combinations that had better be under way at a time."""


class Channelwise(ABC):
    """Writes such a kernel. Subclasses say where results begin and how an input is combined.

    Args:
        sweep: The walk over the outputs; its blocks are those of the image.
        x: The image.
        element: The type of the elements.
        lanes: Channels of a block.
        epilogue: What becomes of the results.
        stored: The type of the elements in memory, where it is another.
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
        """The element that a result begins with."""

    def factors(self, row: Row, tap: Number) -> list[str]:
        """What is fixed for a tap (the number of it in the window), read before the inputs."""
        return []

    def outside(self) -> str:
        """The element in memory that places outside of the image hold."""
        return self.identity()

    def loaded(self, address: str) -> str:
        """The inputs at a place."""
        return self.emitter.load(self.type, address, 4)

    def prepared(self, value: str) -> list[str]:
        """What is made of an input once, for all outputs that see it."""
        return [value]

    @abstractmethod
    def combined(self, result: str, values: list[str], factors: list[str]) -> str:
        """A result with another input in it."""

    @abstractmethod
    def merged(self, first: str, second: str) -> str:
        """A result of which two parts were combined apart."""

    def write(self) -> None:
        """Write the kernel."""
        self.sweep.rows(self._row)

    def _row(self, row: Row) -> None:
        e = self.emitter
        block = e.add(e.mul(row.image, self.sweep.blocks), row.block)
        image = e.address(self.x.pointer, self.stored, e.mul(block, self.block_step))
        self.sweep.tiles(row, lambda first, size, guarded: self._tile(row, image, first, size, guarded))

    def _tile(self, row: Row, image: str, first: Number, size: int, guarded: bool) -> None:
        e = self.emitter
        identity = splat(self.identity(), self.lanes, self.element)
        # Of few outputs, several parts each, so that a combination need not wait for the last one.
        parts = max(1, _PARTS // size)
        results = [[e.variable(self.type, identity) for _ in range(parts)] for _ in range(size)]
        width = row.phases[2]
        lowest = width.place(e, first)
        together = min(width.taps, max(1, _UNROLLED // size)) if isinstance(width.taps, int) else 1
        with self.sweep.lines(row, image, self.stored, self.slice_step, self.row_step) as (line, tap):
            rest = width.taps % together if isinstance(width.taps, int) and together else 0
            for start, end, count in (
                (0, e.sub(width.taps, rest), together),
                (e.sub(width.taps, rest), width.taps, rest),
            ):
                if count:
                    with steps(e, start, end, count) as x:
                        place = e.add(lowest, e.mul(x, width.offset_step))
                        self._taps(row, line, place, e.add(tap, e.mul(x, width.tap_step)), count, results, guarded)
        with self.sweep.side_by_side(row):
            for i, of_output in enumerate(results):
                result, *others = [part.get() for part in of_output]
                for other in others:
                    result = self.merged(result, other)
                channel = e.mul(row.block, self.lanes)
                self.epilogue(self.sweep.index(row, channel, e.add(first, i), self.lanes), result, None)

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
        """Some taps of a row: each input that they see is read once."""
        e, width = self.emitter, row.phases[2]
        factors = [self.factors(row, e.add(tap, j * width.tap_step)) for j in range(taps)]
        seen: dict[int, list[tuple[int, int]]] = {}
        for i in range(len(results)):
            for j in range(taps):
                seen.setdefault(i * width.advance + j * width.offset_step, []).append((i, j))
        values = [[part.get() for part in of_output] for of_output in results]
        for distance in sorted(seen):
            place = e.add(lowest, distance)
            inside = not guarded
            if isinstance(place, int) and isinstance(self.sweep.axes[2].size, int):
                inside = 0 <= place < self.sweep.axes[2].size
                if not inside:
                    continue
            inputs = self.prepared(self.loaded(self._place(line, place, inside)))
            for i, j in seen[distance]:
                part = j % len(values[i])
                values[i][part] = self.combined(values[i][part], inputs, factors[j])
        for of_output, found in zip(results, values, strict=True):
            for each, value in zip(of_output, found, strict=True):
                each.set(value)

    def _place(self, line: str, place: Number, inside: bool) -> str:
        e = self.emitter
        address = e.address(line, self.stored, e.mul(place, self.lanes))
        if inside:
            return address
        here = e.let(f"icmp ult i64 {place}, {self.sweep.axes[2].size}")
        outside = block_of(e, self.stored, self.outside(), self.lanes)
        return e.let(f"select i1 {here}, ptr {address}, ptr {outside}")
