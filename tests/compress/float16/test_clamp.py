"""The clamp equals its formula for every kind of float32."""

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sardonyx.compress.float16 import Clamp
from sardonyx.errors import OptionError

ANY_FLOAT32 = arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32, allow_subnormal=True))


def plain_clamp(values: np.ndarray, least: float, most: float) -> np.ndarray:
    result = []
    for x in values:
        if x != 0 and abs(x) < np.float32(least):
            x = np.copysign(np.float32(least), x)
        elif abs(x) > np.float32(most) and np.isfinite(x):
            x = np.copysign(np.float32(most), x)
        result.append(x)
    return np.array(result, np.float32)


@given(ANY_FLOAT32, st.sampled_from([0.0, 5.96e-8, 1e-7, 6.2e-5]), st.sampled_from([1.0, 1e4, 65504.0]))
def test_float16_equals_the_formula(values, least, most):
    clamped = Clamp(ir.DataType.FLOAT16, least, most).apply(values)
    expected = plain_clamp(values, least, most).astype(np.float16)
    assert clamped.dtype == np.float16
    np.testing.assert_array_equal(clamped.view(np.uint16), expected.view(np.uint16))


@given(ANY_FLOAT32)
def test_zero_nan_and_infinities_are_unchanged_with_their_signs(values):
    clamped = Clamp(ir.DataType.FLOAT16, 1e-7, 1e4).apply(values)
    np.testing.assert_array_equal(clamped == 0, values == 0)
    np.testing.assert_array_equal(np.isnan(clamped), np.isnan(values))
    np.testing.assert_array_equal(np.isinf(clamped), np.isinf(values))
    np.testing.assert_array_equal(np.signbit(clamped), np.signbit(values))


@given(ANY_FLOAT32)
def test_bfloat16_never_introduces_an_infinity(values):
    limit = float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
    clamped = Clamp(ir.DataType.BFLOAT16, 0.0, limit).apply(values)
    np.testing.assert_array_equal(np.isinf(clamped.astype(np.float32)), np.isinf(values))


@given(ANY_FLOAT32)
def test_the_report_counts_changed_elements(values):
    report = Clamp(ir.DataType.FLOAT16, 1e-7, 1e4).clipped("w", values)
    magnitude = np.abs(values)
    raised = int(np.sum((magnitude > 0) & (magnitude < np.float32(1e-7))))
    lowered = int(np.sum((magnitude > 1e4) & np.isfinite(values)))
    if raised + lowered == 0:
        assert report is None
    else:
        assert report is not None
        assert (report.name, report.raised, report.lowered) == ("w", raised, lowered)
        finite = magnitude[np.isfinite(magnitude) & (magnitude > 0)]
        assert (report.smallest, report.largest) == (finite.min(), finite.max())


def test_arrays_larger_than_a_block_are_clamped_throughout():
    values = np.zeros((3, 700_001), np.float32)
    values[:, -1] = [1e9, -1e9, 1e-20]
    clamped = Clamp(ir.DataType.FLOAT16, 1e-7, 1e4).apply(values)
    np.testing.assert_array_equal(clamped[:, -1], np.array([1e4, -1e4, 1e-7], np.float16))
    assert not clamped[:, :-1].any()


@pytest.mark.parametrize("limits", [(-1.0, 1e4), (float("nan"), 1e4), (float("inf"), 1e4)])
def test_an_invalid_smallest_value_is_named(limits):
    with pytest.raises(OptionError, match="min_positive_val"):
        Clamp(ir.DataType.FLOAT16, *limits)


@pytest.mark.parametrize("limits", [(1e-7, 65505.0), (1e-7, float("nan")), (1.0, 0.5), (0.0, 0.0)])
def test_an_invalid_largest_value_is_named(limits):
    with pytest.raises(OptionError, match="max_finite_val"):
        Clamp(ir.DataType.FLOAT16, *limits)
