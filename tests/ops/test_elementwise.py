"""Elementwise mathematics, arithmetic before and since broadcasting, and activations."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx.errors import SardonyxError
from tests.ops.agreement import assert_computes, assert_equal, eager, traced

RNG = np.random.default_rng(0)
X = np.array([[-2.5, -1.0, -0.5, -0.0], [0.0, 0.5, 1.5, 2.5], [math.inf, -math.inf, math.nan, 1e-3]], np.float32)
INSIDE = np.array([[-0.9, -0.3, 0.0], [0.2, 0.5, 0.99]], np.float32)


@pytest.mark.parametrize(
    ("name", "numpys"),
    [
        ("Abs", np.abs), ("Neg", np.negative), ("Sign", np.sign), ("Floor", np.floor), ("Ceil", np.ceil),
        ("Round", np.rint), ("Reciprocal", np.reciprocal), ("Sqrt", np.sqrt), ("Exp", np.exp), ("Log", np.log),
        ("Sin", np.sin), ("Cos", np.cos), ("Tan", np.tan), ("Atan", np.arctan), ("Sinh", np.sinh), ("Cosh", np.cosh),
        ("Tanh", np.tanh), ("Asinh", np.arcsinh), ("Acosh", np.arccosh), ("Asin", np.arcsin), ("Acos", np.arccos),
        ("Atanh", np.arctanh), ("IsNaN", np.isnan), ("IsInf", np.isinf),
    ],
)  # fmt: skip
def test_unary_operators_equal_numpy(name: str, numpys: Any) -> None:
    with np.errstate(all="ignore"):
        assert_computes(name, [X], ["N M"], numpys(X), rtol=1e-6)


def test_erf() -> None:
    expected = np.vectorize(math.erf)(INSIDE.astype(np.float64))
    assert_computes("Erf", [INSIDE.astype(np.float64)], ["N M"], expected, rtol=1e-15)


def test_one_infinity_alone() -> None:
    assert_computes("IsInf", [X], ["N M"], math.inf == X, detect_negative=0)
    assert_computes("IsInf", [X], ["N M"], -math.inf == X, detect_positive=0)


def test_variadic_operators_equal_numpy() -> None:
    a, b, c = X, X[:1], np.float32(1).reshape(())
    shapes = ["N M", "1 M", ""]
    with np.errstate(all="ignore"):
        assert_computes("Max", [a, b, c], shapes, np.maximum(np.maximum(a, b), c))
        assert_computes("Min", [a, b, c], shapes, np.minimum(np.minimum(a, b), c))
        assert_computes("Sum", [a, b, c], shapes, a + b + c)
        assert_computes("Mean", [a, b, c], shapes, (a + b + c) / np.float32(3))
    assert_computes("Max", [a], ["N M"], a)


def test_clip_applies_the_upper_bound_last() -> None:
    low, high = (np.array(v, np.float32) for v in (1, -1))
    assert_computes("Clip", [INSIDE, low, high], ["N M", "", ""], np.full_like(INSIDE, -1))
    assert_computes("Clip", [INSIDE, None, high], ["N M", None, ""], np.minimum(INSIDE, -1))
    assert_computes("Clip", [INSIDE, low], ["N M", ""], np.maximum(INSIDE, 1))
    assert_computes("Clip", [INSIDE], ["N M"], np.clip(INSIDE, -0.5, 0.5), min=-0.5, max=0.5, opset=6)


def test_where_broadcasts_all_three() -> None:
    condition = np.array([[True], [False]])
    x, y = np.arange(3.0), np.array([9.0]).reshape(1, 1, 1)
    assert_computes("Where", [condition, x, y], ["N 1", "M", "1 1 1"], np.where(condition, x, y))


# Remainders and bits.


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64])
def test_mod_of_integers(dtype: Any) -> None:
    a, b = (v.astype(dtype) for v in np.meshgrid(np.arange(-7, 8), [-3, -1, 1, 3]))
    assert_computes("Mod", [a, b], ["N M", "N M"], np.mod(a, b))
    assert_computes("Mod", [a, b], ["N M", "N M"], np.fmod(a, b), fmod=1)


def test_mod_of_floats_by_floor() -> None:
    a = np.array([5.5, -5.5, 0.0, -0.0, 3.0, -3.0, 3.0, math.inf, 1.0])
    b = np.array([-3.0, 3.0, -2.0, 2.0, -math.inf, -math.inf, math.inf, 2.0, 0.0])
    expected = np.array([-0.5, 0.5, -0.0, 0.0, -math.inf, -3.0, 3.0, math.nan, math.nan])
    assert_computes("Mod", [a, b], ["N", "N"], expected)
    (actual,) = eager("Mod", [a, b])
    np.testing.assert_array_equal(np.signbit(actual[:6]), np.signbit(expected[:6]))


def test_shifts_are_arithmetic() -> None:
    x, by = np.array([-8, -8, 5, 5, -8, 5], np.int8), np.array([1, 9, 1, 8, -1, -1], np.int8)
    assert_computes("BitShift", [x, by], ["N", "N"], np.array([-4, -1, 2, 0, -1, 0], np.int8), direction="RIGHT")
    assert_computes("BitShift", [x, by], ["N", "N"], np.array([-16, 0, 10, 0, 0, 0], np.int8), direction="LEFT")


def test_bitwise() -> None:
    a, b = np.arange(8, dtype=np.uint8).reshape(2, 4), np.array([5], np.uint8)
    assert_computes("BitwiseAnd", [a, b], ["N M", "1"], a & b)
    assert_computes("BitwiseOr", [a, b], ["N M", "1"], a | b)
    assert_computes("BitwiseXor", [a, b], ["N M", "1"], a ^ b)
    assert_computes("BitwiseNot", [a], ["N M"], ~a)


# Arithmetic.


def test_powers_have_the_type_of_the_base() -> None:
    base = np.array([2, -3, 10], np.int32)
    assert_computes("Pow", [base, np.array([0.5, 2, -1])], ["N", "N"], np.array([1, 9, 0], np.int32))
    assert_computes("Pow", [base.astype(np.float32), np.array([3], np.uint8)], ["N", "1"], np.float32([8, -27, 1000]))
    third = np.array([1 / 3])
    expected = np.power(np.float64([8]), third).astype(np.float32)
    assert_computes("Pow", [np.float32([8]), third], ["N", "N"], expected)
    assert_computes("Pow", [np.float32([[2, 3]]), np.float32([2])], ["N M", "K"], np.float32([[4, 9]]), opset=7)


def test_before_version_7_broadcasting_needs_an_attribute() -> None:
    a, b = np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.arange(3, dtype=np.float32)
    assert_computes("Mul", [a, b], ["N M K", "M"], a * b[:, None], broadcast=1, axis=1, opset=6)
    assert_computes("Pow", [a, b[:1]], ["N M K", "1"], a ** b[:1], broadcast=1, opset=1)
    with pytest.raises(SardonyxError, match="Set the attribute `broadcast`"):
        eager("Add", [a, b], opset=6)
    with pytest.raises(SardonyxError, match="rank"):
        eager("Add", [b, a], broadcast=1, opset=6)


@pytest.mark.parametrize(("name", "problem"), [("Div", "divided by zero"), ("Mod", "divided by zero")])
def test_integer_division_by_zero(name: str, problem: str) -> None:
    with pytest.raises(SardonyxError, match=problem):
        eager(name, [np.array([1, 2]), np.array([1, 0])])


def test_zero_to_a_negative_power() -> None:
    with pytest.raises(SardonyxError, match="negative power"):
        eager("Pow", [np.array([0]), np.array([-1])])


# Activations.


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def elu(x: np.ndarray, alpha: float) -> np.ndarray:
    return np.where(x < 0, alpha * np.expm1(x), x)


@pytest.mark.parametrize(
    ("name", "attributes", "numpys"),
    [
        ("Relu", {}, lambda x: np.maximum(x, 0)),
        ("LeakyRelu", {}, lambda x: np.where(x < 0, np.float64(np.float32(0.01)) * x, x)),
        ("LeakyRelu", {"alpha": 0.5}, lambda x: np.where(x < 0, 0.5 * x, x)),
        ("ThresholdedRelu", {"alpha": 0.25}, lambda x: np.where(x > 0.25, x, 0)),
        ("Shrink", {"bias": 0.5, "lambd": 1.0}, lambda x: np.where(x < -1, x + 0.5, np.where(x > 1, x - 0.5, 0))),
        ("Elu", {"alpha": 2.0}, lambda x: elu(x, 2)),
        ("Celu", {"alpha": 2.0}, lambda x: np.maximum(0, x) + np.minimum(0, 2 * np.expm1(x / 2))),
        ("Selu", {"alpha": 2.0, "gamma": 3.0}, lambda x: 3 * elu(x, 2)),
        ("Gelu", {}, lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))),
        (
            "Gelu",
            {"approximate": "tanh"},
            lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        ),
        ("Sigmoid", {}, sigmoid),
        ("HardSigmoid", {"alpha": 0.5, "beta": 0.25}, lambda x: np.clip(0.5 * x + 0.25, 0, 1)),
        ("HardSwish", {}, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
        ("Swish", {"alpha": 2.0}, lambda x: x * sigmoid(2 * x)),
        ("Softplus", {}, np.vectorize(lambda v: math.log1p(math.exp(v)) if v < 30 else v)),
        ("Mish", {}, lambda x: x * np.tanh(np.log1p(np.exp(x)))),
        ("Softsign", {}, lambda x: x / (1 + np.abs(x))),
    ],
)
def test_activations(name: str, attributes: dict[str, float], numpys: Any) -> None:
    x = RNG.standard_normal((3, 5)) * 3
    assert_computes(name, [x], ["N M"], numpys(x), rtol=1e-11, **attributes)


def test_defaults_are_single_precision() -> None:
    (actual,) = eager("LeakyRelu", [np.array([-1.0])])
    assert actual[0] == -float(np.float32(0.01))


def test_the_first_selu_had_shorter_coefficients() -> None:
    (actual,) = eager("Selu", [np.array([1.0])], opset=1)
    assert actual[0] == float(np.float32(1.0507))


def test_activations_hold_for_large_numbers() -> None:
    x = np.array([-1e4, 1e4], np.float32)
    for name, expected in [("Softplus", [0, 1e4]), ("Sigmoid", [0, 1]), ("Elu", [-1, 1e4]), ("Mish", [0, 1e4])]:
        assert_equal(eager(name, [x]), [np.array(expected, np.float32)])


def test_half_floats_are_rounded_once() -> None:
    x = np.linspace(-4, 4, 101).astype(ml_dtypes.bfloat16)
    for name in ("Gelu", "Swish", "Celu", "Mish"):
        (exact,) = eager(name, [x.astype(np.float32)])
        (actual,) = eager(name, [x])
        np.testing.assert_array_equal(actual.astype(np.float32), exact.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_slopes() -> None:
    x = RNG.standard_normal((2, 3, 4))
    slope = np.array([0.1, 0.2, 0.3])
    expected = np.where(x < 0, x * slope[:, None], x)
    assert_computes("PRelu", [x, slope[:, None]], ["N C M", "C 1"], expected)
    assert_computes("PRelu", [x, slope], ["N C M", "C"], expected, opset=6)
    assert_computes("PRelu", [x, slope[:1]], ["N C M", "1"], np.where(x < 0, x * 0.1, x), opset=6)
    with pytest.raises(SardonyxError):
        eager("PRelu", [slope, x])


def test_swiglu_does_not_broadcast() -> None:
    a, b = RNG.standard_normal((2, 3, 4))[:, :2]
    assert_computes("SwiGLU", [a, b], ["N M", "N M"], a * sigmoid(a) * b, rtol=1e-12)
    with pytest.raises(SardonyxError, match="for the second operand, got"):
        eager("SwiGLU", [a, b[:1]])


# Along an axis.


def softmax(x: np.ndarray, axis: Any) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@pytest.mark.parametrize("axis", [-3, 0, 1, 2])
def test_softmax_and_its_logarithm(axis: int) -> None:
    x = RNG.standard_normal((2, 3, 4))
    assert_computes("Softmax", [x], ["N M K"], softmax(x, axis), rtol=1e-12, axis=axis)
    assert_computes("LogSoftmax", [x], ["N M K"], np.log(softmax(x, axis)), rtol=1e-12, axis=axis)


def test_softmax_flattens_to_a_matrix_before_version_13() -> None:
    x = RNG.standard_normal((2, 3, 4))
    assert_computes("Softmax", [x], ["N M K"], softmax(x, (1, 2)), rtol=1e-12, opset=11)
    assert_computes("Softmax", [x], ["N M K"], softmax(x, 2), rtol=1e-12, opset=11, axis=-1)
    expected = np.zeros(24)
    expected[np.argmax(x)] = 1
    assert_computes("Hardmax", [x], ["N M K"], expected.reshape(x.shape), opset=1, axis=0)


def test_hardmax_selects_the_first_of_equals() -> None:
    x = np.array([[1, 3, 3], [2, 2, 0]], np.float32)
    assert_computes("Hardmax", [x], ["N M"], np.float32([[0, 1, 0], [1, 0, 0]]))
    assert_computes("Hardmax", [x[:, :0]], ["N M"], x[:, :0])


def test_softmax_of_large_numbers() -> None:
    assert_equal(traced("Softmax", [np.float32([1e4, 1e4])], ["N"]), [np.float32([0.5, 0.5])])


def test_unknown_names() -> None:
    with pytest.raises(SardonyxError, match="unknown `approximate` value"):
        eager("Gelu", [X], approximate="fast")
    with pytest.raises(SardonyxError, match="unknown direction"):
        eager("BitShift", [np.uint8([1]), np.uint8([1])], direction="UP")
