"""Constants, shapes, ranges, one-hot codes and conversions."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType
from sardonyx.errors import SardonyxError
from sardonyx.runtime import Session
from tests.ops.agreement import assert_computes, assert_equal, eager, traced_function

X = np.zeros((2, 3, 4), np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def scalars(dtype: Any, *values: float) -> list[np.ndarray]:
    return [np.array(value, dtype) for value in values]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"value_float": 0.5}, np.array(0.5, np.float32)),
        ({"value_floats": (0.5, 2.0)}, np.array([0.5, 2], np.float32)),
        ({"value_int": 3}, np.array(3, np.int64)),
        ({"value_ints": (3, -4)}, ints(3, -4)),
        ({"value_ints": ()}, ints()),
    ],
)
def test_constants(attributes: dict[str, Any], expected: np.ndarray) -> None:
    assert_equal(eager("Constant", [], **attributes), [expected])


def test_constants_of_text() -> None:
    assert eager("Constant", [], value_string="ab")[0].tolist() == "ab"
    assert eager("Constant", [], value_strings=("a", ""))[0].tolist() == ["a", ""]


def test_a_constant_has_one_value() -> None:
    with pytest.raises(SardonyxError, match="has 0 values"):
        eager("Constant", [])
    with pytest.raises(SardonyxError, match="has 2 values"):
        eager("Constant", [], value_int=1, value_float=1.0)


def test_a_sparse_constant_is_filled_with_zeros() -> None:
    values = onnx.helper.make_tensor("", onnx.TensorProto.FLOAT, [2], [1.5, 2.5])
    indices = onnx.helper.make_tensor("", onnx.TensorProto.INT64, [2], [1, 5])
    sparse = onnx.helper.make_sparse_tensor(values, indices, [2, 3])
    node = onnx.helper.make_node("Constant", [], ["y"], sparse_value=sparse)
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 3])
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", [], [y]), opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9
    )
    assert_equal(Session(model).run(None, {}), [np.array([[0, 1.5, 0], [0, 0, 2.5]], np.float32)])


@pytest.mark.parametrize("known", [None, "3"])
def test_constant_of_shape(known: str | None) -> None:
    assert_computes("ConstantOfShape", [ints(2, 0, 3)], [known], np.zeros((2, 0, 3), np.float32))


def test_shape_and_size() -> None:
    for start, end in [(0, None), (1, None), (0, -1), (-2, 2), (-9, 9), (2, 1)]:
        attributes = {"start": start} if end is None else {"start": start, "end": end}
        assert_computes("Shape", [X], ["N M 4"], ints(*X.shape[start:end]), **attributes)
    assert_computes("Size", [X], ["N M 4"], np.array(24, np.int64))


# Ranges.


@pytest.mark.parametrize("known", [None, ""])
@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (np.int64, (0, 5, 1)),
        (np.int32, (10, 3, -2)),
        (np.int16, (5, 5, 1)),
        (np.int64, (3, 0, 1)),
        (np.float32, (0, 1, 0.25)),
        (np.float64, (1, -1, -0.3)),
    ],
)
def test_range(dtype: Any, values: tuple[float, ...], known: str | None) -> None:
    start, limit, delta = values
    count = max(math.ceil((limit - start) / delta), 0)
    expected = np.array([start + i * delta for i in range(count)]).astype(dtype)
    rtol = 0 if np.dtype(dtype).kind == "i" else 1e-6
    assert_computes("Range", scalars(dtype, *values), [known] * 3, expected, rtol=rtol)


def test_a_range_of_half_floats_continues_past_their_integer_precision() -> None:
    (actual,) = eager("Range", scalars(np.float16, 2046, 2056, 1))
    assert actual.dtype == np.float16 and actual.tolist() == [
        2046,
        2047,
        2048,
        2048,
        2050,
        2052,
        2052,
        2052,
        2054,
        2056,
    ]


def test_the_length_of_a_range_up_to_a_size_is_the_size() -> None:
    from sardonyx.core import language as L
    from sardonyx.core.dim import Dim
    from sardonyx.core.eval.tensor import constant
    from sardonyx.core.eval.trace import trace
    from sardonyx.ops.registry import find

    range_ = find("", "Range", 27)
    assert range_ is not None

    def body(x: L.Tensor) -> list[L.Tensor]:
        zero, one = constant(0, t.INT64), constant(1, t.INT64)
        return list(range_([zero, L.number(x.shape[0]), one], {}, opset=27))  # type: ignore[arg-type]

    function = trace("range", body, [t.TensorType(t.FLOAT, (Dim.symbol("N"),))])
    assert str(function.results[0].type) == "int64[N]"


@pytest.mark.parametrize("values", [(0, 5, 0), (0, math.inf, 1), (0, math.nan, 1)])
def test_a_range_without_end(values: tuple[float, ...]) -> None:
    with pytest.raises(SardonyxError, match="a range has"):
        eager("Range", scalars(np.float32, *values))


# Codes.


def test_eye_like() -> None:
    assert_computes("EyeLike", [X[0]], ["N M"], np.eye(3, 4, 1, dtype=np.float32), k=1)
    assert_computes("EyeLike", [X[0]], ["N M"], np.eye(3, 4, -2, dtype=np.int64), k=-2, dtype=7)


@pytest.mark.parametrize("known", [None, ""])
def test_one_hot(known: str | None) -> None:
    indices, values = np.array([[0, 2], [-1, 5]]), np.array([-1, 1], np.float32)
    expected = np.full((2, 3, 2), -1, np.float32)
    expected[0, 0, 0] = expected[0, 2, 1] = expected[1, 2, 0] = 1
    assert_computes("OneHot", [indices, np.array(3), values], ["N M", known, "2"], expected, axis=1)
    expected[1, 2, 0] = -1  # Negative indices count from the end since version 11.
    assert_computes("OneHot", [indices, np.array(3), values], ["N M", known, "2"], expected, axis=1, opset=9)


# Conversion.


def cast(x: np.ndarray, dtype: DType, **attributes: Any) -> np.ndarray:
    (actual,) = eager("Cast", [x], to=int(dtype), **attributes)
    assert actual.dtype == t.numpy_dtype(dtype)
    return actual


def test_casts_between_numbers() -> None:
    x = np.array([-1.5, 0, 2.7, 300], np.float32)
    assert cast(x, t.INT32).tolist() == [-1, 0, 2, 300]
    assert cast(x, t.BOOL).tolist() == [True, False, True, True]
    assert cast(np.array([200, -1], np.int16), t.INT8).tolist() == [-56, -1]
    assert cast(np.array([7, -9, 8]), DType.INT4).astype(int).tolist() == [7, 7, -8]
    assert cast(np.array([1e6]), t.FLOAT16).tolist() == [math.inf]


@pytest.mark.parametrize("dtype", t.FLOAT8)
def test_casts_to_eight_bits_saturate(dtype: DType) -> None:
    most = float(ml_dtypes.finfo(t.numpy_dtype(dtype)).max)
    x = np.array([1e6, -1e6, math.inf, math.nan], np.float32)
    np.testing.assert_array_equal(cast(x, dtype).astype(float), [most, -most, most, math.nan])
    overflow = math.inf if dtype == DType.FLOAT8E5M2 else math.nan
    np.testing.assert_array_equal(cast(x, dtype, saturate=0).astype(float), [overflow, -overflow, overflow, math.nan])


def test_casts_to_four_bits_saturated_before_version_24() -> None:
    x = np.array([-9.5, -8, 7.9, 9, 20], np.float32)
    assert cast(x, DType.INT4, opset=23).astype(int).tolist() == [-8, -8, 7, 7, 7]
    assert cast(x, DType.UINT4, opset=21).astype(int).tolist() == [0, 0, 7, 9, 15]
    assert cast(x, DType.INT4).astype(int).tolist() == [7, -8, 7, -7, 4]
    nan = np.array([math.nan], np.float32)
    assert cast(nan, DType.FLOAT4E2M1, opset=23).astype(float).tolist() == [6]
    assert cast(nan, DType.FLOAT4E2M1).astype(float).tolist() == [0]


@pytest.mark.parametrize(("mode", "power"), [("up", 4.0), ("down", 2.0), ("nearest", 4.0)])
def test_casts_to_powers_of_two_round(mode: str, power: float) -> None:
    assert cast(np.array([3.0], np.float32), DType.FLOAT8E8M0, round_mode=mode).astype(float).tolist() == [power]


def test_casts_of_strings() -> None:
    words = np.array(["3.5", "-1e2", "INF", "nan"], object)
    np.testing.assert_array_equal(cast(words, t.FLOAT), [3.5, -100, math.inf, math.nan])
    assert cast(np.array(["12", "3.9", "1e3", str(2**62 + 1)], object), t.INT64).tolist() == [12, 3, 1000, 2**62 + 1]
    with pytest.raises(SardonyxError, match="cannot convert the text 'one' to float"):
        cast(np.array(["one"], object), t.FLOAT)


def test_casts_by_name_and_by_example() -> None:
    assert_computes("Cast", [X], ["N M 4"], X.astype(np.float64), to="double", opset=1)
    assert_computes("CastLike", [X, ints(1)], ["N M 4", "1"], X.astype(np.int64))


def test_bit_cast() -> None:
    x = np.array([1.0, -0.0], np.float32)
    assert_computes("BitCast", [x], ["N"], x.view(np.int32), to=int(t.INT32))
    with pytest.raises(SardonyxError, match="Use a type of equal width"):
        eager("BitCast", [x], to=int(t.INT64))
    with pytest.raises(SardonyxError, match="strings have no bits"):
        eager("BitCast", [x], to=int(t.STRING))


def test_unknown_element_types() -> None:
    with pytest.raises(SardonyxError, match="unknown element type 99"):
        eager("Cast", [X], to=99)


def test_types_while_tracing() -> None:
    assert str(traced_function("EyeLike", [X[0]], ["N M"], dtype=7).results[0].type) == "int64[N, M]"
    depth = traced_function("OneHot", [ints(0), np.array(5), X[0, 0, :2]], ["N", None, "2"], axis=0)
    assert str(depth.results[0].type) == "float[5, N]"
