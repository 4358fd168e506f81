"""Householder reflections as LAPACK stores them: vectors below the diagonal of a matrix, and their factors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.convert.torch.operators.linear_algebra import column_of, repeated, row_numbers
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.core import language as L
from sardonyx.core.dim import dim_min
from sardonyx.core.eval.tensor import Tensor


def _vector(a: Tensor, k: Tensor) -> Tensor:
    """Return the vector of reflection k as a column: 0 above row k, 1 at row k."""
    rows = row_numbers(a)
    head = L.cast(L.equal(rows, k), a.dtype)
    return L.where(rows > k, column_of(a, k), head)


def _reflected(a: Tensor, factors: Tensor, x: Tensor, *, is_reversed: bool) -> Tensor:
    """Return x after all reflections, the first one first, or the last one first."""
    count = factors.shape[-1]
    batch = L.broadcast_shapes(a.shape[:-2], x.shape[:-2])
    x = L.broadcast_to(x, (*batch, *x.shape[-2:]))

    def step(i: Tensor, x: Any) -> Sequence[Tensor]:
        k = L.number(count) - 1 - i if is_reversed else i
        v = _vector(a, k)
        factor = L.unsqueeze(L.take(factors, L.reshape(k, [1]), factors.rank - 1), [-1])
        return [x - factor * v * L.matmul(L.swap_axes(v, -1, -2), x)]

    (x,) = repeated(count, [x], step)
    return x


@aten("linalg_householder_product.default", "orgqr.default")
def _product(a: Tensor, tau: Tensor) -> Tensor:
    rows, columns = L.unsqueeze(L.arange(a.shape[-2]), [1]), L.unsqueeze(L.arange(a.shape[-1]), [0])
    identity = L.broadcast_to(L.cast(L.equal(rows, columns), a.dtype), a.shape)
    return _reflected(a, tau, identity, is_reversed=True)


@aten("ormqr.default")
def _multiplied(a: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    if left:
        return _reflected(a, tau, other, is_reversed=not transpose)
    return L.swap_axes(_reflected(a, tau, L.swap_axes(other, -1, -2), is_reversed=transpose), -1, -2)


@aten("geqrf.default")
def _factored(a: Tensor) -> tuple[Tensor, Tensor]:
    count = dim_min(a.shape[-2], a.shape[-1])
    steps = L.arange(count)

    def step(k: Tensor, x: Any, tau: Any) -> Sequence[Tensor]:
        rows = row_numbers(x)
        column = column_of(x, k)
        head = L.take(column, L.reshape(k, [1]), column.rank - 2)
        below = L.where(rows > k, column, L.zero(x.dtype))
        rest = L.reduce_sum(below * below, [-2], keepdims=True)
        # Nothing to reflect: LAPACK leaves the row as it is.
        still = L.equal(rest, 0)
        length = L.sqrt(head * head + rest)
        signed = L.where(head < 0, length, -length)
        one = L.ones_like(head)
        factor = L.where(still, L.zero(x.dtype), (signed - head) / L.where(still, one, signed))
        v = below / L.where(still, one, head - signed) + L.cast(L.equal(rows, k), x.dtype)
        reflected = x - factor * v * L.matmul(L.swap_axes(v, -1, -2), x)
        columns = L.unsqueeze(L.arange(x.shape[-1]), [0])
        x = L.where(columns > k, reflected, x)
        stored = L.where(rows > k, v, L.where(L.equal(rows, k), L.where(still, head, signed), x))
        x = L.where(L.equal(columns, k), stored, x)
        return [x, L.where(L.equal(steps, k), L.reshape(factor, (*factor.shape[:-2], 1)), tau)]

    tau = L.full((*a.shape[:-2], count), L.zero(a.dtype), a.dtype)
    x, tau = repeated(count, [a, tau], step)
    return x, tau
