"""Functions of pandas that make or join data frames, over frames of the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.convert.tabular.arrays import Array, where
from sardonyx.convert.tabular.frames import Frame, Series
from sardonyx.errors import UnsupportedError


def joined_columns(parts: Sequence[Any], axis: Any = 0, **_: Any) -> Frame:
    """Return frames and series side by side, as ``pandas.concat`` with ``axis=1``."""
    if axis not in (1, "columns"):
        raise UnsupportedError("pandas.concat of rows has no translation; expected axis=1")
    columns: dict[Any, Any] = {}
    for i, part in enumerate(parts.values() if isinstance(parts, Mapping) else parts):
        known = part.series() if isinstance(part, Frame) else {i if part.name is None else part.name: part}
        repeated = [name for name in known if name in columns]
        if repeated:
            raise UnsupportedError(f"pandas.concat with two columns {repeated[0]!r} has no translation")
        columns |= known
    return Frame(columns)


def frame_of(data: Any = None, index: Any = None, columns: Any = None, **_: Any) -> Frame:
    """Return a frame of arrays, as ``pandas.DataFrame``."""
    if isinstance(data, Frame):
        return data if columns is None else data[list(columns)]
    if isinstance(data, Array):
        width = data.sizes()[1]
        names = range(int(width or 0)) if columns is None else columns
        return Frame({name: data.columns(i) for i, name in enumerate(names)})
    columns_of_graph = {name: value for name, value in (data or {}).items() if isinstance(value, (Series, Array))}
    result = Frame(columns_of_graph)
    for name, value in (data or {}).items():
        result[name] = value
    return result[list(data or {}) if columns is None else list(columns)]


def cut(x: Any, bins: Any, *, right: bool = True, labels: Any = None, **options: Any) -> Any:
    """Return the number of the bin of each element, as ``pandas.cut`` with ``labels=False``; NaN outside of all."""
    if np.ndim(bins) != 1 or options or (labels is not False and not isinstance(labels, (list, tuple))):
        raise UnsupportedError("pandas.cut has a translation for edges of bins with labels alone")
    array: Any = x.array if isinstance(x, Series) else x
    edges = np.asarray(bins, np.float64)
    number: Any = np.digitize(array, edges, right=right)
    inside = (number >= 1) & (number < len(edges))
    if labels is False:
        result = where(inside, (number - 1).cast(np.float64), np.nan)
    else:
        is_text = all(isinstance(label, str) for label in labels)
        known = np.array(labels, object if is_text else np.float64)
        chosen = array.constant(known, known.dtype).rows((number - 1).clip(0, len(known) - 1))
        result = where(inside, chosen, "nan" if is_text else np.nan)
    return Series(result, x.name) if isinstance(x, Series) else result
