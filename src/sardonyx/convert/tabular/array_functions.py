"""Functions of numpy over arrays of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from sardonyx.convert.tabular.arrays import (
    COMPOSED,
    FUNCTIONS,
    Array,
    common_type,
    concatenated,
    count,
    einsum,
    lifted,
    where,
)
from sardonyx.convert.tabular.indices import FIRST, LAST
from sardonyx.convert.tabular.wide_functions import WIDE, horner
from sardonyx.errors import UnsupportedError

# Universal functions that ONNX lacks


def _log1p(x: Any) -> Any:
    """Return log(1 + x) without loss of small x: the error of 1 + x cancels (W. Kahan)."""
    shifted = x + 1.0
    is_small = np.equal(shifted, 1.0)
    is_plain = is_small | np.isinf(shifted)
    ratio = where(is_plain, 1.0, x) / where(is_plain, 1.0, shifted - 1.0)
    return where(is_small, x, np.log(shifted) * ratio)


def _expm1(x: Any) -> Any:
    """Return exp(x) - 1 without loss of small x, as tanh(x / 2) * (exp(x) + 1)."""
    return np.tanh(x / 2.0) * (np.exp(x) + 1.0)


def _hypot(x: Any, y: Any) -> Any:
    """Return the length of (x, y), scaled by the larger part so that squares are finite."""
    x, y = np.absolute(x), np.absolute(y)
    larger = np.maximum(x, y)
    is_infinite = np.isinf(x) | np.isinf(y)
    scale = where(np.equal(larger, 0.0) | is_infinite, 1.0, larger)
    length = np.sqrt((x / scale) ** 2 + (y / scale) ** 2) * scale
    return where(is_infinite, np.inf, length)


def _is_negative(x: Any) -> Any:
    """Return True for numbers with a sign, -0 included."""
    return np.less(x, 0.0) | (np.equal(x, 0.0) & np.less(1.0 / x, 0.0))


def _angle(y: Any, x: Any) -> Any:
    """Return the angle of (x, y) in all four quadrants."""
    both = np.isinf(x) & np.isinf(y)
    x, y = where(both, np.sign(x), x), where(both, np.sign(y), y)
    is_left, half_turn = _is_negative(x), where(_is_negative(y), -np.pi, np.pi)
    angle = np.arctan(y / where(np.equal(x, 0.0), 1.0, x))
    angle = where(is_left, angle + half_turn, angle)
    upright = np.sign(y) * (np.pi / 2.0)
    return where(np.equal(x, 0.0), where(np.equal(y, 0.0) & is_left, half_turn, upright), angle)


def _log_of_sum(x: Any, y: Any) -> Any:
    """Return log(exp(x) + exp(y)); equal infinities have no difference."""
    are_equal = np.equal(x, y)
    gap = where(are_equal, 0.0, np.absolute(x - y))
    return where(are_equal, x + np.log(2.0), np.maximum(x, y) + np.log1p(np.exp(-gap)))


def _remainder(x: Any, y: Any) -> Any:
    """Return the remainder with the sign of the divisor, exact as in numpy."""
    dtype = common_type((x, y))
    if dtype.kind != "f":
        return _modulus(x, y, 0)
    rest = _modulus(x, y, 1)
    has_other_sign = np.not_equal(rest, 0.0) & np.not_equal(np.less(rest, 0.0), np.less(y, 0.0))
    return where(has_other_sign, rest + y, rest)


def _modulus(x: Any, y: Any, fmod: int) -> Any:
    array = x if isinstance(x, Array) else y
    dtype = common_type((x, y))
    dtype = np.dtype(np.int64) if dtype.kind == "b" else dtype
    return lifted(array.builder, x, dtype).node(
        "Mod", lifted(array.builder, y, dtype), fmod=fmod or int(dtype.kind == "f")
    )


def _quotient(x: Any, y: Any) -> Any:
    """Return the quotient rounded down; that of the exact multiple is whole but for its rounding."""
    whole = (x - _remainder(x, y)) / y
    dtype = common_type((x, y))
    if dtype.kind != "f":
        return np.rint(whole).cast(np.int64 if dtype.kind == "b" else dtype)
    return where(np.equal(y, 0.0), x / y, np.rint(whole))


COMPOSED.update(
    {
        **WIDE,
        np.log1p: lambda x: _log1p(x),
        np.expm1: lambda x: _expm1(x),
        np.log2: lambda x: np.log(x) / np.log(2.0),
        np.log10: lambda x: np.log(x) / np.log(10.0),
        np.exp2: lambda x: np.exp(x * np.log(2.0)),
        np.square: lambda x: x * x,
        np.cbrt: lambda x: np.sign(x) * np.absolute(x) ** (1 / 3),
        np.not_equal: lambda x, y: np.logical_not(np.equal(x, y)),
        np.isfinite: lambda x: np.logical_not(np.isnan(x) | np.isinf(x)),
        np.trunc: lambda x: np.sign(x) * np.floor(np.absolute(x)),
        np.positive: lambda x: x.copy(),
        np.floor_divide: _quotient,
        np.remainder: _remainder,
        np.fmod: lambda x, y: _modulus(x, y, 1),
        np.deg2rad: lambda x: x * (np.pi / 180),
        np.rad2deg: lambda x: x * (180 / np.pi),
        np.degrees: lambda x: x * (180 / np.pi),
        np.radians: lambda x: x * (np.pi / 180),
        np.hypot: _hypot,
        np.arctan2: _angle,
        np.logaddexp: _log_of_sum,
        np.logaddexp2: lambda x, y: _log_of_sum(x * np.log(2.0), y * np.log(2.0)) / np.log(2.0),
        np.fmax: lambda x, y: where(np.isnan(x), y, where(np.isnan(y), x, np.maximum(x, y))),
        np.fmin: lambda x, y: where(np.isnan(x), y, where(np.isnan(y), x, np.minimum(x, y))),
        np.float_power: lambda x, y: np.power(x * 1.0, y * 1.0),
        np.heaviside: lambda x, y: where(
            np.isnan(x), x, where(np.equal(x, 0.0), y, np.greater(x, 0.0).astype(np.float64))
        ),
        np.copysign: lambda x, y: np.absolute(x) * where(_is_negative(y), -1.0, 1.0),
        np.conjugate: lambda x: x,
    }
)


# Arrays of constants and of other shapes


def _filled(x: Any, fill: Any, dtype: Any = None, **_: Any) -> Any:
    """Return an array of the shape of another, without the other's NaN."""
    kind = x.dtype if dtype is None else np.dtype(dtype)
    return lifted(x.builder, fill, kind).node("Expand", x.node("Shape", dtype=np.int64)).sized(x.sizes())


def joined_along(axis: int, *parts: Any) -> Any:
    """Return arrays joined along a new axis."""
    first = next(part for part in parts if isinstance(part, Array))
    arrays = [lifted(first.builder, part, common_type(parts)) for part in parts]
    return concatenated([part.node("Unsqueeze", [axis]) for part in arrays], axis=axis)


def _rank(part: Any) -> int:
    return part.ndim if isinstance(part, Array) else np.ndim(part)


def as_matrix(part: Any) -> Any:
    """Return a vector as one column."""
    if _rank(part) > 1:
        return part
    return part.node("Unsqueeze", [1]) if isinstance(part, Array) else np.reshape(part, (-1, 1))


def _squeezed(x: Array, axis: Any = None) -> Array:
    ones = [i for i, size in enumerate(x.sizes()) if size == 1] if axis is None else np.atleast_1d(axis)
    return x.node("Squeeze", ones) if len(ones) else x.copy()


def _exchanged(x: Array, first: int, second: int) -> Array:
    order = list(range(x.ndim))
    order[first], order[second] = order[second], order[first]
    return x.transpose(*order)


def _moved(x: Array, source: int, target: int) -> Array:
    order = list(range(x.ndim))
    order.insert(range(x.ndim)[target], order.pop(source))
    return x.transpose(*order)


def _tiled(x: Array, repeats: Any) -> Array:
    counts = list(np.atleast_1d(repeats))
    for _ in range(len(counts) - x.ndim):
        x = x.node("Unsqueeze", [0])
    return x.node("Tile", [1] * (x.ndim - len(counts)) + counts)


def _repeated(x: Array, repeats: Any, axis: Any = None) -> Array:
    size = None if axis is None else x.sizes()[axis]
    if size is None:
        raise UnsupportedError("numpy.repeat of rows has no translation; expected axis=1")
    return x.columns(np.repeat(np.arange(size), repeats), int(axis))


def _expanded(x: Array, axis: Any) -> Array:
    return x.node("Unsqueeze", list(np.atleast_1d(axis)))


# Reductions


def _reduction(name: str) -> Callable[..., Any]:
    """Return the function that calls a method, and refuses options that the method lacks."""

    def call(x: Array, axis: Any = None, *rest: Any, **options: Any) -> Any:
        options = {key: value for key, value in options.items() if not (key == "out" and value is None)}
        try:
            return getattr(x, name)(axis, *rest, **options)
        except TypeError as error:
            raise UnsupportedError(f"numpy.{name} with {', '.join(options)} has no translation") from error

    return call


def _without_nan(name: str, neutral: float) -> Callable[..., Any]:
    def call(x: Array, axis: Any = None, **options: Any) -> Any:
        result = getattr(where(np.isnan(x), neutral, x), name)(axis, **options)
        if name not in ("max", "min"):
            return result
        return where(np.isnan(x).all(axis, **options), np.nan, result)

    return call


def _mean_without_nan(x: Array, axis: Any = None, **options: Any) -> Any:
    is_number = np.logical_not(np.isnan(x)).astype(np.float64)
    return where(np.isnan(x), 0.0, x).sum(axis, **options) / is_number.sum(axis, **options)


def _weighted_mean(x: Array, axis: Any = None, weights: Any = None) -> Any:
    if weights is None:
        return x.mean(axis)
    if _rank(weights) == 1 and x.ndim > 1 and (axis is None or int(axis) % x.ndim != x.ndim - 1):
        raise UnsupportedError("numpy.average with weights of rows has no translation; expected axis=1")
    return (x * weights).sum(axis) / (_filled(x, 1.0, np.float64) * weights).sum(axis)


def _norm(x: Array, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Return lengths of vectors; of matrices the root of the sum of squares alone."""
    x = x if x.dtype.kind == "f" else x.cast(np.float64)
    is_vector = (axis is None and x.ndim == 1) or (axis is not None and np.size(axis) == 1)
    if ord is None or (ord == "fro" and not is_vector) or (is_vector and ord == 2):
        return x.reduced("ReduceL2", axis, keepdims)
    if not is_vector or isinstance(ord, str):
        raise UnsupportedError(f"numpy.linalg.norm of matrices with ord={ord!r} has no translation; expected axis=1")
    lengths = np.absolute(x)
    if ord == 1:
        return lengths.sum(axis, keepdims=keepdims)
    if np.isinf(ord):
        return lengths.max(axis, keepdims=keepdims) if ord > 0 else lengths.min(axis, keepdims=keepdims)
    if ord == 0:
        return np.not_equal(x, 0.0).astype(x.dtype).sum(axis, keepdims=keepdims)
    return (lengths ** float(ord)).sum(axis, keepdims=keepdims) ** (1.0 / float(ord))


def _differences(x: Array, n: int = 1, axis: int = -1, **options: Any) -> Array:
    if options:
        raise UnsupportedError(f"numpy.diff with {', '.join(options)} has no translation")
    for _ in range(n):
        later, earlier = x.node("Slice", [1], [LAST], [axis]), x.node("Slice", [0], [-1], [axis])
        x = cast(Array, np.not_equal(later, earlier)) if x.dtype == bool else later - earlier
    return x


def _sum_so_far(x: Array, axis: Any = None, dtype: Any = None) -> Array:
    if axis is None and x.ndim > 1:
        raise UnsupportedError("numpy.cumsum over all axes has no translation; expected axis=1")
    x = x.cast(dtype or (np.int64 if x.dtype == bool else x.dtype))
    return x.node("CumSum", np.asarray(0 if axis is None else axis))


# Order


def _known_size(x: Array, axis: Any, name: str) -> int:
    size = None if axis is None else x.sizes()[int(axis)]
    if size is None:
        raise UnsupportedError(f"numpy.{name} over rows has no translation; expected axis=1")
    return size


def _positions(x: Array, axis: Any, name: str) -> Array:
    """Return the positions of elements in ascending order; NaN are the last."""
    size = _known_size(x, axis, name)
    keys = where(np.isnan(x), np.inf, x) if x.dtype.kind == "f" else x
    builder = x.builder
    _, order = builder.nodes_of("TopK", 2, keys.value, builder.constant([size]), axis=int(axis), largest=0)
    return Array(builder, order, np.int64)


def _sorted(x: Array, axis: Any = -1, **_: Any) -> Array:
    """Return elements in ascending order; as many at the end as are NaN are NaN."""
    keys = where(np.isnan(x), np.inf, x) if x.dtype.kind == "f" else x
    values = keys.node("GatherElements", _positions(keys, axis, "sort"), axis=int(axis))
    if x.dtype.kind != "f":
        return values
    numbers = np.logical_not(np.isnan(x)).astype(np.int64).sum(axis, keepdims=True)
    last = range(x.ndim)[int(axis)]
    ranks = np.arange(_known_size(x, axis, "sort")).reshape([-1 if i == last else 1 for i in range(x.ndim)])
    return where(np.less(ranks, numbers), values, np.nan)


def _quantile(
    x: Array, q: Any, axis: Any = None, method: str = "linear", keepdims: bool = False, **options: Any
) -> Any:
    """Return quantiles by linear interpolation between ordered elements."""
    if options or method != "linear" or np.ndim(q):
        raise UnsupportedError("numpy.quantile with several numbers or another method has no translation")
    size = _known_size(x, axis, "quantile")
    ordered = _sorted(x.cast(np.float64), axis)
    at = float(q) * (size - 1)
    low, high = int(np.floor(at)), int(np.ceil(at))
    parts = ordered.columns([low], int(axis)), ordered.columns([high], int(axis))
    value = parts[0] + (parts[1] - parts[0]) * (at - low) if low != high else parts[0]
    value = where(np.isnan(x).any(axis, keepdims=True), np.nan, value)
    return value if keepdims else value.node("Squeeze", [int(axis)])


# Choices


def _selected(conditions: Sequence[Any], choices: Sequence[Any], default: Any = 0) -> Any:
    """Return the choice of the first condition that holds."""
    result = default
    for condition, choice in zip(reversed(conditions), reversed(choices), strict=True):
        result = where(condition, choice, result)
    return result


def _piecewise(x: Array, conditions: Sequence[Any], functions: Sequence[Any], *arguments: Any, **options: Any) -> Any:
    values = [one(x, *arguments, **options) if callable(one) else one for one in functions]
    default = values.pop() if len(values) == len(conditions) + 1 else 0
    # The last condition that holds decides.
    return _selected(conditions[::-1], values[::-1], default).cast(x.dtype)


def _bins(x: Array, bins: Any, right: bool = False) -> Array:
    """Return numbers of the bins between sorted edges; NaN is above all."""
    edges = np.asarray(bins, np.float64)
    steps = np.diff(edges) if edges.ndim == 1 else np.array([np.nan])
    if (steps >= 0).all():
        return _rank_among(x, edges, includes=not right)
    if not (steps <= 0).all():
        raise UnsupportedError("numpy.digitize of edges that are not sorted has no translation")
    return _rank_among(x, edges[::-1], includes=not right) * np.int64(-1) + np.int64(len(edges))


def _rank_among(x: Array, edges: Any, *, includes: bool) -> Array:
    """Return the number of edges below each element, or not above; NaN is above all."""
    element = x.cast(np.float64).node("Unsqueeze", [-1])
    above = np.less(element, edges) if includes else np.less_equal(element, edges)
    return np.logical_not(above).astype(np.int64).sum(-1)


def _searched(edges: Any, x: Any, side: str = "left", sorter: Any = None) -> Any:
    if isinstance(edges, Array) or sorter is not None:
        raise UnsupportedError("numpy.searchsorted in values of the rows has no translation")
    return _rank_among(x, np.asarray(edges, np.float64), includes=side == "right")


def _interpolated(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """Return values of a function of straight lines between points."""
    points, values = np.asarray(xp, np.float64), np.asarray(fp, np.float64)
    if period is not None or len(points) < 2:
        raise UnsupportedError("numpy.interp with a period or a single point has no translation")
    x = x.cast(np.float64)
    part = np.clip(_rank_among(x, points, includes=True) - np.int64(1), np.int64(0), np.int64(len(points) - 2))
    start, base = (x.constant(table[:-1], np.float64).rows(part) for table in (points, values))
    slope = x.constant(np.diff(values) / np.diff(points), np.float64).rows(part)
    inside = base + (x - start) * slope
    below = where(np.less(x, points[0]), values[0] if left is None else float(left), inside)
    above = where(np.greater(x, points[-1]), values[-1] if right is None else float(right), below)
    return where(np.isnan(x), np.nan, above)


def _numbers(x: Array, copy: bool = True, nan: float = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """Return numbers in place of NaN and infinities."""
    if x.dtype.kind != "f":
        return x.copy()
    limits = np.finfo(x.dtype)
    high, low = (limits.max if posinf is None else posinf), (limits.min if neginf is None else neginf)
    finite = where(np.isinf(x), where(np.greater(x, 0.0), float(high), float(low)), x)
    return where(np.isnan(x), float(nan), finite)


def _contained(x: Array, values: Any, *, invert: bool = False, **_: Any) -> Any:
    dtype = common_type((x, np.asarray(values)))
    element = x.cast(dtype).node("Unsqueeze", [-1])
    result = np.equal(element, lifted(x.builder, np.ravel(values), dtype)).any(-1)
    return np.logical_not(result) if invert else result


def _close(x: Any, y: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    near = np.less_equal(np.absolute(x - y), atol + np.absolute(y) * rtol) & np.isfinite(y)
    result = near | np.equal(x, y)
    return result | (np.isnan(x) & np.isnan(y)) if equal_nan else result


def _polynomial(coefficients: Any, x: Any) -> Any:
    return horner(x, [_filled(x, 0.0, np.float64), *map(float, coefficients)])


def _product(x: Any, y: Any) -> Any:
    return x * y if 0 in (_rank(x), _rank(y)) else np.matmul(x, y)


def _outer(x: Any, y: Any) -> Any:
    return x.reshape(-1, 1) * y.reshape(1, -1)


_TRANSLATIONS: dict[Any, Callable[..., Any]] = {
    np.where: where,
    np.concatenate: lambda parts, axis=0: concatenated(parts, axis=axis),
    np.hstack: lambda parts: concatenated(parts, axis=min(1, max(map(_rank, parts)) - 1)),
    np.vstack: lambda parts: joined_along(0, *parts) if max(map(_rank, parts)) == 1 else concatenated(parts, axis=0),
    np.stack: lambda parts, axis=0: joined_along(axis, *parts),
    np.column_stack: lambda parts: concatenated([as_matrix(part) for part in parts], axis=1),
    np.dstack: lambda parts: joined_along(2, *parts) if max(map(_rank, parts)) == 2 else concatenated(parts, axis=2),
    **{
        function: _reduction(function.__name__)
        for function in (np.sum, np.prod, np.mean, np.var, np.std, np.max, np.min)
    },
    np.argmax: _reduction("argmax"),
    np.argmin: _reduction("argmin"),
    np.any: _reduction("any"),
    np.all: _reduction("all"),
    np.ptp: lambda x, axis=None, **options: x.max(axis, **options) - x.min(axis, **options),
    np.average: _weighted_mean,
    np.median: lambda x, axis=None, **options: _quantile(x, 0.5, axis, **options),
    np.quantile: _quantile,
    np.percentile: lambda x, q, axis=None, **options: _quantile(x, q / 100, axis, **options),
    np.nansum: _without_nan("sum", 0.0),
    np.nanprod: _without_nan("prod", 1.0),
    np.nanmax: _without_nan("max", -np.inf),
    np.nanmin: _without_nan("min", np.inf),
    np.nanmean: _mean_without_nan,
    np.count_nonzero: lambda x, axis=None, **options: x.cast(bool).sum(axis, **options),
    np.clip: lambda x, low=None, high=None, **options: x.clip(
        options.pop("a_min", low), options.pop("a_max", high), **options
    ),
    np.dot: _product,
    np.inner: lambda x, y: _product(x, y if _rank(y) < 2 else y.T),
    np.outer: _outer,
    np.reshape: lambda x, *sizes, **_: x.reshape(*sizes),
    np.ravel: lambda x, **_: x.ravel(),
    np.transpose: lambda x, axes=None: x.transpose(*(() if axes is None else axes)),
    np.swapaxes: _exchanged,
    np.moveaxis: _moved,
    np.shape: lambda x: x.shape,
    np.ndim: lambda x: x.ndim,
    np.size: lambda x, axis=None: count(x, axis),
    np.copy: lambda x, **_: x.copy(),
    np.round: lambda x, decimals=0: (
        np.rint(x * 10.0**decimals) / 10.0**decimals if x.dtype.kind == "f" or decimals < 0 else x.copy()
    ),
    np.nan_to_num: _numbers,
    np.einsum: einsum,
    np.expand_dims: _expanded,
    np.atleast_1d: lambda x: x if x.ndim else x.reshape(1),
    np.atleast_2d: lambda x: x if x.ndim > 1 else x.reshape(1, -1),
    np.zeros_like: lambda x, dtype=None, **_: _filled(x, 0, dtype),
    np.empty_like: lambda x, dtype=None, **_: _filled(x, 0, dtype),
    np.ones_like: lambda x, dtype=None, **_: _filled(x, 1, dtype),
    np.full_like: _filled,
    np.squeeze: _squeezed,
    np.tile: _tiled,
    np.repeat: _repeated,
    np.cumsum: _sum_so_far,
    np.flip: lambda x, axis: x.node("Slice", [-1], [FIRST], [int(axis)], [-1]),
    np.fliplr: lambda x: x.node("Slice", [-1], [FIRST], [1], [-1]),
    np.roll: lambda x, shift, axis: x.columns(np.roll(np.arange(_known_size(x, axis, "roll")), shift), int(axis)),
    np.take: lambda x, index, axis=None: x.columns(index, int(axis)),
    np.delete: lambda x, index, axis=None: x.columns(
        np.delete(np.arange(_known_size(x, axis, "delete")), index), int(axis)
    ),
    np.select: _selected,
    np.piecewise: _piecewise,
    np.digitize: _bins,
    np.searchsorted: _searched,
    np.interp: _interpolated,
    np.isin: _contained,
    np.isclose: _close,
    np.diff: _differences,
    np.sort: _sorted,
    np.argsort: lambda x, axis=-1, **_: _positions(x, axis, "argsort"),
    np.polyval: _polynomial,
    np.linalg.norm: _norm,
    np.real: lambda x: x,
    np.iscomplexobj: lambda x: False,
    np.isrealobj: lambda x: True,
}
FUNCTIONS.update(_TRANSLATIONS)
