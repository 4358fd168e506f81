"""Pooling of plain images: lanes are neighbouring outputs of a row.

Windows are reduced along one axis after the other. What the windows of a row of outputs see of a column is put together
first, column by column, into a *line* that holds the identity wherever windows reach outside of the image; each output
is then what its window holds of the line. So an output takes as many steps as a window has rows and columns, not
elements, and only the columns are told from the border. The lines of several rows come before the outputs of the first
of them: a load that spans two stores waits until both are in the cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from sardonyx.compiler.codegen import elementwise, load_store
from sardonyx.compiler.codegen.kernel_builder import Epilogue, Index, Kernel
from sardonyx.compiler.kernels.conv.blocked_pooling import Kind
from sardonyx.compiler.kernels.conv.window_sweep import Axis, Image, steps
from sardonyx.compiler.llvm.ir_builder import vector
from sardonyx.compiler.tiling.pooling import PoolingSchedule, planar_lanes
from sardonyx.compiler.tiling.windows import Number, Windows
from sardonyx.core.dim import Size, ceil_div

_UNROLLED = 16
"""Most elements of a window along an axis that stand in the text one by one."""

_SHUFFLED = 7
"""Furthest apart that the elements of neighbouring windows are loaded as whole vectors, and shuffled."""


def planar_pooling(
    kernel: Kernel,
    kind: Kind,
    *,
    x: Image,
    batch: Size,
    windows: Windows,
    out: tuple[Size, ...],
    epilogue: Epilogue,
    schedule: PoolingSchedule,
) -> Size:
    """Write a reduction over windows of plain images. Places outside do not count; NaN wins over every number.

    The epilogue gets vectors of outputs along the last axis: image, channel 0, then the spatial axes, and a mask where
    a row of unknown length ends within the vector. Some outputs come twice, and are the same then.

    Args:
        kernel: What is written.
        kind: How elements are combined.
        x: The images, of one channel.
        batch: How many there are.
        windows: The windows, of as many axes; the input is not dilated.
        out: The spatial sizes of the output.
        epilogue: What becomes of the results.
        schedule: The schedule, see :func:`~sardonyx.compiler.tiling.pooling.choose_pooling`.

    Returns:
        The number of work items.
    """
    return _PlanarPooling(kernel, kind, x, windows, out, epilogue, schedule).write(batch)


class _PlanarPooling:
    def __init__(
        self, kernel: Kernel, kind: Kind, x: Image, windows: Windows, out: tuple[Size, ...], epilogue: Epilogue,
        schedule: PoolingSchedule,
    ) -> None:  # fmt: skip
        self.kernel, self.kind, self.x, self.epilogue, self.lanes = kernel, kind, x, epilogue, schedule.lanes
        self.emitter = kernel.emitter
        self.register = load_store.register_type(x.dtype)
        self.element = load_store.memory_type(x.dtype)
        self.bytes = {"float": 4, "double": 8}.get(self.register) or int(self.register[1:]) // 8
        self.wide = kernel.target.lanes(8 * self.bytes)
        self.rank, missing = len(out), 3 - len(out)
        flat: list[tuple[Size, ...]] = [(1, 1, 1, 1, 0, 1, 1)] * missing
        flat += zip(
            x.sizes, out, windows.sizes, windows.strides, windows.padding, windows.dilations, windows.base_dilations,
            strict=True,
        )  # fmt: skip
        self.axes = tuple(Axis(kernel, *each) for each in flat)  # type: ignore[arg-type]
        self.out: tuple[Size, ...] = (*(1,) * missing, *out)
        self.window = (*(1,) * missing, *windows.sizes)
        (self.stride, self.step), self.taps = self._moves(2), self.window[2]
        self.piece, self.pitch, self.rows = schedule.outputs, schedule.pitch, schedule.rows
        self.kernel.work = self.rows * (self.pitch // self.wide) * (self.window[0] * self.window[1] + self.taps)
        self.lines = self.outside = ""

    def _moves(self, axis: int) -> tuple[int, int]:
        """How far apart neighbouring windows are along an axis, and the elements of one."""
        (phase,) = self.axes[axis].phases
        return phase.advance, phase.offset_step

    # The walk.

    def write(self, batch: Size) -> Size:
        """Write the kernel; returns the number of work items."""
        e = self.emitter
        depth, height, width = self.axes
        bands = ceil_div(self.out[1], self.rows)
        pieces = ceil_div(self.out[2], self.piece)
        self.lines = e.array(self.register, self.rows * self.pitch + self.wide)
        if not (depth.inside and height.inside):
            self.outside = e.array(self.element, self.pitch + self.wide)
            with e.loop(0, self.pitch, self.wide) as at:
                load_store.store(e, self.x.dtype, self._identity(self.wide), self.outside, Index(at, 1), self.wide)
        with e.loop("%first", "%last") as item:
            number, piece = self._split(item, self.kernel.size(pieces))
            number, band = self._split(number, self.kernel.size(bands))
            image, z = self._split(number, depth.out)
            y, begin = e.mul(band, self.rows), e.mul(piece, self.piece)
            rows = self._some(height.out, self.rows, y)
            self._band(image, z, y, rows, begin, self._some(width.out, self.piece, begin))
        return batch * self.out[0] * bands * pieces

    def _some(self, of: Number, most: int, begin: Number) -> Number:
        """How many of a number of things belong to a work item that has so many at most, from one of them on."""
        return most if isinstance(of, int) and of % most == 0 else self.emitter.least(most, self.emitter.sub(of, begin))

    def _split(self, number: Number, size: Number) -> tuple[Number, Number]:
        return self.emitter.div(number, size), self.emitter.rem(number, size)

    def _band(self, image: Number, z: Number, y: Number, rows: Number, begin: Number, count: Number) -> None:
        """Some rows of outputs, ``count`` of each from ``begin`` on."""
        e, (depth, height, width) = self.emitter, self.axes
        plane = e.mul(height.size, width.size)
        pointer = e.address(self.x.pointer, self.element, e.mul(image, e.mul(depth.size, plane)))
        # The columns that windows see, from `low` on, and those of them that are there.
        low = width.phases[0].place(e, begin)
        seen = e.add(e.mul(e.sub(count, 1), self.stride), (self.taps - 1) * self.step + 1)
        first = e.least(e.most(e.sub(0, low), 0), seen)
        last = e.most(first, e.least(seen, e.sub(width.size, low)))
        with steps(e, 0, rows) as row:
            line = e.address(self.lines, self.register, e.mul(row, self.pitch))
            at = depth.phases[0].place(e, z), height.phases[0].place(e, e.add(y, row))
            self._fill(line, 0, first)
            self._columns(at, pointer, e.add(low, first), e.address(line, self.register, first), e.sub(last, first))
            self._fill(line, last, seen)
        with steps(e, 0, rows) as row:
            line = e.address(self.lines, self.register, e.mul(row, self.pitch))
            self._along((image, 0, z, e.add(y, row)), begin, line, count)

    # Columns.

    def _fill(self, line: str, start: Number, end: Number) -> None:
        """Put the identity to places of a line that nothing is written to yet, and to some behind them."""
        if start == end:
            return
        with steps(self.emitter, start, end, self.wide) as at:
            self._put(self._identity(self.wide), line, at, self.wide)

    def _columns(self, at: tuple[Number, Number], image: str, first: Number, line: str, count: Number) -> None:
        """What the windows of a row see of each column, from the first on."""
        e = self.emitter
        deep, high = self.window[:2]
        if deep * high <= _UNROLLED:
            rows = [self._row(at, image, first, tap) for tap in itertools.product(range(deep), range(high))]

            def column(place: Number, lanes: int) -> None:
                found = [load_store.load(e, self.x.dtype, row, Index(place, 1), lanes) for row in rows]
                self._put(self._reduced(found, lanes), line, place, lanes)

            self._each(count, column)
            return
        table = e.array("ptr", deep * high)
        with e.loop(0, deep) as z, e.loop(0, high) as y:
            entry = e.address(table, "ptr", e.add(e.mul(z, high), y))
            e.store("ptr", self._row(at, image, first, (z, y)), entry, 8)

        def long(place: Number, lanes: int) -> None:
            total = e.variable(vector(lanes, self.register), self._identity(lanes))
            with e.loop(0, deep * high) as tap:
                row = e.load("ptr", e.address(table, "ptr", tap), 8)
                found = load_store.load(e, self.x.dtype, row, Index(place, 1), lanes)
                total.set(self._reduced([total.get(), found], lanes))
            self._put(total.get(), line, place, lanes)

        self._each(count, long)

    def _row(self, at: tuple[Number, Number], image: str, first: Number, tap: tuple[Number, Number]) -> str:
        """Where a row of the image is that windows see, from a column on; outside of it there are identities."""
        e, (depth, height, width) = self.emitter, self.axes
        places = [
            e.add(place, e.mul(number, self._moves(axis)[1]))
            for axis, (place, number) in enumerate(zip(at, tap, strict=True))
        ]
        row = e.add(e.mul(places[0], height.size), places[1])
        found = e.address(image, self.element, e.add(e.mul(row, width.size), first))
        for axis, place in zip((depth, height), places, strict=True):
            if not axis.inside:
                inside = e.let(f"icmp ult i64 {place}, {axis.size}")
                found = e.let(f"select i1 {inside}, ptr {found}, ptr {self.outside}")
        return found

    def _each(self, count: Number, body: Callable[[Number, int], None]) -> None:
        """Go over columns a vector at a time; the last one ends with them, so it may begin within the one before."""
        lanes = planar_lanes(self.wide, count) if isinstance(count, int) else self.wide

        def short() -> None:
            with self.emitter.loop(0, count) as at:
                body(at, 1)

        self._vectors(count, lanes, lambda at: body(at, lanes), short)

    def _vectors(self, count: Number, lanes: int, whole: Callable[[Number], None], short: Callable[[], None]) -> None:
        """Go over places a vector at a time, the last of which may begin within the one before, or over a short row."""
        e = self.emitter
        if isinstance(count, int):
            with steps(e, 0, count - count % lanes, lanes) as at:
                whole(at)
            if count % lanes:
                whole(count - lanes)
            return
        with e.either(e.let(f"icmp sge i64 {count}, {lanes}")) as branches:
            next(branches)
            with e.loop(0, count, lanes) as at:
                whole(e.least(at, e.sub(count, lanes)))
            next(branches)
            short()
            next(branches, None)

    # Outputs.

    def _along(self, row: tuple[Number, ...], begin: Number, line: str, count: Number) -> None:
        """The outputs of a row, so many from one on, from its line."""
        e, lanes = self.emitter, self.lanes

        def some(at: Number, mask: str | None = None) -> None:
            image, channel, *outer = map(Index, row)
            spatial = (*outer, Index(e.add(begin, at), 1 if lanes > 1 else 0))
            value = self._window(line, e.mul(at, self.stride))
            self.epilogue((image, channel, *spatial[3 - self.rank :]), value, mask)

        self._vectors(count, lanes, some, lambda: some(0, e.lanes_below(count, lanes)))

    def _window(self, line: str, start: Number) -> str:
        """A vector of outputs, of which the first begins at a place of the line."""
        e = self.emitter
        if self.taps <= _UNROLLED:
            return self._reduced(self._inputs(line, start, self.taps), self.lanes)
        total = e.variable(vector(self.lanes, self.register), self._identity(self.lanes))
        whole = self.taps - self.taps % _UNROLLED
        for first, end, count in ((0, whole, _UNROLLED), (whole, self.taps, self.taps - whole)):
            if count:
                with steps(e, first, end, count) as tap:
                    found = self._inputs(line, e.add(start, e.mul(tap, self.step)), count)
                    total.set(self._reduced([total.get(), *found], self.lanes))
        return total.get()

    def _inputs(self, line: str, start: Number, taps: int) -> list[str]:
        """What a vector of outputs sees at some taps, a vector each."""
        e, stride = self.emitter, self.stride
        if stride > 1 and (self.lanes == 1 or stride > min(_SHUFFLED, self.lanes)):
            return [self._gathered(line, e.add(start, tap * self.step)) for tap in range(taps)]
        found = []
        for tap in range(taps):
            passed, offset = divmod(tap * self.step, stride)
            found.append(self._apart(line, e.add(start, passed * stride), stride, offset))
        return found

    def _apart(self, line: str, start: Number, stride: int, offset: int) -> str:
        """The elements of a line that are ``stride`` apart, from ``offset`` on, of as many vectors.

        Those of other offsets are of the same vectors, which are loaded once.
        """
        e, lanes = self.emitter, self.lanes
        if stride % 2 == 0:
            half = stride // 2
            second, offset = divmod(offset, half)
            low, high = (self._apart(line, e.add(start, place), half, offset) for place in (0, lanes * half))
            return self._shuffled(low, high, [2 * lane + second for lane in range(lanes)])
        found, *others = (
            e.load(vector(lanes, self.register), e.address(line, self.register, e.add(start, place)), self.bytes)
            for place in range(0, stride * lanes, lanes)
        )
        if stride == 1:
            return found
        # Each lane of one vector alone has an element that is wanted.
        for number, other in enumerate(others, 1):
            wanted = [(number * lanes + lane - offset) % stride == 0 for lane in range(lanes)]
            found = self._shuffled(found, other, [lane + lanes * each for lane, each in enumerate(wanted)])
        return self._shuffled(found, "poison", [(lane * stride + offset) % lanes for lane in range(lanes)])

    def _gathered(self, line: str, start: Number) -> str:
        """The elements of a line that outputs see at one tap, loaded one by one."""
        e, found = self.emitter, "poison"
        for lane in range(self.lanes):
            one = e.load(self.register, e.address(line, self.register, e.add(start, lane * self.stride)), self.bytes)
            if self.lanes == 1:
                return one
            found = e.let(
                f"insertelement {vector(self.lanes, self.register)} {found}, {self.register} {one}, i64 {lane}"
            )
        return found

    def _shuffled(self, first: str, second: str, lanes: Sequence[int]) -> str:
        type, chosen = vector(self.lanes, self.register), ", ".join(f"i32 {lane}" for lane in lanes)
        return self.emitter.let(f"shufflevector {type} {first}, {type} {second}, <{self.lanes} x i32> <{chosen}>")

    # Elements.

    def _identity(self, lanes: int) -> str:
        return load_store.constant(self.x.dtype, elementwise.identity(self.kind, self.x.dtype), lanes)

    def _put(self, value: str, line: str, place: Number, lanes: int) -> None:
        e = self.emitter
        e.store(vector(lanes, self.register), value, e.address(line, self.register, place), self.bytes)

    def _reduced(self, found: Sequence[str], lanes: int) -> str:
        """Vectors as one, pairwise."""
        found, dtype = list(found), self.x.dtype
        while len(found) > 1:
            pairs = [found[i : i + 2] for i in range(0, len(found), 2)]
            found = [
                elementwise.emit(self.emitter, self.kind, [dtype, dtype], pair, lanes) if len(pair) == 2 else pair[0]
                for pair in pairs
            ]
        return found[0]
