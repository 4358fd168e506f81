"""Quantization equals ONNX Runtime, or its formula where it has none, at known and at open sizes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx.errors import InvalidModelError, ShapeError
from tests.ops.agreement import assert_agrees, assert_equal, eager, traced

RNG = np.random.default_rng(9)
SHAPE = (3, 4, 5)


def parameters(kind: str, dtype: Any, scale: Any = np.float32) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """A scale, a zero point, and the attributes that say what they are for."""
    shape: tuple[int, ...] = {"tensor": (), "axis": (4,), "blocks": (3, 4, 3)}[kind]
    options: dict[str, Any] = {"tensor": {}, "axis": {"axis": 1}, "blocks": {"axis": -1, "block_size": 2}}[kind]
    values = (RNG.random(shape) + 0.2).astype(scale)
    return np.asarray(values), RNG.integers(0, 2, shape).astype(dtype), options


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2"])
@pytest.mark.parametrize("kind", ["tensor", "axis", "blocks"])
def test_quantize_and_dequantize(kind: str, dtype: str, zero: bool) -> None:
    x = (RNG.standard_normal(SHAPE) * 200).astype(np.float32)
    scale, zero_point, options = parameters(kind, dtype)
    number = {"u1": 2, "i1": 3, "u2": 4, "i2": 5}[dtype]
    arrays = [x, scale, zero_point if zero else None]
    shapes = ["A 4 C", None, None]
    assert_agrees("QuantizeLinear", arrays, shapes, opset=21, **options, **({} if zero else {"output_dtype": number}))
    quantized = RNG.integers(0, 100, SHAPE).astype(dtype)
    assert_agrees("DequantizeLinear", [quantized, *arrays[1:]], shapes, opset=21, **options)


@pytest.mark.parametrize(
    "dtype",
    [
        ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2, ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz, ml_dtypes.float4_e2m1fn,
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["tensor", "axis", "blocks"])
def test_few_bits(kind: str, dtype: Any) -> None:
    x = (RNG.standard_normal(SHAPE) * 4).astype(np.float32)
    scale, _, options = parameters(kind, np.uint8)
    zero_point = np.zeros(scale.shape, dtype)
    spread = scale if kind == "tensor" else scale[:, None] if kind == "axis" else np.repeat(scale, 2, -1)[..., :5]
    (y,) = actual = eager("QuantizeLinear", [x, scale, zero_point], **options)
    if dtype in (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2):
        limits: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
        expected = np.clip(np.rint(x / spread), limits.min, limits.max).astype(np.int32).astype(dtype)
    else:
        expected = (x / spread).astype(dtype)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y.astype(np.float32), expected.astype(np.float32))
    again = traced("QuantizeLinear", [x, scale, zero_point], ["A 4 C", None, None], **options)
    assert_equal([again[0].astype(np.float32)], [y.astype(np.float32)])
    assert again[0].dtype == actual[0].dtype
    (back,) = eager("DequantizeLinear", [y, scale, zero_point], **options)
    np.testing.assert_array_equal(back, y.astype(np.float32) * spread)


def test_floats_saturate_by_attribute() -> None:
    x, scale, zero = np.array([1e6], np.float32), np.array(1, np.float32), np.zeros((), ml_dtypes.float8_e4m3fn)
    assert eager("QuantizeLinear", [x, scale, zero])[0].astype(float) == 448
    assert np.isnan(eager("QuantizeLinear", [x, scale, zero], saturate=0)[0].astype(float))


def test_ties_go_to_even_before_the_zero_point_is_added() -> None:
    x, scale, zero = np.array([0.5, 1.5, 2.5, -0.5], np.float32), np.array(1, np.float32), np.array(1, np.uint8)
    assert eager("QuantizeLinear", [x, scale, zero])[0].tolist() == [1, 3, 3, 1]


def test_infinity_saturates() -> None:
    x = np.array([np.inf, -np.inf], np.float32)
    for dtype in (np.int8, np.uint8, np.int16, np.uint16):
        limits = np.iinfo(dtype)
        y = eager("QuantizeLinear", [x, np.array(1, np.float32), np.zeros((), dtype)])[0]
        assert y.tolist() == [limits.max, limits.min]


def test_the_scale_or_precision_is_the_type_of_the_division() -> None:
    x, scale, zero = np.array([300.1], np.float32), np.array(0.3, np.float16), np.array(0, np.int16)
    halved = np.rint(x.astype(np.float16) / scale).astype(np.int16)
    assert_equal(eager("QuantizeLinear", [x, scale, zero]), [halved])
    whole = np.rint(x / scale.astype(np.float32)).astype(np.int16)
    assert_equal(eager("QuantizeLinear", [x, scale, zero], precision=1), [whole])


def test_dequantized_type() -> None:
    x, scale = np.array([[100, 200]], np.uint8), np.array(0.5, np.float32)
    assert eager("DequantizeLinear", [x, scale], output_dtype=10)[0].dtype == np.float16
    assert eager("DequantizeLinear", [x, scale.astype(np.float16)])[0].dtype == np.float16


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0, 3)])
@pytest.mark.parametrize("factor", [0.0, 1.0, 30.0])
def test_dynamic_quantization(shape: tuple[int, ...], factor: float) -> None:
    x = np.asarray(RNG.standard_normal(shape) * factor).astype(np.float32)
    actual = eager("DynamicQuantizeLinear", [x], outputs=3)
    assert_equal(traced("DynamicQuantizeLinear", [x], [" ".join("AB"[: len(shape)])], outputs=3), actual)
    if x.size:
        assert_agrees("DynamicQuantizeLinear", [x], [" ".join("AB"[: len(shape)])], opset=11, outputs=3)


X, ONE = np.zeros((2, 6), np.float32), np.array(1, np.float32)


@pytest.mark.parametrize(
    ("arrays", "options", "error"),
    [
        ([X, np.ones(4, np.float32)], {}, ShapeError),
        ([X, np.ones(6, np.float32)], {"axis": 2}, ShapeError),
        ([X, np.ones((2, 6), np.float32)], {}, ShapeError),
        ([X, np.ones((2, 2), np.float32)], {"block_size": 2}, ShapeError),
        ([X, np.ones((2, 3), np.float32)], {"block_size": 7}, ShapeError),
        ([X, np.ones((2, 3), np.float32)], {"block_size": -1}, ShapeError),
        ([X, np.ones((2, 1, 1), np.float32)], {}, ShapeError),
        ([X, np.ones(2, np.float32), np.zeros(6, np.uint8)], {"axis": 0}, ShapeError),
        ([X, ONE, np.zeros((), np.int8)], {"output_dtype": 2}, InvalidModelError),
        ([X, ONE], {"output_dtype": 1}, InvalidModelError),
    ],
)
def test_mismatched_inputs_are_refused(
    arrays: list[np.ndarray], options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        eager("QuantizeLinear", arrays, **options)
