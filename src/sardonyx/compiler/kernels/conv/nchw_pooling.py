"""Pooling of NCHW images; lanes are adjacent outputs of a row.

A window is reduced along one axis after the other. First, the columns that a row of outputs reads are reduced over the
depth and height of the window into a *line*, with the identity for columns outside of the image. Each output is then
the reduction of its window's elements of the line. The cost of an output is therefore the sum of the window's sizes,
not the product, and bounds are checked only when the line is computed. The lines of several rows are computed before
the outputs of the first: a load that spans two recent stores cannot be forwarded and waits until both are in the cache.
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
"""Largest number of elements of a window along an axis that is fully unrolled."""

_SHUFFLED = 7
"""Largest stride of windows for which the elements are loaded as whole vectors and shuffled."""


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
    """Write a reduction over windows of NCHW images.

    Elements outside of the image are skipped; NaN wins over every number. The epilogue gets vectors of outputs along
    the last axis: image, channel 0, then the spatial axes, and a mask if a row of unknown length ends within the
    vector. The epilogue may get an output twice, with the same value.

    Args:
        kernel: The kernel.
        kind: The reduction.
        x: The images, of one channel.
        batch: Number of images.
        windows: The windows, with the rank of the image; the input is not dilated.
        out: The spatial sizes of the output.
        epilogue: Consumes the results.
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
        self.axes = tuple(Axis(kernel, *axis) for axis in flat)  # type: ignore[arg-type]
        self.out: tuple[Size, ...] = (*(1,) * missing, *out)
        self.window = (*(1,) * missing, *windows.sizes)
        (self.stride, self.step), self.taps = self._moves(2), self.window[2]
        self.piece, self.pitch, self.rows = schedule.outputs, schedule.pitch, schedule.rows
        self.kernel.work = self.rows * (self.pitch // self.wide) * (self.window[0] * self.window[1] + self.taps)
        self.lines = self.outside = ""

    def _moves(self, axis: int) -> tuple[int, int]:
        """Return the input strides of adjacent windows along an axis, and of adjacent elements of a window."""
        (phase,) = self.axes[axis].phases
        return phase.advance, phase.offset_step

    # The loop over work items.

    def write(self, batch: Size) -> Size:
        """Write the kernel; return the number of work items."""
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
        """Return the length of the work item from ``begin`` on: ``most``, or fewer at the end of the axis."""
        return most if isinstance(of, int) and of % most == 0 else self.emitter.least(most, self.emitter.sub(of, begin))

    def _split(self, number: Number, size: Number) -> tuple[Number, Number]:
        return self.emitter.div(number, size), self.emitter.rem(number, size)

    def _band(self, image: Number, z: Number, y: Number, rows: Number, begin: Number, count: Number) -> None:
        """Emit ``rows`` rows of outputs, ``count`` outputs of each from ``begin`` on."""
        e, (depth, height, width) = self.emitter, self.axes
        plane = e.mul(height.size, width.size)
        pointer = e.address(self.x.pointer, self.element, e.mul(image, e.mul(depth.size, plane)))
        # Windows read `seen` columns from `low` on; the columns from `first` to `last` are inside of the image.
        low = width.phases[0].input_index(e, begin)
        seen = e.add(e.mul(e.sub(count, 1), self.stride), (self.taps - 1) * self.step + 1)
        first = e.least(e.most(e.sub(0, low), 0), seen)
        last = e.most(first, e.least(seen, e.sub(width.size, low)))
        with steps(e, 0, rows) as row:
            line = e.address(self.lines, self.register, e.mul(row, self.pitch))
            at = depth.phases[0].input_index(e, z), height.phases[0].input_index(e, e.add(y, row))
            self._fill(line, 0, first)
            self._columns(at, pointer, e.add(low, first), e.address(line, self.register, first), e.sub(last, first))
            self._fill(line, last, seen)
        with steps(e, 0, rows) as row:
            line = e.address(self.lines, self.register, e.mul(row, self.pitch))
            self._along((image, 0, z, e.add(y, row)), begin, line, count)

    # Columns.

    def _fill(self, line: str, start: Number, end: Number) -> None:
        """Store the identity from ``start`` to ``end``, rounded up to a whole vector."""
        if start == end:
            return
        with steps(self.emitter, start, end, self.wide) as at:
            self._put(self._identity(self.wide), line, at, self.wide)

    def _columns(self, at: tuple[Number, Number], image: str, first: Number, line: str, count: Number) -> None:
        """Emit the reduction of each column over the window's depth and height, from column ``first`` on."""
        e = self.emitter
        deep, high = self.window[:2]
        if deep * high <= _UNROLLED:
            rows = [self._row(at, image, first, tap) for tap in itertools.product(range(deep), range(high))]

            def column(position: Number, lanes: int) -> None:
                values = [load_store.load(e, self.x.dtype, row, Index(position, 1), lanes) for row in rows]
                self._put(self._reduce(values, lanes), line, position, lanes)

            self._for_each_column(count, column)
            return
        table = e.array("ptr", deep * high)
        with e.loop(0, deep) as z, e.loop(0, high) as y:
            entry = e.address(table, "ptr", e.add(e.mul(z, high), y))
            e.store("ptr", self._row(at, image, first, (z, y)), entry, 8)

        def long(position: Number, lanes: int) -> None:
            total = e.variable(vector(lanes, self.register), self._identity(lanes))
            with e.loop(0, deep * high) as tap:
                row = e.load("ptr", e.address(table, "ptr", tap), 8)
                values = load_store.load(e, self.x.dtype, row, Index(position, 1), lanes)
                total.set(self._reduce([total.get(), values], lanes))
            self._put(total.get(), line, position, lanes)

        self._for_each_column(count, long)

    def _row(self, at: tuple[Number, Number], image: str, first: Number, tap: tuple[Number, Number]) -> str:
        """Return the address of the row of the image that a tap reads, or of identities if the row is outside."""
        e, (depth, height, width) = self.emitter, self.axes
        indices = [
            e.add(index, e.mul(number, self._moves(axis)[1]))
            for axis, (index, number) in enumerate(zip(at, tap, strict=True))
        ]
        row = e.add(e.mul(indices[0], height.size), indices[1])
        address = e.address(image, self.element, e.add(e.mul(row, width.size), first))
        for axis, index in zip((depth, height), indices, strict=True):
            if not axis.inside:
                inside = e.let(f"icmp ult i64 {index}, {axis.size}")
                address = e.let(f"select i1 {inside}, ptr {address}, ptr {self.outside}")
        return address

    def _for_each_column(self, count: Number, body: Callable[[Number, int], None]) -> None:
        """Emit a loop over columns, one vector at a time; the last vector may overlap the one before."""
        lanes = planar_lanes(self.wide, count) if isinstance(count, int) else self.wide

        def short() -> None:
            with self.emitter.loop(0, count) as at:
                body(at, 1)

        self._vectors(count, lanes, lambda at: body(at, lanes), short)

    def _vectors(self, count: Number, lanes: int, whole: Callable[[Number], None], short: Callable[[], None]) -> None:
        """Emit a loop over a row, one vector at a time, or ``short`` for a row shorter than a vector.

        The last vector may overlap the one before.
        """
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
        """Emit ``count`` outputs of a row from ``begin`` on, computed from the row's line."""
        e, lanes = self.emitter, self.lanes

        def some(at: Number, mask: str | None = None) -> None:
            image, channel, *outer = map(Index, row)
            spatial = (*outer, Index(e.add(begin, at), 1 if lanes > 1 else 0))
            value = self._window(line, e.mul(at, self.stride))
            self.epilogue((image, channel, *spatial[3 - self.rank :]), value, mask)

        self._vectors(count, lanes, some, lambda: some(0, e.lanes_below(count, lanes)))

    def _window(self, line: str, start: Number) -> str:
        """Emit a vector of outputs; the window of the first begins at an index of the line."""
        e = self.emitter
        if self.taps <= _UNROLLED:
            return self._reduce(self._inputs(line, start, self.taps), self.lanes)
        total = e.variable(vector(self.lanes, self.register), self._identity(self.lanes))
        whole = self.taps - self.taps % _UNROLLED
        for first, end, count in ((0, whole, _UNROLLED), (whole, self.taps, self.taps - whole)):
            if count:
                with steps(e, first, end, count) as tap:
                    inputs = self._inputs(line, e.add(start, e.mul(tap, self.step)), count)
                    total.set(self._reduce([total.get(), *inputs], self.lanes))
        return total.get()

    def _inputs(self, line: str, start: Number, taps: int) -> list[str]:
        """Emit the inputs of a vector of outputs at some taps, one vector per tap."""
        e, stride = self.emitter, self.stride
        if stride > 1 and (self.lanes == 1 or stride > min(_SHUFFLED, self.lanes)):
            return [self._gather(line, e.add(start, tap * self.step)) for tap in range(taps)]
        inputs = []
        for tap in range(taps):
            passed, offset = divmod(tap * self.step, stride)
            inputs.append(self._load_strided(line, e.add(start, passed * stride), stride, offset))
        return inputs

    def _load_strided(self, line: str, start: Number, stride: int, offset: int) -> str:
        """Emit a vector of elements of a line at ``stride``, from ``offset`` on.

        Other offsets use the same vectors, which are loaded once.
        """
        e, lanes = self.emitter, self.lanes
        if stride % 2 == 0:
            half = stride // 2
            second, offset = divmod(offset, half)
            low, high = (
                self._load_strided(line, e.add(start, position), half, offset) for position in (0, lanes * half)
            )
            return self._shuffle(low, high, [2 * lane + second for lane in range(lanes)])
        result, *others = (
            e.load(vector(lanes, self.register), e.address(line, self.register, e.add(start, position)), self.bytes)
            for position in range(0, stride * lanes, lanes)
        )
        if stride == 1:
            return result
        # Exactly one of the vectors has a selected element in each lane.
        for number, other in enumerate(others, 1):
            selected = [(number * lanes + lane - offset) % stride == 0 for lane in range(lanes)]
            result = self._shuffle(
                result, other, [lane + lanes * is_selected for lane, is_selected in enumerate(selected)]
            )
        return self._shuffle(result, "poison", [(lane * stride + offset) % lanes for lane in range(lanes)])

    def _gather(self, line: str, start: Number) -> str:
        """Emit the elements of a line that outputs read at one tap, loaded one by one."""
        e, result = self.emitter, "poison"
        for lane in range(self.lanes):
            one = e.load(self.register, e.address(line, self.register, e.add(start, lane * self.stride)), self.bytes)
            if self.lanes == 1:
                return one
            result = e.let(
                f"insertelement {vector(self.lanes, self.register)} {result}, {self.register} {one}, i64 {lane}"
            )
        return result

    def _shuffle(self, first: str, second: str, lanes: Sequence[int]) -> str:
        type, chosen = vector(self.lanes, self.register), ", ".join(f"i32 {lane}" for lane in lanes)
        return self.emitter.let(f"shufflevector {type} {first}, {type} {second}, <{self.lanes} x i32> <{chosen}>")

    # Elements.

    def _identity(self, lanes: int) -> str:
        return load_store.constant(self.x.dtype, elementwise.identity(self.kind, self.x.dtype), lanes)

    def _put(self, value: str, line: str, position: Number, lanes: int) -> None:
        e = self.emitter
        e.store(vector(lanes, self.register), value, e.address(line, self.register, position), self.bytes)

    def _reduce(self, values: Sequence[str], lanes: int) -> str:
        """Emit the pairwise reduction of vectors."""
        values, dtype = list(values), self.x.dtype
        while len(values) > 1:
            pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
            values = [
                elementwise.emit(self.emitter, self.kind, [dtype, dtype], pair, lanes) if len(pair) == 2 else pair[0]
                for pair in pairs
            ]
        return values[0]
