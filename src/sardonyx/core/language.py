"""The language that operators are written in: short names over the primitives, with ONNX's broadcasting.

Axes may be negative. Sizes are ints or Dims. Numbers among operands take the element type of the tensors beside them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from sardonyx.core import types as t
from sardonyx.core.dim import Dim, Size, floor_div
from sardonyx.core.dim import equal as same
from sardonyx.core.tensor import (
    Operand,
    Tensor,
    apply,
    bind,
    broadcast_shapes,
    broadcast_to,
    constant,
    elementwise,
    size_tensor,
    sizes_of,
)
from sardonyx.core.trace import call, cond, loop, stack
from sardonyx.core.types import DType
from sardonyx.errors import NeedsValueError, ShapeError

__all__ = [
    "Operand",
    "ScatterKind",
    "Size",
    "Tensor",
    "abs_",
    "acos",
    "acosh",
    "all_of",
    "any_of",
    "arange",
    "argmax",
    "argmin",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "bitcast",
    "broadcast_shapes",
    "broadcast_to",
    "call",
    "cast",
    "ceil",
    "clip",
    "concat",
    "cond",
    "constant",
    "contract",
    "convolve",
    "cos",
    "cosh",
    "cumulative",
    "determinant",
    "einsum",
    "elements",
    "elementwise",
    "entry",
    "equal",
    "erf",
    "exp",
    "fft",
    "flatten_to",
    "floor",
    "floor_mod",
    "full",
    "full_like",
    "gather_elements",
    "gather_nd",
    "iota",
    "is_infinite",
    "is_nan",
    "log",
    "log_softmax",
    "logical_not",
    "loop",
    "matmul",
    "maximum",
    "minimum",
    "normal",
    "normalized_axes",
    "normalized_axis",
    "not_equal",
    "number",
    "of_rank",
    "of_shape",
    "one_size",
    "ones_like",
    "pad",
    "permute",
    "product",
    "reciprocal",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_product",
    "reduce_sum",
    "reduce_window",
    "remainder",
    "repeat",
    "reshape",
    "reverse",
    "round_",
    "scatter_elements",
    "scatter_nd",
    "shape_tensor",
    "shift_left",
    "shift_right",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "size_tensor",
    "sizes",
    "sizes_of",
    "slice_",
    "softmax",
    "sort",
    "sqrt",
    "squeeze",
    "stack",
    "static",
    "static_scalar",
    "stop_gradient",
    "swap_axes",
    "take",
    "tan",
    "tanh",
    "top_k",
    "uniform",
    "unsqueeze",
    "where",
    "widened",
    "zero",
    "zeros_like",
]  # fmt: skip


# What must be known while tracing.


def static(x: Tensor, what: str = "a value") -> list[int]:
    """The elements of a small integer tensor as ints.

    Raises:
        NeedsValueError: They are only known at run time.
    """
    found = sizes_of(x)
    if found is None or any(isinstance(size, Dim) for size in found):
        raise NeedsValueError(f"{what} is computed from data.", value=x, where=x.origin)
    return [int(size) for size in found]  # type: ignore[arg-type]


def static_scalar(x: Tensor, what: str = "a value") -> float | int | bool | str:
    """The one element of a tensor as a Python number.

    Raises:
        NeedsValueError: It is only known at run time.
        ShapeError: There are more elements than one.
    """
    if not x.is_constant:
        raise NeedsValueError(f"{what} is computed from data.", value=x, where=x.origin)
    if x.known.size != 1:
        raise ShapeError(f"{what} is one number, and {x.known.size} were given.")
    return x.known.reshape(()).item()  # type: ignore[no-any-return]


def elements(x: Tensor) -> tuple[Size, ...] | None:
    """The elements of a small integer tensor as sizes (any sign), where known or expressions; else None."""
    return sizes_of(x)


def sizes(x: Tensor, what: str = "a size") -> tuple[Size, ...]:
    """The elements of an integer tensor of rank 0 or 1 as sizes; those computed from data become fresh symbols.

    Raises:
        NeedsValueError: Their number is only known at run time.
        ShapeError: One is negative.
    """
    found = sizes_of(x)
    if found is None:
        count = x.shape[0] if x.rank else 1
        if not isinstance(count, int):
            raise NeedsValueError(f"the number of elements of {what} is computed from data.", value=x, where=x.origin)
        found = tuple(bind(x, (i,) if x.rank else ()) for i in range(count))
    for size in found:
        if isinstance(size, int) and size < 0:
            raise ShapeError(f"{what} is {size}.", remedy="Sizes are not negative.")
    return found


def one_size(x: Tensor, what: str) -> Size:
    """The one element of an integer tensor as a size.

    Raises:
        ShapeError: There is another number of elements, or it is negative.
    """
    found = sizes(x, what)
    if len(found) != 1:
        raise ShapeError(f"{what} is one number, and {len(found)} are given.")
    return found[0]


def normalized_axis(axis: int, rank: int) -> int:
    """The axis counted from the front.

    Raises:
        ShapeError: There is no such axis.
    """
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} is out of range for rank {rank}.", remedy=f"Axes are {-rank} to {rank - 1}.")
    return axis + rank if axis < 0 else axis


def normalized_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """The axes counted from the front.

    Raises:
        ShapeError: There is no such axis, or one occurs twice.
    """
    found = tuple(normalized_axis(axis, rank) for axis in axes)
    if len(set(found)) != len(found):
        raise ShapeError(f"an axis occurs twice in {list(axes)}.")
    return found


def of_rank(x: Tensor, rank: int, what: str) -> Tensor:
    """The tensor itself, which must have so many axes.

    Raises:
        ShapeError: It has another rank.
    """
    if x.rank != rank:
        raise ShapeError(f"{what} has {rank} axes, and {x.type} was given.")
    return x


def of_shape(x: Tensor, shape: Sequence[Size], what: str) -> Tensor:
    """The tensor itself, which must have these sizes; a single one that is open is compared at run time.

    Raises:
        ShapeError: It has another rank, or a size that is proven different.
    """
    alike = [same(a, b) for a, b in zip(x.shape, shape, strict=False)]
    if x.rank != len(shape) or False in alike:
        needed = ", ".join(map(str, shape))
        raise ShapeError(f"{what} has shape [{', '.join(map(str, x.shape))}], and [{needed}] is needed.")
    return reshape(x, shape) if alike.count(None) == 1 else x


def product(values: Sequence[Size]) -> Size:
    """The product of sizes."""
    return math.prod(values)


def number(size: Size, dtype: DType = t.INT64) -> Tensor:
    """A size as a scalar."""
    return cast(size_tensor([size], ()), dtype)


def shape_tensor(x: Tensor) -> Tensor:
    """The shape as an int64 tensor."""
    return size_tensor(x.shape)


# Elementwise.


def abs_(x: Tensor) -> Tensor:
    """The absolute value."""
    return apply("abs", x)


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1."""
    return apply("sign", x)


def floor(x: Tensor) -> Tensor:
    """Rounded down."""
    return apply("floor", x)


def ceil(x: Tensor) -> Tensor:
    """Rounded up."""
    return apply("ceil", x)


def round_(x: Tensor) -> Tensor:
    """Rounded to the nearest integer, halves to even."""
    return apply("round", x)


def exp(x: Tensor) -> Tensor:
    """The exponential."""
    return apply("exp", x)


def log(x: Tensor) -> Tensor:
    """The natural logarithm."""
    return apply("log", x)


def sqrt(x: Tensor) -> Tensor:
    """The square root."""
    return apply("sqrt", x)


def sin(x: Tensor) -> Tensor:
    """The sine."""
    return apply("sin", x)


def cos(x: Tensor) -> Tensor:
    """The cosine."""
    return apply("cos", x)


def tan(x: Tensor) -> Tensor:
    """The tangent."""
    return apply("tan", x)


def asin(x: Tensor) -> Tensor:
    """The arc sine."""
    return apply("asin", x)


def acos(x: Tensor) -> Tensor:
    """The arc cosine."""
    return apply("acos", x)


def atan(x: Tensor) -> Tensor:
    """The arc tangent."""
    return apply("atan", x)


def sinh(x: Tensor) -> Tensor:
    """The hyperbolic sine."""
    return apply("sinh", x)


def cosh(x: Tensor) -> Tensor:
    """The hyperbolic cosine."""
    return apply("cosh", x)


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return apply("tanh", x)


def asinh(x: Tensor) -> Tensor:
    """The inverse hyperbolic sine."""
    return apply("asinh", x)


def acosh(x: Tensor) -> Tensor:
    """The inverse hyperbolic cosine."""
    return apply("acosh", x)


def atanh(x: Tensor) -> Tensor:
    """The inverse hyperbolic tangent."""
    return apply("atanh", x)


def erf(x: Tensor) -> Tensor:
    """The error function."""
    return apply("erf", x)


def logical_not(x: Tensor) -> Tensor:
    """Not, of booleans; of integers, every bit."""
    return apply("not", x)


def reciprocal(x: Tensor) -> Tensor:
    """One over."""
    return 1 / x


def sigmoid(x: Tensor) -> Tensor:
    """``1 / (1 + exp(-x))``."""
    return 1 / (1 + exp(-x))


def equal(x: Operand, y: Operand) -> Tensor:
    """Whether elements are equal."""
    return elementwise("equal", x, y)


def not_equal(x: Operand, y: Operand) -> Tensor:
    """Whether elements differ."""
    return logical_not(equal(x, y))


def maximum(*xs: Operand) -> Tensor:
    """The greatest, elementwise; NaN if any is."""
    found = xs[0]
    for x in xs[1:]:
        found = elementwise("max", found, x)
    return found  # type: ignore[return-value]


def minimum(*xs: Operand) -> Tensor:
    """The least, elementwise; NaN if any is."""
    found = xs[0]
    for x in xs[1:]:
        found = elementwise("min", found, x)
    return found  # type: ignore[return-value]


def clip(x: Tensor, low: Operand | None, high: Operand | None) -> Tensor:
    """At least ``low``, then at most ``high``."""
    if low is not None:
        x = maximum(x, low)
    return x if high is None else minimum(x, high)


def remainder(x: Operand, y: Operand) -> Tensor:
    """What division leaves; it has the sign of the dividend, as C's ``fmod``."""
    return elementwise("rem", x, y)


def floor_mod(x: Tensor, y: Tensor) -> Tensor:
    """What division leaves; it has the sign of the divisor, as Python's ``%``."""
    left = remainder(x, y)
    return where(not_equal(left, 0) & ((left < 0) ^ (y < 0)), left + y, left)


def shift_left(x: Tensor, by: Tensor) -> Tensor:
    """Bits moved up."""
    return elementwise("shift_left", x, by)


def shift_right(x: Tensor, by: Tensor) -> Tensor:
    """Bits moved down."""
    return elementwise("shift_right", x, by)


def is_nan(x: Tensor) -> Tensor:
    """Whether elements are not a number."""
    return not_equal(x, x)


def is_infinite(x: Tensor) -> Tensor:
    """Whether elements are infinite."""
    return equal(abs_(x), math.inf)


def where(condition: Tensor, x: Operand, y: Operand) -> Tensor:
    """``x`` where the condition holds, else ``y``; all broadcast together."""
    dtype = next(v.dtype for v in (x, y) if isinstance(v, Tensor))
    return elementwise("select", condition, *(v if isinstance(v, Tensor) else constant(v, dtype) for v in (x, y)))


def stop_gradient(x: Tensor) -> Tensor:
    """The same; no gradient flows through."""
    return apply("stop_gradient", x)


# Conversion.


def cast(x: Tensor, dtype: DType, *, saturate: bool = True, rounding: str = "up") -> Tensor:
    """To another element type, as ONNX Cast does."""
    return x if x.dtype == dtype else apply("convert", x, dtype=dtype, saturate=saturate, rounding=rounding)


def widened(x: Tensor) -> Tensor:
    """Floats of 16 bits and less as float32, for sums of many; all others as they are."""
    return cast(x, t.FLOAT) if t.is_float(x.dtype) and x.dtype.bitwidth < 32 else x


def bitcast(x: Tensor, dtype: DType) -> Tensor:
    """The same bits as another element type."""
    return x if x.dtype == dtype else apply("bitcast", x, dtype=dtype)


# Sources.


def full(shape: Sequence[Size], value: Operand, dtype: DType) -> Tensor:
    """A tensor of one value."""
    one = value if isinstance(value, Tensor) else constant(value, dtype)
    return broadcast_to(one, tuple(shape))


def full_like(x: Tensor, value: Operand) -> Tensor:
    """A tensor of one value, of the shape and element type of another."""
    return full(x.shape, value, x.dtype)


def zero(dtype: DType) -> Tensor:
    """A scalar 0; of strings, the empty one."""
    return constant("" if dtype == t.STRING else 0, dtype)


def zeros_like(x: Tensor) -> Tensor:
    """Zeros, of the shape and element type of another."""
    return full_like(x, 0)


def ones_like(x: Tensor) -> Tensor:
    """Ones, of the shape and element type of another."""
    return full_like(x, 1)


def iota(shape: Sequence[Size], axis: int, dtype: DType = t.INT64) -> Tensor:
    """0, 1, 2 … along an axis."""
    return apply("iota", shape=tuple(shape), axis=normalized_axis(axis, len(shape)), dtype=dtype)


def arange(count: Size, dtype: DType = t.INT64) -> Tensor:
    """0, 1, 2 … of one axis."""
    return iota((count,), 0, dtype)


def uniform(shape: Sequence[Size], dtype: DType, *, seed: float | None, identity: str) -> Tensor:
    """Random numbers in [0, 1)."""
    return apply("random", kind="uniform", shape=tuple(shape), dtype=dtype, seed=seed, identity=identity)


def normal(shape: Sequence[Size], dtype: DType, *, seed: float | None, identity: str) -> Tensor:
    """Random numbers of mean 0 and standard deviation 1."""
    return apply("random", kind="normal", shape=tuple(shape), dtype=dtype, seed=seed, identity=identity)


# Movement.


def reshape(x: Tensor, shape: Sequence[Size]) -> Tensor:
    """The same elements in order, in other sizes."""
    shape = tuple(shape)
    return x if x.shape == shape else apply("reshape", x, shape=shape)


def permute(x: Tensor, axes: Sequence[int]) -> Tensor:
    """The axes in another order."""
    axes = normalized_axes(axes, x.rank)
    return x if axes == tuple(range(x.rank)) and len(axes) == x.rank else apply("permute", x, axes=axes)


def swap_axes(x: Tensor, a: int, b: int) -> Tensor:
    """Two axes exchanged."""
    order = list(range(x.rank))
    order[a], order[b] = order[b], order[a]
    return permute(x, order)


def unsqueeze(x: Tensor, axes: Sequence[int]) -> Tensor:
    """New axes of size 1, at positions in the result."""
    at = normalized_axes(axes, x.rank + len(axes))
    old = iter(x.shape)
    return reshape(x, [1 if axis in at else next(old) for axis in range(x.rank + len(at))])


def squeeze(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Without axes of size 1.

    Raises:
        ShapeError: One has another size.
    """
    at = normalized_axes(axes, x.rank)
    for axis in at:
        if isinstance(x.shape[axis], int) and x.shape[axis] != 1:
            raise ShapeError(f"axis {axis} has size {x.shape[axis]} and cannot be squeezed.")
    return reshape(x, [size for axis, size in enumerate(x.shape) if axis not in at])


def flatten_to(x: Tensor, axis: int) -> Tensor:
    """Two axes: those before ``axis``, and the others."""
    return reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))


def repeat(x: Tensor, axis: int, times: int) -> Tensor:
    """Every entry of an axis as often, one after the other."""
    at = normalized_axis(axis, x.rank) + 1
    spread = broadcast_to(unsqueeze(x, [at]), (*x.shape[:at], times, *x.shape[at:]))
    return reshape(spread, (*x.shape[: at - 1], x.shape[at - 1] * times, *x.shape[at:]))


def slice_(x: Tensor, axis: int, start: Size, limit: Size, stride: int = 1) -> Tensor:
    """A range along one axis, by a positive stride."""
    axis = normalized_axis(axis, x.rank)
    starts: list[Size] = [0] * x.rank
    limits, strides = list(x.shape), [1] * x.rank
    starts[axis], limits[axis], strides[axis] = start, limit, stride
    return apply("slice", x, starts=tuple(starts), limits=tuple(limits), strides=tuple(strides))


def entry(x: Tensor, index: int, axis: int = 0) -> Tensor:
    """One entry of an axis, which goes away."""
    return squeeze(slice_(x, axis, index, index + 1), [axis])


def pad(
    x: Tensor, low: Sequence[Size], high: Sequence[Size], value: Operand = 0, interior: Sequence[int] | None = None
) -> Tensor:
    """A value around, and between, the elements; negative amounts crop."""
    filler = value if isinstance(value, Tensor) else constant(value, x.dtype)
    between = tuple(interior) if interior is not None else (0,) * x.rank
    return apply("pad", x, filler, low=tuple(low), high=tuple(high), interior=between)


def concat(xs: Sequence[Tensor], axis: int) -> Tensor:
    """End to end along an axis."""
    axis = normalized_axis(axis, xs[0].rank)
    return xs[0] if len(xs) == 1 else apply("concat", *xs, axis=axis)


def reverse(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Back to front along axes."""
    return apply("reverse", x, axes=normalized_axes(axes, x.rank)) if len(axes) else x


def gather_nd(x: Tensor, indices: Tensor, batch: int = 0, *, from_end: bool = True) -> Tensor:
    """Elements, or rows, at index vectors: the last axis of ``indices``. Negative ones count from the end, or fail."""
    depth = indices.shape[-1]
    if not isinstance(depth, int):
        raise NeedsValueError("the length of index vectors is computed from data.", value=indices)
    at = _from_front(indices, x.shape[batch : batch + depth]) if from_end else indices
    return apply("gather", x, at, batch=batch)


def _from_front(indices: Tensor, limits: Sequence[Size]) -> Tensor:
    """Index vectors with negative ones counted from the front."""
    if indices.is_constant and (indices.known.size == 0 or indices.known.min() >= 0):
        return indices
    if not t.is_integer(indices.dtype) or t.kind(indices.dtype) == "uint":
        return indices
    return where(indices < 0, indices + size_tensor(limits, dtype=indices.dtype), indices)


def take(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Entries of one axis, in the shape of the indices; negative ones count from the end."""
    axis = normalized_axis(axis, x.rank)
    first = permute(x, [axis, *(a for a in range(x.rank) if a != axis)])
    found = gather_nd(first, unsqueeze(indices, [-1]))
    order = [*range(indices.rank, indices.rank + axis), *range(indices.rank), *range(indices.rank + axis, found.rank)]
    return permute(found, order)


def _along(indices: Tensor, axis: int, limit: Size) -> Tensor:
    """Full index vectors of the elements that indices along one axis name."""
    chosen = _from_front(unsqueeze(indices, [-1]), [limit])
    parts = [
        chosen if a == axis else unsqueeze(iota(indices.shape, a, indices.dtype), [-1]) for a in range(indices.rank)
    ]
    return concat(parts, -1)


def gather_elements(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """At every place of ``indices``, the element of ``x`` there but for ``axis``, where the index says."""
    axis, indices = normalized_axis(axis, x.rank), of_rank(indices, x.rank, "the tensor of indices")
    return apply("gather", x, _along(indices, axis, x.shape[axis]), batch=0)


ScatterKind = Literal["set", "add", "mul", "min", "max"]


def scatter_elements(x: Tensor, indices: Tensor, updates: Tensor, axis: int, kind: ScatterKind = "set") -> Tensor:
    """``x`` with updates at the places that ``gather_elements`` would read."""
    axis, indices = normalized_axis(axis, x.rank), of_rank(indices, x.rank, "the tensor of indices")
    return apply("scatter", x, _along(indices, axis, x.shape[axis]), updates, kind=kind, batch=0)


def scatter_nd(
    x: Tensor,
    indices: Tensor,
    updates: Tensor,
    kind: ScatterKind = "set",
    batch: int = 0,
    *,
    from_end: bool = True,
) -> Tensor:
    """``x`` with updates at index vectors; negative ones count from the end, or fail."""
    depth = indices.shape[-1]
    if not isinstance(depth, int):
        raise NeedsValueError("the length of index vectors is computed from data.", value=indices)
    at = _from_front(indices, x.shape[batch : batch + depth]) if from_end else indices
    return apply("scatter", x, at, updates, kind=kind, batch=batch)


# Reductions.


def _reduce(kind: str, x: Tensor, axes: Sequence[int] | None, keepdims: bool) -> Tensor:
    over = tuple(range(x.rank)) if axes is None else normalized_axes(axes, x.rank)
    found = apply("reduce", x, kind=kind, axes=over) if over else x
    return reshape(found, [1 if a in over else size for a, size in enumerate(x.shape)]) if keepdims else found


def reduce_sum(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """The sum over axes, by default all."""
    return _reduce("add", x, axes, keepdims)


def reduce_product(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """The product over axes, by default all."""
    return _reduce("mul", x, axes, keepdims)


def reduce_max(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """The greatest over axes, by default all; of nothing, the least that the type has."""
    return _reduce("max", x, axes, keepdims)


def reduce_min(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """The least over axes, by default all; of nothing, the greatest that the type has."""
    return _reduce("min", x, axes, keepdims)


def reduce_mean(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """The mean over axes, by default all."""
    over = tuple(range(x.rank)) if axes is None else normalized_axes(axes, x.rank)
    count = cast(size_tensor([product([x.shape[a] for a in over])], ()), x.dtype)
    return reduce_sum(x, over, keepdims) / count


def all_of(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Whether all are true."""
    return _reduce("and", x, axes, keepdims)


def any_of(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Whether any is true."""
    return _reduce("or", x, axes, keepdims)


def argmax(x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
    """The index of the greatest along an axis, the first of equals."""
    return _reduce("argmax", x, [axis], keepdims)


def argmin(x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
    """The index of the least along an axis, the first of equals."""
    return _reduce("argmin", x, [axis], keepdims)


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Exponentials over their sum; the maximum is subtracted first, for range."""
    e = exp(x - stop_gradient(reduce_max(x, [axis], keepdims=True)))
    return e / reduce_sum(e, [axis], keepdims=True)


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """The logarithm of the softmax."""
    shifted = x - stop_gradient(reduce_max(x, [axis], keepdims=True))
    return shifted - log(reduce_sum(exp(shifted), [axis], keepdims=True))


def cumulative(kind: str, x: Tensor, axis: int) -> Tensor:
    """Cumulative ``add``, ``mul``, ``max`` or ``min`` along an axis."""
    return apply("scan", x, kind=kind, axis=normalized_axis(axis, x.rank))


def sort(x: Tensor, axis: int, descending: bool = False) -> Tensor:
    """The indices that sort along an axis, equal elements in order."""
    return apply("sort", x, axis=normalized_axis(axis, x.rank), descending=descending)


def top_k(x: Tensor, axis: int, k: Size, largest: bool = True) -> Tensor:
    """The indices of the ``k`` largest (smallest) along an axis, sorted, equal elements in order."""
    return apply("top_k", x, axis=normalized_axis(axis, x.rank), k=k, largest=largest)


# Products.


def contract(
    x: Tensor,
    y: Tensor,
    *,
    batch: Sequence[tuple[int, int]] = (),
    left: Sequence[int],
    right: Sequence[int],
    dtype: DType | None = None,
) -> Tensor:
    """Sums of products over paired axes; see the primitive."""
    return apply("contract", x, y, batch=tuple(batch), left=tuple(left), right=tuple(right), dtype=dtype or x.dtype)


def matmul(x: Tensor, y: Tensor, dtype: DType | None = None) -> Tensor:
    """The matrix product as numpy's ``matmul``: vectors are promoted, leading axes broadcast."""
    if x.rank == 0 or y.rank == 0:
        raise ShapeError("a matrix product has no scalars.")
    if x.rank == 1:
        return squeeze(matmul(unsqueeze(x, [0]), y, dtype), [-2 if y.rank > 1 else 0])
    if y.rank == 1:
        return squeeze(matmul(x, unsqueeze(y, [-1]), dtype), [-1])
    if y.rank == 2:
        return contract(x, y, left=[x.rank - 1], right=[0], dtype=dtype)
    shared = broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x, y = (broadcast_to(v, (*shared, *v.shape[-2:])) for v in (x, y))
    n = len(shared)
    return contract(x, y, batch=[(i, i) for i in range(n)], left=[n + 1], right=[n], dtype=dtype)


def einsum(equation: str, *operands: Tensor, dtype: DType | None = None) -> Tensor:
    """Products summed by the letters of an explicit equation such as ``"bhqd,bhkd->bhqk"``; no ellipsis.

    Operands are contracted from left to right; a letter that occurs only in one of them is summed there, and one
    that occurs twice in the same takes the diagonal.
    """
    left_side, result = equation.replace(" ", "").split("->")
    terms = left_side.split(",")
    pairs = [_diagonal(x, term) for x, term in zip(operands, terms, strict=True)]
    (x, letters), rest = pairs[0], pairs[1:]
    for position, (y, others) in enumerate(rest):
        later = set(result).union(*(term for _, term in rest[position + 1 :]))
        x, letters = _product_of_two(x, letters, y, others, later, dtype)
    x, letters = _summed(x, letters, set(result))
    missing = set(result) - set(letters)
    if missing:
        raise ShapeError(f"{''.join(sorted(missing))} of the result {result!r} occurs in no operand.")
    return permute(x, [letters.index(c) for c in result])


def _diagonal(x: Tensor, letters: str) -> tuple[Tensor, str]:
    if len(letters) != x.rank:
        raise ShapeError(f"{letters!r} names {len(letters)} axes, and the operand has {x.rank}.")
    for letter in dict.fromkeys(letters):
        while letters.count(letter) > 1:
            a, b = letters.index(letter), letters.rindex(letter)
            first = permute(x, [a, b, *(i for i in range(x.rank) if i not in (a, b))])
            along = [unsqueeze(arange(size), [-1]) for size in first.shape[:2]]  # Joined: of one size.
            x = apply("gather", first, concat(along, -1), batch=0)
            letters = letter + "".join(c for i, c in enumerate(letters) if i not in (a, b))
    return x, letters


def _summed(x: Tensor, letters: str, kept: set[str]) -> tuple[Tensor, str]:
    gone = [i for i, c in enumerate(letters) if c not in kept]
    return (reduce_sum(x, gone), "".join(c for c in letters if c in kept)) if gone else (x, letters)


def _product_of_two(x: Tensor, xs: str, y: Tensor, ys: str, later: set[str], dtype: DType | None) -> tuple[Tensor, str]:
    x, xs = _summed(x, xs, later | set(ys))
    y, ys = _summed(y, ys, later | set(xs))
    shared = [c for c in xs if c in ys]
    x, y = _matched(x, xs, y, ys, shared)
    batch = [c for c in shared if c in later]
    inner = [c for c in shared if c not in later]
    found = contract(
        x,
        y,
        batch=[(xs.index(c), ys.index(c)) for c in batch],
        left=[xs.index(c) for c in inner],
        right=[ys.index(c) for c in inner],
        dtype=dtype,
    )
    return found, "".join([*batch, *(c for c in xs if c not in shared), *(c for c in ys if c not in shared)])


def _matched(x: Tensor, xs: str, y: Tensor, ys: str, shared: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Axes of one letter, with a size of 1 repeated to the other's."""
    a, b = list(x.shape), list(y.shape)
    for c in shared:
        i, j = xs.index(c), ys.index(c)
        a[i] = b[j] = broadcast_shapes((a[i],), (b[j],))[0]
    return broadcast_to(x, tuple(a)), broadcast_to(y, tuple(b))


def convolve(
    x: Tensor,
    w: Tensor,
    *,
    strides: Sequence[int],
    padding: Sequence[tuple[Size, Size]],
    kernel_dilation: Sequence[int] | None = None,
    base_dilation: Sequence[int] | None = None,
    groups: Size = 1,
    dtype: DType | None = None,
) -> Tensor:
    """A convolution of [N, C, *spatial] with [M, C/groups, *kernel] to [N, M, *spatial]."""
    n = len(strides)
    channels, features = x.shape[1], w.shape[0]
    if isinstance(groups, int) and (groups < 1 or (isinstance(features, int) and features % groups)):
        raise ShapeError(f"{features} features are no multiple of {groups} groups.")
    if channels != w.shape[1] * groups and isinstance(channels, int) and isinstance(w.shape[1], int):
        raise ShapeError(
            f"the input has {channels} channels, and the weights take {groups} groups of {w.shape[1]}.",
        )
    grouped = reshape(x, (x.shape[0], groups, w.shape[1], *x.shape[2:]))
    found = apply(
        "convolve",
        permute(grouped, [1, 0, *range(2, 3 + n)]),
        reshape(w, (groups, floor_div(features, groups), *w.shape[1:])),
        strides=tuple(strides),
        padding=tuple(padding),
        base_dilation=tuple(base_dilation or (1,) * n),
        kernel_dilation=tuple(kernel_dilation or (1,) * n),
        dtype=dtype or x.dtype,
    )
    by_image = permute(found, [1, 0, *range(2, 3 + n)])
    return reshape(by_image, (x.shape[0], features, *found.shape[3:]))


def reduce_window(
    kind: str,
    x: Tensor,
    window: Sequence[int],
    *,
    strides: Sequence[int],
    padding: Sequence[tuple[Size, Size]],
    dilation: Sequence[int] | None = None,
) -> Tensor:
    """A reduction over windows of the last axes; see the primitive."""
    return apply(
        "reduce_window",
        x,
        kind=kind,
        window=tuple(window),
        strides=tuple(strides),
        padding=tuple(padding),
        dilation=tuple(dilation or (1,) * len(window)),
    )


def fft(x: Tensor, inverse: bool = False) -> Tensor:
    """The discrete Fourier transform of complex numbers along the last axis, unscaled."""
    return apply("fft", x, inverse=inverse)


def determinant(x: Tensor) -> Tensor:
    """The determinant of the matrices in the last two axes."""
    return apply("determinant", x)
