"""Weights as integers: the error is at most half a step, or less where clipping pays."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

import sardonyx
from sardonyx.compress.quantization.forms.packed_weights import pack
from sardonyx.compress.quantization.ranges import METHODS, Statistics
from sardonyx.compress.quantization.scheme import TYPES, WEIGHT_TYPES, Affine, Granularity, Scheme
from sardonyx.compress.quantization.weights import quantize_weight

granularities: st.SearchStrategy[Granularity] = st.sampled_from(["tensor", "channel", "block"])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.sampled_from(WEIGHT_TYPES), granularities, st.booleans(),
    st.sampled_from([(64, 8), (8, 96), (3, 5), (70, 3)]), st.floats(1e-20, 1e20),
)  # fmt: skip
def test_numbers_are_in_range_and_within_half_a_step(
    seed: int, kind: str, granularity: Granularity, symmetric: bool, shape: tuple[int, int], size: float
) -> None:
    scheme = Scheme(kind, granularity, 32, symmetric or kind.startswith("float"))
    weight = (np.random.default_rng(seed).standard_normal(shape) * size).astype(np.float32)
    result = quantize_weight(weight, 1, 0, scheme)
    assert ir.DataType.from_numpy(result.values.dtype) == scheme.dtype
    numbers = result.values.astype(np.float64)
    assert scheme.lowest <= numbers.min() and numbers.max() <= scheme.limit
    scales, zeros = result.expanded()
    exact = result.dequantized().astype(np.float64)
    low, high = (scheme.lowest - zeros) * scales, (scheme.limit - zeros) * scales
    clipped = np.clip(weight.astype(np.float64), low, high)
    if scheme.weight_type.is_float:
        # Half of the distance between neighbours: a share of the number, or half of the smallest distance.
        info = ml_dtypes.finfo(scheme.weight_type.numpy)
        half = np.maximum(np.abs(clipped) * float(info.eps) / 2, float(info.smallest_subnormal) * scales / 2)
    else:
        half = np.broadcast_to(scales / 2, weight.shape)
    assert (np.abs(exact - clipped) <= half * 1.01).all()
    # The best scale is no worse than the one that covers the largest magnitude of the whole weight.
    if not scheme.weight_type.is_float:
        step = (
            (weight.max(initial=0) - weight.min(initial=0)) / (scheme.limit - scheme.lowest) * (2 if symmetric else 1)
        )
        assert np.square(exact - weight).sum() <= weight.size * (float(step) / 2) ** 2 * 1.01


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.sampled_from(["int4", "int2", "int8"]), st.booleans(), st.sampled_from([16, 32]),
    st.integers(17, 100), st.integers(1, 9),
)  # fmt: skip
def test_packed_weights_mean_the_same(
    seed: int, kind: str, symmetric: bool, block: int, depth: int, outputs: int
) -> None:
    weight = np.random.default_rng(seed).standard_normal((depth, outputs)).astype(np.float32)
    scheme = Scheme(kind, "block", block, symmetric)
    if depth <= block:
        return
    result = quantize_weight(weight, 1, 0, scheme)
    packed = pack(result, 0)
    x = np.eye(depth, dtype=np.float32)
    attributes = {"K": depth, "N": outputs, "bits": packed.bits, "block_size": block}
    inputs = {"x": x, "b": packed.values, "s": packed.scales.reshape(-1)}
    if packed.zeros is not None:
        inputs["z"] = packed.zeros.reshape(-1)
    node = helper.make_node("MatMulNBits", list(inputs), ["y"], domain="com.microsoft", **attributes)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()
    ]
    y = helper.make_tensor_value_info("y", 1, [depth, outputs])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", infos, [y]), opset_imports=opsets, ir_version=10)
    answer = sardonyx.run(model, inputs)["y"]
    np.testing.assert_allclose(answer, result.dequantized(), rtol=1e-6, atol=1e-6)


def test_zeros_are_exact() -> None:
    for symmetric in (True, False):
        weight = np.array([[0, 1, -3], [0, 0, 0]], np.float32)
        result = quantize_weight(weight, 0, 1, Scheme("int4", "channel", 32, symmetric))
        assert not result.dequantized()[weight == 0].any()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=6), st.floats(1e-6, 1e6), st.floats(-3, 3),
    st.sampled_from(["uint8", "int8", "uint16", "float8e4m3"]), st.booleans(),
)  # fmt: skip
def test_statistics_do_not_depend_on_the_number_of_parts(
    seeds: list[int], size: float, shift: float, kind: str, symmetric: bool
) -> None:
    parts = [((np.random.default_rng(s).standard_normal((2, 3, 40)) + shift) * size).astype(np.float32) for s in seeds]
    apart, merged = Statistics(), Statistics()
    for part in parts:
        apart.add(part)
    merged.add(np.concatenate(parts))
    assert (apart.low, apart.high) == (merged.low, merged.high)
    for method in METHODS:
        low, high = apart.interval(method, TYPES[kind], symmetric)
        assert low <= high
        assert (min(apart.low, 0) <= low and high <= max(apart.high, 0)) or symmetric or kind == "uint16"
        affine = Affine.of(low, high, TYPES[kind], symmetric)
        least, greatest = affine.range
        assert least <= 0 <= greatest and affine.scale > 0
        if not symmetric or TYPES[kind].low >= 0:
            tolerance = affine.scale * 1.01
            assert least <= min(low, 0) + tolerance and greatest >= max(high, 0) - tolerance


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1.0, 8.0, 60.0]), st.booleans(), st.booleans())
def test_the_least_squared_error_is_no_worse_than_other_ranges(
    seed: int, outlier: float, rectified: bool, symmetric: bool
) -> None:
    values = np.random.default_rng(seed).standard_normal(60_000).astype(np.float32)
    values[:3] *= outlier
    if rectified:
        values = np.maximum(values, 0)
    seen = Statistics()
    seen.add(values)

    def error(method: str) -> float:
        affine = Affine.of(*seen.interval(method, TYPES["int8"], symmetric), TYPES["int8"], symmetric)
        numbers = np.clip(np.rint(values / affine.scale) + affine.zero_point, -128, 127)
        return float(np.square((numbers - affine.zero_point) * affine.scale - values).sum())

    assert error("mse") <= 1.05 * min(error("minmax"), error("percentile"))


def test_elements_for_infinity_do_not_widen_the_range() -> None:
    seen = Statistics()
    seen.add(np.array([1, -2, 3], np.float32))
    for mask in (-np.inf, -1e9, float(np.finfo(np.float32).min)):
        seen.add(np.array([1, mask], np.float32))
    assert seen.has_sentinels and (seen.low, seen.high) == (-2, 3)


def test_a_range_includes_an_exact_zero() -> None:
    for low, high in ((1.0, 5.0), (-4.0, -1.0), (-1.0, 3.0), (0.0, 0.0), (1e-45, 1e-45)):
        affine = Affine.of(low, high)
        assert 0 <= affine.zero_point <= 255 and affine.scale > 0
        assert affine.scale * (255 - affine.zero_point) >= high * 0.99 or high < 1e-37
