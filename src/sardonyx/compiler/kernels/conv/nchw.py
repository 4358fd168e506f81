"""Convolutions of NCHW images from few channels to few filters; lanes are adjacent outputs of a row.

In blocked layout, most lanes of an image of few channels would be zeros. Here a register tile is a few vectors of
outputs for all filters; each step multiplies one input channel at one tap: a vector of inputs for each vector of
outputs, and each filter's weight broadcast to all lanes. Tiles that reach outside of a row, or past its last output,
read a zero-padded copy of the row on the stack.
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
"""Approximate number of multiplications in the body of an unrolled inner loop."""


def pack_planar_weights(weights: np.ndarray) -> np.ndarray:
    """Return the weights in the order in which :func:`planar` reads them.

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
    """Write a convolution of one group of an NCHW image of floats.

    The epilogue gets vectors of outputs along the last axis: image, channel, then the spatial axes, and a mask if a row
    ends within the vector.

    Args:
        kernel: The kernel.
        x: The image, NCHW.
        weights: The packed weights, see :func:`pack_planar_weights`.
        filters: Output channels, few enough for their sums to fit the registers.
        batch: Number of images.
        windows: The windows, with the rank of the image; the last axis of the input is not dilated.
        out: The spatial sizes of the output.
        outputs: Outputs of a register tile, a multiple of the lanes.
        epilogue: Consumes the results.

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
        """Return the number of elements of a line that a tile reads."""
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
        """Return runs of tiles of equal sizes: first output, end, and vectors of a tile."""
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
        """Emit a tile; a tile that crosses the edges or the end of the row has bounds checks."""
        e, axis = self.emitter, self.sweep.axes[2]
        lowest = row.phases[2].input_index(e, first)
        last, highest = e.add(first, vectors * self.lanes), e.add(lowest, self._reach(vectors))
        if all(isinstance(bound, int) for bound in (lowest, last, end, highest, axis.size)):
            inside = lowest >= 0 and last <= end and highest <= axis.size  # type: ignore[operator]
            self._sums(row, first, lowest, end, vectors, careful=not inside)
            return
        tests = [f"icmp sge i64 {lowest}, 0", f"icmp sle i64 {last}, {end}", f"icmp sle i64 {highest}, {axis.size}"]
        is_inside = "true"
        for test in tests:
            is_inside = e.let(f"and i1 {is_inside}, {e.let(test)}")
        with e.either(is_inside) as branches:
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
                    self._multiply(self._copy_line(line, lowest, self._reach(vectors)), factors, sums)
                else:
                    self._multiply(e.address(line, "float", lowest), factors, sums)
        for filter, of_filter in enumerate(sums):
            for number, variable in enumerate(of_filter):
                self._finish(row, filter, e.add(first, number * lanes), end, variable, careful=careful)

    def _finish(self, row: Row, filter: int, at: Number, end: Number, sum: Variable, *, careful: bool) -> None:
        """Call the epilogue with a vector of results, unless the vector is past the end of the row."""
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

    def _copy_line(self, line: str, lowest: Number, reach: int) -> str:
        """Emit a copy of a part of a line on the stack, with zeros outside of the image; return its address."""
        e, lanes = self.emitter, self.lanes
        if not self.copy:
            self.copy = e.array("float", self.span)
        indices_type = vector(lanes, "i64")
        size = e.spread(str(self.sweep.axes[2].size), lanes, "i64")
        with steps(e, 0, -(-reach // lanes) * lanes, lanes, opaque=True) as far:
            at = e.add(lowest, far)
            index = e.let(f"add {indices_type} {e.spread(str(at), lanes, 'i64')}, {e.lane_numbers(lanes)}")
            inside = e.let(f"icmp ult {indices_type} {index}, {size}")
            values = e.masked_load(self.type, e.address(line, "float", at), 4, inside, lanes)
            e.store(self.type, values, e.address(self.copy, "float", far), 4)
        return self.copy

    def _multiply(self, line: str, weights: str, sums: list[list[Variable]]) -> None:
        """Emit the products of all taps of a row of the window."""
        e, filters, vectors = self.emitter, self.filters, len(sums[0])

        def taps(start: Number, count: int) -> None:
            values = [[variable.get() for variable in of_filter] for of_filter in sums]
            for tap in (e.add(start, offset) for offset in range(count)):
                inputs = self._inputs(line, e.mul(tap, self.far), vectors)
                for filter in range(filters):
                    at = e.address(weights, "float", e.add(e.mul(tap, filters), filter))
                    factor = e.spread(e.load("float", at, 4), self.lanes, "float")
                    values[filter] = [
                        e.multiply_add(self.type, factor, input, value)
                        for input, value in zip(inputs, values[filter], strict=True)
                    ]
            for of_filter, results in zip(sums, values, strict=True):
                for variable, value in zip(of_filter, results, strict=True):
                    variable.set(value)

        together = max(1, min(self.taps, _UNROLLED // (filters * vectors)))
        whole = self.taps // together * together
        with steps(e, 0, whole, together, opaque=True) as start:
            taps(start, together)
        if whole < self.taps:
            taps(whole, self.taps - whole)

    def _inputs(self, line: str, at: Number, vectors: int) -> list[str]:
        """Emit the inputs of each vector of outputs at an index of the line."""
        e, lanes = self.emitter, self.lanes
        positions = (e.add(at, number * lanes * self.advance) for number in range(vectors))
        return [load_store.load(e, FLOAT, line, Index(position, self.advance), lanes, None) for position in positions]
