"""Depthwise convolutions equal numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from tests.compiler.kernels.compiled import CompiledKernel
from tests.compiler.kernels.images import (
    BATCH,
    DEPTHWISE_WINDOWS,
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
from sardonyx.compiler.target.description import Target, host
from sardonyx.compiler.tiling.convolution_tiles import grouped_outputs
from sardonyx.compiler.tiling.windows import Windows
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.rules.numpy_windows import convolve

W = Windows.of
ROWS = ((1, 1), (2, 3), (3, 7), (4, 8), (2, 15), (5, 16), (3, 33), (0, 3), (1, 400))
CASES = DEPTHWISE_WINDOWS | {
    "3x3 dilated": (W((3, 3), padding=(2, 2), dilations=(2, 2)), (2, 2)),
    "transposed": (W((4, 4), padding=(2, 2), base_dilations=(2, 2)), (2, 2)),
}


def built(
    target: Target, channels: int, windows: Windows, batch: Size, sizes: tuple[Size, ...], out: tuple[Size, ...],
    dtype: t.DType = t.FLOAT, shift: int = 0,
) -> CompiledKernel:  # fmt: skip
    kernel = Kernel(target)
    x, weights, y = kernel.buffer(), kernel.buffer(), kernel.buffer()
    items = depthwise(
        kernel,
        x=Image(x, channels, sizes, True, dtype),
        weights=weights,
        shift=shift,
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


@pytest.mark.parametrize("is_open", [False, True], ids=["known", "open"])
@pytest.mark.parametrize(("dtype", "shift"), [(t.UINT8, 131), (t.INT8, -7)], ids=["uint8", "int8"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_integers_less_a_number(
    case: tuple[Windows, tuple[int, ...]], dtype: t.DType, shift: int, is_open: bool
) -> None:
    (windows, high), target, rng = case, host(), np.random.default_rng(5)
    channels, lanes = 20, target.lanes(32)
    rank = len(windows.sizes)
    kernel = built(target, channels, windows, BATCH, IN[-rank:], OUT[-rank:], dtype, shift) if is_open else None
    for sizes in ROWS[1::3]:
        out = out_sizes(sizes, windows, high)
        run = kernel or built(target, channels, windows, 2, sizes, out, dtype, shift)
        limits = (0, 256) if dtype == t.UINT8 else (-128, 128)
        x = rng.integers(*limits, (2, channels, *sizes)).astype(t.numpy_dtype(dtype))
        weights = rng.integers(-127, 128, (channels, 1, 1, *windows.sizes)).astype(np.int8)
        differences = np.moveaxis(x.astype(np.float64) - shift, 1, 0)[:, :, None]
        expected = convolve(
            differences, weights.astype(np.float64), out, windows.strides,
            tuple(zip(windows.padding, high, strict=True)), windows.base_dilations, windows.dilations,
        )  # fmt: skip
        y = stored(2, channels, out, lanes)
        packed = copied(pack_depthwise_weights(weights, target, shift))
        blocked = to_blocked(x.astype(np.float32), lanes).astype(t.numpy_dtype(dtype))
        run(copied(blocked), packed, y, parts=3, **symbols(2, sizes, out))
        actual = to_plain(y)[:, :channels]
        np.testing.assert_array_equal(actual, np.moveaxis(expected[:, :, 0], 0, 1))
        assert not np.signbit(actual[actual == 0]).any()
