"""Systems of equations over complex numbers, as real systems of twice the size."""

from __future__ import annotations

from typing import Any

from sardonyx.convert.torch.operators.linear_algebra import eliminated, identity_like, no_error, power, solution
from sardonyx.convert.torch.operators.registry import of_complex
from sardonyx.convert.torch.operators.spectral import joined, part
from sardonyx.core import language as L
from sardonyx.core.eval.tensor import Tensor


def _solved(a: Tensor, b: Tensor) -> Tensor:
    """Return X of A X = B, from the real system of the real and imaginary parts."""
    n = a.shape[-1]
    real, imaginary = part(a, 0), part(a, 1)
    matrix = L.concat([L.concat([real, -imaginary], -1), L.concat([imaginary, real], -1)], -2)
    x = eliminated(matrix, L.concat([part(b, 0), part(b, 1)], -2))
    return joined(L.slice_(x, -2, 0, n), L.slice_(x, -2, n, 2 * n))


@of_complex("linalg_solve.default")
def _solve(a: Tensor, b: Tensor, *, left: bool = True) -> Tensor:
    return solution(a, b, left, _solved)


@of_complex("linalg_solve_ex.default")
def _solve_ex(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    return _solve(a, b, left=left), no_error(a)


@of_complex("_linalg_solve_ex.default")
def _solve_full(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> tuple[Any, ...]:
    return _solve(a, b, left=left), None, None, no_error(a)


@of_complex("linalg_inv.default", "inverse.default")
def _inverse(a: Tensor) -> Tensor:
    return _solved(a, _identity_like(a))


def _identity_like(a: Tensor) -> Tensor:
    identity = identity_like(part(a, 0))
    return joined(identity, L.zeros_like(identity))


@of_complex("linalg_matrix_power.default", "matrix_power.default")
def _matrix_power(a: Tensor, n: int) -> Tensor:
    if n == 0:
        return _identity_like(a)
    return power(_inverse(a) if n < 0 else a, abs(n))


@of_complex("linalg_inv_ex.default")
def _inverse_ex(a: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    return _inverse(a), no_error(a)
