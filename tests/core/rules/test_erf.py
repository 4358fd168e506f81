"""The error function against the C library's."""

from __future__ import annotations

import math

import numpy as np

from sardonyx.core.rules.erf import erf


def test_within_two_units_in_the_last_place() -> None:
    x = np.concatenate([np.linspace(-7, 7, 20001), 10.0 ** np.linspace(-300, 2, 400), [0.84375, 1.25, 1 / 0.35, 6.0]])
    expected = np.array([math.erf(v) for v in x])
    np.testing.assert_array_max_ulp(erf(x), expected, maxulp=2)


def test_limits_signs_and_nan() -> None:
    actual = erf(np.array([np.inf, -np.inf, np.nan, 0.0, -0.0]))
    np.testing.assert_array_equal(actual, [1, -1, np.nan, 0, 0])
    assert not np.signbit(actual[3]) and np.signbit(actual[4])


def test_any_element_type_and_shape() -> None:
    assert erf(np.ones((2, 0, 3))).shape == (2, 0, 3)
    half = erf(np.array(0.5, np.float32))
    assert half.shape == () and half.dtype == np.float32
    assert half == np.float32(math.erf(0.5))
