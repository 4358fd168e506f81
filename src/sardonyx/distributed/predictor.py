"""Predictions over batches of columns, as the engines for data pass them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.distributed.image import Image
from sardonyx.errors import FeedError
from sardonyx.runtime.session import Session

_NAMES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16"
_TYPES = {name: np.dtype(name) for name in _NAMES.split()} | {"float": np.dtype("f4"), "double": np.dtype("f8")}

_SHOWN = 200
"""Characters of another library's message that are repeated."""


class Predictor:
    """A function of batches: columns by name in, the columns of the outputs added.

    For Ray Data: ``data.map_batches(Predictor, fn_constructor_args=[ray.put(image)], batch_format="numpy", …)``.

    Args:
        image: The compiled model, see :meth:`.Image.compile`.
        columns: The column of each input whose name differs: column by input.
        outputs: Names of the outputs to add; None for all.
    """

    def __init__(
        self, image: Image, columns: Mapping[str, str] | None = None, outputs: Sequence[str] | None = None
    ) -> None:
        self._session = image.open()
        inputs = self._session.get_inputs()
        self._columns = {info.name: (columns or {}).get(info.name, info.name) for info in inputs}
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
        return [column for name, column in self._columns.items() if self._types[name] is not None]

    def column_types(self) -> dict[str, np.dtype[Any] | None]:
        """Return the element type of each output of shape ``[rows]``, and None for outputs of other ranks."""
        infos = {info.name: info for info in self._session.get_outputs()}
        return {
            name: numpy_type(infos[name].type) if len(infos[name].shape or ()) == 1 else None for name in self._outputs
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

    def _stacked(self, name: str, values: Any) -> np.ndarray:
        """Return the rows of a column as one array; the rows of a column of objects are arrays or lists."""
        if len(values) == 0:
            return np.zeros((0, *self._sizes[name]), self._types[name])
        is_of_objects = getattr(getattr(values, "dtype", None), "kind", "") == "O"
        try:
            rows = [np.asarray(row, self._types[name]) for row in values] if is_of_objects else values
            return np.asarray(rows, self._types[name])
        except (TypeError, ValueError) as error:
            shown = str(error)[:_SHOWN]
            raise FeedError(f"the column cannot be read as {self._types[name]}: {shown}.", where=name) from error

    def predict(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs for the inputs, by input name; arrays, or lists of rows of several sizes."""
        if not any(_is_ragged(values) for values in columns.values()):
            feeds = {name: self._stacked(name, values) for name, values in columns.items()}
            return dict(zip(self._outputs, self._session.run(self._outputs, feeds), strict=True))
        rows = len(next(iter(columns.values())))
        groups: dict[tuple[Any, ...], list[int]] = {}
        for row in range(rows):
            key = tuple(np.shape(values[row]) for values in columns.values())
            groups.setdefault(key, []).append(row)
        results: dict[str, list[Any]] = {name: [None] * rows for name in self._outputs}
        for members in groups.values():
            feeds = {
                name: np.stack([np.asarray(values[row], self._types[name]) for row in members])
                for name, values in columns.items()
            }
            for name, result in zip(self._outputs, self._session.run(self._outputs, feeds), strict=True):
                for row, value in zip(members, result, strict=True):
                    results[name][row] = value
        return {name: _column(values) for name, values in results.items()}


def input_types(session: Session) -> dict[str, np.dtype[Any] | None]:
    """Return the numpy type of each input of a session; None for types that numpy lacks."""
    return {info.name: numpy_type(info.type) for info in session.get_inputs()}


def numpy_type(name: str) -> np.dtype[Any] | None:
    """Return the numpy type of a type as sessions name it, e.g. ``tensor(float)``; None if numpy lacks the type."""
    return _TYPES.get(name.removeprefix("tensor(").removesuffix(")"))


def _is_ragged(values: Any) -> bool:
    """Return True if the rows of a column differ in shape."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        return False
    return len({np.shape(row) for row in values}) > 1


def _column(rows: Sequence[Any]) -> Any:
    if len({np.shape(row) for row in rows}) <= 1:
        return np.stack(rows)
    column = np.empty(len(rows), object)
    column[:] = rows
    return column
