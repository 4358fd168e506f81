"""Predictions over batches of columns, as the engines for data pass them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.distributed.image import Image
from sardonyx.errors import FeedError, OptionError
from sardonyx.runtime.foreign_values import numpy_type, read_rows
from sardonyx.runtime.session import Session


class Predictor:
    """A function of batches: columns by name in, the columns of the outputs added.

    For Ray Data: ``data.map_batches(Predictor, fn_constructor_args=[ray.put(image)], batch_format="numpy", …)``.

    Args:
        image: The compiled model, see :meth:`.Image.compile`.
        columns: The column of each input whose name differs: column by input.
        outputs: Names of the outputs to add; None for all.

    Raises:
        OptionError: The columns are no mapping.
    """

    def __init__(
        self, image: Image, columns: Mapping[str, str] | None = None, outputs: Sequence[str] | None = None
    ) -> None:
        named = checked_columns(columns)
        self._session = image.open()
        inputs = self._session.get_inputs()
        self._columns = {info.name: named.get(info.name, info.name) for info in inputs}
        self._types = input_types(self._session)
        self._sizes = {
            info.name: tuple(size if isinstance(size, int) else 1 for size in (info.shape or [])[1:]) for info in inputs
        }
        self._outputs = list(outputs) if outputs is not None else [info.name for info in self._session.get_outputs()]

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs, in order."""
        return list(self._columns)

    @property
    def columns(self) -> list[str]:
        """The columns that are read, in the order of the inputs."""
        return list(self._columns.values())

    @property
    def numeric_columns(self) -> list[str]:
        """The columns of inputs whose elements are numbers."""
        return [column for name, column in self._columns.items() if self._types[name] not in (None, np.dtype(object))]

    def column_types(self) -> dict[str, np.dtype[Any] | None]:
        """Return the element type of each output that is a number for each row or for all, and None for others."""
        infos = {info.name: info for info in self._session.get_outputs()}
        shapes = {name: infos[name].shape for name in self._outputs}
        return {
            name: None if shape is None or len(shape) > 1 else numpy_type(infos[name].type)
            for name, shape in shapes.items()
        }

    def require_columns(self, present: Iterable[str]) -> None:
        """Refuse columns among which an input is missing.

        Raises:
            FeedError: A column is missing.
        """
        names = list(present)
        for column in self._columns.values():
            if column not in names:
                raise FeedError(f"the batch has no column '{column}'; it has {', '.join(names)}.", where="predictor")

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch with the outputs; rows of several sizes are computed in groups of equal size.

        Raises:
            FeedError: A column is missing.
            SardonyxError: A row has no result.
        """
        self.require_columns(batch)
        columns = {name: batch[column] for name, column in self._columns.items()}
        return {**batch, **self.predict(columns)}

    def predict(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs for the inputs, by input name; arrays, or lists of rows of several sizes.

        An output without axes is repeated for each row.

        Raises:
            FeedError: A column cannot be read, or the columns differ in length.
            SardonyxError: A row has no result.
        """
        read = {name: read_rows(values, self._types[name], name, self._sizes[name]) for name, values in columns.items()}
        rows = len(next(iter(read.values())))
        for name, values in read.items():
            if len(values) != rows:
                raise FeedError(f"expected a column of {rows} rows, got {len(values)}.", where=name)
        if all(isinstance(values, np.ndarray) for values in read.values()):
            results = zip(self._outputs, self._session.run(self._outputs, read), strict=True)
            return {name: _each_row(result, rows) for name, result in results}
        groups: dict[tuple[Any, ...], list[int]] = {}
        for row in range(rows):
            groups.setdefault(tuple(values[row].shape for values in read.values()), []).append(row)
        outputs: dict[str, list[Any]] = {name: [None] * rows for name in self._outputs}
        for members in groups.values():
            feeds = {name: np.stack([values[row] for row in members]) for name, values in read.items()}
            for name, result in zip(self._outputs, self._session.run(self._outputs, feeds), strict=True):
                for row, value in zip(members, _each_row(result, len(members)), strict=True):
                    outputs[name][row] = value
        return {name: _column(values) for name, values in outputs.items()}


def checked_columns(columns: Any) -> Mapping[str, str]:
    """Return the column of each input whose name differs.

    Raises:
        OptionError: The value is no mapping.
    """
    if not isinstance(columns, (Mapping, type(None))):
        raise OptionError(f"expected a mapping of inputs to columns, got {columns!r}.", where="columns")
    return columns or {}


def input_types(session: Session) -> dict[str, np.dtype[Any] | None]:
    """Return the numpy type of each input of a session; None for types that numpy lacks."""
    return {info.name: numpy_type(info.type) for info in session.get_inputs()}


def _each_row(result: Any, rows: int) -> Any:
    """Return a result of all rows together once for each row; other results as they are."""
    return np.full(rows, result) if isinstance(result, (np.ndarray, np.generic)) and result.ndim == 0 else result


def _column(rows: Sequence[Any]) -> Any:
    if len({np.shape(row) for row in rows}) <= 1:
        return np.stack(rows)
    column = np.empty(len(rows), object)
    column[:] = rows
    return column
