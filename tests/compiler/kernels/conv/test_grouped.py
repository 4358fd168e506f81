"""Depthwise convolutions equal numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from tests.compiler.kernels.compiled import CompiledKernel
from tests.compiler.kernels.images import (
    BATCH,
    IN,
    OUT,
    TARGETS,
    copied,
    out_sizes,
    stored,
    storing,
    symbols,
    to_blocked,
    to_plain,
)

from sardonyx.compiler.codegen.kernel_builder import Kernel
from sardonyx.compiler.kernels.conv.grouped import depthwise, pack_depthwise_weights
from sardonyx.compiler.kernels.conv.window_sweep import Image
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling.convolution_tiles import grouped_outputs
from sardonyx.compiler.tiling.windows import Windows
from sardonyx.core.dim import Size
from sardonyx.core.rules.numpy_windows import convolve

W = Windows.of
ROWS = ((1, 1), (2, 3), (3, 7), (4, 8), (2, 15), (5, 16), (3, 33), (0, 3), (1, 400))
CASES = {
    "3x3": (W((3, 3), padding=(1, 1)), (1, 1)),
    "3x3 strided": (W((3, 3), (2, 2), (1, 1)), (1, 1)),
    "3x3 strided, padded behind": (W((3, 3), (2, 2), (0, 0)), (1, 1)),
    "3x3 dilated": (W((3, 3), padding=(2, 2), dilations=(2, 2)), (2, 2)),
    "5x5": (W((5, 5), padding=(2, 2)), (2, 2)),
    "5x5 strided": (W((5, 5), (2, 2), (2, 2)), (2, 2)),
    "1x41": (W((1, 41), padding=(0, 20)), (0, 20)),
    "transposed": (W((4, 4), padding=(2, 2), base_dilations=(2, 2)), (2, 2)),
}


def built(
    target: Target, channels: int, windows: Windows, batch: Size, sizes: tuple[Size, ...], out: tuple[Size, ...]
) -> CompiledKernel:
    kernel = Kernel(target)
    x, weights, y = kernel.buffer(), kernel.buffer(), kernel.buffer()
    items = depthwise(
        kernel,
        x=Image(x, channels, sizes),
        weights=weights,
        batch=batch,
        windows=windows,
        out=out,
        outputs=grouped_outputs(target, 1, windows.sizes[-1]),
        epilogue=storing(kernel, y, channels, out, target.lanes(32)),
    )
    return CompiledKernel(kernel, items)


def check(
    run: CompiledKernel, target: Target, channels: int, windows: Windows, high: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(4)
    lanes = target.lanes(32)
    out = out_sizes(sizes, windows, high)
    x = rng.standard_normal((2, channels, *sizes)).astype(np.float32)
    weights = rng.standard_normal((channels, 1, 1, *windows.sizes)).astype(np.float32)
    expected = convolve(
        np.moveaxis(x, 1, 0)[:, :, None].astype(np.float64),
        weights.astype(np.float64),
        out,
        windows.strides,
        tuple(zip(windows.padding, high, strict=True)),  # type: ignore[arg-type]
        windows.base_dilations,
        windows.dilations,
    )
    y = stored(2, channels, out, lanes)
    packed = copied(pack_depthwise_weights(weights, target))
    run(to_blocked(x, lanes), packed, y, parts=3, **symbols(2, sizes, out))
    actual = to_plain(y)
    np.testing.assert_allclose(actual[:, :channels], np.moveaxis(expected[:, :, 0], 0, 1), rtol=0, atol=1e-5)
    assert not actual[:, channels:].any()


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_sizes_as_arguments(case: tuple[Windows, tuple[int, ...]], target: Target) -> None:
    windows, high = case
    run = built(target, 20, windows, BATCH, IN[1:], OUT[1:])
    for sizes in ROWS:
        check(run, target, 20, windows, high, sizes)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_sizes_in_the_code(case: tuple[Windows, tuple[int, ...]], target: Target) -> None:
    windows, high = case
    for sizes in ROWS[1::3]:
        out = out_sizes(sizes, windows, high)
        check(built(target, 16, windows, 2, sizes, out), target, 16, windows, high, sizes)
