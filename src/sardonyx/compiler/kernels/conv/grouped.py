"""Convolutions of small groups of channels, several groups per block, down to depthwise.

Lanes are output channels. A group has as many filters as channels: a lane's inputs are in the same block. The vector of
inputs at a position is shuffled once for all outputs whose windows contain the position: each lane gets the first
channel of its group, then the second, and so on.
"""

from __future__ import annotations

import math

import numpy as np

from sardonyx.compiler.codegen.kernel_builder import Epilogue, Kernel
from sardonyx.compiler.codegen.load_store import memory_type
from sardonyx.compiler.kernels.conv.channelwise import Channelwise
from sardonyx.compiler.kernels.conv.weight_layouts import grouped_weights
from sardonyx.compiler.kernels.conv.window_sweep import Image, Row, Sweep
from sardonyx.compiler.llvm.ir_builder import float_literal, splat, vector
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling.windows import Number, Windows, block_count
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t


def pack_depthwise_weights(weights: np.ndarray, target: Target, shift: int = 0) -> np.ndarray:
    """Return the weights in the order in which :func:`depthwise` reads them.

    Args:
        weights: [channels, 1, 1, *window], of any float type.
        target: The processor.
        shift: Integer that is subtracted from each integer of the image.

    Returns:
        A flat array of float32: [channel block][*window][channel of the block], with zeros past the last channel. With
        a shift, the window is followed by the sum of each of its rows, times ``-shift``.
    """
    channels, *window = weights.shape[0], *weights.shape[3:]
    rows = weights.reshape(channels, 1, math.prod(window[:-1]), window[-1]).astype(np.float32)
    taps = rows.reshape(channels, 1, -1)
    if shift:
        taps = np.concatenate([taps, rows.sum(-1) * np.float32(-shift)], -1)
    return grouped_weights(taps, target.lanes(32))


def depthwise(
    kernel: Kernel,
    *,
    x: Image,
    weights: str,
    batch: Size,
    windows: Windows,
    out: tuple[Size, ...],
    outputs: int,
    epilogue: Epilogue,
    shift: int = 0,
) -> Size:
    """Write a depthwise convolution of a blocked image.

    The elements are floats, or integers whose sums are exact in float32; the epilogue gets floats, in whole blocks of
    channels as in :func:`~sardonyx.compiler.kernels.conv.convolution.convolution`.

    Args:
        kernel: The kernel.
        x: The image, blocked.
        weights: The packed weights, see :func:`pack_depthwise_weights`.
        batch: Number of images.
        windows: The windows, with the rank of the image.
        out: The spatial sizes of the output.
        outputs: Outputs of a register tile.
        epilogue: Consumes the results.
        shift: Integer that is subtracted from each integer of the image.

    Returns:
        The number of work items.
    """
    return grouped(
        kernel, x=x, weights=weights, batch=batch, windows=windows, out=out, outputs=outputs, epilogue=epilogue, size=1,
        shift=shift,
    )  # fmt: skip


def grouped(
    kernel: Kernel,
    *,
    x: Image,
    weights: str,
    batch: Size,
    windows: Windows,
    out: tuple[Size, ...],
    outputs: int,
    epilogue: Epilogue,
    size: int,
    shift: int = 0,
) -> Size:
    """Write a convolution of groups of ``size`` channels and ``size`` filters; ``size`` divides the lanes.

    The order of weights is that of :func:`~sardonyx.compiler.kernels.conv.weight_layouts.grouped_weights`; for the
    other arguments see :func:`depthwise`.
    """
    target = kernel.target
    sweep = Sweep(kernel, x, windows, out, batch, block_count(x.channels, target.lanes(32)), outputs=outputs)
    _Grouped(sweep, x, weights, epilogue, size, shift).write()
    return sweep.items


class _Grouped(Channelwise):
    def __init__(self, sweep: Sweep, x: Image, weights: str, epilogue: Epilogue, size: int, shift: int) -> None:
        self.dtype = x.dtype
        super().__init__(sweep, x, "float", sweep.kernel.target.lanes(32), epilogue, memory_type(x.dtype))
        self.weights, self.size, self.shift = weights, size, shift
        self.taps = self.window[0] * self.window[1] * self.window[2]
        # Sums of weights take the place of a subtraction for each input, unless taps have gaps of zeros between.
        self.adds_shift = shift != 0 and sweep.sees_all_taps

    def begin(self, row: Row, image: str) -> str:
        if not self.adds_shift:
            return super().begin(row, image)
        e, total = self.emitter, self.emitter.variable(self.type, splat("0.0", self.lanes, self.element))
        with self.sweep.lines(row, image, self.stored, self.slice_step, self.row_step) as (_, tap):
            number = e.add(self.taps, e.div(tap, self.window[2]))
            total.set(e.let(f"fadd {self.type} {total.get()}, {self._factor(row, number, 0)}"))
        return total.get()

    def beside(self) -> str | None:
        return splat(float_literal(self.shift, self.element), self.lanes, self.element) if self.adds_shift else None

    def outside(self) -> str:
        return str(self.shift) if t.is_integer(self.dtype) else self.identity()

    def load(self, address: str) -> str:
        if not t.is_integer(self.dtype):
            return super().load(address)
        e, narrow, wide = self.emitter, vector(self.lanes, self.stored), vector(self.lanes, "i32")
        extend = "zext" if t.kind(self.dtype) == "uint" else "sext"
        number = e.let(f"{extend} {narrow} {e.load(narrow, address, self.lanes * self.dtype.bitwidth // 8)} to {wide}")
        if self.shift and not self.adds_shift:
            number = e.let(f"sub {wide} {number}, {splat(str(self.shift), self.lanes, 'i32')}")
        return e.let(f"sitofp {wide} {number} to {self.type}")

    def identity(self) -> str:
        return "0.0"

    def factors(self, row: Row, tap: Number) -> list[str]:
        return [self._factor(row, tap, channel) for channel in range(self.size)]

    def _factor(self, row: Row, number: Number, channel: int) -> str:
        """Load the weights of a tap or, after the taps, the sums of the weights of a row of taps."""
        e, rows = self.emitter, self.window[0] * self.window[1] if self.shift else 0
        at = e.mul(e.add(e.mul(row.block, self.taps + rows), number), self.size * self.lanes)
        start = e.address(self.weights, "float", at)
        return e.load(self.type, e.address(start, "float", channel * self.lanes), 4 * self.lanes)

    def prepare(self, value: str) -> list[str]:
        if self.size == 1:
            return [value]
        vectors = []
        for channel in range(self.size):
            lanes = ", ".join(f"i32 {lane // self.size * self.size + channel}" for lane in range(self.lanes))
            mask = f"<{self.lanes} x i32> <{lanes}>"
            vectors.append(self.emitter.let(f"shufflevector {self.type} {value}, {self.type} poison, {mask}"))
        return vectors

    def combine(self, result: str, values: list[str], factors: list[str]) -> str:
        for value, factor in zip(values, factors, strict=True):
            result = self.emitter.multiply_add(self.type, value, factor, result)
        return result

    def merge(self, first: str, second: str) -> str:
        return self.emitter.let(f"fadd {self.type} {first}, {second}")
