"""Sparse tensors, which are dense in the model: layouts of storage change no value."""

from __future__ import annotations

from typing import Any

from sardonyx.convert.torch.operators.promotion import cast, tensor_of
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.convert.torch.operators.sizes import predicted_shape
from sardonyx.core import language as L
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t
from sardonyx.errors import UnsupportedError


@aten(
    "_to_sparse.default", "_to_sparse.sparse_dim", "to_sparse.default", "to_sparse.sparse_dim",
    "_to_sparse_csr.default", "to_sparse_csr.default", "_to_sparse_csc.default", "to_sparse_csc.default",
    "_coalesce.default", "coalesce.default", "_coalesced.default",
)  # fmt: skip
def _same_values(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x


@aten("_sparse_addmm.default", "sspaddmm.default")
def _sparse_addmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = L.matmul(a, b)
    scaled = product if alpha == 1 else product * tensor_of(alpha, product.dtype)
    return scaled if beta == 0 else scaled + (x if beta == 1 else x * tensor_of(beta, x.dtype))


@aten("_sparse_mm.default", "_sparse_sparse_matmul.default")
def _sparse_mm(a: Tensor, b: Tensor) -> Tensor:
    return L.matmul(a, b)


@aten(
    "sparse_coo_tensor.indices_size", "sparse_coo_tensor.indices", "_sparse_coo_tensor_unsafe.default",
    "_sparse_coo_tensor_with_dims_and_tensors.default",
)  # fmt: skip
def _sparse_coo_tensor(*arguments: Any, **_: Any) -> Tensor:
    indices, values = (argument for argument in arguments if isinstance(argument, Tensor))
    shape = predicted_shape()
    if shape is None or any(size is None for size in shape):
        raise UnsupportedError("a sparse tensor whose sizes follow from its indices has no translation.")
    sizes = [size for size in shape if size is not None]
    target = L.full(sizes, 0, values.dtype)
    rows = L.permute(cast(indices, t.INT64), [1, 0])
    return L.scatter_nd(target, rows, values, "add")
