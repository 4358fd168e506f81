"""Eigenvalues, singular values, and factorizations with pivots; leading axes are batch axes.

Eigenvalues and singular values come from Jacobi rotations. One round rotates n / 2 disjoint pairs of columns at once,
then a fixed permutation pairs other columns: after n - 1 rounds every pair has met, and the columns are in their first
order. The signs of vectors differ from LAPACK's. Source: Golub and Van Loan, Matrix Computations, 8.5 and 8.6.
"""

from __future__ import annotations

from typing import Any

from sardonyx.convert.torch.operators.linear_algebra import (
    column_of,
    exchanged,
    no_error,
    pivot_row,
    qr,
    repeated,
    row_numbers,
    row_of,
    triangular_solution,
)
from sardonyx.convert.torch.operators.promotion import tensor_of
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.core import language as L
from sardonyx.core.dim import Size, at_least, dim_max, dim_min, floor_div
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t

_EPSILON = {t.FLOAT: 2.0**-23, t.DOUBLE: 2.0**-52}


def _next_pairs(n: int) -> list[int]:
    """Return the permutation of columns between rounds: a tournament of n players, two neighbours a pair."""
    top, bottom = list(range(0, n, 2)), list(range(1, n, 2))
    if len(top) > 1:
        top, bottom = [top[0], bottom[0], *top[1:-1]], [*bottom[1:], top[-1]]
    return [player for pair in zip(top, bottom, strict=True) for player in pair]


def _order_of_pairs(half: Size) -> Tensor:
    """Return the permutation of :func:`_next_pairs` for twice as many columns as `half`."""
    if isinstance(half, int):
        return L.constant(_next_pairs(2 * half), t.INT64)
    pair = L.arange(half)
    top = L.where(L.equal(pair, 0), pair, L.where(L.equal(pair, 1), pair, 2 * pair - 2))
    last = L.maximum(2 * L.number(half) - 2, L.constant(1, t.INT64))
    bottom = L.where(L.equal(pair, L.number(half) - 1), last, 2 * pair + 3)
    return L.reshape(L.concat([L.unsqueeze(top, [1]), L.unsqueeze(bottom, [1])], 1), [2 * half])


def _rounds(half: Size) -> Tensor:
    """Return the number of rounds for twice as many columns as `half`: sweeps of one round less than columns."""
    if isinstance(half, int):
        n = 2 * half
        return L.constant((6 + n.bit_length()) * (n - 1), t.INT64)
    powers = L.constant([1 << bit for bit in range(31)], t.INT64)
    columns = 2 * L.number(half)
    digits = L.reduce_sum(L.cast(powers <= columns, t.INT64), [0])
    return (6 + digits) * (columns - 1)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the even and the odd columns."""
    pairs = L.reshape(x, (*x.shape[:-1], floor_div(x.shape[-1], 2), 2))
    return L.squeeze(L.slice_(pairs, -1, 0, 1), [-1]), L.squeeze(L.slice_(pairs, -1, 1, 2), [-1])


def _angles(a: Tensor, b: Tensor, both: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the rotations that diagonalize [[a, both], [both, b]]."""
    still = L.equal(both, 0)
    ratio = (b - a) / (2 * L.where(still, L.ones_like(both), both))
    size = 1 / (L.abs_(ratio) + L.sqrt(1 + ratio * ratio))
    tangent = L.where(still, L.zeros_like(size), L.where(ratio < 0, -size, size))
    cosine = 1 / L.sqrt(1 + tangent * tangent)
    return cosine, cosine * tangent


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Return matrices whose pairs of columns are rotated."""
    a, b = _halves(x)
    c, s = L.unsqueeze(cosine, [-2]), L.unsqueeze(sine, [-2])
    pairs = L.concat([L.unsqueeze(c * a - s * b, [-1]), L.unsqueeze(s * a + c * b, [-1])], -1)
    return L.reshape(pairs, x.shape)


def _identity(shape: Any, n: Size, dtype: t.DType) -> Tensor:
    eye = L.cast(L.equal(L.unsqueeze(L.arange(n), [1]), L.unsqueeze(L.arange(n), [0])), dtype)
    return L.broadcast_to(eye, (*shape, n, n))


def _padded(x: Tensor, rows: Size, columns: Size) -> Tensor:
    """Return matrices with zeros below and to the right."""
    if columns != 0:
        x = L.concat([x, L.full((*x.shape[:-1], columns), 0, x.dtype)], -1)
    if rows != 0:
        x = L.concat([x, L.full((*x.shape[:-2], rows, x.shape[-1]), 0, x.dtype)], -2)
    return x


def _eigen(a: Tensor) -> tuple[Tensor, Tensor]:
    """Return ascending eigenvalues of symmetric matrices, and the vectors as columns."""
    size = a.shape[-1]
    if size == 1:
        return L.reshape(a, a.shape[:-1]), L.ones_like(a)
    half = floor_div(size + 1, 2)
    n = 2 * half
    order = _order_of_pairs(half)
    columns = L.arange(n)
    eye = L.cast(L.equal(L.unsqueeze(columns, [1]), L.unsqueeze(columns, [0])), a.dtype)
    odd = L.equal(L.unsqueeze(columns, [1]) + 1, L.unsqueeze(columns, [0]))
    above = L.where(odd, L.ones_like(eye), L.zeros_like(eye))

    def body(k: Tensor, x: Any, v: Any) -> list[Tensor]:
        first, second = _halves(L.reduce_sum(x * eye, [-2]))
        _, both = _halves(L.reduce_sum(x * above, [-2]))
        cosine, sine = _angles(first, second, both)
        x = _rotated(L.swap_axes(_rotated(x, cosine, sine), -1, -2), cosine, sine)
        x = L.take(L.take(x, order, x.rank - 1), order, x.rank - 2)
        return [x, L.take(_rotated(v, cosine, sine), order, v.rank - 1)]

    start = _padded(a, n - size, n - size)
    x, v = repeated(_rounds(half), [start, _identity(a.shape[:-2], n, a.dtype)], body)
    values = L.slice_(L.reduce_sum(x * eye, [-2]), -1, 0, size)
    vectors = L.slice_(L.slice_(v, -1, 0, size), -2, 0, size)
    return _ordered(values, L.sort(values, -1), vectors)


def _ordered(values: Tensor, order: Tensor, *matrices: Tensor) -> tuple[Any, ...]:
    """Return values and the columns of matrices in an order."""
    wide = [L.broadcast_to(L.unsqueeze(order, [-2]), matrix.shape) for matrix in matrices]
    columns = [L.gather_elements(matrix, at, matrix.rank - 1) for matrix, at in zip(matrices, wide, strict=True)]
    return L.gather_elements(values, order, values.rank - 1), *columns


def _singular(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return U [..., m, k], descending singular values [..., k] and V [..., n, k]."""
    rows, size = a.shape[-2:]
    if rows != size and at_least(size, rows) is True:
        v, s, u = _singular(L.swap_axes(a, -1, -2))
        return u, s, v
    half = floor_div(size + 1, 2)
    n = 2 * half
    order = _order_of_pairs(half)

    def body(k: Tensor, y: Any) -> list[Tensor]:
        first, second = _halves(L.slice_(y, -2, 0, rows))
        products = (L.reduce_sum(one * two, [-2]) for one, two in ((first, first), (second, second), (first, second)))
        return [L.take(_rotated(y, *_angles(*products)), order, y.rank - 1)]

    start = L.concat([_padded(a, 0, n - size), _identity(a.shape[:-2], n, a.dtype)], -2)
    (y,) = repeated(_rounds(half), [start], body)
    y = L.slice_(y, -1, 0, size)
    scaled, v = L.slice_(y, -2, 0, rows), L.slice_(y, -2, rows, rows + size)
    values = L.sqrt(L.reduce_sum(scaled * scaled, [-2]))
    values, scaled, v = _ordered(values, L.sort(values, -1, True), scaled, v)
    if at_least(rows, size) is not True:
        # Surplus columns have the value 0 and are the last.
        count = dim_min(rows, size)
        values, scaled, v = (L.slice_(x, -1, 0, count) for x in (values, scaled, v))
    lengths = L.unsqueeze(values, [-2])
    return scaled / L.where(L.equal(lengths, 0), L.ones_like(lengths), lengths), values, v


@aten("_linalg_eigh.default", "linalg_eigh.default")
def _eigh(a: Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[Tensor, Tensor]:
    n = a.shape[-1]
    rows, columns = L.unsqueeze(L.arange(n), [1]), L.unsqueeze(L.arange(n), [0])
    is_stored = columns <= rows if UPLO.upper() == "L" else columns >= rows
    values, vectors = _eigen(L.where(is_stored, a, L.swap_axes(a, -1, -2)))
    return values, vectors if compute_v else L.full([0], 0, a.dtype)


@aten("linalg_eigvalsh.default")
def _eigvalsh(a: Tensor, UPLO: str = "L") -> Tensor:
    return _eigh(a, UPLO)[0]


@aten("linalg_svd.default")
def _full_svd(a: Tensor, full_matrices: bool = True, *, driver: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    return _svd(a, full_matrices)


@aten("_linalg_svd.default")
def _svd(
    a: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    u, s, v = _singular(a)
    if not compute_uv:
        nothing = L.full([0], 0, a.dtype)
        return nothing, s, nothing
    if full_matrices:
        u, v = _completed(u), _completed(v)
    return u, s, L.swap_axes(v, -1, -2)


def _completed(q: Tensor) -> Tensor:
    """Return orthonormal columns with further ones that complete the basis."""
    rows, columns = q.shape[-2:]
    return q if rows == columns else L.concat([q, L.slice_(qr(q, "complete")[0], -1, columns, rows)], -1)


@aten("linalg_svdvals.default")
def _svdvals(a: Tensor, *, driver: str | None = None) -> Tensor:
    return _singular(a)[1]


@aten("svd.default")
def _old_svd(a: Tensor, some: bool = True, compute_uv: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    u, s, v = _svd(a, not some, compute_uv)
    return u, s, L.swap_axes(v, -1, -2) if compute_uv else v


@aten("linalg_pinv.default")
def _pinv(a: Tensor, rcond: Any = None, hermitian: bool = False) -> Tensor:
    return _pseudo_inverse(a, None, rcond)


@aten("linalg_pinv.atol_rtol_tensor", "linalg_pinv.atol_rtol_float")
def _pinv_tolerances(a: Tensor, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Tensor:
    return _pseudo_inverse(a, atol, rtol)


def _pseudo_inverse(a: Tensor, absolute: Any, relative: Any) -> Tensor:
    u, s, v = _singular(a)
    if relative is None:
        largest = L.cast(L.number(dim_max(*a.shape[-2:])), a.dtype)
        relative = 0.0 if absolute is not None else largest * _EPSILON.get(a.dtype, 2.0**-23)
    limit = _as_column(relative, a.dtype) * L.slice_(s, -1, 0, 1)
    if absolute is not None:
        limit = L.maximum(limit, _as_column(absolute, a.dtype))
    large = s > limit
    inverse = L.where(large, 1 / L.where(large, s, L.ones_like(s)), L.zeros_like(s))
    return L.matmul(v * L.unsqueeze(inverse, [-2]), L.swap_axes(u, -1, -2))


def _as_column(value: Any, dtype: t.DType) -> Tensor:
    tensor = L.cast(value, dtype) if isinstance(value, Tensor) else tensor_of(value, dtype)
    return L.unsqueeze(tensor, [-1]) if tensor.rank else tensor


@aten("linalg_lstsq.default")
def _lstsq(a: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None) -> tuple[Any, ...]:
    vector = b.rank == a.rank - 1
    b = L.unsqueeze(b, [-1]) if vector else b
    x = L.matmul(_pseudo_inverse(a, None, rcond), b)
    return L.squeeze(x, [-1]) if vector else x, None, None, None


def _lu_of(a: Tensor, pivot: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return both factors in one matrix, the pivots [..., k] from 0, and the permutation of rows [..., m]."""
    count = dim_min(a.shape[-2], a.shape[-1])
    steps = L.arange(count)
    order = L.broadcast_to(row_numbers(a), (*a.shape[:-2], a.shape[-2], 1))
    pivots = L.broadcast_to(steps, (*a.shape[:-2], count))

    def body(k: Tensor, x: Any, order: Any, pivots: Any) -> list[Tensor]:
        if pivot:
            row = pivot_row(x, k)
            x, order = exchanged(x, k, row), exchanged(order, k, row)
            pivots = L.where(L.equal(steps, k), L.reshape(row, (*row.shape[:-2], 1)), pivots)
        top = row_of(x, k)
        below = row_numbers(x) > k
        factor = L.where(below, column_of(x, k) / L.take(top, L.reshape(k, [1]), top.rank - 1), L.zero(a.dtype))
        columns = L.unsqueeze(L.arange(x.shape[-1]), [0])
        x = L.where(L.equal(columns, k) & below, factor, x - L.where(columns > k, factor * top, L.zero(a.dtype)))
        return [x, order, pivots]

    x, order, pivots = repeated(count, [a, order, pivots], body)
    return x, pivots, L.squeeze(order, [-1])


def _unpacked(x: Tensor, order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the permutation matrix and both factors."""
    rows, columns = L.unsqueeze(L.arange(x.shape[-2]), [1]), L.unsqueeze(L.arange(x.shape[-1]), [0])
    count = dim_min(x.shape[-2], x.shape[-1])
    lower = L.where(columns < rows, x, L.cast(L.equal(columns, rows), x.dtype))
    upper = L.where(columns >= rows, x, L.zero(x.dtype))
    permutation = L.cast(L.equal(rows, L.unsqueeze(order, [-2])), x.dtype)
    return permutation, L.slice_(lower, -1, 0, count), L.slice_(upper, -2, 0, count)


@aten("linalg_lu.default")
def _lu(a: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    x, _, order = _lu_of(a, pivot)
    return _unpacked(x, order)


@aten("linalg_lu_factor_ex.default")
def _lu_factor_ex(a: Tensor, *, pivot: bool = True, check_errors: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    x, pivots, _ = _lu_of(a, pivot)
    return x, L.cast(pivots + 1, t.INT32), no_error(a)


@aten("linalg_lu_factor.default")
def _lu_factor(a: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor]:
    return _lu_factor_ex(a, pivot=pivot)[:2]


def _order_of(pivots: Tensor, rows: Size) -> Tensor:
    """Return the permutation of rows that exchanges with pivots (from 1) make."""
    start = L.broadcast_to(L.unsqueeze(L.arange(rows), [1]), (*pivots.shape[:-1], rows, 1))
    at = L.cast(pivots, t.INT64) - 1

    def body(k: Tensor, order: Any) -> list[Tensor]:
        row = L.unsqueeze(L.take(at, L.reshape(k, [1]), at.rank - 1), [-1])
        return [exchanged(order, k, row)]

    (order,) = repeated(pivots.shape[-1], [start], body)
    return L.squeeze(order, [-1])


@aten("lu_unpack.default")
def _lu_unpack(x: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True) -> tuple[Any, ...]:
    return _unpacked(x, _order_of(pivots, x.shape[-2]))


@aten("linalg_lu_solve.default")
def _lu_solve(x: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    if not left:
        return L.swap_axes(_lu_solve(x, pivots, L.swap_axes(b, -1, -2), adjoint=not adjoint), -1, -2)
    order = _order_of(pivots, x.shape[-2])
    if adjoint:
        transposed = L.swap_axes(x, -1, -2)
        y = triangular_solution(transposed, triangular_solution(transposed, b, False, False), True, True)
        back = L.sort(order, -1)
        return L.gather_elements(y, L.broadcast_to(L.unsqueeze(back, [-1]), y.shape), y.rank - 2)
    batch = L.broadcast_shapes(order.shape[:-1], b.shape[:-2])
    b = L.broadcast_to(b, (*batch, *b.shape[-2:]))
    b = L.gather_elements(b, L.broadcast_to(L.unsqueeze(order, [-1]), b.shape), b.rank - 2)
    return triangular_solution(x, triangular_solution(x, b, False, True), True, False)


@aten("lu_solve.default")
def _old_lu_solve(b: Tensor, x: Tensor, pivots: Tensor) -> Tensor:
    return _lu_solve(x, pivots, b)
