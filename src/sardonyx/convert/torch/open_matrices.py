"""Functions of matrices, diagonals and lists of numbers, as equal programs for open sizes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree


def _matrix_norm(
    A: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None, **options: Any
) -> Any:
    """Return the largest or smallest sum of columns or rows, or singular value; other norms keep sizes open."""
    if options or isinstance(ord, str) or abs(ord) not in (1, 2, math.inf):
        return NotImplemented
    x = A if dtype is None else A.to(dtype)
    first, second = (axis % x.ndim for axis in dim)
    if abs(ord) == 2:
        values = torch.linalg.svdvals(x.movedim((first, second), (-2, -1)))
        result = values.amax(-1) if ord > 0 else values.amin(-1)
        return result.unsqueeze(min(first, second)).unsqueeze(max(first, second)) if keepdim else result
    summed, rest = (first, second) if abs(ord) == 1 else (second, first)
    sums = x.abs().sum(summed, keepdim=True)
    result = sums.amax(rest, keepdim=True) if ord > 0 else sums.amin(rest, keepdim=True)
    return result if keepdim else result.squeeze((summed, rest))


def _norm(A: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, **options: Any) -> Any:
    is_matrix = ord is not None and (A.ndim == 2 if dim is None else isinstance(dim, (tuple, list)) and len(dim) == 2)
    return _matrix_norm(A, ord, dim or (-2, -1), keepdim, **options) if is_matrix else NotImplemented


def _condition(A: Any, p: Any = None, **options: Any) -> Any:
    """Return the condition number of norms that need the inverse."""
    if options or p is None or isinstance(p, str) or abs(p) not in (1, math.inf):
        return NotImplemented
    return _matrix_norm(A, p) * _matrix_norm(torch.linalg.inv(A), p)


def _chain(tensors: Any, **options: Any) -> Any:
    """Return a product of matrices from the end of a vector on; the cheapest order depends on the sizes."""
    if options:
        return NotImplemented
    *before, last = tensors
    if last.ndim == 1:
        return functools.reduce(lambda product, x: x @ product, reversed(before), last)
    return functools.reduce(torch.matmul, tensors)


def _chain_of(*matrices: Any, **options: Any) -> Any:
    return _chain(matrices, **options)


def _filled_diagonal(self: Any, fill_value: Any, wrap: bool = False) -> Any:
    """Write to the main diagonal in place; a diagonal that wraps around needs the number of rows."""
    if wrap:
        return NotImplemented
    lines = [torch.arange(size).reshape([-1] + [1] * (self.ndim - 1 - axis)) for axis, size in enumerate(self.shape)]
    on_diagonal = functools.reduce(torch.logical_and, (line == lines[0] for line in lines[1:]))
    return self.copy_(torch.where(on_diagonal, torch.full((), fill_value, dtype=self.dtype), self))


def _numbers(data: Any, dtype: Any = None, device: Any = None, **options: Any) -> Any:
    """Return a tensor of numbers of which some are sizes."""
    if options or not _has_size(data):
        return NotImplemented
    return torch.tensor(data, dtype=dtype)


def _new_numbers(self: Any, data: Any, *, dtype: Any = None, **options: Any) -> Any:
    return _numbers(data, dtype or self.dtype, **options)


def _has_size(data: Any) -> bool:
    return not isinstance(data, torch.Tensor) and any(
        isinstance(leaf, torch.SymInt)
        for leaf in pytree.tree_leaves(list(data) if isinstance(data, (tuple, list)) else data)
    )


FUNCTIONS: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (torch.linalg, "matrix_norm", _matrix_norm),
    (torch.linalg, "norm", _norm),
    (torch.linalg, "cond", _condition),
    (torch.linalg, "multi_dot", _chain),
    (torch, "chain_matmul", _chain_of),
    (torch.Tensor, "fill_diagonal_", _filled_diagonal),
    (torch.Tensor, "new_tensor", _new_numbers),
    (torch, "as_tensor", _numbers),
)
"""Owner and name of every function, and the equal program."""
