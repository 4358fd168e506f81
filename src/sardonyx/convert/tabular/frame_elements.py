"""Methods of pandas by element, for frames and series of the graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from sardonyx.convert.tabular.arrays import Array, has_missing, lifted, time_type, where
from sardonyx.errors import UnsupportedError

_OPERATORS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "multiply": np.multiply,
    "div": np.divide,
    "truediv": np.divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "pow": np.power,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
"""Methods of pandas with another operand."""


def is_missing(value: Array) -> Array:
    """Return True where a number is NaN; a text is ``nan`` or ``None`` there."""
    if value.dtype == object:
        return equals(value, "nan") | equals(value, "None")
    if value.dtype.kind != "f":
        return np.not_equal(value, value)
    return np.isnan(value)


def equals(value: Array, other: Any) -> Array:
    """Return True where elements equal a value; texts equal no number."""
    if (value.dtype == object) != isinstance(other, str):
        kind = object if value.dtype == object else np.float64
        never = value.constant(np.array("\x00", object) if kind is object else np.nan, kind)
        return value.cast(kind).node("Equal", never, dtype=bool)
    return value.node("Equal", lifted(value.builder, other, value.dtype), dtype=bool)


def raw(value: Any) -> Any:
    """Return arrays in place of series, also in lists."""
    if isinstance(value, Elements):
        return value.array_of_graph()
    if isinstance(value, (list, tuple)):
        return type(value)(raw(item) for item in value)
    return value


class Elements(NDArrayOperatorsMixin, ABC):
    """Arithmetic and methods by element, which frames and series have in common."""

    is_frame = False
    """True for frames, False for series."""

    __hash__ = object.__hash__

    @abstractmethod
    def mapped(self, function: Callable[..., Any], *others: Any) -> Any:
        """Return a function of every column and of what `others` have for the column."""

    @abstractmethod
    def array_of_graph(self) -> Array:
        """Return the elements as an array."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Return a universal function of every column."""
        if method != "__call__" or options:
            raise UnsupportedError(f"numpy.{ufunc.__name__}.{method} of a data frame has no translation")
        position = next(i for i, one in enumerate(inputs) if isinstance(one, Elements))
        frames = [i for i, one in enumerate(inputs) if isinstance(one, Elements) and one.is_frame]
        position = frames[0] if frames else position
        others = [one for i, one in enumerate(inputs) if i != position]

        def call(column: Array, *rest: Any) -> Any:
            operands = [*rest[:position], column, *rest[position:]]
            if ufunc in (np.equal, np.not_equal) and any(isinstance(one, str) for one in operands):
                same = equals(column, next(one for one in operands if one is not column))
                return same if ufunc is np.equal else np.logical_not(same)
            return ufunc(*operands)

        return inputs[position].mapped(call, *others)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        """Return a function of numpy over arrays."""
        return function(*raw(arguments), **{name: raw(value) for name, value in options.items()})

    if not TYPE_CHECKING:

        def __array__(self, *_: Any, **__: Any) -> Any:
            """Refuse to become an array of numbers."""
            raise UnsupportedError("a data frame of the graph has no numbers before the model runs")

    def __bool__(self) -> bool:
        """Refuse to decide a branch of Python."""
        raise UnsupportedError(
            "a branch on values of the rows has no translation", remedy="Use numpy.where for a choice by element."
        )

    def __getattr__(self, name: str) -> Any:
        """Return a method of arithmetic by name.

        Raises:
            UnsupportedError: The method has no translation.
        """
        if name in _OPERATORS:
            return lambda other, axis=None: _OPERATORS[name](self, other)
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnsupportedError(f"{type(self).__name__}.{name} has no translation")

    def copy(self, deep: bool = True) -> Any:
        """Return a copy."""
        return self.mapped(lambda column: column.copy())

    def abs(self) -> Any:
        """Return absolute values."""
        return np.absolute(self)

    def astype(self, dtype: Any) -> Any:
        """Return converted columns; a mapping names columns."""
        kind = np.dtype(object if dtype in (str, "string", "category") else dtype)

        def convert(column: Array) -> Array:
            if column.dtype == kind:
                return column
            if object in (column.dtype, kind):
                raise UnsupportedError(f"astype({dtype!r}) of {column.dtype} has no translation")
            return np.trunc(column).cast(kind) if kind.kind in "iu" and column.dtype.kind == "f" else column.cast(kind)

        return self.mapped(convert)

    def clip(self, lower: Any = None, upper: Any = None, **_: Any) -> Any:
        """Return elements limited to a range."""
        return self.mapped(lambda column: column.clip(lower, upper))

    def round(self, decimals: int = 0) -> Any:
        """Return rounded elements."""
        return self.mapped(lambda column: np.round(column, decimals))

    def isna(self) -> Any:
        """Return True for missing values."""
        return self.mapped(is_missing)

    isnull = isna

    def notna(self) -> Any:
        """Return False for missing values."""
        return self.mapped(lambda column: np.logical_not(is_missing(column)))

    notnull = notna

    def fillna(self, value: Any) -> Any:
        """Return the elements with missing values replaced."""
        return self.mapped(filled, value)

    def where(self, condition: Any, other: Any = np.nan) -> Any:
        """Return the elements, others where a condition fails."""
        return self.mapped(lambda column, known, new: chosen(known, column, new), condition, other)

    def mask(self, condition: Any, other: Any = np.nan) -> Any:
        """Return the elements, others where a condition holds."""
        return self.mapped(lambda column, known, new: chosen(known, new, column), condition, other)

    def isin(self, values: Sequence[Any]) -> Any:
        """Return True for elements among values."""

        def contained(column: Array) -> Array:
            result: Any = equals(column, np.nan)
            for value in values:
                result = result | (is_missing(column) if value is None or value != value else equals(column, value))
            return result

        return self.mapped(contained)

    def replace(self, old: Any, new: Any = None) -> Any:
        """Return the elements with some values replaced."""
        olds = list(old) if isinstance(old, (Mapping, list, tuple)) else [old]
        news = list(old.values()) if isinstance(old, Mapping) else list(new) if isinstance(new, list) else None
        news = [new] * len(olds) if news is None else news

        def replaced(column: Array) -> Any:
            result: Any = column
            for before, after in zip(olds, news, strict=True):
                same = is_missing(column) if before is None or before != before else equals(column, before)
                result = chosen(same, after, result)
            return result

        return self.mapped(replaced)

    def pipe(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return the result of a function that is called with this object."""
        return function(self, *arguments, **options)


def filled(column: Array, new: Any) -> Any:
    """Return elements with missing ones replaced; dates that are replaced by dates are not missing."""
    result = chosen(is_missing(column), new, column)
    if column.dtype.kind in "mM":
        dtype = time_type(column.dtype, isinstance(new, Array) and has_missing(new.dtype))
        result = Array(result.builder, result.value, dtype)
    return result


def chosen(condition: Array, yes: Any, no: Any) -> Any:
    """Return elements of `yes` where a condition holds, else of `no`; texts and numbers do not mix."""
    kinds = [(one.dtype == object) if isinstance(one, Array) else isinstance(one, str) for one in (yes, no)]
    missing = [one is None or (isinstance(one, float) and one != one) for one in (yes, no)]
    if any(kinds):
        yes, no = ("nan" if is_empty else one for one, is_empty in zip((yes, no), missing, strict=True))
        if not all(kind or is_empty for kind, is_empty in zip(kinds, missing, strict=True)):
            raise UnsupportedError("texts and numbers in one column have no translation")
    return where(condition, yes, no)
