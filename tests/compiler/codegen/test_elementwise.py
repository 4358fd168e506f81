"""Machine code of every elementwise primitive against the interpreter's rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.compiler.elementwise import TARGETS, Elementwise

from sardonyx.compiler.analysis.element_types import DTYPES, SMALL_DTYPES
from sardonyx.compiler.codegen import elementwise, load_store, minifloats
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.core.ir import types as t
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.ir.types import DType, TensorType, numpy_dtype
from sardonyx.core.rules.numpy_rules import NUMPY_RULES
from sardonyx.core.rules.type_rules import TYPE_RULES
from sardonyx.errors import SardonyxError, TypeMismatchError, UnsupportedError

pytestmark = pytest.mark.sampled

ELEMENTWISE = {n for n, p in PRIMITIVES.items() if p.kind in ("unary", "binary", "ternary", "conversion")}
COUNTS = {"unary": 1, "binary": 2, "ternary": 3}
FEW = ("add", "max", "neg", "exp", "less", "select")


def operand_types(name: str, dtype: DType) -> list[DType]:
    arguments = [dtype] * COUNTS[PRIMITIVES[name].kind]
    return [t.BOOL, *arguments[1:]] if name == "select" else arguments


def accepted(name: str, dtype: DType) -> bool:
    try:
        TYPE_RULES[name](*(TensorType(operand, (1,)) for operand in operand_types(name, dtype)))
    except TypeMismatchError:
        return False
    return True


BYTES = tuple(minifloats.FORMATS)
"""One-byte floats: computed like ``float16``, so that a few primitives cover all."""

CASES = [
    (name, dtype)
    for name in sorted(ELEMENTWISE - {"convert", "bitcast"})
    for dtype in DTYPES
    if dtype != DType.FLOAT8E8M0 and accepted(name, dtype) and (dtype not in BYTES or name in FEW)
]


def test_the_table_is_complete() -> None:
    assert set(elementwise.ARITHMETIC) == ELEMENTWISE
    for name, dtype in CASES:
        assert elementwise.supported(name, operand_types(name, dtype))


def compiled(
    name: str, dtypes: Sequence[DType], result: DType, target: str = TARGETS[0], params: Mapping[str, Any] | None = None
) -> Elementwise:
    def body(e: Emitter, arguments: list[str], lanes: int, mask: str | None, status: str) -> str:
        return elementwise.emit(e, name, dtypes, arguments, lanes, params, mask=mask, status=status)

    return Elementwise(body, dtypes, result, target)


def line(dtype: DType) -> np.ndarray:
    """Return test values: all values of small types."""
    kind, numpy = t.kind(dtype), numpy_dtype(dtype)
    rng = np.random.default_rng(3)
    if kind == "bool":
        return np.array([False, True])
    if dtype.bitwidth <= 8:
        return np.arange(1 << dtype.bitwidth, dtype=np.uint8).view(numpy)
    if kind in ("int", "uint"):
        limits = np.iinfo(numpy)
        ends = [limits.min, limits.min + 1, limits.max, limits.max - 1, 0, 1, 2, 3, 5, 7, 31, 33, 63, 64]
        signs = [-1, -2, -3, -7, -64] if kind == "int" else []
        return np.concatenate([np.array([*ends, *signs], numpy), rng.integers(limits.min, limits.max, 40, numpy)])
    special = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, np.inf, -np.inf, np.nan, 1e-40, 1e30, -7.75, 448.0]
    spread = np.ldexp(rng.uniform(-1, 1, 200), rng.integers(-20, 18, 200))
    with np.errstate(over="ignore"):
        return np.concatenate([special, rng.standard_normal(40), rng.standard_normal(40) * 50, spread]).astype(numpy)


def operands(dtypes: Sequence[DType]) -> list[np.ndarray]:
    """Return all pairs of test values, with both conditions."""
    if len(dtypes) == 1:
        return [line(dtypes[0])]
    step = 1 if dtypes[-1].bitwidth <= 8 else 3
    x, y = (part.ravel() for part in np.meshgrid(line(dtypes[-2]), line(dtypes[-1])[::step]))
    return [x, y] if len(dtypes) == 2 else [np.arange(x.size) % 3 == 0, x, y]


@pytest.mark.parametrize("name, dtype", CASES, ids=[f"{name}-{dtype.name}" for name, dtype in CASES])
def test_results_equal_the_interpreter(name: str, dtype: DType) -> None:
    dtypes = operand_types(name, dtype)
    arguments = operands(dtypes)
    if elementwise.can_fault(name, dtypes):
        # numpy computes negative exponents in float64, which does not distinguish large odd from even integers.
        base, by = (operand.astype(np.int64) for operand in arguments)
        allowed = by != 0 if name != "pow" else (by >= 0) | ((base != 0) & (by > -(1 << 53)))
        arguments = [operand[allowed] for operand in arguments]
    type = TYPE_RULES[name](*(TensorType(d, x.shape) for d, x in zip(dtypes, arguments, strict=True)))
    assert isinstance(type, TensorType)
    if name == "round" and t.is_integer(dtype):
        expected = arguments[0]  # numpy goes through float64, which holds no integer of 64 bits.
    else:
        with np.errstate(all="ignore"):
            expected = NUMPY_RULES[name](type, *arguments)
    run = compiled(name, dtypes, type.dtype)
    actual = run(*arguments)
    assert run.status == 0
    if t.is_float(type.dtype) and name not in EXACT:
        close(actual, expected, type.dtype)
    else:
        equal(actual, expected)


EXACT = {
    "neg", "abs", "sign", "floor", "ceil", "round", "sqrt", "add", "sub", "mul", "div", "rem", "max", "min", "select",
}  # fmt: skip


def equal(actual: np.ndarray, expected: np.ndarray) -> None:
    """Assert equality, including NaN; types unknown to ``numpy`` are compared as float32, where NaN is recognized."""
    assert actual.dtype == expected.dtype
    if actual.dtype.isbuiltin != 1:
        actual, expected = actual.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(actual, expected)


def close(actual: np.ndarray, expected: np.ndarray, dtype: DType) -> None:
    """Assert an error of at most 3 units in the last place of the result type."""
    x, y = actual.astype(np.float64), expected.astype(np.float64)
    unit = float(ml_dtypes.finfo(numpy_dtype(dtype)).eps)
    np.testing.assert_allclose(x, y, rtol=3 * unit, atol=1e-44)


@pytest.mark.parametrize("target", TARGETS[1:])
@pytest.mark.parametrize("name", sorted(ELEMENTWISE - {"convert", "bitcast"}))
def test_on_smaller_targets(name: str, target: str) -> None:
    dtype = next(d for d in (t.INT32, t.FLOAT, t.INT8) if accepted(name, d))
    dtypes = operand_types(name, dtype)
    arguments = [np.abs(x) + 1 if elementwise.can_fault(name, dtypes) else x for x in operands(dtypes)]
    result = t.BOOL if name in ("equal", "less") else dtype
    np.testing.assert_array_equal(
        compiled(name, dtypes, result, target)(*arguments), compiled(name, dtypes, result)(*arguments)
    )


# Faults.


@pytest.mark.parametrize("name", ["div", "rem"])
@pytest.mark.parametrize("dtype", [t.INT32, t.UINT8, t.INT64], ids=lambda d: d.name)
def test_a_zero_divisor_in_any_lane_sets_the_status(name: str, dtype: DType) -> None:
    run = compiled(name, [dtype, dtype], dtype)
    for size in (1, 7, 64, 131):
        for at in (0, size // 2, size - 1):
            x, y = np.ones(size), np.ones(size)
            run(x, y)
            assert run.status == 0
            y[at] = 0
            run(x, y)
            assert run.status == 1


def test_zero_to_a_negative_power_sets_the_status() -> None:
    run = compiled("pow", [t.INT32, t.INT32], t.INT32)
    run(np.array([0, 2]), np.array([0, -1]))
    assert run.status == 0
    run(np.array([5, 0]), np.array([5, -1]))
    assert run.status == 1


def by_constant(name: str, dtype: DType, constant: int) -> Elementwise:
    def body(e: Emitter, arguments: list[str], lanes: int, mask: str | None, status: str) -> str:
        return elementwise.emit(
            e, name, [dtype, dtype], [*arguments, load_store.constant(dtype, constant, lanes)], lanes, mask=mask
        )

    return Elementwise(body, [dtype], dtype)


@pytest.mark.parametrize("constant", [1, -1, 2, 3, -7, 127, -128])
@pytest.mark.parametrize("name", ["div", "rem"])
def test_constant_divisors_need_no_status(name: str, constant: int) -> None:
    x = line(t.INT8)
    with np.errstate(all="ignore"):
        expected = NUMPY_RULES[name](TensorType(t.INT8, x.shape), x, np.full_like(x, constant))
    np.testing.assert_array_equal(by_constant(name, t.INT8, constant)(x), expected)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5, 10])
def test_constant_exponents_need_no_status(exponent: int) -> None:
    x = line(t.INT16)
    np.testing.assert_array_equal(by_constant("pow", t.INT16, exponent)(x), np.power(x, np.int16(exponent)))


def test_primitives_that_can_fault_require_a_status() -> None:
    with pytest.raises(UnsupportedError, match="status"):
        elementwise.emit(Emitter(), "div", [t.INT32, t.INT32], ["%x", "%y"], 8)
    with pytest.raises(UnsupportedError, match="status"):
        by_constant("div", t.INT32, 0)


# Conversions.

ENDS = {t.FLOAT, t.DOUBLE, t.FLOAT16, t.INT32, t.UINT8}
PAIRS = [
    (a, b)
    for a in DTYPES
    for b in DTYPES
    if a == b or not {a, b} & SMALL_DTYPES or (a in SMALL_DTYPES and b in ENDS) or (a in ENDS and b in SMALL_DTYPES)
]
"""Every conversion among the common element types; small types to and from some common types."""


@pytest.mark.parametrize("source, result", PAIRS, ids=[f"{a.name}-{b.name}" for a, b in PAIRS])
def test_conversions(source: DType, result: DType) -> None:
    converted(source, result, saturate=True, rounding="up")


@pytest.mark.parametrize("source", [t.FLOAT, t.FLOAT16, t.DOUBLE], ids=lambda d: d.name)
@pytest.mark.parametrize("result", [*t.FLOAT8, DType.FLOAT8E8M0], ids=lambda d: d.name)
def test_conversions_without_saturation(source: DType, result: DType) -> None:
    converted(source, result, saturate=False, rounding="nearest")
    converted(source, result, saturate=False, rounding="down")


def converted(source: DType, result: DType, saturate: bool, rounding: str) -> None:
    x = line(source)
    if t.is_float(source) and t.is_integer(result):
        # Out of range, the standard leaves the result open, and numpy's result depends on the processor.
        bits = result.bitwidth
        low, high = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1)) if t.kind(result) == "int" else (-(2.0**31), 2.0**bits)
        wide = x.astype(np.float64)
        x = x[(wide >= low) & (wide < high)]
    params = {"dtype": result, "saturate": saturate, "rounding": rounding}
    with np.errstate(all="ignore"):
        expected = NUMPY_RULES["convert"](TensorType(result, x.shape), x, **params)
    equal(compiled("convert", [source], result, params=params)(x), expected)


@pytest.mark.parametrize("source", [t.FLOAT, t.DOUBLE], ids=lambda d: d.name)
@pytest.mark.parametrize("result", [t.INT8, t.UINT8, t.INT16, t.INT32], ids=lambda d: d.name)
def test_out_of_range_values_wrap_as_in_numpy(source: DType, result: DType) -> None:
    x = np.array([300.0, -1.0, -300.0, 70000.0, -70000.0, 2147483000.0], numpy_dtype(source))
    params = {"dtype": result, "saturate": True, "rounding": "up"}
    with np.errstate(all="ignore"):
        expected = NUMPY_RULES["convert"](TensorType(result, x.shape), x, **params)
    np.testing.assert_array_equal(compiled("convert", [source], result, params=params)(x), expected)


def test_double_to_float16_is_rounded_once() -> None:
    middle = np.float64(1) + 2.0**-11
    x = np.array([middle, middle + 2.0**-40, middle - 2.0**-40, 65519.999999, 65520, 2.0**-25 * (1 + 2.0**-40)])
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    params = {"dtype": t.FLOAT16, "saturate": True, "rounding": "up"}
    np.testing.assert_array_equal(compiled("convert", [t.DOUBLE], t.FLOAT16, params=params)(x), expected)


def test_a_conversion_to_a_short_float_rounds_in_registers_too() -> None:
    def body(e: Emitter, arguments: list[str], lanes: int, mask: str | None, status: str) -> str:
        params = {"dtype": t.FLOAT16, "saturate": True, "rounding": "up"}
        short = elementwise.emit(e, "convert", [t.FLOAT], arguments, lanes, params)
        return elementwise.emit(e, "convert", [t.FLOAT16], [short], lanes, {**params, "dtype": t.FLOAT})

    x = np.array([1 + 2.0**-12, 70000.0], np.float32)
    np.testing.assert_array_equal(Elementwise(body, [t.FLOAT], t.FLOAT)(x), [1.0, np.inf])


SAME_WIDTH = [(a, b) for a, b in PAIRS if a.bitwidth == b.bitwidth and (a != b or a in SMALL_DTYPES)]


@pytest.mark.parametrize("source, result", SAME_WIDTH, ids=[f"{a.name}-{b.name}" for a, b in SAME_WIDTH])
def test_bitcast_preserves_bits(source: DType, result: DType) -> None:
    x = line(source)
    if result == t.BOOL:
        x = np.array([0, 1], np.uint8).view(numpy_dtype(source))  # A bool is one of these bytes.
    actual = compiled("bitcast", [source], result, params={"dtype": result})(x)
    expected = x.view(numpy_dtype(result))
    if t.is_float(source) or t.is_float(result):
        # The payload of a NaN may change.
        number = ~np.isnan(expected.astype(np.float64)) & ~np.isnan(x.astype(np.float64))
        actual, expected = actual[number], expected[number]
    assert actual.tobytes() == expected.tobytes()


def test_unsupported_types_are_refused() -> None:
    assert not elementwise.supported("add", [t.COMPLEX64, t.COMPLEX64])
    assert not elementwise.supported("reduce", [t.FLOAT])
    assert not elementwise.supported("bitcast", [t.INT32], {"dtype": t.INT8})
    assert not elementwise.supported("convert", [t.FLOAT], {"dtype": t.STRING})
    assert not elementwise.supported("add", [DType.FLOAT8E8M0, DType.FLOAT8E8M0])
    with pytest.raises(SardonyxError, match="compiled add: complex64, complex64"):
        elementwise.emit(Emitter(), "add", [t.COMPLEX64, t.COMPLEX64], ["%x", "%y"], 4)


def test_zero_as_a_constant_is_one_instruction_of_max() -> None:
    def body(e: Emitter, arguments: list[str], lanes: int, mask: str | None, status: str) -> str:
        zero = load_store.constant(t.FLOAT, 0.0, lanes)
        return elementwise.emit(e, "max", [t.FLOAT, t.FLOAT], [arguments[0], zero], lanes)

    actual = Elementwise(body, [t.FLOAT], t.FLOAT)(np.array([-1, 2, np.nan, -np.inf, np.inf], np.float32))
    np.testing.assert_array_equal(actual, [0, 2, np.nan, 0, np.inf])
