"""Sliding windows over images: input indices of outputs, and the loops of kernels over the outputs.

An image is *plain* (NCHW), ``[N][C][*spatial]``, or *blocked*, ``[N][C/B][*spatial][B]`` with ``B`` the float lanes of
a vector; the last block of a blocked image is padded with zero channels. There are 1 to 3 spatial axes; internally
always depth, height and width, of size 1 if absent.

If the input is dilated (transposed convolutions), outputs fall into *phases*: outputs of one phase see the same taps,
at evenly spaced input indices, so that no inserted zero is multiplied.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

from sardonyx.compiler.codegen.kernel_builder import Index, Kernel
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.tiling.windows import Number, Windows, rest_sizes
from sardonyx.core.dim import Size, at_least, ceil_div
from sardonyx.core.ir.types import FLOAT, DType
from sardonyx.errors import UnsupportedError

_PHASES = 4
"""Largest number of phases of a row that is unrolled."""

_PIECE = 8
"""Tiles of a piece of a row."""

_LONGEST_LISTED = 1 << 16
"""Longest row whose tiles are listed when code is generated."""

_EDGES = 4
"""Largest number of tiles at an end of a row that is unrolled."""


@dataclass(frozen=True)
class Image:
    """A batch of images as an operand.

    Attributes:
        pointer: The buffer.
        channels: Number of channels, without the padding of the last block.
        sizes: The spatial sizes, 1 to 3.
        blocked: True if the image is blocked, False if plain.
        dtype: The element type.
    """

    pointer: str
    channels: int
    sizes: tuple[Size, ...]
    blocked: bool = True
    dtype: DType = FLOAT


@dataclass(frozen=True)
class Phase:
    """The outputs of one axis that see the same taps: output ``start + i * step`` is number ``i``.

    Tap ``j`` of the phase is tap ``tap + j * tap_step`` of the window and reads the input index
    ``i * advance + offset + j * offset_step``, which may be outside of the image.
    """

    start: Number
    step: int
    advance: int
    tap: Number
    tap_step: int
    taps: Number
    offset: Number
    offset_step: int

    def input_index(self, e: Emitter, at: Number) -> Number:
        """Return the input index that tap 0 of output number ``at`` reads."""
        return e.add(e.mul(at, self.advance), self.offset)

    def output(self, e: Emitter, at: Number) -> Number:
        """Return the index of output number ``at``."""
        return e.add(e.mul(at, self.step), self.start)

    def valid(self, e: Emitter, index: Number, size: Number) -> tuple[Number, Number]:
        """Return the range, possibly empty, of taps inside of the image, if tap 0 reads input index ``index``."""
        step = self.offset_step
        first = e.div(e.add(e.most(0, e.sub(0, index)), step - 1), step)
        last = e.div(e.add(e.most(0, e.sub(size, index)), step - 1), step)
        return first, e.least(self.taps, last)

    @staticmethod
    def chosen(e: Emitter, phases: Sequence[Phase], which: Number) -> Phase:
        """Emit the selection of a phase by number, at run time."""
        if len(phases) == 1:
            return phases[0]

        def field(values: Sequence[Number]) -> Number:
            selected = values[0]
            for number, value in enumerate(values[1:], 1):
                here = e.let(f"icmp uge i64 {which}, {number}")
                selected = e.let(f"select i1 {here}, i64 {value}, i64 {selected}") if value != selected else selected
            return selected

        return replace(
            phases[0],
            start=which,
            tap=field([phase.tap for phase in phases]),
            taps=field([phase.taps for phase in phases]),
            offset=field([phase.offset for phase in phases]),
        )


def phases(stride: int, dilation: int, base: int, window: int, low: int) -> list[Phase]:
    """Return the phases of an axis."""
    period = base // math.gcd(stride, base)
    tap_step = base // math.gcd(dilation, base)
    result = []
    for start in range(period):
        taps = [tap for tap in range(window) if (start * stride + tap * dilation - low) % base == 0]
        first = taps[0] if taps else 0
        offset = (start * stride + first * dilation - low) // base
        result.append(
            Phase(
                start, period, stride * period // base, first, tap_step, len(taps), offset, tap_step * dilation // base
            )
        )
    return result


class Axis:
    """A spatial axis of windows in a kernel.

    Attributes:
        size: Size of the input.
        out: Size of the output.
        phases: The phases of the outputs.
        inside: True if no window reaches outside of the input, for all sizes.
    """

    def __init__(
        self, kernel: Kernel, size: Size, out: Size, window: int, stride: int, low: Size, dilation: int, base: int
    ) -> None:
        self.size = kernel.size(size)
        self.out = kernel.size(out)
        if isinstance(low, int):
            self.phases = phases(stride, dilation, base, window, low)
        else:
            offset = kernel.emitter.sub(0, kernel.size(low))
            self.phases = [Phase(0, 1, stride, 0, 1, window, offset, dilation)]
        reach = (out - 1) * stride + (window - 1) * dilation - low
        self.inside = base == 1 and at_least(0, low) is True and at_least(size - 1, reach) is True


@dataclass(frozen=True)
class Row:
    """A row of outputs of one work item, for one phase of each axis.

    Attributes:
        image: Index of the image in the batch.
        block: Index of the group of channel blocks.
        outputs: Output indices along depth and height.
        inputs: Input indices of tap 0 along depth and height.
        taps: Ranges of taps along depth and height that are inside of the image.
        phases: The phases of the three axes.
        count: Number of outputs of the phase along the last axis.
        piece: First output and end of the work item, if a work item is a piece of a row.
    """

    image: Number
    block: Number
    outputs: tuple[Number, Number]
    inputs: tuple[Number, Number]
    taps: tuple[tuple[Number, Number], tuple[Number, Number]]
    phases: tuple[Phase, Phase, Phase]
    count: Number
    piece: tuple[Number, Number] | None = None


class Sweep:
    """The loop of a kernel over the outputs of windows; a work item is a row of a few channel blocks.

    If an image has a single row, the row is cut into pieces, so that there is work for all threads.

    Args:
        kernel: The kernel.
        x: The image.
        windows: The windows, with the rank of the image.
        out: The spatial sizes of the output.
        batch: Number of images.
        blocks: Number of groups of channel blocks.
        shared: Number of channels of the image that all groups of blocks read; 0 if each group reads its own. As many
            rows as fit half of L2 with these channels are computed for one group after the other.
        outputs: Largest number of outputs of a tile.

    Attributes:
        axes: Depth, height and width.
        window: The taps along the axes.
        outputs: Largest number of outputs of a tile.
        items: The number of work items.
    """

    def __init__(
        self,
        kernel: Kernel,
        x: Image,
        windows: Windows,
        out: tuple[Size, ...],
        batch: Size,
        blocks: int,
        *,
        outputs: int,
        shared: int = 0,
    ) -> None:
        rank = len(x.sizes)
        if not 1 <= rank <= 3 or len(windows.sizes) != rank or len(out) != rank:
            raise UnsupportedError(
                "expected windows and images of the same 1 to 3 spatial axes, "
                f"got windows of {len(windows.sizes)}, an input of {rank} and an output of {len(out)}."
            )
        missing = 3 - rank
        flat: list[tuple[Size, ...]] = [(1, 1, 1, 1, 0, 1, 1)] * missing
        flat += zip(
            x.sizes, out, windows.sizes, windows.strides, windows.padding, windows.dilations, windows.base_dilations,
            strict=True,
        )  # fmt: skip
        self.kernel, self.rank, self.blocks, self.outputs = kernel, rank, blocks, outputs
        self.axes = tuple(Axis(kernel, *axis) for axis in flat)  # type: ignore[arg-type]
        depth, height, width = (1,) * missing + windows.sizes
        self.window = depth, height, width
        self._piece = outputs * _PIECE
        rows: Size = math.prod(out[:-1])
        if rows != 1 or len(self.axes[2].phases) > 1 or (isinstance(out[-1], int) and out[-1] <= self._piece):
            self._piece = 0
        pieces = ceil_div(out[-1], self._piece) if self._piece else rows
        self.items: Size = batch * blocks * pieces
        self._rows = kernel.size(pieces)
        self._shared = shared if blocks > 1 else 0

    @contextmanager
    def side_by_side(self, row: Row) -> Iterator[None]:
        """Enclose the epilogues of a tile, one adjacent output of the row after the other."""
        with self.kernel.side_by_side() if row.phases[2].step == 1 else nullcontext():
            yield

    @property
    def sees_all_taps(self) -> bool:
        """True if every output sees all taps, because the input is not dilated."""
        return all(len(axis.phases) == 1 and axis.phases[0].tap_step == 1 for axis in self.axes)

    def rows(self, body: Callable[[Row], None]) -> None:
        """Write the loop over the work items, with the body for each combination of phases."""
        e = self.kernel.emitter
        depth, height, width = self.axes
        together = self._rows_per_group()
        with e.loop("%first", "%last") as item:
            image, block, row = self._locate(item, together)
            z, y = (0, 0) if self._piece else (e.div(row, height.out), e.rem(row, height.out))
            in_depth, in_height = (self._phase(axis, at) for axis, at in ((depth, z), (height, y)))
            inputs = (
                in_depth.input_index(e, e.div(z, len(depth.phases))),
                in_height.input_index(e, e.div(y, len(height.phases))),
            )
            taps = self._taps(depth, in_depth, inputs[0]), self._taps(height, in_height, inputs[1])
            for in_width in self._width_phases():
                count = e.div(e.add(e.sub(width.out, in_width.start), in_width.step - 1), in_width.step)
                begin = e.mul(row, self._piece)
                piece = (begin, e.least(e.add(begin, self._piece), count)) if self._piece else None
                body(Row(image, block, (z, y), inputs, taps, (in_depth, in_height, in_width), count, piece))

    def _rows_per_group(self) -> Number | None:
        """Return the number of rows that are computed for one group of blocks before the next; None for all."""
        if not self._shared:
            return None
        e, target = self.kernel.emitter, self.kernel.target
        _, height, width = self.axes
        if self._piece:
            read: Number = self._piece * width.phases[0].advance
        else:
            read = e.mul(width.size, height.phases[0].advance)
        count = e.div(target.l2 // 2, e.most(1, e.mul(read, 4 * self._shared)))
        if isinstance(count, int) and isinstance(self._rows, int) and count >= self._rows:
            return None
        return e.most(1, count)

    def _locate(self, item: Number, together: Number | None) -> tuple[Number, Number, Number]:
        """Return the image, the group of blocks and the row of a work item."""
        e, rows = self.kernel.emitter, self._rows
        if together is None:
            rest, row = e.div(item, rows), e.rem(item, rows)
            return e.div(rest, self.blocks), e.rem(rest, self.blocks), row
        image, rest = e.div(item, e.mul(rows, self.blocks)), e.rem(item, e.mul(rows, self.blocks))
        many = e.mul(together, self.blocks)
        before = e.mul(e.div(rest, many), together)
        rest, here = e.rem(rest, many), e.least(together, e.sub(rows, before))
        return image, e.div(rest, here), e.add(before, e.rem(rest, here))

    def _phase(self, axis: Axis, at: Number) -> Phase:
        e = self.kernel.emitter
        return Phase.chosen(e, axis.phases, e.rem(at, len(axis.phases)))

    def _width_phases(self) -> Iterator[Phase]:
        """Yield the phases of a row, unrolled if sizes are constants, else in a loop."""
        axis = self.axes[2]
        if len(axis.phases) <= _PHASES and isinstance(axis.size, int) and isinstance(axis.out, int):
            yield from axis.phases
            return
        with steps(self.kernel.emitter, 0, len(axis.phases)) as which:
            yield Phase.chosen(self.kernel.emitter, axis.phases, which)

    def _taps(self, axis: Axis, phase: Phase, index: Number) -> tuple[Number, Number]:
        if axis.inside:
            return 0, phase.taps
        return phase.valid(self.kernel.emitter, index, axis.size)

    @contextmanager
    def lines(
        self, row: Row, image: str, element: str, slice_step: Number, row_step: Number
    ) -> Iterator[tuple[str, Number]]:
        """Emit the loops over the taps along depth and height that are inside of the image.

        Args:
            row: The row of outputs.
            image: Address of the image.
            element: The LLVM type of the elements.
            slice_step: Stride of slices, in elements.
            row_step: Stride of rows, in elements.

        Yields:
            The address of the line of the image, and the number in the window of the first tap along the line.
        """
        e = self.kernel.emitter
        with steps(e, *row.taps[0]) as z, steps(e, *row.taps[1], opaque=True) as y:
            pz, py = (
                e.add(index, e.mul(tap, phase.offset_step))
                for index, tap, phase in zip(row.inputs, (z, y), row.phases[:2], strict=True)
            )
            kz, ky = (
                e.add(e.mul(tap, phase.tap_step), phase.tap) for tap, phase in zip((z, y), row.phases[:2], strict=True)
            )
            line = e.address(image, element, e.add(e.mul(pz, slice_step), e.mul(py, row_step)))
            yield line, e.add(e.mul(e.add(e.mul(kz, self.window[1]), ky), self.window[2]), row.phases[2].tap)

    @contextmanager
    def line(
        self, row: Row, image: str, element: str, slice_step: Number, row_step: Number, taps: tuple[Number, Number]
    ) -> Iterator[str]:
        """Enclose code that runs only if a tap along depth and one along height are inside of the image.

        Args:
            row: The row of outputs.
            image: Address of the image.
            element: The LLVM type of the elements.
            slice_step: Stride of slices, in elements.
            row_step: Stride of rows, in elements.
            taps: The taps along depth and height.

        Yields:
            The address of the line of the image.
        """
        e = self.kernel.emitter
        indices = [
            e.add(index, e.mul(tap, phase.offset_step))
            for index, tap, phase in zip(row.inputs, taps, row.phases[:2], strict=True)
        ]
        line = e.address(image, element, e.add(e.mul(indices[0], slice_step), e.mul(indices[1], row_step)))
        inside = "true"
        for index, axis in zip(indices, self.axes[:2], strict=True):
            if not axis.inside:
                inside = e.let(f"and i1 {inside}, {e.let(f'icmp ult i64 {index}, {axis.size}')}")
        with e.when(inside):
            yield line

    def tiles(self, row: Row, body: Callable[[Number, int, bool], None]) -> None:
        """Write the loop along a row, in tiles of adjacent outputs.

        Args:
            row: The row.
            body: Emits a tile by first output, number of outputs, and a flag: True if windows may reach outside along
                the row, in which case every input index is checked. If sizes are constants, the first output of most of
                these tiles is constant as well, and many of these checks are decided when code is generated.
        """
        if row.piece:
            self._unknown_tiles(row, *row.piece, body)
        elif isinstance(row.count, int) and row.count <= _LONGEST_LISTED:
            self._known_tiles(row, row.count, body)
        else:
            self._unknown_tiles(row, 0, row.count, body)

    def _known_tiles(self, row: Row, count: int, body: Callable[[Number, int, bool], None]) -> None:
        """Emit tiles of nearly equal sizes: tiles inside of the image in loops, tiles at the ends unrolled."""
        number = -(-count // self.outputs)
        if not number:
            return
        least, larger = divmod(count, number)
        sizes = [least + (i < larger) for i in range(number)]
        starts = [i * least + min(i, larger) for i in range(number)]
        tiles = [(start, size, self._reach(row, start, size)) for start, size in zip(starts, sizes, strict=True)]
        e = self.kernel.emitter
        for (size, inside), run in itertools.groupby(tiles, key=lambda tile: tile[1:]):
            first, *others = [start for start, _, _ in run]
            if inside is not True and len(others) < _EDGES:
                for start in (first, *others):
                    self._tile(row, start, size, body)
                continue
            with steps(e, first, first + size * (1 + len(others)), size) as at:
                self._tile(row, at, size, body)

    def _unknown_tiles(self, row: Row, begin: Number, end: Number, body: Callable[[Number, int, bool], None]) -> None:
        """Emit tiles of full size, then smaller tiles for the remaining outputs."""
        e, most = self.kernel.emitter, self.outputs
        whole = e.sub(end, e.rem(e.sub(end, begin), most))
        with e.loop(begin, whole, most) as first:
            self._tile(row, first, most, body)
        start = e.variable("i64", str(whole))
        for size in rest_sizes(most):
            at = start.get()
            with e.when(e.let(f"icmp sge i64 {e.sub(end, at)}, {size}")):
                body(at, size, not self.axes[2].inside)
                start.set(str(e.add(at, size)))

    def _reach(self, row: Row, first: int, size: int) -> bool | None:
        """Return True if the windows of a tile stay inside of the row; None if unknown."""
        axis, phase = self.axes[2], row.phases[2]
        if axis.inside:
            return True
        if not (isinstance(phase.offset, int) and isinstance(phase.taps, int) and isinstance(axis.size, int)):
            return None
        lowest = first * phase.advance + phase.offset
        return lowest >= 0 and lowest + (size - 1) * phase.advance + (phase.taps - 1) * phase.offset_step < axis.size

    def _tile(self, row: Row, first: Number, size: int, body: Callable[[Number, int, bool], None]) -> None:
        e = self.kernel.emitter
        axis, phase = self.axes[2], row.phases[2]
        known = axis.inside or (self._reach(row, first, size) if isinstance(first, int) else None)
        if known is not None:
            body(first, size, not known)
            return
        lowest = phase.input_index(e, first)
        reach = e.add((size - 1) * phase.advance, e.mul(e.sub(phase.taps, 1), phase.offset_step))
        highest = e.add(lowest, reach)
        starts = e.let(f"icmp sge i64 {lowest}, 0")
        ends = e.let(f"icmp slt i64 {highest}, {axis.size}")
        with e.either(e.let(f"and i1 {starts}, {ends}")) as branches:
            for guarded, _ in enumerate(branches):
                body(first, size, bool(guarded))

    def index(self, row: Row, channel: Number, at: Number, lanes: int) -> tuple[Index, ...]:
        """Return the index of a vector of results: image, channel, then the spatial axes."""
        x = row.phases[2].output(self.kernel.emitter, at)
        spatial = [Index(coordinate) for coordinate in (*row.outputs, x)]
        return (Index(row.image), Index(channel, 1 if lanes > 1 else 0), *spatial[3 - self.rank :])


@contextmanager
def steps(e: Emitter, start: Number, end: Number, step: int = 1, *, opaque: bool = False) -> Iterator[Number]:
    """Emit a loop, or no loop for a single step."""
    if isinstance(start, int) and isinstance(end, int) and end - start == step:
        yield start
        return
    with e.loop(start, end, step, opaque=opaque) as at:
        yield at


def block_of(e: Emitter, element: str, literal: str, count: int) -> str:
    """Return a constant block of equal elements, read for positions outside of an image."""
    name = f"@outside.{element}.{count}.{literal.strip('-').replace('.', '_')}{'.negative' * literal.startswith('-')}"
    values = ", ".join([f"{element} {literal}"] * count)
    e.globals[name] = f"{name} = internal constant [{count} x {element}] [{values}], align 64"
    return name
