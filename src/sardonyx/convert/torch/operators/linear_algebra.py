"""Linear algebra: distances, determinants, systems of equations, factorizations.

Factorizations are loops over columns in Core, with the signs and pivots of LAPACK; leading axes are batch axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sardonyx.convert.torch.operators.reductions import vector_norm
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.core import language as L
from sardonyx.core.dim import Size, dim_min
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t
from sardonyx.errors import UnsupportedError
from sardonyx.ops.nodes import onnx


@aten("_cdist_forward.default", "cdist.default")
def _cdist(x: Tensor, y: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Tensor:
    difference = L.unsqueeze(x, [-2]) - L.unsqueeze(y, [-3])
    return vector_norm(difference, p, -1)


@aten("_euclidean_dist.default")
def _euclidean(x: Tensor, y: Tensor) -> Tensor:
    return _cdist(x, y)


@aten("pdist.default", "_pdist_forward.default")
def _pdist(x: Tensor, p: float = 2.0) -> Tensor:
    if not isinstance(x.shape[0], int):
        raise UnsupportedError("distances of an open number of rows among themselves have no translation.")
    if x.shape[0] < 2:
        return L.full((0,), 0, x.dtype)
    first, second = zip(*[(i, j) for i in range(x.shape[0]) for j in range(i + 1, x.shape[0])], strict=True)
    a, b = (onnx.Gather(x, L.constant(list(rows)), axis=0) for rows in (first, second))
    return vector_norm(a - b, p, -1)


# Elimination.


def _last(x: Tensor, axis: int) -> Size:
    return x.shape[axis]


def column_of(x: Tensor, k: Tensor) -> Tensor:
    """Return column k of matrices, as a column."""
    return L.take(x, L.reshape(k, [1]), x.rank - 1)


def row_of(x: Tensor, k: Tensor) -> Tensor:
    """Return row k of matrices, as a row."""
    return L.take(x, L.reshape(k, [1]), x.rank - 2)


def row_numbers(x: Tensor) -> Tensor:
    """Return the numbers of rows, as a column."""
    return L.unsqueeze(L.arange(x.shape[-2]), [1])


def repeated(
    count: Size | Tensor, state: Sequence[Tensor], body: Callable[..., Sequence[Tensor]]
) -> tuple[Tensor, ...]:
    """Return the state after ``count`` steps; the body has the step's number and the state."""

    def step(i: Tensor, *values: Any) -> Any:
        return None, body(i, *values), ()

    final, _ = L.loop(count if isinstance(count, Tensor) else L.number(count), None, tuple(state), step)
    return final


def exchanged(x: Tensor, k: Tensor, pivot: Tensor) -> Tensor:
    """Exchange row k and row ``pivot`` (one a matrix, [..., 1, 1])."""
    rows = L.broadcast_to(row_numbers(x), (*x.shape[:-2], x.shape[-2], 1))
    order = L.where(L.equal(rows, k), pivot, L.where(L.equal(rows, pivot), k, rows))
    return L.gather_elements(x, L.broadcast_to(order, x.shape), x.rank - 2)


def pivot_row(x: Tensor, k: Tensor) -> Tensor:
    """Return the row, from k on, of the largest element of column k, as [..., 1, 1]."""
    size = L.where(row_numbers(x) >= k, L.abs_(column_of(x, k)), L.constant(-1, x.dtype))
    return L.argmax(size, x.rank - 2, keepdims=True)


def eliminated(a: Tensor, b: Tensor) -> Tensor:
    """Return the solutions X of A X = B by Gauss and Jordan with pivots."""
    n = _last(a, -1)
    batch = L.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = L.broadcast_to(a, (*batch, *a.shape[-2:]))
    b = L.broadcast_to(b, (*batch, *b.shape[-2:]))

    def step(k: Tensor, x: Any) -> Sequence[Tensor]:
        x = exchanged(x, k, pivot_row(x, k))
        top = row_of(x, k)
        top = top / L.take(top, L.reshape(k, [1]), top.rank - 1)
        others = x - column_of(x, k) * top
        return [L.where(L.equal(row_numbers(x), k), top, others)]

    (x,) = repeated(n, [L.concat([a, b], -1)], step)
    return L.slice_(x, -1, n, x.shape[-1])


def identity_like(a: Tensor) -> Tensor:
    """Return identity matrices with the shape and type of matrices."""
    n = _last(a, -1)
    eye = L.cast(L.equal(L.unsqueeze(L.arange(n), [1]), L.unsqueeze(L.arange(n), [0])), a.dtype)
    return L.broadcast_to(eye, a.shape)


def no_error(a: Tensor) -> Tensor:
    """Return the codes of success of factorizations, one a matrix."""
    return L.full(a.shape[:-2], 0, t.INT32)


@aten("_linalg_check_errors.default")
def _errors(*_: Any, **__: Any) -> None:
    """Check nothing: factorizations here have no error codes but that of success."""


@aten("linalg_inv.default", "inverse.default")
def _inverse(a: Tensor, *_: Any, **__: Any) -> Tensor:
    return eliminated(a, identity_like(a))


@aten("linalg_inv_ex.default")
def _inverse_ex(a: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    return _inverse(a), no_error(a)


def solution(a: Tensor, b: Tensor, left: bool, solve: Callable[[Tensor, Tensor], Tensor] = eliminated) -> Tensor:
    """Return X of A X = B, or of X A = B if not `left`; B may be a vector.

    Args:
        a: The matrices A.
        b: The right-hand sides B.
        left: True for A X = B.
        solve: Returns X of A X = B for matrices B.
    """
    if b.rank == 1 or (b.rank == a.rank - 1 and b.shape == a.shape[:-1]):
        return L.squeeze(solve(a, L.unsqueeze(b, [-1])), [-1])
    if left:
        return solve(a, b)
    return L.swap_axes(solve(L.swap_axes(a, -1, -2), L.swap_axes(b, -1, -2)), -1, -2)


@aten("linalg_solve.default")
def _solve(a: Tensor, b: Tensor, *, left: bool = True) -> Tensor:
    return solution(a, b, left)


@aten("linalg_solve_ex.default")
def _solve_ex(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    return solution(a, b, left), no_error(a)


@aten("_linalg_solve_ex.default")
def _solve_full(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> tuple[Any, ...]:
    return solution(a, b, left), None, None, no_error(a)


@aten("linalg_det.default", "det.default")
def _det(a: Tensor) -> Tensor:
    return onnx.Det(a)  # type: ignore[no-any-return]


@aten("_linalg_det.default")
def _det_full(a: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    return _det(a), None, None


def _sign_and_logarithm(a: Tensor) -> tuple[Tensor, Tensor]:
    n = _last(a, -1)
    one = L.full(a.shape[:-2], 1, a.dtype)

    def step(k: Tensor, x: Any, sign: Any, total: Any) -> Sequence[Tensor]:
        pivot = pivot_row(x, k)
        swapped = L.reshape(L.not_equal(pivot, k), x.shape[:-2])
        x = exchanged(x, k, pivot)
        top = row_of(x, k)
        head = L.take(top, L.reshape(k, [1]), top.rank - 1)
        below = row_numbers(x) > k
        x = L.where(below, x - column_of(x, k) / head * top, x)
        value = L.reshape(head, x.shape[:-2])
        sign = L.where(swapped, -sign, sign) * L.sign(value)
        return [x, sign, total + L.log(L.abs_(value))]

    _, sign, total = repeated(n, [a, one, L.zeros_like(one)], step)
    return sign, total


@aten("linalg_slogdet.default", "slogdet.default")
def _slogdet(a: Tensor) -> tuple[Tensor, Tensor]:
    return _sign_and_logarithm(a)


@aten("_linalg_slogdet.default")
def _slogdet_full(a: Tensor) -> tuple[Any, ...]:
    return *_sign_and_logarithm(a), None, None


@aten("logdet.default")
def _logdet(a: Tensor) -> Tensor:
    sign, total = _sign_and_logarithm(a)
    return L.where(sign < 0, L.constant(float("nan"), a.dtype), total)


# Factorizations.


def _cholesky_of(a: Tensor) -> Tensor:
    n = _last(a, -1)

    def step(k: Tensor, lower: Any) -> Sequence[Tensor]:
        rest = column_of(a, k) - L.matmul(lower, L.swap_axes(row_of(lower, k), -1, -2))
        root = L.sqrt(L.take(rest, L.reshape(k, [1]), rest.rank - 2))
        column = L.where(row_numbers(a) >= k, rest / root, L.zero(a.dtype))
        at = L.equal(L.arange(n), k)
        return [L.where(at, column, lower)]

    (lower,) = repeated(n, [L.zeros_like(a)], step)
    return lower


@aten("linalg_cholesky.default", "cholesky.default")
def _cholesky(a: Tensor, upper: bool = False, **_: Any) -> Tensor:
    lower = _cholesky_of(a)
    return L.swap_axes(lower, -1, -2) if upper else lower


@aten("linalg_cholesky_ex.default")
def _cholesky_ex(a: Tensor, *, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    return _cholesky(a, upper), no_error(a)


def triangular_solution(a: Tensor, b: Tensor, upper: bool, unit: bool) -> Tensor:
    """Return the solutions of triangular systems; the other triangle is not read, nor is a unit diagonal."""
    n = _last(a, -1)
    batch = L.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = L.broadcast_to(a, (*batch, *a.shape[-2:]))
    b = L.broadcast_to(b, (*batch, *b.shape[-2:]))
    rows, columns = L.unsqueeze(L.arange(n), [1]), L.unsqueeze(L.arange(n), [0])
    a = L.where(columns >= rows if upper else columns <= rows, a, L.zero(a.dtype))

    def step(i: Tensor, x: Any) -> Sequence[Tensor]:
        k = L.number(n) - 1 - i if upper else i
        rest = row_of(b, k) - L.matmul(row_of(a, k), x)
        value = rest if unit else rest / L.take(row_of(a, k), L.reshape(k, [1]), a.rank - 1)
        return [L.where(L.equal(row_numbers(x), k), value, x)]

    (x,) = repeated(n, [L.zeros_like(b)], step)
    return x


@aten("linalg_solve_triangular.default")
def _solve_triangular(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    if left:
        return triangular_solution(a, b, upper, unitriangular)
    transposed = triangular_solution(L.swap_axes(a, -1, -2), L.swap_axes(b, -1, -2), not upper, unitriangular)
    return L.swap_axes(transposed, -1, -2)


@aten("triangular_solve.default")
def _triangular_solve(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    if transpose:
        return triangular_solution(L.swap_axes(a, -1, -2), b, not upper, unitriangular), a
    return triangular_solution(a, b, upper, unitriangular), a


@aten("cholesky_solve.default")
def _cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    lower = L.swap_axes(factor, -1, -2) if upper else factor
    return triangular_solution(L.swap_axes(lower, -1, -2), triangular_solution(lower, b, False, False), True, False)


@aten("cholesky_inverse.default")
def _cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    return _cholesky_solve(identity_like(factor), factor, upper)


@aten("linalg_qr.default")
def qr(a: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """Return orthonormal columns Q and upper triangular R, with the signs of LAPACK."""
    rows, columns = a.shape[-2:]
    count = dim_min(rows, columns)
    square = (*a.shape[:-2], rows, rows)
    eye = L.cast(L.equal(L.unsqueeze(L.arange(rows), [1]), L.unsqueeze(L.arange(rows), [0])), a.dtype)

    def step(k: Tensor, r: Any, q: Any) -> Sequence[Tensor]:
        column = L.where(row_numbers(r) >= k, column_of(r, k), L.zero(a.dtype))
        length = L.sqrt(L.reduce_sum(column * column, [-2], keepdims=True))
        head = L.take(column, L.reshape(k, [1]), column.rank - 2)
        signed = L.where(head < 0, -length, length)
        v = column + L.where(L.equal(row_numbers(r), k), signed, L.zero(a.dtype))
        square_length = L.reduce_sum(v * v, [-2], keepdims=True)
        # The last row of a square matrix has nothing below: LAPACK does not reflect it.
        still = L.equal(square_length, 0) | L.equal(k, L.number(rows) - 1)
        factor = L.where(still, L.zero(a.dtype), 2 / L.where(still, L.ones_like(square_length), square_length))
        transposed = L.swap_axes(v, -1, -2)
        r = r - factor * v * L.matmul(transposed, r)
        q = q - factor * L.matmul(q, v) * transposed
        return [r, q]

    r, q = repeated(count, [a, L.broadcast_to(eye, square)], step)
    r = L.where(L.unsqueeze(L.arange(columns), [0]) >= L.unsqueeze(L.arange(rows), [1]), r, L.zero(a.dtype))
    if mode == "complete":
        return q, r
    r = L.slice_(r, -2, 0, count)
    if mode == "r":
        return L.full([0], L.zero(a.dtype), a.dtype), r
    return L.slice_(q, -1, 0, count), r


# Powers and exponentials.


@aten("linalg_matrix_exp.default", "matrix_exp.default")
def _matrix_exp(a: Tensor) -> Tensor:
    halvings, terms = 10, 10
    x = a * (1.0 / 2**halvings)
    eye = identity_like(a)
    total = eye
    for k in range(terms, 0, -1):
        total = eye + L.matmul(x, total) * (1.0 / k)
    # Square exp(x) - 1, whose digits cancellation would lose: (1 + e)^2 - 1 = 2 e + e e.
    excess = total - eye
    for _ in range(halvings):
        excess = excess * 2 + L.matmul(excess, excess)
    return excess + eye


@aten("linalg_matrix_power.default", "matrix_power.default")
def _matrix_power(a: Tensor, n: int) -> Tensor:
    if n == 0:
        return identity_like(a)
    return power(_inverse(a) if n < 0 else a, abs(n))


def power(base: Tensor, n: int) -> Tensor:
    """Return a power of square matrices, by an exponent of at least 1."""
    result: Tensor | None = None
    for bit in bin(n)[2:]:
        if result is not None:
            result = L.matmul(result, result)
        if bit == "1":
            result = base if result is None else L.matmul(result, base)
    assert result is not None
    return result
