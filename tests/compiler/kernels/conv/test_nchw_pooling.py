"""Reductions over windows of plain images equal numpy's over sizes around the edges of vectors and pieces."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from tests.compiler.kernels.compiled import CompiledKernel
from tests.compiler.kernels.images import BATCH, IN, OUT, TARGETS, aligned, copied, out_sizes, symbols

from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.kernel_builder import Epilogue, Index, Kernel
from sardonyx.compiler.kernels.conv.nchw_pooling import Kind, planar_pooling
from sardonyx.compiler.kernels.conv.window_sweep import Image
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling.pooling import PoolingProblem, choose_pooling
from sardonyx.compiler.tiling.windows import Windows
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.rules.numpy_rules import identity_of
from sardonyx.core.rules.numpy_windows import reduce_windows
from sardonyx.errors import UnsupportedError

pytestmark = pytest.mark.sampled


class Case(NamedTuple):
    windows: Windows
    high: tuple[int, ...]
    sizes: tuple[tuple[int, ...], ...]


W = Windows.of
ROWS = ((1, 1), (2, 3), (3, 7), (4, 8), (2, 15), (5, 16), (3, 17), (70, 33), (1, 700), (2, 2600))
LINES = ((1,), (4,), (9,), (64,), (101,), (1025,), (5001,))
CASES = {
    "2x2": Case(W((2, 2), (2, 2)), (1, 1), ROWS),
    "3x3": Case(W((3, 3), padding=(1, 1)), (1, 1), ROWS),
    "3x3 strided": Case(W((3, 3), (2, 2), (1, 1)), (1, 1), ROWS),
    "3x3 dilated": Case(W((3, 3), padding=(2, 2), dilations=(2, 2)), (2, 2), ROWS),
    "strided and dilated": Case(W((2, 4), (1, 2), (1, 5), (1, 3)), (0, 4), ROWS),
    "every third": Case(W((1, 2), (1, 3)), (0, 2), ROWS),
    "every sixth": Case(W((6, 6), (6, 6)), (5, 5), ROWS),
    "every ninth": Case(W((3, 9), (2, 9), (0, 1)), (2, 8), ROWS),
    "along columns": Case(W((5, 1), padding=(2, 0)), (2, 0), ROWS),
    "without padding": Case(W((2, 3)), (0, 0), ROWS[2:]),
    "cropped": Case(W((3, 3), padding=(-1, -1)), (0, -1), ((7, 9), (9, 53))),
    "large padding": Case(W((3, 3), padding=(5, 60)), (4, 70), ROWS),
    "many taps": Case(W((5, 70), padding=(2, 40)), (2, 40), ROWS),
    "many rows": Case(W((23, 2), padding=(11, 0)), (11, 1), ROWS),
    "one axis": Case(W((5,), padding=(2,)), (2,), LINES),
    "one axis, longer than a line": Case(W((1500,), (2,), (700,)), (799,), LINES),
    "three axes": Case(W((3, 2, 3), (1, 2, 1), (1, 0, 1)), (1, 1, 1), ((1, 2, 3), (4, 5, 60))),
}
UFUNCS = {"add": np.add, "max": np.maximum, "min": np.minimum}
KINDS: tuple[Kind, ...] = ("add", "max", "min")


def storing(kernel: Kernel, pointer: str, out: tuple[Size, ...], dtype: t.DType, lanes: int) -> Epilogue:
    """Stores results as plain images."""
    e = kernel.emitter

    def epilogue(index: tuple[Index, ...], value: str, mask: str | None) -> None:
        image, channel, *positions = index
        assert channel.is_origin
        assert [item.lane for item in positions] == [0] * (len(positions) - 1) + [int(lanes > 1)]
        at = image.base
        for size, position in zip(out, positions, strict=True):
            at = e.add(e.mul(at, kernel.size(size)), position.base)
        load_store.store(e, dtype, value, pointer, Index(at, positions[-1].lane), lanes, mask)

    return epilogue


def built(
    target: Target, kind: Kind, windows: Windows, sizes: tuple[Size, ...], out: tuple[Size, ...],
    dtype: t.DType = t.FLOAT,
) -> CompiledKernel:  # fmt: skip
    kernel = Kernel(target)
    schedule = choose_pooling(PoolingProblem(windows, out, max(8, dtype.bitwidth), False), target).schedule
    lanes = schedule.lanes
    x, y = kernel.buffer(), kernel.buffer()
    items = planar_pooling(
        kernel, kind, x=Image(x, 1, sizes, False, dtype), batch=BATCH, windows=windows, out=out,
        epilogue=storing(kernel, y, out, dtype, lanes), schedule=schedule,
    )  # fmt: skip
    return CompiledKernel(kernel, items)


def reference(kind: Kind, x: np.ndarray, case: Case) -> np.ndarray:
    windows = case.windows
    out = out_sizes(x.shape[1:], windows, case.high)
    low = [int(item) for item in windows.padding]  # type: ignore[arg-type]
    pads = list(zip(low, case.high, strict=True))
    actual = reduce_windows(
        x, UFUNCS[kind], identity_of(kind, x.dtype), windows.sizes, windows.strides, pads, windows.dilations, out
    )
    return np.asarray(actual)


def checked(run: CompiledKernel, kind: Kind, x: np.ndarray, case: Case, dtype: t.DType = t.FLOAT) -> None:
    """Behind the results nothing may be written; they may not depend on how work is shared."""
    wide = x.astype(np.float64) if t.is_float(dtype) else x
    expected = reference(kind, wide, case).astype(x.dtype)
    parts: list[np.ndarray] = []
    for number in (1, 3):
        y = aligned((expected.size + 64,), x.dtype.type, 99)
        run(copied(x), y, parts=number, **symbols(x.shape[0], x.shape[1:], expected.shape[1:]))
        assert (y[expected.size :] == 99).all()
        parts.append(y[: expected.size].reshape(expected.shape))
    np.testing.assert_array_equal(parts[0], parts[1])
    if kind == "add" and t.is_float(dtype):
        tolerance = {t.FLOAT: 1e-4, t.FLOAT16: 0.1}.get(dtype, 1e-10)
        np.testing.assert_allclose(parts[0], expected, rtol=0, atol=tolerance)
    else:
        np.testing.assert_array_equal(parts[0], expected)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_floats(case: Case, kind: Kind, target: Target) -> None:
    rng = np.random.default_rng(6)
    rank = len(case.windows.sizes)
    run = built(target, kind, case.windows, IN[3 - rank :], OUT[3 - rank :])
    for sizes in case.sizes:
        x = rng.standard_normal((3, *sizes)).astype(np.float32)
        x.reshape(3, -1)[1, ::7] = np.nan
        checked(run, kind, x, case)


@pytest.mark.parametrize("kind", ("add", "max"))
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_known_sizes(case: Case, kind: Kind) -> None:
    rng = np.random.default_rng(7)
    for sizes in case.sizes:
        out = out_sizes(sizes, case.windows, case.high)
        x = rng.standard_normal((2, *sizes)).astype(np.float32)
        x.reshape(2, -1)[1, ::7] = np.nan
        checked(built(TARGETS["avx2"], kind, case.windows, sizes, out), kind, x, case)


@pytest.mark.parametrize("known", (True, False), ids=("known", "open"))
@pytest.mark.parametrize("dtype", (t.INT8, t.UINT8, t.INT32, t.INT64, t.DOUBLE, t.FLOAT16), ids=lambda d: d.name)
@pytest.mark.parametrize("kind", KINDS)
def test_other_types(kind: Kind, dtype: t.DType, known: bool) -> None:
    case = CASES["3x3 strided"]
    rng = np.random.default_rng(8)
    open_sizes = built(TARGETS["avx2"], kind, case.windows, IN[1:], OUT[1:], dtype)
    for sizes in ((5, 9), (4, 64), (3, 133)):
        if t.is_float(dtype):
            x = (rng.standard_normal((2, *sizes)) * 3).astype(t.numpy_dtype(dtype))
            x[1, 1, ::5] = np.nan
        else:
            bounds = np.iinfo(t.numpy_dtype(dtype))
            x = rng.integers(bounds.min, bounds.max, (2, *sizes), t.numpy_dtype(dtype), endpoint=True)
        out = out_sizes(sizes, case.windows, case.high)
        run = built(TARGETS["avx2"], kind, case.windows, sizes, out, dtype) if known else open_sizes
        checked(run, kind, x, case, dtype)


def test_windows_that_no_line_holds_are_refused() -> None:
    with pytest.raises(UnsupportedError):
        built(TARGETS["avx2"], "max", W((100_000,)), IN[2:], OUT[2:])
