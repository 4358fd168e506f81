"""Reductions over windows of blocked images equal numpy's, and carry NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.compiler.kernels.compiled import CompiledKernel
from tests.compiler.kernels.images import (
    BATCH,
    IN,
    OUT,
    TARGETS,
    out_sizes,
    stored,
    storing,
    symbols,
    to_blocked,
    to_plain,
)

from sardonyx.compiler.codegen.kernel_builder import Kernel
from sardonyx.compiler.kernels.conv.blocked_pooling import Kind, pooling
from sardonyx.compiler.kernels.conv.window_sweep import Image
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling.pooling import PoolingProblem, choose_pooling
from sardonyx.compiler.tiling.windows import Windows
from sardonyx.core.dim import Size
from sardonyx.core.rules.numpy_windows import reduce_windows

pytestmark = pytest.mark.sampled

W = Windows.of
ROWS = ((1, 1), (2, 3), (3, 7), (4, 8), (2, 15), (5, 16), (3, 33), (1, 700))
CASES = {
    "2x2": (W((2, 2), (2, 2)), (1, 1)),
    "3x3": (W((3, 3), (2, 2), (1, 1)), (1, 1)),
    "3x3 dilated": (W((3, 3), padding=(2, 2), dilations=(2, 2)), (2, 2)),
    "5x70": (W((5, 70), (1, 1), (2, 40)), (2, 40)),
}
UFUNCS = {"add": np.add, "max": np.maximum, "min": np.minimum}
KINDS: tuple[Kind, ...] = ("add", "max", "min")


def built(
    target: Target, kind: Kind, windows: Windows, sizes: tuple[Size, ...], out: tuple[Size, ...],
    element: str = "float", signed: bool = True,
) -> CompiledKernel:  # fmt: skip
    kernel = Kernel(target)
    x, y = kernel.buffer(), kernel.buffer()
    items = pooling(
        kernel,
        kind,
        x=Image(x, 20, sizes),
        batch=BATCH,
        windows=windows,
        out=out,
        epilogue=storing(kernel, y, 20, out, target.lanes(32), element),
        schedule=choose_pooling(PoolingProblem(windows, out, 32, True), target).schedule,
        element=element,
        signed=signed,
    )
    return CompiledKernel(kernel, items)


def reference(kind: Kind, x: np.ndarray, windows: Windows, high: tuple[int, ...], identity: Any) -> np.ndarray:
    out = out_sizes(x.shape[2:], windows, high)
    pads: Any = tuple(zip(windows.padding, high, strict=True))
    return reduce_windows(x, UFUNCS[kind], identity, windows.sizes, windows.strides, pads, windows.dilations, out)


IDENTITIES = {"add": 0.0, "max": -np.inf, "min": np.inf}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_floats(case: tuple[Windows, tuple[int, ...]], kind: Kind, target: Target) -> None:
    windows, high = case
    rng = np.random.default_rng(6)
    lanes = target.lanes(32)
    run = built(target, kind, windows, IN[1:], OUT[1:])
    for sizes in ROWS:
        x = rng.standard_normal((2, 20, *sizes)).astype(np.float32)
        x[1, 3, 0, 0] = np.nan
        expected = reference(kind, x, windows, high, IDENTITIES[kind])
        out = expected.shape[2:]
        runs = [run]
        if sizes == ROWS[4]:
            runs.append(built(target, kind, windows, sizes, out))
        for kernel in runs:
            y = stored(2, 20, out, lanes)
            kernel(to_blocked(x, lanes), y, parts=3, **symbols(2, sizes, out))
            np.testing.assert_allclose(to_plain(y)[:, :20], expected, rtol=0, atol=1e-4 if kind == "add" else 0)


@pytest.mark.parametrize("signed", (True, False))
@pytest.mark.parametrize("kind", KINDS)
def test_integers(kind: Kind, signed: bool) -> None:
    windows, high = CASES["3x3"]
    target = TARGETS["avx2"]
    dtype: Any = np.int8 if signed else np.uint8
    run = built(target, kind, windows, IN[1:], OUT[1:], "i8", signed)
    bounds = np.iinfo(dtype)
    x = np.random.default_rng(8).integers(bounds.min, bounds.max, (2, 20, 5, 9), dtype, endpoint=True)
    identity = {"add": 0, "max": bounds.min, "min": bounds.max}[kind]
    expected = reference(kind, x, windows, high, identity)
    out = expected.shape[2:]
    y = stored(2, 20, out, target.lanes(32), dtype)
    run(to_blocked(x, target.lanes(32)), y, **symbols(2, (5, 9), out))
    np.testing.assert_array_equal(to_plain(y)[:, :20], expected)
