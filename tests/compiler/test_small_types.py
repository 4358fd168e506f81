"""Element types of 8 bits and less through whole programs: kernels move and convert them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.core.programs import computed

from sardonyx.compiler.analysis.element_types import SMALL_DTYPES
from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType, TensorType, numpy_dtype

SMALL = sorted(SMALL_DTYPES, key=lambda dtype: dtype.name)


def check(body: Callable[[L.Tensor], list[L.Tensor]], dtype: DType, kernels: int | None = 1) -> None:
    """Compiled equals interpreted, in so many kernels (None: it does not matter)."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 1 << min(dtype.bitwidth, 8), (7, 19)).astype(np.uint8)
    x = codes.view(numpy_dtype(dtype)) if dtype in SMALL_DTYPES else rng.standard_normal((7, 19)).astype(np.float32) * 5
    function = trace("f", body, [TensorType(dtype, (7, 19))])
    program = Program.compile(function)
    assert kernels is None or len(program.launches) == kernels
    with np.errstate(all="ignore"):
        (actual,), (expected,) = program.run([x]), computed(function, [x])
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("dtype", SMALL, ids=lambda d: d.name)
def test_conversions_are_compiled(dtype: DType) -> None:
    check(lambda x: [L.cast(x, t.FLOAT) * 0.5 + 1], dtype)
    check(lambda x: [L.cast(x * 0.5, dtype)], t.FLOAT)


@pytest.mark.parametrize("dtype", [DType.INT4, DType.FLOAT8E4M3FN, DType.FLOAT4E2M1], ids=lambda d: d.name)
def test_movement_is_compiled(dtype: DType) -> None:
    check(lambda x: [L.concat([L.permute(x, (1, 0)), L.permute(x, (1, 0))], 0)], dtype, None)
    check(lambda x: [L.pad(x, (1, 0), (0, 2))], dtype, None)


@pytest.mark.parametrize("dtype", [DType.UINT4, DType.FLOAT8E5M2, DType.FLOAT8E8M0], ids=lambda d: d.name)
def test_sums_and_products_are_left_to_the_interpreter(dtype: DType) -> None:
    check(lambda x: [L.reduce_max(x, [1])], dtype, 0)
    check(lambda x: [L.matmul(x, L.permute(x, (1, 0)))], dtype, None)
