"""Elementary functions: over every exponent, at special values, on every target that this machine runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from tests.compiler.elementwise import TARGETS, Elementwise

from sardonyx.compiler.codegen import load_store, vector_math, vector_math_f32
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.llvm.vector_value import Vector
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType, numpy_dtype
from sardonyx.core.rules.erf import erf

pytestmark = pytest.mark.sampled

NUMPY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sqrt": np.sqrt, "exp": np.exp, "log": np.log, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin,
    "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "erf": erf,
}  # fmt: skip
RANGES = {
    "tanh": (-1.0, 1.0), "erf": (-1.0, 1.0), "sin": (-1.0, 1.0), "cos": (-1.0, 1.0), "exp": (0.0, np.inf),
    "cosh": (1.0, np.inf), "asin": (-np.pi / 2, np.pi / 2), "atan": (-np.pi / 2, np.pi / 2), "acos": (0.0, np.pi),
}  # fmt: skip


def compiled(name: str, dtype: DType, target: str = TARGETS[0], lanes: int | None = None) -> Elementwise:
    def body(e: Emitter, arguments: list[str], lanes: int, mask: str | None, status: str) -> str:
        return vector_math.FUNCTIONS[name](Vector(e, arguments[0], load_store.register_type(dtype), lanes)).name

    return Elementwise(body, [dtype], dtype, target, lanes)


def over_all_exponents(dtype: np.dtype, count: int) -> np.ndarray:
    """Return numbers of both signs and every exponent, with denormals, infinities and NaN."""
    bits, mantissa = dtype.itemsize * 8, np.finfo(dtype).nmant
    unsigned = np.dtype(f"u{dtype.itemsize}")
    rng = np.random.default_rng(1)
    exponents = np.arange(1 << (bits - 1 - mantissa), dtype=unsigned) << unsigned.type(mantissa)
    sampled = rng.integers(0, 1 << mantissa, (exponents.size, count), dtype=unsigned)
    ends = [0, 1, 2, 1 << (mantissa - 1), (1 << mantissa) - 2, (1 << mantissa) - 1]
    sampled[:, : len(ends)] = np.array(ends, unsigned)
    x = (exponents[:, None] | sampled).ravel().view(dtype)
    near = rng.uniform(-12, 12, 1 << 16), rng.uniform(-1.1, 1.1, 1 << 16), rng.uniform(-750, 750, 1 << 15)
    return np.concatenate([x, -x, *(part.astype(dtype) for part in near)])


def units(actual: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return the error in units in the last place of the exact value; 0 if equal to the rounded value."""
    nmant, least = np.finfo(actual.dtype).nmant, np.finfo(actual.dtype).minexp
    with np.errstate(all="ignore"):
        rounded = exact.astype(actual.dtype)
        _, exponent = np.frexp(exact)
        unit = np.ldexp(exact.dtype.type(1), np.maximum(exponent - 1, least) - nmant)
        off = np.abs(actual.astype(exact.dtype) - exact) / unit
    same = (actual == rounded) | (np.isnan(actual) & np.isnan(rounded))
    return np.where(same, 0.0, np.nan_to_num(off.astype(np.float64), nan=np.inf))


def check(name: str, actual: np.ndarray, exact: np.ndarray, x: np.ndarray, most: float = 2.0) -> None:
    off = units(actual, exact)
    worst = int(off.argmax())
    assert off[worst] <= most, f"{name}({x[worst]!r}) is {actual[worst]!r}, not {exact[worst]!r}"
    signs = (np.signbit(actual) != np.signbit(exact)) & ~np.isnan(exact)
    assert not signs.any(), f"{name}({x[signs][0]!r}) has the wrong sign"
    if name in RANGES:
        low, high = (np.asarray(end).astype(actual.dtype) for end in RANGES[name])
        number = actual[~np.isnan(actual)]
        assert low <= number.min() and number.max() <= high


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", vector_math.FUNCTIONS)
def test_float_within_two_units_over_every_exponent(name: str, target: str) -> None:
    x = over_all_exponents(np.dtype(np.float32), 512)
    with np.errstate(all="ignore"):
        exact = NUMPY[name](x.astype(np.float64))
    check(name, compiled(name, t.FLOAT, target)(x), exact, x)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="expected a long double with more precision than double")
@pytest.mark.parametrize("name", vector_math.FUNCTIONS)
def test_double_within_two_units_over_every_exponent(name: str) -> None:
    x = over_all_exponents(np.dtype(np.float64), 32)
    with np.errstate(all="ignore"):
        exact = erf(x).astype(np.longdouble) if name == "erf" else NUMPY[name](x.astype(np.longdouble))
    check(name, compiled(name, t.DOUBLE)(x), exact, x)


SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.0, -2.0, 0.5, -0.5, 1e-45, -1e-45, 1e30, -1e30]


@pytest.mark.parametrize("dtype", [t.FLOAT, t.DOUBLE], ids=["float", "double"])
@pytest.mark.parametrize("name", vector_math.FUNCTIONS)
def test_special_values(name: str, dtype: DType) -> None:
    x = np.array(SPECIAL, numpy_dtype(dtype))
    with np.errstate(all="ignore"):
        expected = NUMPY[name](x.astype(np.float64)).astype(x.dtype)
    actual = compiled(name, dtype)(x)
    exact = ~np.isfinite(expected) | (expected == 0) | (np.abs(expected) == 1)
    np.testing.assert_array_equal(actual[exact], expected[exact])
    np.testing.assert_array_equal(np.signbit(actual[expected == 0]), np.signbit(expected[expected == 0]))


@pytest.mark.parametrize("name", ["exp", "sin", "tanh", "asin"])
def test_results_do_not_depend_on_the_number_of_lanes(name: str) -> None:
    x = np.linspace(-5, 5, 173).astype(np.float32)
    x[77] = 1e30
    results = [compiled(name, t.FLOAT, lanes=lanes)(x) for lanes in (1, 4, 32)]
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "erf", "asin", "atan", "asinh", "sinh"])
def test_monotonous_where_the_function_is(name: str) -> None:
    x = np.sort(np.random.default_rng(0).uniform(0, 1, 1 << 18).astype(np.float32))
    actual = compiled(name, t.FLOAT)(x)
    # Neighbours may be out of order by the error of either.
    assert (np.diff(actual) >= -2 * np.spacing(np.abs(actual[1:]))).all()


# Powers.


def raised(dtype: DType, exponent: float | None = None) -> Elementwise:
    def body(e: Emitter, arguments: list[str], lanes: int, mask: str | None, status: str) -> str:
        element = load_store.register_type(dtype)
        by = arguments[1] if exponent is None else load_store.constant(dtype, exponent, lanes)
        return vector_math.power(Vector(e, arguments[0], element, lanes), Vector(e, by, element, lanes)).name

    return Elementwise(body, [dtype] * (2 if exponent is None else 1), dtype)


POWER_SPECIAL = [*SPECIAL, 3.0, -3.0, 1.5, -1.5, 16777215.0, 16777217.0, 3e9, -3e9, 1e38]


def test_power_of_float() -> None:
    pairs = np.array(list(itertools.product(POWER_SPECIAL, POWER_SPECIAL)), np.float32)
    rng = np.random.default_rng(0)
    x = np.concatenate([np.exp(rng.uniform(-88, 88, 1 << 16)), -np.exp(rng.uniform(-4, 4, 1 << 14)), pairs[:, 0]])
    y = np.concatenate([rng.uniform(-9, 9, 1 << 16), rng.integers(-9, 10, 1 << 14), pairs[:, 1]])
    x, y = x.astype(np.float32), y.astype(np.float32)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
    check("pow", raised(t.FLOAT)(x, y), exact, x)


def test_power_of_double_is_the_library() -> None:
    x, y = np.array(list(itertools.product(POWER_SPECIAL, POWER_SPECIAL)), np.float64).T
    with np.errstate(all="ignore"):
        np.testing.assert_array_max_ulp(raised(t.DOUBLE)(x, y), np.power(x, y), maxulp=2)


@pytest.mark.parametrize("exponent", [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 7.0])
def test_constant_exponents(exponent: float) -> None:
    x = np.concatenate([over_all_exponents(np.dtype(np.float32), 64), np.array(POWER_SPECIAL, np.float32)])
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.longdouble), np.longdouble(exponent)).astype(np.float64)
    check("pow", raised(t.FLOAT, exponent)(x), exact, x)


@pytest.mark.parametrize("target", TARGETS)
def test_logistic_is_as_exact_as_its_formula(target: str) -> None:
    def body(e: Emitter, arguments: list[str], lanes: int, mask: str | None, status: str) -> str:
        y, x = (Vector(e, name, "float", lanes) for name in arguments)
        return vector_math_f32.logistic(y, x).name

    x = over_all_exponents(np.dtype(np.float32), 64)
    with np.errstate(all="ignore"):
        wide = x.astype(np.longdouble)
        for y in (np.ones_like(x), x):
            actual = Elementwise(body, [t.FLOAT] * 2, t.FLOAT, target)(y, x)
            exact, formula = y / (1 + np.exp(-wide)), y / (1 + np.exp(-x))
            # Further away, the power is infinite or the result is denormal.
            near = (np.abs(x) < 87) & (np.abs(exact) > np.finfo(np.float32).tiny)
            check("logistic", actual[near], exact[near], x[near], most=4.0)
            np.testing.assert_allclose(actual[~near], formula[~near], rtol=1e-6, atol=1e-42)


@pytest.mark.parametrize("target", [name for name in TARGETS if name != "neon"])
@pytest.mark.parametrize("slope", [1.0, -1.0, 1.702])
@pytest.mark.parametrize("degree", sorted(vector_math_f32.POWER_ERRORS))
def test_rough_logistic_is_as_near_as_its_power(degree: int, slope: float, target: str) -> None:
    def body(e: Emitter, arguments: list[str], lanes: int, mask: str | None, status: str) -> str:
        y, x = (Vector(e, name, "float", lanes) for name in arguments)
        (result,) = vector_math_f32.rough_logistics([y], [x], slope, degree)
        return result.name

    x = over_all_exponents(np.dtype(np.float32), 16)
    x = x[np.isfinite(x)]
    wide = x.astype(np.longdouble)
    with np.errstate(all="ignore"):
        share = 1 / (1 + np.exp(-slope * wide))
    for y in (np.ones_like(x), x):
        actual = Elementwise(body, [t.FLOAT] * 2, t.FLOAT, target)(y, x)
        # A power that is wrong by a share changes the quotient y * s by y * s * (1 - s) times as much.
        error = vector_math_f32.POWER_ERRORS[degree] + 1.2e-7 * np.abs(slope * wide)
        bound = np.abs(y) * share * (1 - share) * error + np.abs(y * share) * 2.0**-23 + 1e-37 * (1 + np.abs(wide))
        off = np.abs(actual - y * share)
        worst = int((off - bound).argmax())
        assert off[worst] <= bound[worst], f"{x[worst]!r}: {actual[worst]!r}, not {(y * share)[worst]!r}"
