"""Small programs of numbers: factorizations, statistics, special functions, types and logic."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from convert_sources.small_programs import Registry, rand

registry = Registry()
case = registry.case


@case(lambda: rand(4, 4))
def eigen_symmetric(x):  # type: ignore[no-untyped-def]
    values, vectors = torch.linalg.eigh(x @ x.T + torch.diag(torch.arange(4.0)))
    return values, vectors.abs(), torch.linalg.eigvalsh(x + x.T)


@case(lambda: rand(5, 3))
def singular_values(x):  # type: ignore[no-untyped-def]
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    return s, (u * s) @ v, torch.linalg.svdvals(x), torch.linalg.matrix_norm(x, 2), torch.linalg.cond(x)


@case(lambda: rand(6, 3), lambda: rand(6, 2))
def least_squares(a, b):  # type: ignore[no-untyped-def]
    return torch.linalg.lstsq(a, b).solution, torch.linalg.pinv(a), torch.linalg.matrix_rank(a)


@case(lambda: rand(4, 4) + 3 * torch.eye(4), lambda: rand(4, 2))
def lu_and_qr(a, b):  # type: ignore[no-untyped-def]
    q, r = torch.linalg.qr(a)
    p, low, up = torch.linalg.lu(a)
    factor, pivots = torch.linalg.lu_factor(a)
    return q @ r, r.abs(), p @ low @ up, torch.linalg.lu_solve(factor, pivots, b)


@case(lambda: rand(2, 3, 3) * 0.3)
def matrix_functions(x):  # type: ignore[no-untyped-def]
    logarithm = torch.logdet(x @ x.mT + torch.eye(3))
    return torch.matrix_exp(x), torch.linalg.matrix_power(x, 3), logarithm, torch.trace(x[0])


@case(lambda: rand(3, 3), lambda: rand(3, 2))
def triangular_systems(x, b):  # type: ignore[no-untyped-def]
    low = torch.linalg.cholesky(x @ x.T + torch.eye(3))
    return torch.linalg.solve_triangular(low, b, upper=False), torch.cholesky_solve(b, low), torch.cholesky_inverse(low)


@case(lambda: rand(8, 3))
def whitening(x):  # type: ignore[no-untyped-def]
    c = torch.cov(x.T)
    return (x - x.mean(0)) @ torch.linalg.inv(torch.linalg.cholesky(c + 0.1 * torch.eye(3))).mT, torch.corrcoef(x.T)


@case(lambda: rand(4, 6))
def quantiles(x):  # type: ignore[no-untyped-def]
    return (
        x.quantile(0.3, dim=1),
        torch.quantile(x, torch.tensor([0.25, 0.75]), dim=0),
        torch.nanmedian(x),
        x.mode(1).values,
        torch.nanquantile(x, 0.5),
    )


@case(lambda: rand(4, 6))
def missing_numbers(x):  # type: ignore[no-untyped-def]
    y = torch.where(x > 1, math.nan, x)
    return y.nansum(1), y.nanmean(0), torch.nan_to_num(y, 7.0), y.isnan().any(), torch.isfinite(y).float().mean()


@case(lambda: rand(4, 6))
def special_functions(x):  # type: ignore[no-untyped-def]
    y = x.abs() + 0.5
    return (
        torch.special.gammaln(y),
        torch.special.bessel_j0(x),
        torch.special.i1(x),
        torch.special.zeta(y + 1, y),
        torch.special.log_ndtr(x),
        torch.special.multigammaln(y + 2, 2),
        torch.special.gammainc(y, y),
    )


@case(lambda: torch.randint(0, 256, (3, 4), dtype=torch.uint8), lambda: torch.randint(-8, 8, (3, 4)))
def integer_arithmetic(x, y):  # type: ignore[no-untyped-def]
    return (
        x >> 2,
        (x.int() + 1) // 2,
        x.float().div(255),
        y.abs().clamp(1, 5),
        torch.bitwise_or(x, 3),
        y.pow(2),
        torch.lcm(y, y + 20),
        x + x,
    )


@case(lambda: torch.randint(0, 2, (3, 4)).bool(), lambda: torch.randint(0, 2, (3, 4)).bool())
def logic(x, y):  # type: ignore[no-untyped-def]
    return (
        x & ~y,
        x ^ y,
        torch.logical_or(x, y),
        x.all(1),
        y.any(),
        x.sum(0),
        x.int().argmax(1),
        x.int().cumsum(1),
        x.nonzero(),
    )


@case(lambda: rand(3, 8).half())
def half_precision(x):  # type: ignore[no-untyped-def]
    return (x @ x.T).softmax(-1), F.layer_norm(x, (8,)), x.sum(1, dtype=torch.float32)


@case(lambda: rand(3, 8))
def automatic_casts(x):  # type: ignore[no-untyped-def]
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ x.T
    return y.float().softmax(-1)


@case(lambda: rand(3, 8))
def numbers_of_other_types(x):  # type: ignore[no-untyped-def]
    bits = x.view(torch.int32) >> 3
    return x.to(torch.int32) + 2, x.double() * 2, (x > 0).to(x.dtype), x.long() // 2, torch.tensor(3) * x, bits
