"""Depthwise convolutions: as many filters as channels, each over its own channel."""

from __future__ import annotations

import numpy as np

from sardonyx.compiler.kernels.channelwise import Channelwise
from sardonyx.compiler.kernels.kernel import Epilogue, Kernel
from sardonyx.compiler.kernels.windows import Image, Number, Row, Sweep, Windows, block_count
from sardonyx.compiler.target import Target
from sardonyx.core.dim import Size


def pack_depthwise_weights(weights: np.ndarray, target: Target) -> np.ndarray:
    """The weights as :func:`depthwise` reads them.

    Args:
        weights: [channels, 1, 1, *window], of any float type.
        target: What the code is for.

    Returns:
        A flat array of float32: [channel block][*window][channel of the block], with zeros past the last channel.
    """
    lanes = target.lanes(32)
    channels = weights.shape[0]
    blocks = block_count(channels, lanes)
    packed = np.zeros((blocks * lanes, weights[:1].size), np.float32)
    packed[:channels] = weights.reshape(channels, -1)
    return np.ascontiguousarray(packed.reshape(blocks, lanes, -1).transpose(0, 2, 1)).ravel()


def depthwise(
    kernel: Kernel,
    *,
    x: Image,
    weights: str,
    batch: Size,
    windows: Windows,
    out: tuple[Size, ...],
    epilogue: Epilogue,
) -> Size:
    """Write a depthwise convolution of a blocked image of floats.

    The epilogue gets whole blocks of channels, as that of :func:`~sardonyx.compiler.kernels.convolution.convolution`.

    Args:
        kernel: What is written.
        x: The image, blocked.
        weights: The packed weights, see :func:`pack_depthwise_weights`.
        batch: How many images.
        windows: The windows, of as many axes as the image.
        out: The spatial sizes of the output.
        epilogue: What becomes of the results.

    Returns:
        The number of work items.
    """
    lanes = kernel.target.lanes(32)
    sweep = Sweep(kernel, x, windows, out, batch, block_count(x.channels, lanes))
    missing = 3 - sweep.rank
    _Depthwise(sweep, x, ((1,) * missing + windows.sizes), weights, epilogue).write()
    return sweep.items


class _Depthwise(Channelwise):
    def __init__(self, sweep: Sweep, x: Image, window: tuple[int, ...], weights: str, epilogue: Epilogue) -> None:
        target = sweep.kernel.target
        # The weights of a row of taps stay in registers, and an input.
        outputs = max(4, min(target.vector_registers - window[2] - 2, target.vector_registers // 2))
        depth, height, width = window
        super().__init__(sweep, x, (depth, height, width), "float", target.lanes(32), outputs, epilogue)
        self.weights = weights

    def identity(self) -> str:
        return "0.0"

    def factor(self, row: Row, tap: Number) -> str | None:
        e = self.emitter
        taps = self.window[0] * self.window[1] * self.window[2]
        at = e.mul(e.add(e.mul(row.block, taps), tap), self.lanes)
        return e.load(self.type, e.address(self.weights, "float", at), 4 * self.lanes)

    def combined(self, result: str, value: str, factor: str | None) -> str:
        assert factor is not None
        return self.emitter.fma(self.type, value, factor, result)
