"""Index expressions of numpy, ``x[:, [0, 2], None]``, as one selection an axis."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.errors import UnsupportedError

LAST, FIRST = np.iinfo(np.int64).max, np.iinfo(np.int64).min
"""Ends of slices that run to the last element, and downwards to the first."""

Selection = int | slice | list[int]
"""One index, which removes the axis; a range; or several indices."""


@dataclass(frozen=True)
class Index:
    """A key without ellipses.

    Attributes:
        selections: One selection for each of the first axes.
        new_axes: Positions of axes of size 1 in the result.
    """

    selections: tuple[Selection, ...]
    new_axes: tuple[int, ...]

    @property
    def keeps_rows(self) -> bool:
        """True if the result has all elements of the first axis in order."""
        return not self.selections or self.selections[0] == slice(None)

    @property
    def is_view(self) -> bool:
        """True if numpy's result shares the memory of the array."""
        return not any(isinstance(selection, list) for selection in self.selections)


def parse(key: Any, rank: int) -> Index:
    """Return a key as selections.

    Args:
        key: What stands in brackets, without arrays of a graph.
        rank: Number of axes of the array.

    Raises:
        UnsupportedError: A selection is of another kind, or several lists of indices are combined.
    """
    items = list(key) if isinstance(key, tuple) else [key]
    used = sum(item is not None and item is not Ellipsis for item in items)
    if used > rank:
        raise _refusal(key, f"{used} indices for {rank} axes")
    if any(item is Ellipsis for item in items):
        at = next(i for i, item in enumerate(items) if item is Ellipsis)
        items[at : at + 1] = [slice(None)] * (rank - used)
    selections: list[Selection] = []
    new_axes: list[int] = []
    axes = 0
    for item in items:
        if item is None:
            new_axes.append(axes + len(new_axes))
        else:
            selections.append(_selection(item, key))
            axes += not isinstance(selections[-1], int)
    index = Index(tuple(selections), tuple(new_axes))
    advanced = [i for i, one in enumerate(selections) if not isinstance(one, slice)]
    # numpy combines lists with each other, and moves the axis to the front if other axes separate them.
    if not index.is_view and (len(advanced) > 1 and (advanced[-1] - advanced[0] >= len(advanced) or new_axes)):
        raise _refusal(key, "indices on several axes")
    if sum(isinstance(one, list) for one in selections) > 1:
        raise _refusal(key, "lists of indices on several axes")
    return index


def positions(selection: Selection, size: int) -> list[int]:
    """Return the indices that a selection names on an axis of known size."""
    if isinstance(selection, slice):
        return list(range(size))[selection]
    return [one + size if one < 0 else one for one in ([selection] if isinstance(selection, int) else selection)]


def bounds(selection: slice) -> tuple[int, int, int]:
    """Return start, end and step of a range as operator `Slice` accepts them."""
    step = 1 if selection.step is None else operator.index(selection.step)
    ends = (0, LAST) if step > 0 else (LAST, FIRST)
    start, stop = (
        end if bound is None else operator.index(bound)
        for bound, end in zip((selection.start, selection.stop), ends, strict=True)
    )
    return start, stop, step


def _selection(item: Any, key: Any) -> Selection:
    if isinstance(item, slice):
        return item
    array = np.asarray(item)
    if array.dtype == bool and array.ndim == 1:
        return np.flatnonzero(array).tolist()
    if array.dtype.kind in "iu" and array.ndim == 0:
        return int(array)
    if array.ndim == 1 and (array.dtype.kind in "iu" or not array.size):
        return array.astype(np.int64).tolist()
    raise _refusal(key, f"{type(item).__name__} as an index")


def _refusal(key: Any, reason: str) -> UnsupportedError:
    return UnsupportedError(f"indexing by {text_of(key)} has no translation: {reason}; expected x[:, columns]")


def text_of(key: Any) -> str:
    """Return a key as text, without the elements of long arrays."""
    items: Sequence[Any] = key if isinstance(key, tuple) else (key,)
    return ", ".join(f"{type(item).__name__}" if np.size(item) > 8 else str(item) for item in items)
