"""Reductions of consecutive rows, by lengths or offsets of segments."""

from __future__ import annotations

import math
from typing import Any, Literal

from sardonyx.convert.torch.operators.promotion import cast
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.core import language as L
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t
from sardonyx.errors import UnsupportedError

_REDUCTIONS: dict[str, tuple[Literal["add", "mul", "max", "min"], float]] = {
    "sum": ("add", 0.0),
    "mean": ("add", 0.0),
    "prod": ("mul", 1.0),
    "max": ("max", -math.inf),
    "min": ("min", math.inf),
}
"""Scatter, and the result of an empty segment, by torch's name."""


@aten("segment_reduce.default")
def _segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> Tensor:
    """Return the sum, mean, product, maximum or minimum of each segment of rows."""
    bounds = lengths if offsets is None else offsets
    if bounds is None or bounds.rank != 1 or L.normalized_axis(axis, data.rank) != 0:
        raise UnsupportedError("segments of another axis than the first have no translation.")
    bounds = cast(bounds, t.INT64)
    ends = L.cumulative("add", bounds, 0) if offsets is None else L.slice_(bounds, 0, 1, bounds.shape[0])
    counts = bounds if offsets is None else ends - L.slice_(bounds, 0, 0, ends.shape[0])
    rows = L.unsqueeze(L.arange(data.shape[0]), [1])
    segment = L.reduce_sum(cast(rows >= L.unsqueeze(ends, [0]), t.INT64), [1])
    kind, empty = _REDUCTIONS[reduce]
    start = L.full((ends.shape[0], *data.shape[1:]), empty if initial is None else float(initial), data.dtype)
    result = L.scatter_nd(start, L.unsqueeze(segment, [1]), data, kind)
    if reduce != "mean":
        return result
    counts = L.reshape(counts, (ends.shape[0], *[1] * (data.rank - 1)))
    # torch leaves the initial value of an empty segment; without one, its mean is NaN.
    divisor = counts if initial is None else L.maximum(counts, 1)
    return result / cast(divisor, data.dtype)
