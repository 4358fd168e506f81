"""Rows of tables: embeddings, single and in bags."""

from __future__ import annotations

from typing import Any

from sardonyx.convert.torch.operators.elementwise import div_, mul_
from sardonyx.convert.torch.operators.promotion import cast
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.core import language as L
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t
from sardonyx.ops.nodes import onnx


@aten("embedding.default")
def embedding(weight: Tensor, indices: Tensor, *_: Any) -> Tensor:
    """Return rows of a table."""
    return onnx.Gather(weight, indices, axis=0)  # type: ignore[no-any-return]


@aten(
    "_embedding_bag.default",
    "_embedding_bag_forward_only.default",
    "embedding_bag.default",
    "embedding_bag.padding_idx",
)
def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return sums, means or maxima of rows; a bag begins at each offset."""
    indices, offsets = cast(indices, t.INT64), cast(offsets, t.INT64)
    if include_last_offset:
        offsets = L.slice_(offsets, 0, 0, offsets.shape[0] - 1)
    bags, count = offsets.shape[0], indices.shape[0]
    line = L.arange(count)
    begun = L.unsqueeze(offsets, [0]) <= L.unsqueeze(line, [1])
    bag = L.reduce_sum(L.cast(begun, t.INT64), [1]) - 1
    rows = embedding(weight, indices)
    if per_sample_weights is not None:
        rows = mul_(rows, L.unsqueeze(per_sample_weights, [1]))
    used = L.full([count], True, t.BOOL)
    if padding_idx is not None and padding_idx >= 0:
        used = L.not_equal(indices, padding_idx)
    at = L.unsqueeze(bag, [-1])
    sizes = L.scatter_nd(L.full([bags], 0, t.INT64), at, L.cast(used, t.INT64), "add")
    shape = [bags, weight.shape[1]]
    if mode == 2:
        low = float("-inf")
        masked = L.where(L.unsqueeze(used, [1]), rows, low)
        most = L.scatter_nd(L.full(shape, low, rows.dtype), at, masked, "max")
        result = L.where(L.equal(L.unsqueeze(sizes, [1]), 0), 0, most)
    else:
        masked = L.where(L.unsqueeze(used, [1]), rows, 0)
        result = L.scatter_nd(L.full(shape, 0, rows.dtype), at, masked, "add")
        if mode == 1:
            result = div_(result, cast(L.unsqueeze(L.maximum(sizes, 1), [1]), rows.dtype))
    return result, bag, sizes, None if mode == 2 else sizes


@aten("renorm.default")
def _renorm(x: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    from sardonyx.convert.torch.operators.reductions import vector_norm

    axis = L.normalized_axis(dim, x.rank)
    norm = vector_norm(x, p, [a for a in range(x.rank) if a != axis], True)
    return mul_(x, L.where(norm > maxnorm, L.constant(maxnorm, x.dtype) / (norm + 1e-7), 1))


@aten("embedding_renorm.default")
def _renormed_rows(weight: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Return a table whose rows at indices have at most a norm; the other rows remain."""
    at = L.unsqueeze(L.reshape(cast(indices, t.INT64), [L.product(indices.shape)]), [1])
    none = L.full([weight.shape[0]], 0, t.INT64)
    hits = L.scatter_nd(none, at, L.full([at.shape[0]], 1, t.INT64), "add")
    return L.where(L.unsqueeze(hits > 0, [1]), _renorm(weight, norm_type, 0, max_norm), weight)
