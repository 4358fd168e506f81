"""Depthwise convolutions of bytes equal the interpreter's to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from tests.compiler.kernels.compiled import CompiledKernel
from tests.compiler.kernels.images import (
    BATCH,
    DEPTHWISE_WINDOWS,
    IN,
    OUT,
    copied,
    out_sizes,
    stored,
    storing,
    symbols,
    to_blocked,
    to_plain,
)
from tests.core.programs import computed

from sardonyx.compiler.codegen.kernel_builder import Index, Kernel
from sardonyx.compiler.kernels.conv.depthwise_bytes import depthwise_bytes, pack_byte_weights
from sardonyx.compiler.kernels.conv.window_sweep import Image
from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import NAMED, host
from sardonyx.compiler.tiling.convolution_tiles import grouped_outputs
from sardonyx.compiler.tiling.windows import Windows
from sardonyx.core import language as L
from sardonyx.core.dim import Size
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType
from sardonyx.core.rules.numpy_windows import convolve

pytestmark = pytest.mark.skipif(
    host().saturates or host().vector_bits < 512, reason="the processor has no VNNI of 512 bits"
)

TARGET = NAMED["avx512vnni"]
LANES = 16
W = Windows.of
SIZES = ((2, 3), (3, 7), (4, 8), (2, 15), (3, 33), (0, 3), (3, 400))
CASES = DEPTHWISE_WINDOWS | {
    "rows dilated": (W((3, 3), padding=(2, 1), dilations=(2, 1)), (2, 1)),
    "1x4": (W((1, 4), padding=(0, 3)), (0, 3)),
    "7x7 by 3": (W((7, 7), (1, 3), (3, 3)), (3, 3)),
    "3x1": (W((3, 1), padding=(1, 0)), (1, 0)),
}
CODES = [(t.UINT8, 0), (t.UINT8, 131), (t.UINT8, 255), (t.INT8, 0), (t.INT8, -128), (t.INT8, 127)]


def built(
    channels: int, windows: Windows, batch: Size, sizes: tuple[Size, ...], out: tuple[Size, ...], dtype: t.DType,
    shift: int,
) -> CompiledKernel:  # fmt: skip
    kernel = Kernel(TARGET)
    x, weights, y = kernel.buffer(), kernel.buffer(), kernel.buffer()
    store = storing(kernel, y, channels, out, LANES)

    def epilogue(at: tuple[Index, ...], value: str, mask: str | None) -> None:
        store(at, kernel.emitter.let(f"sitofp <16 x i32> {value} to <16 x float>"), mask)

    items = depthwise_bytes(
        kernel, x=Image(x, channels, sizes, True, dtype), weights=weights, batch=batch, windows=windows, out=out,
        outputs=grouped_outputs(TARGET, 1, windows.sizes[-1]), epilogue=epilogue, shift=shift,
    )  # fmt: skip
    return CompiledKernel(kernel, items)


@pytest.mark.parametrize("is_open", [False, True], ids=["known", "open"])
@pytest.mark.parametrize(("dtype", "shift"), CODES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_sums_are_exact(case: tuple[Windows, tuple[int, ...]], dtype: t.DType, shift: int, is_open: bool) -> None:
    (windows, high), rng, channels = case, np.random.default_rng(5), 20
    rank, limits = len(windows.sizes), np.iinfo(t.numpy_dtype(dtype))
    kernel = built(channels, windows, BATCH, IN[-rank:], OUT[-rank:], dtype, shift) if is_open else None
    for sizes in SIZES if is_open else SIZES[1::3]:
        out = out_sizes(sizes, windows, high)
        run = kernel or built(channels, windows, 2, sizes, out, dtype, shift)
        x = rng.choice([limits.min, limits.max, 3], (2, channels, *sizes)).astype(t.numpy_dtype(dtype))
        weights = rng.choice([-128, 127, 126, -5], (channels, 1, 1, *windows.sizes)).astype(np.int8)
        differences = np.moveaxis(x.astype(np.float64) - shift, 1, 0)[:, :, None]
        expected = convolve(
            differences, weights.astype(np.float64), out, windows.strides,
            tuple(zip(windows.padding, high, strict=True)), windows.base_dilations, windows.dilations,
        )  # fmt: skip
        y = stored(2, channels, out, LANES)
        packed = copied(pack_byte_weights(weights, TARGET, windows.strides[-1], shift, dtype))
        blocked = to_blocked(x.astype(np.float32), LANES).astype(t.numpy_dtype(dtype))
        run(copied(blocked), packed, y, parts=3, **symbols(2, sizes, out))
        np.testing.assert_array_equal(to_plain(y)[:, :channels], np.moveaxis(expected[:, :, 0], 0, 1))


@pytest.mark.parametrize(("dilation", "words"), [(1, True), (2, False)])
def test_depthwise_convolutions_of_codes_have_words_without_dilation_of_rows(dilation: int, words: bool) -> None:
    rng = np.random.default_rng(1)
    weights = rng.integers(-128, 128, (37, 1, 3, 3)).astype(np.int8)

    def body(x: L.Tensor) -> list[L.Tensor]:
        w = L.cast(constant(weights, t.INT8), t.INT32)
        padding, dilations = [(1, 1), (dilation, dilation)], [1, dilation]
        x = L.cast(x, t.INT32)
        return [L.convolve(x, w, strides=[1, 1], padding=padding, kernel_dilation=dilations, groups=37)]

    function = trace("f", body, [TensorType(t.INT8, (2, 37, 13, 61))])
    program = Program.compile(function, target=TARGET, threads=2)
    (kernel,) = (launch for launch in program.launches if launch.title == "depthwise convolution")
    assert kernel.choice is not None
    assert ("dot width 4" in str(kernel.choice.problem)) == words
    x = rng.integers(-128, 128, (2, 37, 13, 61)).astype(np.int8)
    np.testing.assert_array_equal(program.run([x])[0], computed(function, [x])[0])
