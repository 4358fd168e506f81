"""Indexing: gather, scatter, ranking, and selection by a condition.

Source: ONNX Operators, *Gather* to *Unique*. Negative indices count from the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sardonyx.core import language as L
from sardonyx.core.dim import Size
from sardonyx.core.eval.host_function import HostFunction, host, unknown_size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError, ShapeError
from sardonyx.ops.registry import host_operator, operator


@operator("Gather", since=1)
def gather(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    return L.take(x, indices, axis)


@operator("GatherElements", since=11)
def gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    return L.gather_elements(x, indices, axis)


@operator("GatherND", since=11)
def gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    if not 0 <= batch_dims < min(x.rank, indices.rank):
        raise ShapeError(f"{x.type} and indices {indices.type} do not share {batch_dims} axes.")
    return L.gather_nd(x, indices, batch_dims)


# Writing.

_KINDS: dict[str, L.ScatterKind] = {"none": "set", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def _kind(reduction: str) -> L.ScatterKind:
    if reduction not in _KINDS:
        raise InvalidModelError(f"unknown reduction {reduction!r}.", remedy=f"Use one of {', '.join(_KINDS)}.")
    return _KINDS[reduction]


_BOOLEAN_KINDS: dict[L.ScatterKind, L.ScatterKind] = {"add": "max", "mul": "min", "max": "max", "min": "min"}


def _scatter_reduced(
    scatter: Callable[[Tensor, Tensor, L.ScatterKind], Tensor], x: Tensor, updates: Tensor, kind: L.ScatterKind
) -> Tensor:
    """Scatter with a reduction; booleans are reduced as 0 and 1 (add and max: any, mul and min: all)."""
    if x.dtype != t.BOOL or kind == "set":
        return scatter(x, updates, kind)
    return L.cast(scatter(L.cast(x, t.UINT8), L.cast(updates, t.UINT8), _BOOLEAN_KINDS[kind]), t.BOOL)


@operator("Scatter", since=9)
def scatter(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0) -> Tensor:
    return L.scatter_elements(x, indices, updates, axis)


@operator("ScatterElements", since=11)
def scatter_elements(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none") -> Tensor:
    return _scatter_reduced(
        lambda x, new, kind: L.scatter_elements(x, indices, new, axis, kind), x, updates, _kind(reduction)
    )


@operator("ScatterND", since=11)
def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    if not x.rank:
        raise ShapeError(f"expected at least 1 axis for the data, got {x.type}.")
    return _scatter_reduced(lambda x, new, kind: L.scatter_nd(x, indices, new, kind), x, updates, _kind(reduction))


@operator("TensorScatter", since=24)
def tensor_scatter(
    cache: Tensor, update: Tensor, write_indices: Tensor | None = None, *, axis: int = -2, mode: str = "linear"
) -> Tensor:
    """Write a sequence into every sample's cache, from its write index on."""
    at = L.normalized_axis(axis, cache.rank)
    if at == 0 or mode not in ("linear", "circular"):
        raise InvalidModelError(
            f"invalid axis {axis} or mode {mode!r} of TensorScatter.",
            remedy="Use an axis other than the batch axis 0, and the mode 'linear' or 'circular'.",
        )
    order = (0, at, *(i for i in range(1, cache.rank) if i != at))
    rows = L.permute(update, order)
    first = L.full((cache.shape[0],), 0, t.INT64) if write_indices is None else write_indices
    positions = L.unsqueeze(first, [1]) + L.iota(rows.shape[:2], 1)
    if mode == "circular":
        positions = L.floor_mod(positions, L.number(cache.shape[at]))
    written = L.scatter_nd(L.permute(cache, order), L.unsqueeze(positions, [-1]), rows, batch=1)
    return L.permute(written, [order.index(i) for i in range(cache.rank)])


# Ranking.


@operator("TopK", since=10)
def top_k(x: Tensor, k: Tensor, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Tensor, Tensor]:
    return _top_k(x, L.one_size(k, "the k of TopK"), axis, bool(largest))


@operator("TopK", since=1)
def top_k_by_attribute(x: Tensor, *, k: int, axis: int = -1) -> tuple[Tensor, Tensor]:
    return _top_k(x, k, axis, largest=True)


def _top_k(x: Tensor, k: Size, axis: int, largest: bool) -> tuple[Tensor, Tensor]:
    indices = L.top_k(x, axis, k, largest)
    return L.gather_elements(x, indices, axis), indices


# Results whose number depends on the data.

_COUNTED = "the number of results is counted from the data"


def _nonzero_type(x: TensorType) -> tuple[TensorType]:
    return (TensorType(t.INT64, (len(x.shape or ()), unknown_size())),)


@host_operator("NonZero", since=9, types=_nonzero_type, reason=_COUNTED)
def nonzero(x: np.ndarray) -> tuple[np.ndarray]:
    if x.ndim == 0:
        return (np.zeros((0, int(x != 0)), np.int64),)
    return (np.stack(np.nonzero(x)).astype(np.int64),)


_nonzero = HostFunction("NonZero", _nonzero_type, nonzero, present=(True,))


@operator("Compress", since=9)
def compress(x: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    if condition.rank != 1:
        raise ShapeError(f"expected a condition of rank 1 for Compress, got rank {condition.rank}.")
    (positions,) = host(_nonzero, condition)
    chosen = L.squeeze(positions, [0])  # type: ignore[arg-type]
    return L.take(L.reshape(x, (L.product(x.shape),)) if axis is None else x, chosen, axis or 0)


def _unique_types(x: TensorType, *, axis: int | None = None, sorted: int = 1) -> tuple[TensorType, ...]:
    count, shape = unknown_size(), x.shape or ()
    along = None if axis is None else L.normalized_axis(axis, len(shape))
    result_shape = (count,) if along is None else (*shape[:along], count, *shape[along + 1 :])
    length = L.product(shape) if along is None else shape[along]
    return (TensorType(x.dtype, result_shape), *(TensorType(t.INT64, (size,)) for size in (count, length, count)))


@host_operator("Unique", since=11, types=_unique_types, reason=_COUNTED)
def unique(x: np.ndarray, *, axis: int | None = None, sorted: int = 1) -> tuple[np.ndarray, ...]:
    comparable: Any = x.astype(str) if x.dtype == object else x
    _, first, inverse, counts = np.unique(comparable, True, True, True, axis=axis)
    inverse = inverse.ravel()
    if not sorted:
        order = np.argsort(first, kind="stable")
        first, counts = first[order], counts[order]
        inverse = np.argsort(order, kind="stable")[inverse]
    values = x.ravel()[first] if axis is None else np.take(x, first, axis=axis)
    return (values, *(part.astype(np.int64) for part in (first, inverse, counts)))
