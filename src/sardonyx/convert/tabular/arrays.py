"""Arrays of a graph under construction that numpy's functions accept.

``np.exp(x) @ weights + 1`` over an :class:`Array` adds nodes instead of computing: converters of estimators read like
the estimators' own sources, and functions of users (``FunctionTransformer``) are traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from numpy.lib.mixins import NDArrayOperatorsMixin

from sardonyx.convert.graph_builder import GraphBuilder
from sardonyx.errors import UnsupportedError

_UNARY = {
    np.exp: "Exp",
    np.log: "Log",
    np.sqrt: "Sqrt",
    np.absolute: "Abs",
    np.fabs: "Abs",
    np.sign: "Sign",
    np.sin: "Sin",
    np.cos: "Cos",
    np.tan: "Tan",
    np.arcsin: "Asin",
    np.arccos: "Acos",
    np.arctan: "Atan",
    np.sinh: "Sinh",
    np.cosh: "Cosh",
    np.tanh: "Tanh",
    np.arcsinh: "Asinh",
    np.arccosh: "Acosh",
    np.arctanh: "Atanh",
    np.floor: "Floor",
    np.ceil: "Ceil",
    np.rint: "Round",
    np.negative: "Neg",
    np.reciprocal: "Reciprocal",
    np.isnan: "IsNaN",
    np.isinf: "IsInf",
    np.logical_not: "Not",
    np.invert: "Not",
}

_BINARY = {
    np.add: "Add",
    np.subtract: "Sub",
    np.multiply: "Mul",
    np.divide: "Div",
    np.power: "Pow",
    np.maximum: "Max",
    np.minimum: "Min",
    np.matmul: "MatMul",
    np.less: "Less",
    np.less_equal: "LessOrEqual",
    np.greater: "Greater",
    np.greater_equal: "GreaterOrEqual",
    np.equal: "Equal",
    np.logical_and: "And",
    np.logical_or: "Or",
    np.logical_xor: "Xor",
    np.bitwise_and: "And",
    np.bitwise_or: "Or",
}

_LOGIC = frozenset((np.logical_and, np.logical_or, np.logical_xor))
"""Functions whose operands are truth values, whatever their types are."""

_COMPARISONS = frozenset(("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "And", "Or", "Xor"))

_COMPOSED: dict[np.ufunc, Callable[..., Any]] = {
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
    np.positive: lambda x: x,
    np.floor_divide: lambda x, y: np.floor(x / y),
    np.remainder: lambda x, y: x - np.floor(x / y) * y,
    np.deg2rad: lambda x: x * (np.pi / 180),
    np.rad2deg: lambda x: x * (180 / np.pi),
    np.hypot: lambda x, y: _hypot(x, y),
    np.arctan2: lambda y, x: _angle(y, x),
    np.logaddexp: lambda x, y: np.maximum(x, y) + _log1p(np.exp(-np.absolute(x - y))),
    np.fmax: lambda x, y: where(np.isnan(x), y, where(np.isnan(y), x, np.maximum(x, y))),
    np.fmin: lambda x, y: where(np.isnan(x), y, where(np.isnan(y), x, np.minimum(x, y))),
    np.float_power: lambda x, y: np.power(x * 1.0, y),
    np.heaviside: lambda x, y: where(np.isnan(x), x, where(np.equal(x, 0.0), y, np.greater(x, 0.0).astype(np.float64))),
    np.copysign: lambda x, y: np.absolute(x) * where(np.less(y, 0.0), -1.0, 1.0),
    np.conjugate: lambda x: x,
}
"""Functions that ONNX lacks, as compositions."""


def _log1p(x: Any) -> Any:
    """Return log(1 + x) without loss of small x: the error of 1 + x cancels (W. Kahan)."""
    shifted = x + 1.0
    is_small = np.equal(shifted, 1.0)
    return where(is_small, x, np.log(shifted) * x / where(is_small, 1.0, shifted - 1.0))


def _expm1(x: Any) -> Any:
    """Return exp(x) - 1 without loss of small x, as tanh(x / 2) * (exp(x) + 1)."""
    return np.tanh(x / 2.0) * (np.exp(x) + 1.0)


def _hypot(x: Any, y: Any) -> Any:
    """Return the length of (x, y), scaled by the larger part so that squares are finite."""
    x, y = np.absolute(x), np.absolute(y)
    larger = np.maximum(x, y)
    scale = where(np.equal(larger, 0.0) | np.isinf(larger), 1.0, larger)
    return np.sqrt((x / scale) ** 2 + (y / scale) ** 2) * scale


def _angle(y: Any, x: Any) -> Any:
    """Return the angle of (x, y) in all four quadrants."""
    half_turn = where(np.less(y, 0.0), -np.pi, np.pi)
    angle = np.arctan(y / where(np.equal(x, 0.0), 1.0, x))
    angle = where(np.less(x, 0.0), angle + half_turn, angle)
    return where(np.equal(x, 0.0), np.sign(y) * (np.pi / 2), angle)


class Array(NDArrayOperatorsMixin):
    """An array of the graph.

    Args:
        builder: The graph.
        value: The value.
        dtype: Element type; `object` for texts.

    Attributes:
        builder: The graph.
        value: The value.
        dtype: Element type of numpy.
    """

    def __init__(self, builder: GraphBuilder, value: ir.Value, dtype: npt.DTypeLike) -> None:
        self.builder = builder
        self.value = value
        self.dtype = np.dtype(dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Add the nodes of a universal function."""
        if method != "__call__" or options.get("out") is not None:
            raise UnsupportedError(f"numpy.{ufunc.__name__}.{method} has no translation")
        if ufunc in _COMPOSED:
            return _COMPOSED[ufunc](*inputs)
        if ufunc in _UNARY:
            name = _UNARY[ufunc]
            if name == "Not" and self.dtype != bool and ufunc is not np.logical_not:
                raise UnsupportedError(f"numpy.{ufunc.__name__} of {self.dtype} has no translation")
            if name == "Not":
                return self._derived(name, self.cast(bool), dtype=bool)
            operand = self if self.dtype.kind in "fb" or name in ("Abs", "Neg", "Sign") else self.cast(np.float64)
            return self._derived(name, operand, dtype=bool if name in ("IsNaN", "IsInf") else operand.dtype)
        if ufunc not in _BINARY:
            raise UnsupportedError(f"numpy.{ufunc.__name__} has no translation")
        name = _BINARY[ufunc]
        dtype = np.dtype(bool) if ufunc in _LOGIC else common_type(inputs)
        if name in ("And", "Or") and dtype.kind != "b":
            raise UnsupportedError(f"numpy.{ufunc.__name__} of {dtype} has no translation")
        if name == "Div" and dtype.kind in "iu":
            dtype = np.dtype(np.float64)
        operands = [lifted(self.builder, operand, dtype) for operand in inputs]
        return self._derived(name, *operands, dtype=bool if name in _COMPARISONS else dtype)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        """Add the nodes of a function of numpy that is not universal."""
        translation = FUNCTIONS.get(function)
        if translation is None:
            raise UnsupportedError(f"numpy.{function.__name__} has no translation")
        return translation(*arguments, **options)

    def _derived(self, operator: str, *operands: Array, dtype: npt.DTypeLike, **attributes: Any) -> Array:
        values = [operand.value for operand in operands]
        return Array(self.builder, self.builder.node(operator, *values, **attributes), dtype)

    def node(
        self, operator: str, *others: Any, dtype: npt.DTypeLike | None = None, domain: str = "", **attributes: Any
    ) -> Array:
        """Add a node whose first input is this array; others are arrays, int64 constants or None."""
        values = [self.value, *(None if other is None else self._operand(other) for other in others)]
        result = self.builder.node(operator, *values, domain=domain, **attributes)
        return Array(self.builder, result, self.dtype if dtype is None else dtype)

    def _operand(self, other: Any) -> ir.Value:
        if isinstance(other, Array):
            return other.value
        array = np.asarray(other)
        return self.builder.constant(array.astype(np.int64) if array.dtype.kind in "iu" else array)

    def constant(self, array: Any, dtype: npt.DTypeLike | None = None) -> Array:
        """Return a constant of the same graph, of this array's element type by default."""
        return lifted(self.builder, np.asarray(array), self.dtype if dtype is None else np.dtype(dtype))

    def cast(self, dtype: npt.DTypeLike) -> Array:
        """Return the array converted to another element type."""
        target = np.dtype(dtype)
        if target == self.dtype:
            return self
        kind = ir.DataType.STRING if target.kind == "O" else ir.DataType.from_numpy(target)
        return self.node("Cast", dtype=target, to=kind)

    astype = cast

    def __getitem__(self, key: Any) -> Array:
        """Return columns by ``x[:, columns]``: an integer, integers or a slice; None is a new axis.

        Raises:
            UnsupportedError: The first axis, which is of rows, would lose some.
        """
        items = key if isinstance(key, tuple) else (key,)
        new = [axis for axis, item in enumerate(items) if item is None]
        rest = [item for item in items if item is not None]
        is_last = rest[:1] == [Ellipsis]
        whole = (slice(None), Ellipsis)
        if len(rest) <= 2 and all(any(item is one or item == one for one in whole) for item in rest[:1]):
            result = self if len(rest) < 2 else self.columns(rest[1], -1 if is_last else 1)
            if not is_last or new in ([], [len(items) - 1]):
                axes = [-1] if is_last and new else new
                return result.node("Unsqueeze", axes) if axes else result
        raise UnsupportedError(f"indexing by {key!r} has no translation; expected x[:, columns]")

    def columns(self, key: Any, axis: int = 1) -> Array:
        """Return columns: one as [rows], several as [rows, columns]."""
        if isinstance(key, slice):
            if key == slice(None):
                return self
            if key.stop is None or key.stop < 0 or (key.start or 0) < 0:
                start, stop = key.start or 0, np.iinfo(np.int64).max if key.stop is None else key.stop
                return self.node("Slice", [start], [stop], [axis], [key.step or 1])
            key = list(range(key.start or 0, key.stop, key.step or 1))
        index = np.asarray(key)
        return self.node("Gather", index.nonzero()[0] if index.dtype == bool else index, axis=axis)

    def rows(self, index: Array) -> Array:
        """Return rows of a table by an integer array."""
        return self.node("Gather", index, axis=0)

    def reshape(self, *sizes: Any) -> Array:
        """Return the elements with other sizes; -1 once."""
        target = list(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else list(sizes)
        return self.node("Reshape", target)

    def ravel(self) -> Array:
        """Return the elements as a vector."""
        return self.reshape(-1)

    @property
    def T(self) -> Array:
        """The matrix transposed."""
        return self.node("Transpose", perm=[1, 0])

    def _reduced(self, operator: str, axis: Any, keepdims: bool) -> Array:
        axes = None if axis is None else [axis] if isinstance(axis, int) else list(axis)
        return self.node(operator, axes, keepdims=int(keepdims))

    def sum(self, axis: Any = None, keepdims: bool = False, **_: Any) -> Array:
        """Return sums along axes."""
        operand = self.cast(np.int64) if self.dtype == bool else self
        return operand._reduced("ReduceSum", axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False, **_: Any) -> Array:
        """Return means along axes."""
        return self._reduced("ReduceMean", axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False, **_: Any) -> Array:
        """Return maxima along axes."""
        return self._reduced("ReduceMax", axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False, **_: Any) -> Array:
        """Return minima along axes."""
        return self._reduced("ReduceMin", axis, keepdims)

    def argmax(self, axis: int = -1) -> Array:
        """Return the position of the first maximum."""
        operand = self.cast(np.int64) if self.dtype == bool else self
        return operand.node("ArgMax", dtype=np.int64, axis=axis, keepdims=0)

    def argmin(self, axis: int = -1) -> Array:
        """Return the position of the first minimum."""
        return self.node("ArgMin", dtype=np.int64, axis=axis, keepdims=0)

    def any(self, axis: Any = None, keepdims: bool = False) -> Array:
        """Return True where an element is True."""
        return self.cast(bool).cast(np.int32)._reduced("ReduceMax", axis, keepdims).cast(bool)

    def clip(self, low: Any = None, high: Any = None, **_: Any) -> Array:
        """Return elements limited to a range."""
        result: Any = self if low is None else np.maximum(self, low)
        return result if high is None else np.minimum(result, high)

    def copy(self) -> Array:
        """Return the array: nothing changes in place."""
        return self


def common_type(operands: Sequence[Any]) -> np.dtype[Any]:
    """Return the element type of a binary operation; Python numbers adopt the arrays' type where possible."""
    arrays = [np.asarray(o).dtype if not isinstance(o, Array) else o.dtype for o in operands]
    if any(dtype.kind in "OUS" for dtype in arrays):
        return np.dtype(object)
    weak = [isinstance(o, (int, float)) and not isinstance(o, bool) for o in operands]
    strong = [dtype for dtype, is_weak in zip(arrays, weak, strict=True) if not is_weak]
    result = np.result_type(*strong) if strong else np.result_type(*arrays)
    if any(w and dtype.kind == "f" for w, dtype in zip(weak, arrays, strict=True)) and result.kind != "f":
        return np.dtype(np.float64)
    return np.dtype(np.int64) if result.kind == "b" and any(weak) else result


def lifted(builder: GraphBuilder, operand: Any, dtype: np.dtype[Any]) -> Array:
    """Return an operand as an array of element type `dtype`."""
    if isinstance(operand, Array):
        return operand.cast(dtype)
    if hasattr(operand, "toarray"):
        operand = operand.toarray()
    return Array(builder, builder.constant(np.asarray(operand).astype(dtype)), dtype)


def where(condition: Any, yes: Any = None, no: Any = None) -> Any:
    """Return elements of `yes` where a condition holds, else of `no`."""
    if yes is None or no is None:
        raise UnsupportedError("numpy.where of one argument has no translation")
    dtype = common_type((yes, no))
    array = next(item for item in (condition, yes, no) if isinstance(item, Array))
    condition = lifted(array.builder, condition, np.dtype(bool))
    operands = [lifted(condition.builder, operand, dtype) for operand in (yes, no)]
    return condition.node("Where", *operands, dtype=dtype)


def concatenated(parts: Sequence[Any], axis: int = 0, **_: Any) -> Any:
    """Return arrays of one element type, one after the other along an axis."""
    first = next(part for part in parts if isinstance(part, Array))
    dtype = common_type(parts)
    operands = [lifted(first.builder, part, dtype) for part in parts]
    values = [operand.value for operand in operands]
    return (
        operands[0]
        if len(values) == 1
        else Array(first.builder, first.builder.node("Concat", *values, axis=axis), dtype)
    )


def stacked(parts: Sequence[Any], axis: int = 0, **_: Any) -> Any:
    """Return arrays joined along a new axis."""
    return concatenated([part.node("Unsqueeze", [axis]) for part in parts], axis=axis)


def columns_of(parts: Sequence[Any]) -> Any:
    """Return vectors or matrices as one matrix, side by side."""
    return concatenated([part if getattr(part, "is_matrix", True) else part.reshape(-1, 1) for part in parts], axis=1)


def einsum(equation: str, *operands: Any) -> Any:
    """Return the sum of products that an equation names."""
    first = next(operand for operand in operands if isinstance(operand, Array))
    values = [lifted(first.builder, operand, common_type(operands)).value for operand in operands]
    return Array(first.builder, first.builder.node("Einsum", *values, equation=equation), common_type(operands))


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.where: where,
    np.concatenate: concatenated,
    np.hstack: lambda parts: concatenated(parts, axis=1),
    np.stack: stacked,
    np.sum: lambda x, axis=None, **options: x.sum(axis, **options),
    np.mean: lambda x, axis=None, **options: x.mean(axis, **options),
    np.max: lambda x, axis=None, **options: x.max(axis, **options),
    np.min: lambda x, axis=None, **options: x.min(axis, **options),
    np.argmax: lambda x, axis=-1: x.argmax(axis),
    np.argmin: lambda x, axis=-1: x.argmin(axis),
    np.clip: lambda x, low=None, high=None, **_: x.clip(low, high),
    np.dot: lambda x, y: np.matmul(x, y),
    np.reshape: lambda x, *sizes, **_: x.reshape(*sizes),
    np.ravel: lambda x: x.ravel(),
    np.transpose: lambda x: x.T,
    np.round: lambda x, decimals=0: np.rint(x * 10.0**decimals) / 10.0**decimals,
    np.nan_to_num: lambda x, nan=0.0, **_: where(np.isnan(x), nan, x),
    np.einsum: einsum,
    np.expand_dims: lambda x, axis: x.node("Unsqueeze", [axis]),
    np.zeros_like: lambda x, **_: x * 0,
    np.ones_like: lambda x, **_: x * 0 + 1,
    np.full_like: lambda x, fill, **_: x * 0 + fill,
    np.column_stack: lambda parts: concatenated([_matrix(part) for part in parts], axis=1),
    np.squeeze: lambda x, axis: x.node("Squeeze", [axis]),
    np.any: lambda x, axis=None, **options: x.any(axis, **options),
    np.all: lambda x, axis=None, **options: np.logical_not(np.logical_not(x).any(axis, **options)),
    np.prod: lambda x, axis=None, keepdims=False, **_: x._reduced("ReduceProd", axis, keepdims),
    np.var: lambda x, axis=None, ddof=0, keepdims=False, **_: _variance(x, axis, ddof, keepdims),
    np.std: lambda x, axis=None, ddof=0, keepdims=False, **_: np.sqrt(_variance(x, axis, ddof, keepdims)),
    np.cumsum: lambda x, axis: x.node("CumSum", np.asarray(axis)),
    np.flip: lambda x, axis: x.node("Slice", [-1], [np.iinfo(np.int64).min], [axis], [-1]),
    np.select: lambda conditions, choices, default=0: _selected(conditions, choices, default),
    np.digitize: lambda x, bins, right=False: _bins(x, bins, right),
    np.diff: lambda x, axis=-1: (
        x.node("Slice", [1], [np.iinfo(np.int64).max], [axis]) - x.node("Slice", [0], [-1], [axis])
    ),
    np.linalg.norm: lambda x, axis=None, keepdims=False: x._reduced("ReduceL2", axis, keepdims),
}
"""Functions of numpy over :class:`Array`."""


def _matrix(part: Any) -> Any:
    """Return a vector as one column; the elements of a matrix keep their rows."""
    if not isinstance(part, Array):
        return part if np.ndim(part) == 2 else np.reshape(part, (-1, 1))
    rows = part.node("Shape", dtype=np.int64, start=0, end=1)
    return part.node("Reshape", concatenated([rows, part.constant([-1], np.int64)]))


def _variance(x: Array, axis: Any, ddof: int, keepdims: bool) -> Any:
    """Return the mean square distance from the mean; with `ddof`, of an axis of known size only."""
    if ddof:
        raise UnsupportedError(f"numpy.var with ddof={ddof} has no translation; expected 0")
    return ((x - x.mean(axis, keepdims=True)) ** 2).mean(axis, keepdims=keepdims)


def _selected(conditions: Sequence[Any], choices: Sequence[Any], default: Any) -> Any:
    """Return the choice of the first condition that holds."""
    result = default
    for condition, choice in zip(reversed(conditions), reversed(choices), strict=True):
        result = where(condition, choice, result)
    return result


def _bins(x: Array, bins: Any, right: bool) -> Array:
    """Return numbers of the bins between ascending edges."""
    edges = np.asarray(bins)
    if edges.ndim != 1 or (np.diff(edges) < 0).any():
        raise UnsupportedError("numpy.digitize of edges that are not ascending has no translation")
    above = [np.greater(x, edge) if right else np.greater_equal(x, edge) for edge in edges]
    total: Any = x.cast(np.float64) * 0
    for part in above:
        total = total + part.astype(np.float64)
    return total.astype(np.int64)


def softmax(x: Array) -> Array:
    """Return softmax along the last axis."""
    return x.node("Softmax", axis=-1)


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x))."""
    return x.node("Sigmoid")


def log_sum_exp(x: Array) -> Array:
    """Return log(sum(exp(x))) along axis 1, without overflow, as [rows, 1]."""
    most = x.max(1, keepdims=True)
    return np.log(np.exp(x - most).sum(1, keepdims=True)) + most
