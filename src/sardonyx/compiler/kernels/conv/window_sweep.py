"""Windows that move over images: which input places each output place sees, and how kernels walk over the outputs.

An image is *plain*, ``[N][C][*spatial]``, or *blocked*, ``[N][C/B][*spatial][B]`` with ``B`` the float lanes of a
vector; the channels of a blocked image fill whole blocks, and those past the last are zeros. There are 1 to 3 spatial
axes; inside they are always depth, height, width, with 1 for those that are not there.

Where the input is dilated (transposed convolutions), outputs fall into *phases*: those of one phase see the same taps,
at places that advance evenly, so that no zero is ever multiplied.
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
from sardonyx.errors import OptionError

_PHASES = 4
"""Most phases of a row that are written one by one."""

_PIECE = 8
"""Tiles of a piece of a row."""

_EDGES = 4
"""Most tiles at an end of a row that are written one by one."""


@dataclass(frozen=True)
class Image:
    """A batch of images as an operand.

    Attributes:
        pointer: The buffer.
        channels: How many there are, without those that fill the last block.
        sizes: The spatial sizes, 1 to 3.
        blocked: Whether it is blocked or plain.
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

    Its tap ``j`` is tap ``tap + j * tap_step`` of the window and sees the input place ``i * advance + offset +
    j * offset_step``, which may lie outside.
    """

    start: Number
    step: int
    advance: int
    tap: Number
    tap_step: int
    taps: Number
    offset: Number
    offset_step: int

    def place(self, e: Emitter, at: Number) -> Number:
        """The input place that tap 0 of output number ``at`` sees."""
        return e.add(e.mul(at, self.advance), self.offset)

    def output(self, e: Emitter, at: Number) -> Number:
        """The place of output number ``at``."""
        return e.add(e.mul(at, self.step), self.start)

    def valid(self, e: Emitter, place: Number, size: Number) -> tuple[Number, Number]:
        """The range of taps that see places inside, where tap 0 sees ``place``; it may be empty."""
        step = self.offset_step
        first = e.div(e.add(e.most(0, e.sub(0, place)), step - 1), step)
        last = e.div(e.add(e.most(0, e.sub(size, place)), step - 1), step)
        return first, e.least(self.taps, last)

    @staticmethod
    def chosen(e: Emitter, phases: Sequence[Phase], which: Number) -> Phase:
        """The phase of that number, at run time."""
        if len(phases) == 1:
            return phases[0]

        def field(values: Sequence[Number]) -> Number:
            found = values[0]
            for number, value in enumerate(values[1:], 1):
                here = e.let(f"icmp uge i64 {which}, {number}")
                found = e.let(f"select i1 {here}, i64 {value}, i64 {found}") if value != found else found
            return found

        return replace(
            phases[0],
            start=which,
            tap=field([phase.tap for phase in phases]),
            taps=field([phase.taps for phase in phases]),
            offset=field([phase.offset for phase in phases]),
        )


def phases(stride: int, dilation: int, base: int, window: int, low: int) -> list[Phase]:
    """The phases of an axis."""
    period = base // math.gcd(stride, base)
    tap_step = base // math.gcd(dilation, base)
    found = []
    for start in range(period):
        taps = [tap for tap in range(window) if (start * stride + tap * dilation - low) % base == 0]
        first = taps[0] if taps else 0
        offset = (start * stride + first * dilation - low) // base
        found.append(
            Phase(
                start, period, stride * period // base, first, tap_step, len(taps), offset, tap_step * dilation // base
            )
        )
    return found


class Axis:
    """A spatial axis of windows in a kernel.

    Attributes:
        size: Of the input.
        out: Of the output.
        phases: The phases of the outputs.
        inside: Whether it is proven that no window reaches outside of the input.
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
    """A row of outputs as one work item does it, for one phase of each axis.

    Attributes:
        image: Which image of the batch.
        block: Which group of channel blocks.
        outputs: The output places along depth and height.
        places: The input places that tap 0 sees along depth and height.
        taps: The ranges of taps along depth and height that see places inside.
        phases: Of the three axes.
        count: How many outputs of the last axis belong to the phase.
        piece: The first and the end of those that belong to the work item, where it is a piece of a row.
    """

    image: Number
    block: Number
    outputs: tuple[Number, Number]
    places: tuple[Number, Number]
    taps: tuple[tuple[Number, Number], tuple[Number, Number]]
    phases: tuple[Phase, Phase, Phase]
    count: Number
    piece: tuple[Number, Number] | None = None


class Sweep:
    """The walk of a kernel over the outputs of windows: a work item is a row of outputs of some channel blocks.

    Where an image is one row, that is cut into pieces, so that there is work for all threads.

    Args:
        kernel: What is written.
        x: The image.
        windows: The windows, of as many axes.
        out: The spatial sizes of the output.
        batch: How many images.
        blocks: How many groups of channel blocks there are.
        shared: How many channels of the image all groups of blocks read; 0 where each reads its own. The rows of which
            these fit the second-level cache are done for one group after the other.
        outputs: Most outputs of a tile.

    Attributes:
        axes: Depth, height and width.
        window: The taps along these.
        outputs: Most outputs of a tile.
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
            raise OptionError(
                f"windows of {len(windows.sizes)} axes do not fit an image of {rank} and one of {len(out)}."
            )
        missing = 3 - rank
        flat: list[tuple[Size, ...]] = [(1, 1, 1, 1, 0, 1, 1)] * missing
        flat += zip(
            x.sizes, out, windows.sizes, windows.strides, windows.padding, windows.dilations, windows.base_dilations,
            strict=True,
        )  # fmt: skip
        self.kernel, self.rank, self.blocks, self.outputs = kernel, rank, blocks, outputs
        self.axes = tuple(Axis(kernel, *each) for each in flat)  # type: ignore[arg-type]
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
        """Results of a tile, one place of the row after the other, are handed on inside."""
        with self.kernel.side_by_side() if row.phases[2].step == 1 else nullcontext():
            yield

    @property
    def sees_all_taps(self) -> bool:
        """Whether each output sees all taps, since the input is not dilated."""
        return all(len(axis.phases) == 1 and axis.phases[0].tap_step == 1 for axis in self.axes)

    def rows(self, body: Callable[[Row], None]) -> None:
        """Write the loop over the work items, with the body for each combination of phases."""
        e = self.kernel.emitter
        depth, height, width = self.axes
        together = self._rows_together()
        with e.loop("%first", "%last") as item:
            image, block, row = self._place(item, together)
            z, y = (0, 0) if self._piece else (e.div(row, height.out), e.rem(row, height.out))
            in_depth, in_height = (self._phase(axis, at) for axis, at in ((depth, z), (height, y)))
            places = in_depth.place(e, e.div(z, len(depth.phases))), in_height.place(e, e.div(y, len(height.phases)))
            taps = self._taps(depth, in_depth, places[0]), self._taps(height, in_height, places[1])
            for in_width in self._width_phases():
                count = e.div(e.add(e.sub(width.out, in_width.start), in_width.step - 1), in_width.step)
                begin = e.mul(row, self._piece)
                piece = (begin, e.least(e.add(begin, self._piece), count)) if self._piece else None
                body(Row(image, block, (z, y), places, taps, (in_depth, in_height, in_width), count, piece))

    def _rows_together(self) -> Number | None:
        """How many rows are done for one group of blocks before the next; None for all."""
        if not self._shared:
            return None
        e, target = self.kernel.emitter, self.kernel.target
        _, height, width = self.axes
        if self._piece:
            read: Number = self._piece * width.phases[0].advance
        else:
            read = e.mul(width.size, height.phases[0].advance)
        found = e.div(target.l2 // 2, e.most(1, e.mul(read, 4 * self._shared)))
        if isinstance(found, int) and isinstance(self._rows, int) and found >= self._rows:
            return None
        return e.most(1, found)

    def _place(self, item: Number, together: Number | None) -> tuple[Number, Number, Number]:
        """The image, the group of blocks and the row of a work item."""
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
        """The phases of a row: written one by one where sizes are known, in a loop where not."""
        axis = self.axes[2]
        if len(axis.phases) <= _PHASES and isinstance(axis.size, int) and isinstance(axis.out, int):
            yield from axis.phases
            return
        with steps(self.kernel.emitter, 0, len(axis.phases)) as which:
            yield Phase.chosen(self.kernel.emitter, axis.phases, which)

    def _taps(self, axis: Axis, phase: Phase, place: Number) -> tuple[Number, Number]:
        if axis.inside:
            return 0, phase.taps
        return phase.valid(self.kernel.emitter, place, axis.size)

    @contextmanager
    def lines(
        self, row: Row, image: str, element: str, slice_step: Number, row_step: Number
    ) -> Iterator[tuple[str, Number]]:
        """The loops over the taps along depth and height that see places inside.

        Args:
            row: The row of outputs.
            image: Where the image begins.
            element: The type of the elements.
            slice_step: From one slice of the image to the next, in elements.
            row_step: From one row of it to the next.

        Yields:
            The line of the image that is seen, and the number of the first tap along it in the window.
        """
        e = self.kernel.emitter
        with steps(e, *row.taps[0]) as z, steps(e, *row.taps[1], opaque=True) as y:
            pz, py = (
                e.add(place, e.mul(tap, phase.offset_step))
                for place, tap, phase in zip(row.places, (z, y), row.phases[:2], strict=True)
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
        """What is written inside runs where a tap along depth and one along height see places inside.

        Arguments are those of :meth:`lines`, and the taps; gives the line of the image that is seen.
        """
        e = self.kernel.emitter
        places = [
            e.add(place, e.mul(tap, phase.offset_step))
            for place, tap, phase in zip(row.places, taps, row.phases[:2], strict=True)
        ]
        line = e.address(image, element, e.add(e.mul(places[0], slice_step), e.mul(places[1], row_step)))
        inside = "true"
        for place, axis in zip(places, self.axes[:2], strict=True):
            if not axis.inside:
                inside = e.let(f"and i1 {inside}, {e.let(f'icmp ult i64 {place}, {axis.size}')}")
        with e.when(inside):
            yield line

    def tiles(self, row: Row, body: Callable[[Number, int, bool], None]) -> None:
        """Write the walk along a row, in tiles of neighbouring outputs.

        Args:
            row: The row.
            body: Writes the tile from an output number on, of so many outputs, and with a check of every place where
                windows may reach outside along the row. Where sizes are numbers the first output of most of those
                tiles is one too, so that they can tell when code is generated.
        """
        if row.piece:
            self._unknown_tiles(row, *row.piece, body)
        elif isinstance(row.count, int):
            self._known_tiles(row, row.count, body)
        else:
            self._unknown_tiles(row, 0, row.count, body)

    def _known_tiles(self, row: Row, count: int, body: Callable[[Number, int, bool], None]) -> None:
        """Tiles of nearly equal sizes: runs of those inside as loops, those at the ends one by one."""
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
            with steps(e, first, first + size * (1 + len(others)), size) as place:
                self._tile(row, place, size, body)

    def _unknown_tiles(self, row: Row, begin: Number, end: Number, body: Callable[[Number, int, bool], None]) -> None:
        """Tiles of full size, then smaller ones that make up the rest."""
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
        """Whether the windows of a tile stay inside of the row; None where that is not known."""
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
        lowest = phase.place(e, first)
        reach = e.add((size - 1) * phase.advance, e.mul(e.sub(phase.taps, 1), phase.offset_step))
        highest = e.add(lowest, reach)
        starts = e.let(f"icmp sge i64 {lowest}, 0")
        ends = e.let(f"icmp slt i64 {highest}, {axis.size}")
        with e.either(e.let(f"and i1 {starts}, {ends}")) as branches:
            for guarded, _ in enumerate(branches):
                body(first, size, bool(guarded))

    def index(self, row: Row, channel: Number, at: Number, lanes: int) -> tuple[Index, ...]:
        """The place of a vector of results: image, channel, then the spatial axes."""
        x = row.phases[2].output(self.kernel.emitter, at)
        spatial = [Index(each) for each in (*row.outputs, x)]
        return (Index(row.image), Index(channel, 1 if lanes > 1 else 0), *spatial[3 - self.rank :])


@contextmanager
def steps(e: Emitter, start: Number, end: Number, step: int = 1, *, opaque: bool = False) -> Iterator[Number]:
    """A loop, or no loop where it is known to have one step."""
    if isinstance(start, int) and isinstance(end, int) and end - start == step:
        yield start
        return
    with e.loop(start, end, step, opaque=opaque) as at:
        yield at


def block_of(e: Emitter, element: str, literal: str, count: int) -> str:
    """A constant block of equal elements: what the places outside of an image hold."""
    name = f"@outside.{element}.{count}.{literal.strip('-').replace('.', '_')}{'.negative' * literal.startswith('-')}"
    values = ", ".join([f"{element} {literal}"] * count)
    e.globals[name] = f"{name} = internal constant [{count} x {element}] [{values}], align 64"
    return name
