"""The table of translations: a function for each method of each class, and their composition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.convert.tabular.arrays import Array, concatenated, has_missing
from sardonyx.errors import UnsupportedError

Translation = Callable[..., Any]

METHODS: dict[tuple[str, str], Translation] = {}
"""Translations by method and class name."""


def element_class(dtype: np.dtype[Any]) -> str:
    """Return the class of an element type; columns of one class have one matrix.

    Dates of two units, durations beside dates, and dates that may be missing beside others are of several classes.
    """
    if dtype.kind in "mM":
        return f"{dtype.str} with gaps" if has_missing(dtype) else dtype.str
    return "text" if dtype.kind == "O" else "number"


class Table:
    """Columns of different element types.

    Attributes:
        parts: Matrices [rows, columns], in order.
        widths: Number of columns of each part.
        names: Names of all columns, if there are any.
        known: Categories by column, from example rows, of the model's input.
    """

    def __init__(self, parts: Sequence[Array], widths: Sequence[int], names: Sequence[str] = ()) -> None:
        self.parts = list(parts)
        self.widths = list(widths)
        self.names = list(names)
        self.known: Mapping[int, Sequence[Any]] = {}

    def select(self, indices: Sequence[int]) -> Table | Array:
        """Return columns by index; one matrix if they have one element type."""
        columns = []
        starts = np.cumsum([0, *self.widths])
        for index in indices:
            part = int(np.searchsorted(starts, index, side="right")) - 1
            columns.append(self.parts[part].columns([int(index) - int(starts[part])]))
        if not columns:
            raise UnsupportedError("a selection of no columns has no translation")
        if len({element_class(column.dtype) for column in columns}) == 1:
            return concatenated(columns, axis=1)
        return Table(columns, [1] * len(columns), [self.names[i] for i in indices] if self.names else ())

    def matrix(self) -> Array:
        """Return all columns as one matrix."""
        return concatenated(self.parts, axis=1)


def method(name: str, *classes: str) -> Callable[[Translation], Translation]:
    """Register a function ``(estimator, x)`` as the translation of a method of classes."""

    def register(function: Translation) -> Translation:
        for one in classes:
            METHODS[name, one] = function
        return function

    return register


def translation(name: str, estimator: Any) -> Translation | None:
    """Return the translation of a method; the nearest ancestor's if the class has none.

    A class of a user has its own method called, also where that replaces an ancestor's with a translation.
    """
    for ancestor in type(estimator).__mro__:
        is_own = not is_of_library(ancestor)
        if is_own and name in vars(ancestor):
            return METHODS.get((name, "object"))
        if not is_own and (name, ancestor.__name__) in METHODS and ancestor is not object:
            return METHODS[name, ancestor.__name__]
    return None


LIBRARIES = ("sklearn", "imblearn", "xgboost", "lightgbm", "catboost")
"""Packages whose classes have translations by name."""


def is_of_library(kind: type) -> bool:
    """Return True for a class of the packages whose methods have translations."""
    return kind.__module__.partition(".")[0] in LIBRARIES


def supports(name: str, estimator: Any) -> bool:
    """Return True if the estimator has the method and the method has a translation."""
    return hasattr(estimator, name) and translation(name, estimator) is not None


def apply(name: str, estimator: Any, x: Any) -> Any:
    """Translate a call of a method.

    Args:
        name: Name of the method.
        estimator: A fitted estimator.
        x: The input, an array or a table.

    Raises:
        UnsupportedError: The class has no translation; names class and method.
    """
    return required_translation(name, estimator)(estimator, x)


def required_translation(name: str, estimator: Any) -> Translation:
    """Return the translation of a method.

    Raises:
        UnsupportedError: The class has no translation; names class and method.
    """
    function = translation(name, estimator)
    if function is None:
        raise UnsupportedError(
            "the class has no translation",
            where=f"{type(estimator).__module__}.{type(estimator).__qualname__}.{name}",
            remedy="Write the method with functions of numpy alone, or define it with `@sardonyx.operator`.",
        )
    return function


def number_matrix(x: Any) -> Array:
    """Return the input as a matrix of float64."""
    matrix = x.matrix() if isinstance(x, Table) else x
    assert isinstance(matrix, Array)
    return matrix.cast(np.float64)


def labels(classes: Any, index: Array) -> Array:
    """Return class labels by index: texts, integers or truth values as the estimator gives them."""
    classes = np.asarray(classes)
    dtype = np.dtype(object) if classes.dtype.kind in "OUS" else classes.dtype
    return index.constant(classes, dtype).rows(index)
