"""The value of every primitive, by numpy: the oracle for every other implementation.

A rule receives the type of the result with sizes as numbers, the operands as arrays and the parameters. Element types
without numpy arithmetic (of 16 bits and fewer) are widened, and every result is rounded once.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from sardonyx.base.blas_threads import products
from sardonyx.core.ir import types as t
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.ir.types import DType, TensorType, numpy_dtype
from sardonyx.core.rules.erf import erf
from sardonyx.core.rules.extrema import maximum, minimum, reduce_in_order
from sardonyx.core.rules.numpy_windows import convolve, find_extrema, reduce_windows, spread
from sardonyx.errors import ExecutionError

Array = np.ndarray[Any, Any]
NumpyRule = Callable[..., Any]

NUMPY_RULES: dict[str, NumpyRule] = {}

_WIDER: dict[np.dtype, np.dtype] = {
    **{numpy_dtype(d): np.dtype(np.float32) for d in t.FLOATS if d not in (t.DOUBLE, t.FLOAT, t.FLOAT16)},
    **{numpy_dtype(d): np.dtype(np.int32) for d in (t.DType.INT4, t.DType.INT2, t.DType.UINT4, t.DType.UINT2)},
}
"""Types of numpy arithmetic on the element types of ``ml_dtypes``."""

_ACCUMULATOR = {**_WIDER, np.dtype(np.float16): np.dtype(np.float32)}
"""Accumulator types of long sums."""


def numpy_rule(name: str) -> Callable[[NumpyRule], NumpyRule]:
    """Register the numpy rule of a primitive."""

    def register(rule: NumpyRule) -> NumpyRule:
        NUMPY_RULES[name] = rule
        return rule

    return register


def _widen(x: Array, wider: dict[np.dtype, np.dtype] = _WIDER) -> Array:
    dtype = wider.get(x.dtype)
    return x if dtype is None else x.astype(dtype)


def _shape(type: TensorType) -> tuple[int, ...]:
    return type.shape  # type: ignore[return-value]


# Elementwise.


def _divide(x: Array, y: Array) -> Any:
    if x.dtype.kind not in "iu":
        return np.divide(x, y)
    _require_nonzero(x, y)
    if x.dtype.kind == "u":
        return np.floor_divide(x, y)
    quotient = np.floor_divide(x, y)
    # Rounded down: one too low if the signs differ and the remainder is not 0.
    return quotient + ((quotient * y != x) & ((x < 0) != (y < 0))).astype(x.dtype)


def _remainder(x: Array, y: Array) -> Any:
    if x.dtype.kind in "iu":
        _require_nonzero(x, y)
    return np.fmod(x, y)


def _require_nonzero(x: Array, divisor: Array) -> None:
    if x.size and not divisor.all():
        where = tuple(int(i) for i in np.argwhere(divisor == 0)[0])
        raise ExecutionError(f"an integer is divided by zero, at {list(where)}.", remedy="Give divisors other than 0.")


def _power(x: Array, y: Array) -> Any:
    if x.dtype.kind == "i" and (y < 0).any():
        if ((x == 0) & (y < 0)).any():
            raise ExecutionError("an integer 0 is raised to a negative power.", remedy="Give another base.")
        # The exact power, rounded toward zero: 0 except for bases 1 and -1.
        with np.errstate(all="ignore"):
            return np.where(y < 0, np.trunc(np.power(x.astype(np.float64), y)), 0).astype(x.dtype) + np.where(
                y < 0, 0, np.power(x, np.maximum(y, 0))
            ).astype(x.dtype)
    return np.power(x, y)


def _total_shift(shift: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Return a shift whose result for negative or excessive amounts is the sign fill."""

    def rule(x: Array, by: Array) -> Array:
        bits = x.dtype.itemsize * 8
        inside = (by >= 0) & (by < bits)
        filled = x >> (bits - 1) if shift is np.right_shift and x.dtype.kind == "i" else np.zeros_like(x)
        return np.where(inside, shift(x, np.where(inside, by, 0)), filled)

    return rule


_UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": np.negative, "abs": np.abs, "sign": np.sign, "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin,
    "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "erf": erf, "not": np.invert,
}  # fmt: skip

_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _divide, "rem": _remainder, "pow": _power,
    "max": maximum, "min": minimum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shift_left": _total_shift(np.left_shift), "shift_right": _total_shift(np.right_shift),
    "equal": np.equal, "less": np.less,
}  # fmt: skip


def _unary(op: str) -> NumpyRule:
    ufunc = _UNARY[op]

    def rule(type: TensorType, x: Array) -> Array:
        return ufunc(_widen(x)).astype(x.dtype, copy=False)

    return rule


def _binary(op: str) -> NumpyRule:
    ufunc = _BINARY[op]
    compares = op in ("equal", "less")

    def rule(type: TensorType, x: Array, y: Array) -> Array:
        result = ufunc(_widen(x), _widen(y))
        return result.astype(np.bool_ if compares else x.dtype, copy=False)

    return rule


for _primitive in PRIMITIVES.values():
    if _primitive.kind == "unary":
        NUMPY_RULES[_primitive.name] = _unary(_primitive.name)
    elif _primitive.kind == "binary":
        NUMPY_RULES[_primitive.name] = _binary(_primitive.name)


@numpy_rule("select")
def _select(type: TensorType, condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition, x, y)


# Conversions.


@numpy_rule("convert")
def _convert(type: TensorType, x: Array, *, dtype: DType, saturate: bool, rounding: str) -> Any:
    target = numpy_dtype(dtype)
    if x.dtype == object:
        return _parse_texts(x, dtype)
    if dtype == t.STRING:
        return _format_texts(x)
    if dtype == t.BOOL:
        return _widen(x) != 0
    if dtype in t.FLOAT8 and saturate:
        return _saturate(_widen(x), target)
    if dtype == DType.FLOAT8E8M0:
        return _power_of_two(_widen(x), saturate, rounding)
    if target in _WIDER and t.is_integer(dtype):
        return x.astype(np.int64).astype(np.int32).astype(target)
    if x.dtype.kind == "c" and target.kind != "c":
        x = x.real
    return _widen(x).astype(target)


def _saturate(x: Array, target: np.dtype) -> Array:
    limit = np.float32(ml_dtypes.finfo(target).max)  # type: ignore[no-untyped-call]
    wide = x.astype(np.float32) if x.dtype != np.float64 else x
    return np.where(np.isnan(wide), wide, np.clip(wide, -limit, limit)).astype(target)


def _power_of_two(x: Array, saturate: bool, rounding: str) -> Array:
    """Convert to an exponent alone (8 bits, bias 127, 255 is NaN), as ONNX Cast defines."""
    magnitude = np.abs(x.astype(np.float32))
    bits = magnitude.view(np.uint32) if magnitude.flags.c_contiguous else magnitude.copy().view(np.uint32)
    exponent, fraction = (bits >> 23).astype(np.int32), bits & 0x7FFFFF
    if rounding == "up":
        up = (fraction > 0) & ~((exponent == 0) & (fraction <= 0x400000))
    elif rounding == "nearest":
        up = (
            (fraction > 0x400000)
            | ((fraction == 0x400000) & (exponent > 0))
            | ((exponent == 0) & (fraction > 0x200000) & (fraction < 0x400000))
        )
    else:
        up = np.zeros(x.shape, np.bool_)
    # Denormals are below the least power; half of the least normal rounds up.
    code = exponent + up
    code = np.where((code > 254) & (exponent <= 254), 254 if saturate else 255, code)
    code = np.where(np.isinf(magnitude), 254 if saturate else 255, code)
    code = np.where(np.isnan(magnitude), 255, code)
    return code.astype(np.uint8).view(numpy_dtype(DType.FLOAT8E8M0))


def _parse_texts(x: Array, dtype: DType) -> Array:
    if dtype == t.STRING:
        return x
    kind = t.kind(dtype)
    values: list[Any] = []
    for text in x.ravel().tolist():
        word = text.decode() if isinstance(text, bytes) else str(text)
        try:
            values.append(_number(word, kind))
        except (ValueError, OverflowError):
            raise ExecutionError(f"cannot convert the text {word!r} to {dtype.name.lower()}.") from None
    wide = {"int": np.int64, "uint": np.uint64, "complex": np.complex128}.get(kind, np.float64)
    try:
        return np.array(values, wide).reshape(x.shape).astype(numpy_dtype(dtype))
    except OverflowError as error:
        raise ExecutionError(f"cannot convert a text to {dtype.name.lower()}: {error}.") from None


def _number(word: str, kind: t.Kind) -> Any:
    if kind == "complex":
        return complex(word)
    if kind in ("int", "uint"):
        return int(word) if word.strip().lstrip("+-").isdigit() else int(float(word))
    return float(word)


def _format_texts(x: Array) -> Array:
    wide = _widen(x)
    words = [str(item) for item in (wide.ravel() if wide.dtype.kind == "f" else wide.ravel().tolist())]
    texts = np.empty(len(words), object)
    texts[:] = words
    return texts.reshape(x.shape)


@numpy_rule("bitcast")
def _bitcast(type: TensorType, x: Array, *, dtype: DType) -> Array:
    target = numpy_dtype(dtype)
    if x.dtype.itemsize == target.itemsize:
        return np.ascontiguousarray(x).view(target).reshape(_shape(type))
    if x.dtype.itemsize < target.itemsize:
        return np.ascontiguousarray(x).view(target).reshape(_shape(type))
    return np.ascontiguousarray(x)[..., None].view(target).reshape(_shape(type))


# Contractions.

_REDUCTIONS: dict[str, Any] = {
    "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
    "and": np.bitwise_and, "or": np.bitwise_or,
}  # fmt: skip


def identity_of(kind: str, dtype: np.dtype) -> Any:
    """Return the result of a reduction of no elements."""
    if kind in ("add", "mul", "or"):
        return dtype.type(1 if kind == "mul" else 0)
    if kind == "and":
        return dtype.type(True) if dtype.kind == "b" else np.invert(dtype.type(0))
    if dtype.kind == "b":
        return np.bool_(kind == "min")
    if dtype.kind in "iu":
        return dtype.type(np.iinfo(dtype).min if kind == "max" else np.iinfo(dtype).max)
    return dtype.type(-np.inf if kind == "max" else np.inf)


@numpy_rule("reduce")
def _reduce(type: TensorType, x: Array, *, kind: str, axes: tuple[int, ...]) -> Any:
    if kind in ("argmax", "argmin"):
        return (np.argmax if kind == "argmax" else np.argmin)(_widen(x), axis=axes[0])
    wide = _widen(x, _ACCUMULATOR)

    def reduced(x: Array, identity: Any) -> Any:
        return _REDUCTIONS[kind].reduce(x, axis=axes, dtype=x.dtype, initial=identity)

    return np.asarray(_in_order(kind, wide, reduced)).astype(x.dtype, copy=False)


def _in_order(kind: str, x: Array, reduce: Callable[[Array, Any], Any]) -> Any:
    """Return a reduction of an operand, whose extrema do not depend on the order of zeros."""
    identity = identity_of(kind, x.dtype)
    return reduce_in_order(kind, x, identity, reduce) if kind in ("max", "min") else reduce(x, identity)


_FEW_PRODUCTS = 1 << 12
"""Number of products up to which numpy's integer products are fast enough."""


def _product_operands(x: Array, y: Array, depth: int, dtype: np.dtype, products: int) -> tuple[Array, Array]:
    """Return the operands of sums of ``depth`` products in the accumulator type.

    Integers use float64, which has fast products, if all sums are exact in float64.
    """
    if dtype.kind not in "iu":
        wide = _ACCUMULATOR.get(dtype, dtype)
        return x.astype(wide, copy=False), y.astype(wide, copy=False)
    x, y = _widen(x), _widen(y)
    if products > _FEW_PRODUCTS and depth * _magnitude(x) * _magnitude(y) < 1 << 53:
        return x.astype(np.float64), y.astype(np.float64)
    return x.astype(dtype, copy=False), y.astype(dtype, copy=False)


def _magnitude(x: Array) -> int:
    return max(-int(x.min()), int(x.max())) if x.size else 0


def _product_result(x: Array, dtype: np.dtype) -> Array:
    if dtype.kind in "iu" and x.dtype.kind == "f":
        return x.astype(np.int64).astype(dtype)
    return x.astype(dtype, copy=False)


@numpy_rule("contract")
def _contract(
    type: TensorType,
    x: Array,
    y: Array,
    *,
    batch: tuple[tuple[int, int], ...],
    left: tuple[int, ...],
    right: tuple[int, ...],
    dtype: DType,
) -> Array:
    target = numpy_dtype(dtype)
    x_batch, y_batch = [a for a, _ in batch], [b for _, b in batch]
    x_free = [a for a in range(x.ndim) if a not in x_batch and a not in left]
    y_free = [b for b in range(y.ndim) if b not in y_batch and b not in right]
    shared = [x.shape[a] for a in x_batch]
    inner = math.prod(x.shape[a] for a in left)
    rows, columns = (math.prod(v.shape[i] for i in free) for v, free in ((x, x_free), (y, y_free)))
    x, y = _product_operands(x, y, inner, target, math.prod(shared) * rows * columns * inner)
    a = x.transpose(*x_batch, *x_free, *left).reshape(*shared, rows, inner)
    b = y.transpose(*y_batch, *right, *y_free).reshape(*shared, inner, columns)
    with products(rows * columns * inner):
        result = np.matmul(a, b)
    return _product_result(result, target).reshape(_shape(type))


@numpy_rule("convolve")
def _convolve(
    type: TensorType,
    x: Array,
    w: Array,
    *,
    strides: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    base_dilation: tuple[int, ...],
    kernel_dilation: tuple[int, ...],
    dtype: DType,
) -> Array:
    target, shape = numpy_dtype(dtype), _shape(type)
    depth = math.prod(w.shape[2:])
    x, w = _product_operands(x, w, depth, target, math.prod(shape) * depth)
    return _product_result(convolve(x, w, shape[3:], strides, padding, base_dilation, kernel_dilation), target)


@numpy_rule("reduce_window")
def _reduce_window(
    type: TensorType,
    x: Array,
    *,
    kind: str,
    window: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
) -> Any:
    shape, wide = _shape(type), _widen(x, _ACCUMULATOR)
    out = shape[len(shape) - len(window) :]
    if 0 in shape:
        return np.empty(shape, numpy_dtype(type.dtype))
    if kind.startswith("arg"):
        return find_extrema(wide, kind == "argmax", window, strides, padding, dilation, out)

    def reduced(x: Array, identity: Any) -> Array:
        return reduce_windows(x, _REDUCTIONS[kind], identity, window, strides, padding, dilation, out)

    result: Array = _in_order(kind, wide, reduced)
    return result.astype(x.dtype, copy=False)


# Movement.


@numpy_rule("reshape")
def _reshape(type: TensorType, x: Array, *, shape: tuple[int, ...]) -> Array:
    return x.reshape(shape)


@numpy_rule("permute")
def _permute(type: TensorType, x: Array, *, axes: tuple[int, ...]) -> Array:
    return x.transpose(axes)


@numpy_rule("broadcast")
def _broadcast(type: TensorType, x: Array, *, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(x, shape)


@numpy_rule("slice")
def _slice(
    type: TensorType, x: Array, *, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]
) -> Array:
    return x[tuple(map(slice, starts, limits, strides))]


@numpy_rule("pad")
def _pad(
    type: TensorType, x: Array, value: Array, *, low: Sequence[int], high: Sequence[int], interior: Sequence[int]
) -> Array:
    filler = np.broadcast_to(value, ()).item() if x.dtype == object else value[()]
    return spread(x, list(zip(low, high, strict=True)), [between + 1 for between in interior], filler)


@numpy_rule("concat")
def _concat(type: TensorType, *xs: Array, axis: int) -> Array:
    return np.concatenate(xs, axis=axis)


def _numpy_indices(x: Array, indices: Array, batch: int) -> tuple[Array, ...]:
    """Return the index vectors as numpy indices, after checking the range."""
    depth = indices.shape[-1]
    for i in range(depth):
        column, size = indices[..., i], x.shape[batch + i]
        if column.size and (int(column.min()) < 0 or int(column.max()) >= size):
            # The language adds the size to indices from the end: a negative one was out of range before.
            wrong = int(column.min()) - size if int(column.min()) < 0 else int(column.max())
            raise ExecutionError(
                f"index {wrong} is out of range for an axis of {size}.", remedy="Give indices within the axis."
            )
    leading = [np.arange(x.shape[axis]).reshape((-1,) + (1,) * (indices.ndim - 2 - axis)) for axis in range(batch)]
    return (*leading, *(indices[..., i] for i in range(depth)))


@numpy_rule("gather")
def _gather(type: TensorType, x: Array, indices: Array, *, batch: int) -> Array:
    if 0 in _shape(type):
        return np.empty(_shape(type), x.dtype)  # No element is read: every index is valid.
    indices = _widen(indices)
    positions = _numpy_indices(x, indices, batch)
    if batch == 0 and indices.shape[-1] == 1:
        return np.take(x, indices[..., 0], axis=0)
    result = x[positions] if positions else x
    return result if indices.shape[-1] else np.broadcast_to(result, _shape(type))


@numpy_rule("scatter")
def _scatter(type: TensorType, x: Array, indices: Array, updates: Array, *, kind: str, batch: int) -> Array:
    result = _widen(x).copy()
    if not updates.size:
        return result.astype(x.dtype, copy=False)  # No element is written: every index is valid.
    positions = _numpy_indices(x, _widen(indices), batch)
    updates = _widen(updates)
    if kind == "set":
        result[positions] = updates
    elif kind not in ("max", "min"):
        _REDUCTIONS[kind].at(result, positions, updates)
    else:
        result = _scatter_extrema(result, positions, updates, kind)
    return result.astype(x.dtype, copy=False)


def _scatter_extrema(x: Array, positions: tuple[Array, ...], updates: Array, kind: str) -> Array:
    size = x.size

    def merged(both: Array, identity: Any) -> Array:
        base = both[:size].reshape(x.shape)
        _REDUCTIONS[kind].at(base, positions, both[size:].reshape(updates.shape))
        return base

    result: Array = _in_order(kind, np.concatenate([x.ravel(), updates.ravel()]), merged)
    return result


@numpy_rule("reverse")
def _reverse(type: TensorType, x: Array, *, axes: tuple[int, ...]) -> Array:
    return np.flip(x, axes)


# Sources.


@numpy_rule("iota")
def _iota(type: TensorType, *, shape: tuple[int, ...], axis: int, dtype: DType) -> Array:
    line = np.arange(shape[axis]).astype(numpy_dtype(dtype))
    return np.broadcast_to(line.reshape((-1,) + (1,) * (len(shape) - axis - 1)), shape)


@numpy_rule("dims")
def _dims(type: TensorType, *, sizes: tuple[int, ...], shape: tuple[int, ...], dtype: DType) -> Array:
    return np.array(sizes, numpy_dtype(dtype)).reshape(shape)


# Order.


@numpy_rule("sort")
def _sort(type: TensorType, x: Array, *, axis: int, descending: bool) -> Any:
    x = _widen(x)
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    backwards = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(backwards, axis)


@numpy_rule("top_k")
def _top_k(type: TensorType, x: Array, *, axis: int, k: int, largest: bool) -> Array:
    if k > x.shape[axis]:
        raise ExecutionError(f"expected k ≤ {x.shape[axis]}, got {k}.", remedy="Request fewer elements.")
    order = _sort(type, x, axis=axis, descending=largest)
    return np.take(order, np.arange(k), axis=axis)


@numpy_rule("scan")
def _scan(type: TensorType, x: Array, *, kind: str, axis: int) -> Any:
    wide = _widen(x, _ACCUMULATOR)

    def accumulated(x: Array, identity: Any) -> Array:
        return np.asarray(_REDUCTIONS[kind].accumulate(x, axis=axis, dtype=x.dtype))

    result: Array = _in_order(kind, wide, accumulated)
    return result.astype(x.dtype, copy=False)


# Special.


@numpy_rule("fft")
def _fft(type: TensorType, x: Array, *, inverse: bool) -> Array:
    if x.shape[-1] == 0:
        return x
    # The scaled inverse is computed in the precision of the operand, the unscaled one in double.
    result = np.fft.ifft(x) * x.shape[-1] if inverse else np.fft.fft(x)
    return result.astype(x.dtype, copy=False)


@numpy_rule("determinant")
def _determinant(type: TensorType, x: Array) -> Array:
    wide = _widen(x, _ACCUMULATOR)
    return np.asarray(np.linalg.det(wide)).astype(x.dtype, copy=False)


@numpy_rule("random")
def _random(
    type: TensorType,
    *,
    kind: str,
    shape: tuple[int, ...],
    dtype: DType,
    seed: float | None,
    identity: str,
    run: int = 0,
) -> Array:
    if seed is not None:
        # numpy's legacy generator: the source of the standard's own test data.
        legacy = np.random.RandomState(int(seed) & 0xFFFFFFFF)
        numbers = legacy.random_sample(shape) if kind == "uniform" else legacy.standard_normal(shape)
    else:
        generator = np.random.Generator(np.random.Philox(key=[zlib.crc32(identity.encode()), run]))
        numbers = generator.random(shape) if kind == "uniform" else generator.standard_normal(shape)
    return np.asarray(numbers).astype(numpy_dtype(dtype))


@numpy_rule("stop_gradient")
def _stop_gradient(type: TensorType, x: Array) -> Array:
    return x
