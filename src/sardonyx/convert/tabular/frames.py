"""Data frames of a graph under construction, which functions of users over pandas accept.

A :class:`Frame` has columns by name, each an :class:`Array` of rows; a :class:`Series` is one of them. Both have the
methods of pandas that compute by rows; a method without translation is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from sardonyx.convert.tabular.arrays import Array, concatenated, lifted, where
from sardonyx.convert.tabular.dates import DateParts
from sardonyx.convert.tabular.frame_elements import Elements, equals, is_missing, raw
from sardonyx.convert.tabular.methods import Table, element_class
from sardonyx.errors import UnsupportedError

_ALONG_COLUMNS = {"sum": "nansum", "mean": "nanmean", "max": "nanmax", "min": "nanmin", "prod": "nanprod"}
"""Reductions of pandas, which leave missing values out, and the functions of numpy that do so."""


class Series(Elements):
    """A column.

    Attributes:
        array: The elements, [rows].
        name: Name of the column.
    """

    def __init__(self, array: Array, name: Any = None) -> None:
        self.array = array
        self.name = name

    def mapped(self, function: Callable[..., Any], *others: Any) -> Series:
        """Return a function of the column."""
        return Series(function(self.array, *map(raw, others)), self.name)

    @property
    def dtype(self) -> Any:
        """Element type of numpy."""
        return self.array.dtype

    @property
    def values(self) -> Array:
        """The elements as an array."""
        return self.array

    @property
    def dt(self) -> DateParts:
        """Parts of dates and durations."""
        return DateParts(self.array, lambda array: Series(array, self.name))

    @property
    def str(self) -> Texts:
        """Functions of texts."""
        return Texts(self)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The number of rows."""
        return self.array.shape

    def to_numpy(self, *_: Any, **__: Any) -> Array:
        """Return the elements as an array."""
        return self.array

    def array_of_graph(self) -> Array:
        """Return the elements as an array."""
        return self.array

    def to_frame(self, name: Any = None) -> Frame:
        """Return a frame of this column."""
        return Frame({self.name if name is None else name: self.array})

    def rename(self, name: Any) -> Series:
        """Return the column with another name."""
        return Series(self.array, name)

    def between(self, left: Any, right: Any, inclusive: Any = "both") -> Series:
        """Return True within a range."""
        low = self >= left if inclusive in ("both", "left") else self > left
        return low & (self <= right if inclusive in ("both", "right") else self < right)

    def map(self, function: Any, na_action: Any = None) -> Series:
        """Return values by a table, NaN for others; or a function of the elements."""
        if not isinstance(function, Mapping):
            return self.apply(function)
        texts = [isinstance(value, str) for value in function.values()]
        result: Any = "nan" if texts and all(texts) else np.nan
        if any(texts) and not all(texts):
            raise UnsupportedError("texts and numbers in one column have no translation")
        for key, value in function.items():
            result = where(equals(self.array, key), value if isinstance(value, str) else float(value), result)
        return Series(result, self.name)

    def apply(self, function: Callable[..., Any], **options: Any) -> Series:
        """Return a function of the elements, called with the column."""
        result = function(self, **options)
        return result if isinstance(result, Series) else Series(result, self.name)


class Texts:
    """Functions of the texts of a column, as ``series.str``."""

    def __init__(self, series: Series) -> None:
        if series.array.dtype != object:
            raise UnsupportedError("a column of numbers has no texts")
        self._series = series

    def _changed(self, action: str) -> Series:
        array = self._series.array
        changed = array.node("StringNormalizer", case_change_action=action)
        # Missing values stay.
        return Series(where(is_missing(array), array, changed), self._series.name)

    def lower(self) -> Series:
        """Return texts in small letters."""
        return self._changed("LOWER")

    def upper(self) -> Series:
        """Return texts in capital letters."""
        return self._changed("UPPER")

    def startswith(self, start: str) -> Series:
        """Return True for texts that begin with `start`."""
        return self._matched(re.escape(start) + "(?s:.*)")

    def endswith(self, end: str) -> Series:
        """Return True for texts that end with `end`."""
        return self._matched("(?s:.*)" + re.escape(end))

    def contains(self, pattern: str, regex: bool = True) -> Series:
        """Return True for texts that contain `pattern`, a plain text."""
        if regex and re.escape(pattern).replace("\\ ", " ").replace("\\-", "-") != pattern:
            raise UnsupportedError(f"str.contains({pattern!r}) with a regular expression has no translation")
        return self._matched("(?s:.*)" + re.escape(pattern) + "(?s:.*)")

    def _matched(self, pattern: str) -> Series:
        array = self._series.array
        is_match = array.node("RegexFullMatch", dtype=bool, pattern=pattern)
        return Series(is_match & np.logical_not(is_missing(array)), self._series.name)

    def __getattr__(self, name: str) -> Any:
        """Refuse other functions by name."""
        raise UnsupportedError(f"Series.str.{name} has no translation")


class Rows:
    """The index of a frame: rows have no names in a model."""


class _Positions:
    """``frame.iloc`` and ``frame.loc`` with all rows."""

    def __init__(self, frame: Frame, by_name: bool) -> None:
        self._frame, self._by_name = frame, by_name

    def _names(self, key: Any) -> Any:
        if not (isinstance(key, tuple) and len(key) == 2 and key[0] == slice(None)):
            raise UnsupportedError("a selection of rows has no translation; expected [:, columns]")
        columns = key[1]
        if self._by_name and not isinstance(columns, slice):
            return columns
        names = list(self._frame.columns)
        if isinstance(columns, slice) and self._by_name:
            first = 0 if columns.start is None else names.index(columns.start)
            last = len(names) if columns.stop is None else names.index(columns.stop) + 1
            return names[first : last : columns.step]
        if isinstance(columns, slice):
            return names[columns]
        return names[columns] if isinstance(columns, (int, np.integer)) else [names[int(i)] for i in columns]

    def __getitem__(self, key: Any) -> Any:
        return self._frame[self._names(key)]

    def __setitem__(self, key: Any, new: Any) -> None:
        if isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], Series):
            old = self._frame[key[1]]
            self._frame[key[1]] = old.mask(key[0], new)
            return
        self._frame[self._names(key)] = new


class Frame(Elements):
    """A data frame.

    Args:
        columns: Elements [rows] by name.
    """

    is_frame = True

    def __init__(self, columns: Mapping[Any, Any]) -> None:
        self.__dict__["_columns"] = {name: raw(column) for name, column in columns.items()}

    def mapped(self, function: Callable[..., Any], *others: Any) -> Frame:
        """Return a function of every column."""

        def part(other: Any, name: Any) -> Any:
            if isinstance(other, Frame):
                return other._columns[name]
            if isinstance(other, Mapping):
                return other.get(name, self._columns[name])
            if isinstance(other, Array) and other.ndim == 2:
                return other.columns(0 if other.sizes()[1] == 1 else list(self._columns).index(name))
            return raw(other)

        return Frame(
            {name: function(column, *(part(o, name) for o in others)) for name, column in self._columns.items()}
        )

    # Columns

    @property
    def columns(self) -> Any:
        """Names of columns, as pandas has them."""
        import pandas

        return pandas.Index(list(self._columns))

    @property
    def dtypes(self) -> Any:
        """Element types by column."""
        import pandas

        return pandas.Series({name: column.dtype for name, column in self._columns.items()})

    @property
    def shape(self) -> tuple[Any, ...]:
        """Numbers of rows and columns."""
        return next(iter(self._columns.values())).shape[0], len(self._columns)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return 2

    @property
    def index(self) -> Rows:
        """The rows, for another frame of the same rows."""
        return Rows()

    @property
    def loc(self) -> _Positions:
        """Columns by name, of all rows."""
        return _Positions(self, True)

    @property
    def iloc(self) -> _Positions:
        """Columns by position, of all rows."""
        return _Positions(self, False)

    @property
    def values(self) -> Array:
        """The elements as a matrix."""
        return self.matrix()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._columns)

    def __contains__(self, name: Any) -> bool:
        return name in self._columns

    def __getattr__(self, name: str) -> Any:
        """Return a column by name, or a method of arithmetic."""
        columns = self.__dict__.get("_columns", {})
        return Series(columns[name], name) if name in columns else super().__getattr__(name)

    def __setattr__(self, name: str, new: Any) -> None:
        """Replace a column."""
        if name not in self._columns:
            raise UnsupportedError(f"the attribute {name} of a data frame has no translation")
        self[name] = new

    def __getitem__(self, key: Any) -> Any:
        """Return a column by name, or columns by names."""
        if isinstance(key, Series):
            raise UnsupportedError(
                "a selection of rows by values has no translation", remedy="Use numpy.where for a choice by element."
            )
        several = isinstance(key, (list, tuple, np.ndarray)) or hasattr(key, "tolist")
        names = list(key) if several else [key]
        unknown = [name for name in names if name not in self._columns]
        if unknown:
            raise UnsupportedError(f"column {unknown[0]!r} of a data frame of {list(self._columns)}")
        return Frame({name: self._columns[name] for name in names}) if several else Series(self._columns[key], key)

    def __setitem__(self, key: Any, new: Any) -> None:
        """Replace or add a column, or several."""
        if isinstance(key, (list, tuple)):
            parts: list[Any]
            if isinstance(new, Frame):
                parts = list(new.series().values())  # By position, as pandas: names may differ.
            elif isinstance(new, Array):
                parts = [new.columns(i) for i in range(len(key))]
            else:
                parts = [new] * len(key)
            for name, part in zip(key, parts, strict=True):
                self[name] = part
            return
        value = raw(new)
        if not isinstance(value, Array) or value.ndim == 0:
            model = next(iter(self._columns.values()))
            kind = np.dtype(object) if isinstance(value, str) else np.asarray(value).dtype
            constant = value if isinstance(value, Array) else lifted(model.builder, value, kind)
            value = constant.node("Expand", model.node("Shape", dtype=np.int64))
        elif value.ndim == 2:
            value = value.columns(0)
        self._columns[key] = value

    def assign(self, **columns: Any) -> Frame:
        """Return the frame with further columns; a function computes one from the frame."""
        result = Frame(self._columns)
        for name, new in columns.items():
            result[name] = new(result) if callable(new) and not isinstance(new, Elements) else new
        return result

    def insert(self, loc: int, column: Any, value: Any) -> None:
        """Add a column at a position."""
        self[column] = value
        names = [name for name in self._columns if name != column]
        names.insert(loc, column)
        self.__dict__["_columns"] = {name: self._columns[name] for name in names}

    def pop(self, name: Any) -> Series:
        """Remove and return a column."""
        result = self[name]
        del self._columns[name]
        return result

    def drop(self, labels: Any = None, *, axis: Any = 0, columns: Any = None, **_: Any) -> Frame:
        """Return the frame without some columns."""
        names = labels if columns is None and axis in (1, "columns") else columns
        if names is None:
            raise UnsupportedError("rows cannot be dropped: the model has a result for each")
        names = [names] if isinstance(names, str) else list(names)
        return Frame({name: column for name, column in self._columns.items() if name not in names})

    def rename(self, columns: Any, **_: Any) -> Frame:
        """Return the frame with other names of columns."""
        renamed = columns if callable(columns) else lambda name: columns.get(name, name)
        return Frame({renamed(name): column for name, column in self._columns.items()})

    def filter(self, items: Any = None, like: str | None = None, regex: str | None = None, axis: Any = None) -> Frame:
        """Return columns by their names."""
        names = list(self._columns)
        if items is not None:
            names = [name for name in items if name in names]
        elif like is not None:
            names = [name for name in names if like in name]
        else:
            names = [name for name in names if re.search(regex or "", name)]
        return Frame({name: self._columns[name] for name in names})

    def select_dtypes(self, include: Any = None, exclude: Any = None) -> Frame:
        """Return columns of numbers or of texts."""
        kind = include if include is not None else exclude
        kinds = [kind] if isinstance(kind, (str, type)) else list(kind)
        selected = {one in ("object", "category", "string", object, str) for one in kinds}  # True for texts.
        return Frame(
            {
                name: column
                for name, column in self._columns.items()
                if ((column.dtype == object) in selected) == (include is not None)
            }
        )

    def series(self) -> dict[Any, Series]:
        """Return the columns by name."""
        return {name: Series(column, name) for name, column in self._columns.items()}

    # Results

    def matrix(self) -> Array:
        """Return the columns as one matrix [rows, columns].

        Raises:
            UnsupportedError: Some columns are texts and others numbers.
        """
        if len({element_class(column.dtype) for column in self._columns.values()}) != 1:
            raise UnsupportedError("texts, dates and numbers in one array have no translation")
        return concatenated([column.reshape(-1, 1) for column in self._columns.values()], axis=1)

    def to_numpy(self, *_: Any, **__: Any) -> Array:
        """Return the elements as a matrix."""
        return self.matrix()

    def array_of_graph(self) -> Array:
        """Return the elements as a matrix."""
        return self.matrix()

    def table(self) -> Array | Table:
        """Return the frame as a step's input: a matrix if all columns are numbers or all are texts."""
        if len({element_class(column.dtype) for column in self._columns.values()}) == 1:
            return self.matrix()
        parts = [column.reshape(-1, 1) for column in self._columns.values()]
        return Table(parts, [1] * len(parts), [str(name) for name in self._columns])

    def apply(self, function: Callable[..., Any], axis: Any = 0, **options: Any) -> Any:
        """Return a function of every column, or of all columns as a row."""
        if axis in (1, "columns"):
            return function(self, **options)
        results = {name: function(Series(column, name), **options) for name, column in self._columns.items()}
        if not all(isinstance(one, (Series, Array)) and raw(one).ndim == 1 for one in results.values()):
            raise UnsupportedError("a function of columns that gives no column has no translation")
        return Frame(results)

    def map(self, function: Callable[..., Any], **options: Any) -> Frame:
        """Return a function of the elements."""
        return Frame({name: Series(column, name).apply(function, **options) for name, column in self._columns.items()})

    applymap = map

    def _reduced(self, name: str, axis: Any, options: Mapping[str, Any]) -> Series:
        skipped = dict(options)
        if axis not in (1, "columns") or not skipped.pop("skipna", True) or skipped.pop("numeric_only", False):
            raise UnsupportedError(f"DataFrame.{name} over rows has no translation; expected axis=1")
        return Series(getattr(np, _ALONG_COLUMNS[name])(self.matrix().cast(np.float64), axis=1))

    def sum(self, axis: Any = 0, **options: Any) -> Series:
        """Return sums of rows."""
        return self._reduced("sum", axis, options)

    def mean(self, axis: Any = 0, **options: Any) -> Series:
        """Return means of rows."""
        return self._reduced("mean", axis, options)

    def max(self, axis: Any = 0, **options: Any) -> Series:
        """Return maxima of rows."""
        return self._reduced("max", axis, options)

    def min(self, axis: Any = 0, **options: Any) -> Series:
        """Return minima of rows."""
        return self._reduced("min", axis, options)

    def prod(self, axis: Any = 0, **options: Any) -> Series:
        """Return products of rows."""
        return self._reduced("prod", axis, options)
