"""Convolutions from few channels to few filters: lanes are neighbouring outputs of a row, and images are plain.

In blocks of channels most lanes of such images would be zeros. Here a register tile is some vectors of outputs for all
filters; each step takes one input channel at one tap: a vector of inputs for each vector of outputs, and each filter's
weight in all lanes. Tiles that reach outside of a row, or past its last output, read it from a copy on the stack with
zeros around it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.kernel_builder import Epilogue, Index, Kernel
from sardonyx.compiler.kernels.conv.window_sweep import Image, Row, Sweep, steps
from sardonyx.compiler.llvm.ir_builder import Variable, vector
from sardonyx.compiler.tiling.windows import Number, Windows
from sardonyx.core.dim import Size
from sardonyx.core.ir.types import FLOAT

_UNROLLED = 48
"""About how many multiplications stand in the text of an inner loop."""


def pack_planar_weights(weights: np.ndarray) -> np.ndarray:
    """The weights as :func:`planar` reads them.

    Args:
        weights: [1, filters, channels, *window], of any float type.

    Returns:
        A flat array of float32: [channel][*window][filter].
    """
    filters, channels = weights.shape[1:3]
    flat = weights.reshape(filters, channels, math.prod(weights.shape[3:]))
    return np.ascontiguousarray(flat.transpose(1, 2, 0), np.float32).reshape(-1)


def planar(
    kernel: Kernel,
    *,
    x: Image,
    weights: str,
    filters: int,
    batch: Size,
    windows: Windows,
    out: tuple[Size, ...],
    outputs: int,
    epilogue: Epilogue,
) -> Size:
    """Write a convolution of a plain image of floats, of one group.

    The epilogue gets vectors of outputs along the last axis: image, channel, then the spatial axes, and a mask where a
    row ends within the vector.

    Args:
        kernel: What is written.
        x: The image, plain.
        weights: The packed weights, see :func:`pack_planar_weights`.
        filters: Output channels, few enough for their sums to fit the registers.
        batch: How many images.
        windows: The windows, of as many axes as the image; the last axis of the input is not dilated.
        out: The spatial sizes of the output.
        outputs: Outputs of a register tile, a multiple of the lanes.
        epilogue: What becomes of the results.

    Returns:
        The number of work items.
    """
    sweep = Sweep(kernel, x, windows, out, batch, 1, outputs=outputs)
    _Planar(sweep, x, weights, filters, outputs, epilogue).write()
    return sweep.items


class _Planar:
    def __init__(self, sweep: Sweep, x: Image, weights: str, filters: int, outputs: int, epilogue: Epilogue) -> None:
        self.sweep, self.x, self.weights, self.filters, self.epilogue = sweep, x, weights, filters, epilogue
        self.emitter = e = sweep.kernel.emitter
        self.lanes = sweep.kernel.target.lanes(32)
        self.type = vector(self.lanes, "float")
        depth, height, width = sweep.axes
        self.row_step = width.size
        self.slice_step = e.mul(self.row_step, height.size)
        self.plane_step = e.mul(self.slice_step, depth.size)
        (phase,) = width.phases
        self.advance, self.far, self.taps = phase.advance, phase.offset_step, sweep.window[2]
        self.most = outputs // self.lanes
        # The last vector of inputs is read to its end.
        self.span = -(-self._reach(self.most) // self.lanes) * self.lanes
        self.copy = ""

    def _reach(self, vectors: int) -> int:
        """How many places of a line a tile sees."""
        return (vectors * self.lanes - 1) * self.advance + (self.taps - 1) * self.far + 1

    def write(self) -> None:
        """Write the kernel."""
        self.sweep.rows(self._row)

    def _row(self, row: Row) -> None:
        begin, end = row.piece or (0, row.count)
        for first, last, vectors in self._runs(begin, end):
            with steps(self.emitter, first, last, vectors * self.lanes) as at:
                self._tile(row, at, end, vectors)

    def _runs(self, begin: Number, end: Number) -> Iterator[tuple[Number, Number, int]]:
        """Runs of tiles of equal sizes: where tiles begin, and how many vectors they have."""
        e, lanes = self.emitter, self.lanes
        if not (isinstance(begin, int) and isinstance(end, int)):
            whole = e.sub(end, e.rem(e.sub(end, begin), self.most * lanes))
            yield begin, whole, self.most
            yield whole, end, 1
            return
        vectors = -(-(end - begin) // lanes)
        number = -(-vectors // self.most)
        if not number:
            return
        least, larger = divmod(vectors, number)
        middle = begin + larger * (least + 1) * lanes
        for first, last, size in ((begin, middle, least + 1), (middle, begin + vectors * lanes, least)):
            if first < last:
                yield first, last, size

    def _tile(self, row: Row, first: Number, end: Number, vectors: int) -> None:
        """The tile from an output on; with care where it reaches outside of the row, or past its end."""
        e, axis = self.emitter, self.sweep.axes[2]
        lowest = row.phases[2].place(e, first)
        last, highest = e.add(first, vectors * self.lanes), e.add(lowest, self._reach(vectors))
        if all(isinstance(each, int) for each in (lowest, last, end, highest, axis.size)):
            inside = lowest >= 0 and last <= end and highest <= axis.size  # type: ignore[operator]
            self._sums(row, first, lowest, end, vectors, careful=not inside)
            return
        tests = [f"icmp sge i64 {lowest}, 0", f"icmp sle i64 {last}, {end}", f"icmp sle i64 {highest}, {axis.size}"]
        found = "true"
        for test in tests:
            found = e.let(f"and i1 {found}, {e.let(test)}")
        with e.either(found) as branches:
            for careful, _ in enumerate(branches):
                self._sums(row, first, lowest, end, vectors, careful=bool(careful))

    def _sums(self, row: Row, first: Number, lowest: Number, end: Number, vectors: int, *, careful: bool) -> None:
        e, lanes = self.emitter, self.lanes
        sums = [[e.variable(self.type, "zeroinitializer") for _ in range(vectors)] for _ in range(self.filters)]
        volume = e.mul(self.plane_step, self.x.channels)
        image = e.address(self.x.pointer, "float", e.mul(row.image, volume))
        window = math.prod(self.sweep.window)
        with steps(e, 0, self.x.channels, opaque=True) as channel:
            plane = e.address(image, "float", e.mul(channel, self.plane_step))
            weights = e.address(self.weights, "float", e.mul(channel, window * self.filters))
            with self.sweep.lines(row, plane, "float", self.slice_step, self.row_step) as (line, tap):
                factors = e.address(weights, "float", e.mul(tap, self.filters))
                if careful:
                    self._multiply(self._copied(line, lowest, self._reach(vectors)), factors, sums)
                else:
                    self._multiply(e.address(line, "float", lowest), factors, sums)
        for filter, of_filter in enumerate(sums):
            for number, each in enumerate(of_filter):
                self._finish(row, filter, e.add(first, number * lanes), end, each, careful=careful)

    def _finish(self, row: Row, filter: int, at: Number, end: Number, sum: Variable, *, careful: bool) -> None:
        """Hand a vector of results on; nothing where it lies past the end of the row."""
        e, lanes = self.emitter, self.lanes
        image, channel, *spatial, _ = self.sweep.index(row, filter, at, 1)
        index = (image, channel, *spatial, Index(row.phases[2].output(e, at), 1))
        if not careful:
            self.epilogue(index, sum.get(), None)
            return
        left = e.sub(end, at)
        if isinstance(left, int):
            if left > 0:
                self.epilogue(index, sum.get(), None if left >= lanes else e.lanes_below(left, lanes))
            return
        with e.when(e.let(f"icmp sgt i64 {left}, 0")):
            self.epilogue(index, sum.get(), e.lanes_below(e.least(left, lanes), lanes))

    def _copied(self, line: str, lowest: Number, reach: int) -> str:
        """A piece of a line on the stack, with zeros for places outside."""
        e, lanes = self.emitter, self.lanes
        if not self.copy:
            self.copy = e.array("float", self.span)
        places = vector(lanes, "i64")
        size = e.spread(str(self.sweep.axes[2].size), lanes, "i64")
        with steps(e, 0, -(-reach // lanes) * lanes, lanes, opaque=True) as far:
            at = e.add(lowest, far)
            place = e.let(f"add {places} {e.spread(str(at), lanes, 'i64')}, {e.lane_numbers(lanes)}")
            inside = e.let(f"icmp ult {places} {place}, {size}")
            found = e.masked_load(self.type, e.address(line, "float", at), 4, inside, lanes)
            e.store(self.type, found, e.address(self.copy, "float", far), 4)
        return self.copy

    def _multiply(self, line: str, weights: str, sums: list[list[Variable]]) -> None:
        """All taps of a row of the window."""
        e, filters, vectors = self.emitter, self.filters, len(sums[0])

        def taps(start: Number, count: int) -> None:
            values = [[each.get() for each in of_filter] for of_filter in sums]
            for tap in (e.add(start, offset) for offset in range(count)):
                inputs = self._inputs(line, e.mul(tap, self.far), vectors)
                for filter in range(filters):
                    at = e.address(weights, "float", e.add(e.mul(tap, filters), filter))
                    factor = e.spread(e.load("float", at, 4), self.lanes, "float")
                    values[filter] = [
                        e.multiply_add(self.type, factor, input, value)
                        for input, value in zip(inputs, values[filter], strict=True)
                    ]
            for of_filter, found in zip(sums, values, strict=True):
                for each, value in zip(of_filter, found, strict=True):
                    each.set(value)

        together = max(1, min(self.taps, _UNROLLED // (filters * vectors)))
        whole = self.taps // together * together
        with steps(e, 0, whole, together, opaque=True) as start:
            taps(start, together)
        if whole < self.taps:
            taps(whole, self.taps - whole)

    def _inputs(self, line: str, at: Number, vectors: int) -> list[str]:
        """The inputs of each vector of outputs at a place of the line."""
        e, lanes = self.emitter, self.lanes
        places = (e.add(at, number * lanes * self.advance) for number in range(vectors))
        return [load_store.load(e, FLOAT, line, Index(place, self.advance), lanes, None) for place in places]
