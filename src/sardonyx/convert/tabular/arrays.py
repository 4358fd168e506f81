"""Arrays of a graph under construction that numpy's functions accept.

``np.exp(x) @ weights + 1`` over an :class:`Array` adds nodes instead of computing: converters of estimators read like
the estimators' own sources, and functions of users (``FunctionTransformer``) are traced.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from numpy.lib.mixins import NDArrayOperatorsMixin

from sardonyx.convert.graph_builder import GraphBuilder
from sardonyx.convert.tabular import indices
from sardonyx.errors import UnsupportedError
from sardonyx.rewrite.analysis.inference import infer_node

OPSETS = {"": 20, "ai.onnx.ml": 5, "com.microsoft": 1}
"""Versions of the operators: version 5 of ``ai.onnx.ml`` is the first with trees in float64."""

IR_VERSION = 10

_UNARY = {
    np.exp: "Exp",
    np.log: "Log",
    np.sqrt: "Sqrt",
    np.absolute: "Abs",
    np.fabs: "Abs",
    np.sign: "Sign",
    np.sin: "Sin",
    np.cos: "Cos",
    np.tanh: "Tanh",
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

TIMED: list[Callable[[np.ufunc, Sequence[Any]], Any]] = []
"""The function that computes universal functions of dates and durations, registered by :mod:`.dates`."""

_LOGIC = frozenset((np.logical_and, np.logical_or, np.logical_xor))
"""Functions whose operands are truth values, whatever their types are."""

_COMPARISONS = frozenset(("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "And", "Or", "Xor"))


@dataclass
class _Owner:
    """The array of which another shows elements: how, and the key by which an assignment reaches the elements."""

    array: Array
    derive: Callable[[Array], Array]
    key: Any


class Array(NDArrayOperatorsMixin):
    """An array of the graph.

    Args:
        builder: The graph.
        value: The value.
        dtype: Element type; `object` for texts.

    Attributes:
        builder: The graph.
        value: The value; an assignment to elements replaces the value.
        dtype: Element type of numpy.
        names: Names of columns, if the array has the place of a data frame.
        known: Categories by column, from example rows, of the model's input.
    """

    __hash__ = object.__hash__

    def __init__(self, builder: GraphBuilder, value: ir.Value, dtype: npt.DTypeLike) -> None:
        self.builder = builder
        self.value = value
        self.dtype = np.dtype(dtype)
        self.names: Sequence[str] = ()
        self.known: Mapping[int, Sequence[Any]] = {}
        self._owner: _Owner | None = None
        self._views: list[weakref.ref[Array]] = []

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Add the nodes of a universal function."""
        out = options.pop("out", None)
        unknown = [name for name in options if name != "dtype"]
        if method != "__call__" or unknown or "dtype" in options:
            name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
            suffix = f" with {', '.join(options)}" if options else ""
            raise UnsupportedError(f"numpy.{name}{suffix} has no translation")
        result = self._computed(ufunc, inputs)
        if out is None:
            return result
        if len(out) != 1 or not isinstance(out[0], Array):
            raise UnsupportedError(f"numpy.{ufunc.__name__} into an array of numbers has no translation")
        if has_missing(result.dtype) and not has_missing(out[0].dtype):
            raise UnsupportedError(f"numpy.{ufunc.__name__} of missing dates into others has no translation")
        out[0].assign(result.cast(out[0].dtype).value)
        return out[0]

    def _computed(self, ufunc: np.ufunc, inputs: Sequence[Any]) -> Any:
        if any(isinstance(one, Array) and one.dtype.kind in "mM" for one in inputs):
            return TIMED[0](ufunc, inputs)
        if ufunc in COMPOSED:
            return COMPOSED[ufunc](*inputs)
        if ufunc in _UNARY:
            name = _UNARY[ufunc]
            if name == "Not" and self.dtype != bool and ufunc is not np.logical_not:
                raise UnsupportedError(f"numpy.{ufunc.__name__} of {self.dtype} has no translation")
            if name == "Not":
                return self._derived(name, self.cast(bool), dtype=bool)
            if self.dtype.kind in "iu" and name in ("Floor", "Ceil"):
                return self
            is_accepted = self.dtype.kind == "f" or (name in ("Abs", "Neg", "Sign") and self.dtype.kind != "b")
            operand = self if is_accepted else self.cast(np.float64)
            return self._derived(name, operand, dtype=bool if name in ("IsNaN", "IsInf") else operand.dtype)
        if ufunc not in _BINARY:
            raise UnsupportedError(f"numpy.{ufunc.__name__} has no translation")
        name = _BINARY[ufunc]
        dtype = np.dtype(bool) if ufunc in _LOGIC else common_type(inputs)
        if name in ("And", "Or") and dtype.kind != "b":
            raise UnsupportedError(f"numpy.{ufunc.__name__} of {dtype} has no translation")
        if name == "Div" and dtype.kind in "iub":
            dtype = np.dtype(np.float64)
        operands = [lifted(self.builder, operand, dtype) for operand in inputs]
        return self._derived(name, *operands, dtype=bool if name in _COMPARISONS else dtype)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        """Add the nodes of a function of numpy that is not universal."""
        translation = FUNCTIONS.get(function)
        if translation is None:
            raise UnsupportedError(f"numpy.{function.__name__} has no translation")
        return translation(*arguments, **options)

    if not TYPE_CHECKING:  # numpy's types would take the results of its functions for arrays of numbers.

        def __array__(self, *_: Any, **__: Any) -> Any:
            """Refuse to become an array of numbers."""
            raise UnsupportedError("an array of the graph has no numbers before the model runs")

    def __bool__(self) -> bool:
        """Refuse to decide a branch of Python."""
        raise UnsupportedError(
            "a branch on values of the rows has no translation", remedy="Use numpy.where for a choice by element."
        )

    def __iter__(self) -> Any:
        """Refuse to iterate over rows."""
        raise UnsupportedError("a loop over rows has no translation", remedy="Use functions of numpy on whole arrays.")

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
        return self.builder.constant(array.astype(np.int64) if array.dtype.kind in "iu" or not array.size else array)

    def constant(self, array: Any, dtype: npt.DTypeLike | None = None) -> Array:
        """Return a constant of the same graph, of this array's element type by default."""
        return lifted(self.builder, np.asarray(array), self.dtype if dtype is None else np.dtype(dtype))

    def cast(self, dtype: npt.DTypeLike) -> Array:
        """Return the array converted to another element type."""
        target = np.dtype(dtype)
        if target == self.dtype:
            return self
        if target.kind in "mM":
            raise UnsupportedError(f"{self.dtype} as {target} has no translation: units and kinds of dates differ")
        if self.dtype.kind in "mM":
            return Array(self.builder, self.value, np.int64).cast(target)
        kind = ir.DataType.STRING if target.kind == "O" else ir.DataType.from_numpy(target)
        return self.node("Cast", dtype=target, to=kind)

    def astype(self, dtype: npt.DTypeLike, **_: Any) -> Array:
        """Return a converted copy."""
        return self.cast(dtype).copy()

    # Sizes

    def sizes(self) -> list[int | None]:
        """Return the sizes of the axes; None for one that differs from call to call.

        Raises:
            UnsupportedError: The number of axes is not known.
        """
        self.builder.annotate(lambda node: infer_node(node, OPSETS, IR_VERSION))
        if self.value.shape is None:
            raise UnsupportedError("the number of axes is not known here")
        return [size if isinstance(size, int) else None for size in self.value.shape]

    def sized(self, sizes: Sequence[Any]) -> Array:
        """Declare the sizes of a result whose node has computed ones, and return the array."""
        self.builder.annotate(lambda node: infer_node(node, OPSETS, IR_VERSION))
        self.value.shape = ir.Shape([size if isinstance(size, int) and size >= 0 else None for size in sizes])
        return self

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.sizes())

    @property
    def shape(self) -> tuple[Any, ...]:
        """Sizes of the axes; an int64 array of the graph for one that differs from call to call."""
        return tuple(self.length(axis) if size is None else size for axis, size in enumerate(self.sizes()))

    @property
    def size(self) -> Any:
        """Number of elements."""
        return count(self, None)

    def length(self, axis: int) -> Array:
        """Return the size of an axis as an array of the graph."""
        return self.node("Shape", dtype=np.int64, start=axis, end=axis + 1).node("Squeeze", [0])

    # Elements

    def __getitem__(self, key: Any) -> Array:
        """Return columns by ``x[:, columns]``: an integer, integers or a slice; None is a new axis.

        Raises:
            UnsupportedError: The first axis, which is of rows, would lose some.
        """
        if any(isinstance(item, Array) for item in (key if isinstance(key, tuple) else (key,))):
            raise UnsupportedError(
                "a selection of rows by values has no translation; expected x[:, columns]",
                remedy="Use numpy.where for a choice by element.",
            )
        index = indices.parse(key, self.ndim)
        if not index.keeps_rows:
            raise UnsupportedError(f"rows by {indices.text_of(key)} have no translation; expected x[:, columns]")
        result = self
        axis = 0
        for selection in index.selections:
            result = result.columns(selection, axis)
            axis += not isinstance(selection, int)
        result = result.node("Unsqueeze", index.new_axes) if index.new_axes else result
        return self._view(result, lambda owner: owner[key], key) if index.is_view else result

    def __setitem__(self, key: Any, new: Any) -> None:
        """Replace elements, as ``x[:, columns] = new``, ``x[condition] = new`` and ``x[condition, column] = new``."""
        if self.dtype.kind in "mM":
            raise UnsupportedError("assignment to elements of dates has no translation", remedy="Use numpy.where.")
        items = key if isinstance(key, tuple) else (key,)
        if not isinstance(items[0], Array):
            self.assign(self._with_columns(key, new))
            return
        if items[0].dtype != bool or len(items) > 2 or any(isinstance(item, Array) for item in items[1:]):
            raise UnsupportedError("assignment by indices from the rows has no translation")
        old = self.copy() if len(items) == 1 else self.copy()[:, items[1]]
        condition = items[0]
        while condition.ndim < old.ndim:
            condition = condition.node("Unsqueeze", [-1])
        chosen = where(condition, new, old).cast(self.dtype)
        self.assign(chosen.value if len(items) == 1 else self._with_columns((slice(None), items[1]), chosen))

    def _with_columns(self, key: Any, new: Any) -> ir.Value:
        """Return the array with other columns."""
        index = indices.parse(key, self.ndim)
        if index.new_axes or not index.keeps_rows:
            raise UnsupportedError(
                f"assignment to {indices.text_of(key)} has no translation; expected x[:, columns] = ..."
            )
        chosen = [axis for axis, one in enumerate(index.selections) if one != slice(None)]
        old = self.copy()[key]
        new = lifted(self.builder, new, self.dtype)
        shape = old.node("Shape", dtype=np.int64)
        new = new.node("Expand", shape)
        if not chosen:
            return new.value
        size = self.sizes()[chosen[0]]
        if len(chosen) > 1 or size is None:
            raise UnsupportedError("assignment to parts of several axes has no translation")
        axis = chosen[0]
        selection = index.selections[axis]
        new = new.node("Unsqueeze", [axis]) if isinstance(selection, int) else new
        source = list(range(size))
        for i, position in enumerate(indices.positions(selection, size)):
            source[position] = size + i
        return concatenated([self, new], axis=axis).node("Gather", source, axis=axis).value

    def assign(self, value: ir.Value) -> None:
        """Replace all elements, also those that arrays share with this one.

        Raises:
            UnsupportedError: This array is another order of the elements of a second.
        """
        if self._owner is None:
            self.value = value
            self._refresh_views()
            return
        array, key = self._owner.array, self._owner.key
        if key is None:
            raise UnsupportedError(
                "assignment to another order of an array's elements has no translation", remedy="Copy the array first."
            )
        array.assign(array._with_columns(key, Array(self.builder, value, self.dtype)))

    def _view(self, result: Array, derive: Callable[[Array], Array], key: Any = None) -> Array:
        """Return an array that shares the elements of this one, and follows assignments to either."""
        result = self.copy() if result is self else result
        result._owner = _Owner(self, derive, key)
        self._views = [view for view in self._views if view() is not None]
        self._views.append(weakref.ref(result))
        return result

    def _refresh_views(self) -> None:
        for view in [view() for view in self._views]:
            if view is not None and view._owner is not None:
                view.value = view._owner.derive(self.copy()).value
                view._refresh_views()

    def columns(self, key: Any, axis: int = 1) -> Array:
        """Return columns: one as [rows], several as [rows, columns]."""
        if isinstance(key, slice):
            start, stop, step = indices.bounds(key)
            if (start, stop, step) == (0, indices.LAST, 1):
                return self
            return self.node("Slice", [start], [stop], [axis], [step])
        index = np.asarray(key)
        return self.node("Gather", index.nonzero()[0] if index.dtype == bool else index, axis=axis)

    def rows(self, index: Array) -> Array:
        """Return rows of a table by an integer array."""
        return self.node("Gather", index, axis=0)

    def reshape(self, *sizes: Any, **_: Any) -> Array:
        """Return the elements with other sizes; -1 once."""
        target = list(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else list(sizes)
        if not any(isinstance(size, Array) for size in target):
            return self._view(self.node("Reshape", target), lambda owner: owner.reshape(*sizes))
        parts = [self.constant(size, np.int64) if not isinstance(size, Array) else size for size in target]
        shape = concatenated([part.node("Unsqueeze", [0]) for part in parts])
        return self._view(self.node("Reshape", shape).sized(target), lambda owner: owner.reshape(*sizes))

    def ravel(self, **_: Any) -> Array:
        """Return the elements as a vector."""
        return self.reshape(-1)

    def flatten(self, **_: Any) -> Array:
        """Return a copy of the elements as a vector."""
        return self.reshape(-1).copy()

    def transpose(self, *axes: Any) -> Array:
        """Return the array with its axes in another order, reversed by default."""
        order = list(axes[0]) if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else list(axes)
        rank = self.ndim
        order = [int(axis) % rank for axis in order] if order and order != [None] else list(reversed(range(rank)))
        return self._view(self.node("Transpose", perm=order), lambda owner: owner.transpose(*axes))

    @property
    def T(self) -> Array:
        """The matrix transposed."""
        return self._view(self.node("Transpose", perm=[1, 0]), lambda owner: owner.T)

    # Reductions

    def reduced(self, operator: str, axis: Any, keepdims: bool) -> Array:
        """Return a reduction along axes; None for all."""
        axes = None if axis is None else [int(one) for one in np.atleast_1d(axis)]
        return self.node(operator, axes, keepdims=int(keepdims))

    def sum(self, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Array:
        """Return sums along axes."""
        operand = self.cast(dtype or (np.int64 if self.dtype == bool else self.dtype))
        return operand.reduced("ReduceSum", axis, keepdims)

    def prod(self, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Array:
        """Return products along axes."""
        operand = self.cast(dtype or (np.int64 if self.dtype == bool else self.dtype))
        return operand.reduced("ReduceProd", axis, keepdims)

    def mean(self, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Array:
        """Return means along axes."""
        operand = self.cast(dtype or (self.dtype if self.dtype.kind == "f" else np.float64))
        return operand.reduced("ReduceMean", axis, keepdims)

    def var(
        self, axis: Any = None, dtype: Any = None, *, ddof: float = 0, correction: float = 0, keepdims: bool = False
    ) -> Array:
        """Return mean squares of the distance from the mean, over the number of elements less `ddof`."""
        operand = self.cast(dtype or (self.dtype if self.dtype.kind == "f" else np.float64))
        squares = (operand - operand.mean(axis, keepdims=True)) ** 2
        less = ddof or correction
        if not less:
            return squares.mean(axis, keepdims=keepdims)
        return squares.sum(axis, keepdims=keepdims) / (count(self, axis) - float(less))

    def std(self, axis: Any = None, dtype: Any = None, **options: Any) -> Array:
        """Return square roots of variances."""
        return np.sqrt(self.var(axis, dtype, **options))

    def max(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        """Return maxima along axes."""
        return self.reduced("ReduceMax", axis, keepdims)

    def min(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        """Return minima along axes."""
        return self.reduced("ReduceMin", axis, keepdims)

    def argmax(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        """Return the position of the first maximum."""
        return self._position("ArgMax", axis, keepdims)

    def argmin(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        """Return the position of the first minimum."""
        return self._position("ArgMin", axis, keepdims)

    def _position(self, operator: str, axis: Any, keepdims: bool) -> Array:
        if axis is None and self.ndim > 1:
            raise UnsupportedError(f"numpy.{operator.lower()} over all axes has no translation; expected axis=1")
        operand = self.cast(np.int64) if self.dtype == bool else self
        return operand.node(operator, dtype=np.int64, axis=0 if axis is None else int(axis), keepdims=int(keepdims))

    def any(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        """Return True where an element is True."""
        return self.cast(bool).cast(np.int32).reduced("ReduceMax", axis, keepdims).cast(bool)

    def all(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        """Return True where all elements are True."""
        return np.logical_not(np.logical_not(self).any(axis, keepdims=keepdims))

    def clip(self, low: Any = None, high: Any = None, *, min: Any = None, max: Any = None) -> Array:
        """Return elements limited to a range."""
        low, high = (min if low is None else low), (max if high is None else high)
        result: Any = self if low is None else np.maximum(self, low)
        return result if high is None else np.minimum(result, high)

    def copy(self, **_: Any) -> Array:
        """Return an array whose elements may be replaced."""
        return Array(self.builder, self.value, self.dtype)


def count(array: Array, axis: Any) -> Any:
    """Return the number of elements along axes, or of all: a number, or an int64 array of the graph."""
    sizes = array.sizes()
    axes = range(len(sizes)) if axis is None else [int(one) % len(sizes) for one in np.atleast_1d(axis)]
    total: Any = 1
    for one in axes:
        size = sizes[one]
        total = (array.length(one) if size is None else size) * total
    return total


def time_type(dtype: np.dtype[Any], has_missing: bool) -> np.dtype[Any]:
    """Return a type of dates or durations that records if some are missing: the types of pandas' results depend on it.

    The results of functions are missing wherever an operand may be.
    """
    return np.dtype(dtype.str, metadata={"has_missing": has_missing})


def has_missing(dtype: np.dtype[Any]) -> bool:
    """Return True if dates or durations of the type may be missing."""
    return bool((dtype.metadata or {}).get("has_missing"))


def of_time(operand: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a constant as dates or durations.

    Raises:
        UnsupportedError: The constant is a number, which pandas keeps beside dates.
    """
    # pandas has a missing date of a class of its own.
    array = np.asarray(None if np.ndim(operand) == 0 and operand != operand else operand)
    if array.dtype.kind not in "mMOUS":
        raise UnsupportedError("dates and numbers in one column have no translation")
    return array.astype(dtype.str)


def common_type(operands: Sequence[Any]) -> np.dtype[Any]:
    """Return the element type of a binary operation; Python numbers adopt the arrays' type where possible."""
    arrays = [np.asarray(o).dtype if not isinstance(o, Array) else o.dtype for o in operands]
    dates = [o.dtype for o in operands if isinstance(o, Array) and o.dtype.kind in "mM"]
    if dates:
        constants = [of_time(o, dates[0]) for o in operands if not isinstance(o, Array)]
        return time_type(dates[0], any(map(has_missing, dates)) or any(np.isnat(one).any() for one in constants))
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
    if dtype.kind in "mM":
        return Array(builder, builder.constant(of_time(operand, dtype).astype(np.int64)), dtype)
    return Array(builder, builder.constant(np.asarray(operand).astype(dtype)), dtype)


def where(condition: Any, yes: Any = None, no: Any = None) -> Any:
    """Return elements of `yes` where a condition holds, else of `no`."""
    if yes is None or no is None:
        raise UnsupportedError("numpy.where of one argument has no translation")
    array = next((item for item in (condition, yes, no) if isinstance(item, Array)), None)
    if array is None:
        return np.where(condition, yes, no)
    dtype = common_type((yes, no))
    condition = lifted(array.builder, condition, np.dtype(bool))
    operands = [lifted(condition.builder, operand, dtype) for operand in (yes, no)]
    return condition.node("Where", *operands, dtype=dtype)


def concatenated(parts: Sequence[Any], axis: int = 0) -> Any:
    """Return arrays of one element type, one after the other along an axis."""
    first = next((part for part in parts if isinstance(part, Array)), None)
    if first is None:
        return np.concatenate(parts, axis)
    dtype = common_type(parts)
    values = [lifted(first.builder, part, dtype).value for part in parts]
    result = values[0] if len(values) == 1 else first.builder.node("Concat", *values, axis=axis)
    return Array(first.builder, result, dtype)


def einsum(equation: str, *operands: Any) -> Any:
    """Return the sum of products that an equation names."""
    first = next(operand for operand in operands if isinstance(operand, Array))
    values = [lifted(first.builder, operand, common_type(operands)).value for operand in operands]
    return Array(first.builder, first.builder.node("Einsum", *values, equation=equation), common_type(operands))


COMPOSED: dict[np.ufunc, Callable[..., Any]] = {}
"""Universal functions that ONNX lacks, as compositions: `array_functions.py`."""

FUNCTIONS: dict[Any, Callable[..., Any]] = {}
"""Functions of numpy over :class:`Array`: `array_functions.py`."""


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
