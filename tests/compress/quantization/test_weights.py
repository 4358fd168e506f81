"""Weights as integers: the error is at most half a step, or less where clipping pays."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx.compress.quantization.ranges import METHODS, Statistics
from sardonyx.compress.quantization.scheme import Affine, Granularity, Scheme
from sardonyx.compress.quantization.weights import quantize_weight

granularities: st.SearchStrategy[Granularity] = st.sampled_from(["tensor", "channel", "block"])


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.sampled_from(["int8", "int4"]), granularities, st.booleans(),
    st.sampled_from([(64, 8), (8, 96), (3, 5)]), st.floats(1e-20, 1e20),
)  # fmt: skip
def test_integers_are_in_range_and_close(
    seed: int, kind: str, granularity: Granularity, symmetric: bool, shape: tuple[int, int], size: float
) -> None:
    scheme = Scheme(kind, granularity, 32, symmetric)
    weight = (np.random.default_rng(seed).standard_normal(shape) * size).astype(np.float32)
    result = quantize_weight(weight, 1, 0, scheme)
    lowest = -scheme.limit if symmetric else 0
    assert lowest <= result.values.min() and result.values.max() <= scheme.limit
    error = np.square(result.dequantized().astype(np.float64) - weight).sum()
    step = (weight.max(initial=0) - weight.min(initial=0)) / (scheme.limit - lowest) * (2 if symmetric else 1)
    # The best scale is no worse than the one that covers the largest magnitude of the whole weight.
    assert error <= weight.size * (float(step) / 2) ** 2 * 1.01


def test_zeros_are_exact() -> None:
    for symmetric in (True, False):
        weight = np.array([[0, 1, -3], [0, 0, 0]], np.float32)
        result = quantize_weight(weight, 0, 1, Scheme("int4", "channel", 32, symmetric))
        assert not result.dequantized()[weight == 0].any()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=6), st.floats(1e-6, 1e6), st.floats(-3, 3))
def test_statistics_do_not_depend_on_the_number_of_parts(seeds: list[int], size: float, shift: float) -> None:
    parts = [((np.random.default_rng(s).standard_normal((2, 3, 40)) + shift) * size).astype(np.float32) for s in seeds]
    apart, merged = Statistics(), Statistics()
    for part in parts:
        apart.add(part)
    merged.add(np.concatenate(parts))
    assert (apart.low, apart.high) == (merged.low, merged.high)
    assert apart.channel_means is not None and merged.channel_means is not None
    np.testing.assert_allclose(apart.channel_means, merged.channel_means, rtol=1e-6, atol=1e-6 * size)
    for method in METHODS:
        low, high = apart.interval(method)
        assert apart.low <= low <= high <= apart.high or method == "mse" or method == "entropy"


def test_a_range_includes_an_exact_zero() -> None:
    for low, high in ((1.0, 5.0), (-4.0, -1.0), (-1.0, 3.0), (0.0, 0.0), (1e-45, 1e-45)):
        affine = Affine.of(low, high)
        assert 0 <= affine.zero_point <= 255 and affine.scale > 0
        assert affine.scale * (255 - affine.zero_point) >= high * 0.99 or high < 1e-37
