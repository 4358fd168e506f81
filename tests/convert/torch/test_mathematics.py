"""Fourier transforms, complex numbers, linear algebra and special functions."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from sardonyx.convert.imported import Options  # noqa: E402
from tests.convert.torch.programs import require_equal  # noqa: E402


def x(*shape: int) -> Any:
    return torch.randn(*shape)


MATRIX = x(3, 4, 4)
POSITIVE = MATRIX @ MATRIX.mT + torch.eye(4)
RIGHT = x(3, 4, 2)
WINDOW = torch.hann_window(16)


def rebuilt(values: Any, vectors: Any) -> Any:
    return vectors @ torch.diag_embed(values) @ vectors.mT


def product_of(u: Any, s: Any, v: Any) -> Any:
    return u * s[..., None, :] @ v


def reflected(a: Any) -> Any:
    """Return the vectors of reflections, their product, and products with it from both sides."""
    vectors, tau = torch.geqrf(a)
    products = (torch.ormqr(vectors, tau, a, True, flag) for flag in (True, False))
    right = (torch.ormqr(vectors, tau, a.mT.contiguous(), False, flag) for flag in (True, False))
    return vectors, tau, torch.linalg.householder_product(vectors, tau), *products, *right


CODES = torch.arange(-64, 64, dtype=torch.int8).reshape(8, 16)
SPECTRA = {
    "fft": (lambda x: torch.view_as_real(torch.fft.fft(x)), (x(2, 6, 10),), (x(3, 6, 14),)),
    "orthonormal": (lambda x: torch.view_as_real(torch.fft.rfft(x, norm="ortho")), (x(2, 6, 10),)),
    "inverse": (lambda x: torch.fft.irfft(torch.fft.rfft(x), n=9), (x(2, 9),)),
    "two axes": (lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * 2), (x(2, 6, 10),)),
    "magnitude": (lambda x: torch.fft.fft2(x).abs(), (x(2, 6, 8),)),
    "angle": (lambda x: torch.fft.fft(x).angle(), (x(2, 9),)),
    "complex products": (
        lambda a, b: torch.view_as_real(torch.complex(a, b) @ torch.complex(b, a).mT),
        (x(2, 6, 10), x(2, 6, 10)),
    ),
    "complex sums of products": (
        lambda a, b: torch.view_as_real(torch.einsum("bij,bkj->ibk", torch.complex(a, b), torch.complex(b, a))),
        (x(2, 6, 10), x(2, 6, 10)),
    ),
    "shift": (torch.fft.fftshift, (x(2, 6, 9),)),
    "short time": (
        lambda x, w: torch.istft(torch.stft(x, 16, 8, window=w, return_complex=True) * 2, 16, 8, window=w),
        (x(2, 64), WINDOW),
    ),
    "rotations": (
        lambda x: torch.view_as_real(
            torch.view_as_complex(x.reshape(2, 6, 5, 2)) * torch.polar(torch.ones(6, 5), torch.ones(6, 5))
        ),
        (x(2, 6, 10),),
    ),
}
ALGEBRA = {
    "cdist": (torch.cdist, (x(2, 6, 5), x(2, 7, 5))),
    "cdist, largest": (lambda a, b: torch.cdist(a, b, float("inf")), (x(2, 6, 5), x(2, 7, 5))),
    "cross products": (lambda a: torch.linalg.cross(a.view(3, 4, 3), a.view(3, 4, 3).flip(2)), (x(36),)),
    "cross products over the first axis": (lambda a: torch.cross(a.view(3, 4, 3), a.view(3, 4, 3).flip(2)), (x(36),)),
    "inverse": (torch.linalg.inv, (MATRIX,)),
    "solve": (torch.linalg.solve, (MATRIX, RIGHT)),
    "complex systems": (
        lambda a, b: torch.view_as_real(torch.linalg.solve(torch.complex(a, a.mT), torch.complex(b, -b))),
        (MATRIX, RIGHT),
    ),
    "complex systems from the right": (
        lambda a, b: torch.view_as_real(
            torch.linalg.solve(torch.complex(a, a.mT), torch.complex(b, -b), left=False).resolve_conj()
        ),
        (MATRIX, RIGHT.mT),
    ),
    "complex inverse": (lambda a: torch.view_as_real(torch.linalg.inv(torch.complex(a, 2 * a.mT))), (POSITIVE,)),
    "det": (torch.linalg.det, (MATRIX,)),
    "slogdet": (torch.linalg.slogdet, (MATRIX,)),
    "cholesky": (torch.linalg.cholesky, (POSITIVE,)),
    "triangular": (lambda a, b: torch.linalg.solve_triangular(a, b, upper=True), (MATRIX, RIGHT)),
    "triangular from the right": (
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=False, left=False),
        (MATRIX, x(3, 2, 4)),
    ),
    "cholesky_solve": (torch.cholesky_solve, (RIGHT, torch.linalg.cholesky(POSITIVE))),
    "qr": (torch.linalg.qr, (x(3, 5, 4),)),
    "qr of wide matrices": (torch.linalg.qr, (x(3, 4, 6),)),
    "complete qr": (lambda a: torch.linalg.qr(a, mode="complete"), (x(3, 6, 4),)),
    "eigenvalues": (torch.linalg.eigvalsh, (POSITIVE,)),
    "eigenvalues of odd size": (lambda a: torch.linalg.eigh(a.mT @ a)[0], (x(2, 6, 5),)),
    "eigenvectors": (lambda a: rebuilt(*torch.linalg.eigh(a)), (POSITIVE,)),
    "singular values": (torch.linalg.svdvals, (x(3, 5, 4),)),
    "singular vectors": (lambda a: product_of(*torch.linalg.svd(a, full_matrices=False)), (x(3, 5, 3),)),
    "singular vectors of wide matrices": (lambda a: product_of(*torch.linalg.svd(a, full_matrices=False)), (x(3, 6),)),
    "all singular vectors": (lambda a: torch.linalg.svd(a)[0] @ torch.linalg.svd(a)[0].mT, (x(2, 5, 3),)),
    "pinv": (torch.linalg.pinv, (x(3, 5, 4),)),
    "pinv of rank 1": (lambda a, b: torch.linalg.pinv(a * b), (x(5, 1), x(1, 4))),
    "least squares": (lambda a, b: torch.linalg.lstsq(a, b).solution, (x(3, 6, 4), x(3, 6, 2))),
    "lu": (torch.linalg.lu, (MATRIX,)),
    "lu of tall matrices": (torch.linalg.lu, (x(2, 6, 4),)),
    "lu of wide matrices": (torch.linalg.lu_factor, (x(2, 4, 6),)),
    "lu_solve": (lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b), (MATRIX, RIGHT)),
    "lu_solve, transposed": (
        lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b, adjoint=True),
        (MATRIX, RIGHT),
    ),
    "lu_solve from the right": (
        lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b.mT, left=False),
        (MATRIX, RIGHT),
    ),
    "power": (lambda a: torch.linalg.matrix_power(a, 5), (MATRIX / 2,)),
    **{
        f"complex power {n}": (
            lambda a, n=n: torch.view_as_real(torch.linalg.matrix_power(torch.complex(a, 2 * a.mT), n)),
            (POSITIVE,),
        )
        for n in (-2, 0, 3)
    },
    "exponential": (torch.linalg.matrix_exp, (MATRIX / 2,)),
    "reflections": (reflected, (x(2, 5, 3),)),
    "reflections of wide matrices": (torch.geqrf, (x(2, 3, 5),)),
    "complex determinants": (
        lambda a, b: torch.view_as_real(torch.linalg.det(torch.complex(a, b))),
        (MATRIX, MATRIX.flip(0)),
    ),
    "complex determinants of singular matrices": (
        lambda a: torch.view_as_real(torch.linalg.det(torch.complex(a, a) * torch.tensor([1.0, 1.0, 1.0, 0.0]))),
        (MATRIX,),
    ),
    "logarithms of complex determinants": (
        lambda a, b: torch.linalg.slogdet(torch.complex(a, b)).logabsdet,
        (MATRIX, MATRIX.flip(0)),
    ),
    "checked factors": (lambda a: torch.linalg.tensorsolve(a[0], torch.ones(4)), (POSITIVE,)),
    "products of codes": (
        lambda a: vars(torch)["_int_mm"]((a[0] * 50).to(torch.int8).repeat(8, 2), CODES),
        (MATRIX / 4,),
    ),
}
FUNCTIONS = {
    "digamma": torch.digamma,
    "trigamma": lambda x: torch.polygamma(1, x.abs() + 0.1),
    "polygamma of negative numbers": lambda x: torch.polygamma(2, -20 * torch.sigmoid(x).round(decimals=1) - 0.5),
    "i0": torch.i0,
    "i0e": torch.special.i0e,
    "i1": torch.special.i1,
    "i1e": torch.special.i1e,
    "ndtri": lambda x: torch.special.ndtri(torch.sigmoid(x)),
    "sinc": torch.sinc,
    "entr": torch.special.entr,
    "bessel_j": lambda x: (torch.special.bessel_j0(x * 4), torch.special.bessel_j1(x * 4)),
    "bessel_y": lambda x: (torch.special.bessel_y0(x.abs() + 0.2), torch.special.bessel_y1(x.abs() + 0.2)),
    "modified_bessel_k": lambda x: (
        torch.special.modified_bessel_k0(x.abs() + 0.1),
        torch.special.scaled_modified_bessel_k1(x.abs() + 0.1),
    ),
    "spherical_bessel_j0": torch.special.spherical_bessel_j0,
    "airy_ai": torch.special.airy_ai,
    "erfcx": lambda x: torch.special.erfcx(x * 0.5),
    "log_ndtr": torch.special.log_ndtr,
    "zeta": lambda x: torch.special.zeta(x.abs() + 1.5, x.abs() + 0.1),
    "gammainc": lambda x: (
        torch.special.gammainc(x.abs(), x.flip(0).abs()),
        torch.special.gammaincc(x.abs(), x.flip(0).abs()),
    ),
    "polynomials": lambda x: (
        torch.special.hermite_polynomial_h(x, 4),
        torch.special.legendre_polynomial_p(torch.sin(x), torch.arange(20) % 5),
        torch.special.shifted_chebyshev_polynomial_u(torch.sigmoid(x), 3),
    ),
    "nextafter": lambda x: torch.nextafter(x, torch.zeros(())),
}
COMPLEX = {
    "cumprod": lambda z: torch.view_as_real(z.cumprod(0)),
    "cumprod of rows": lambda z: torch.view_as_real(z.cumprod(-1)),
    "logarithm": torch.log,
    "root": torch.sqrt,
    "power": lambda z: z**2.5,
    "cube": lambda z: z**3,
    "tangents": lambda z: torch.tan(z) + torch.tanh(z),
    "inverse functions": lambda z: torch.asin(z) + torch.atan(z) + torch.asinh(z),
    "sign": torch.sgn,
    "product": lambda z: z.prod(1),
    "sums": lambda z: z.cumsum(0),
    "flattened": lambda z: z.T.reshape(-1),
    "choice": lambda z: torch.where(z.real > 0, z, 1j),
    "equality": lambda z: z == z.conj(),
    "norms": lambda z: (torch.linalg.norm(z, dim=1), torch.linalg.vector_norm(z, 3), z.norm(p=1, dim=0)),
    "missing numbers": lambda z: torch.isnan(torch.where(z.real > 0, z, math.nan)),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_spectra(name: str) -> None:
    require_equal(*SPECTRA[name])


@pytest.mark.parametrize("name", ALGEBRA)
def test_linear_algebra(name: str) -> None:
    require_equal(*ALGEBRA[name], tolerance=1e-4)


def test_right_hand_sides_that_all_complex_systems_share_are_no_vectors() -> None:
    """As real systems of twice the size, four systems have a right-hand side of the shape of four vectors."""
    require_equal(
        lambda a, b: torch.view_as_real(
            torch.linalg.solve(torch.complex(a, a.mT + torch.eye(2)), torch.complex(b, -b))
        ),
        (POSITIVE[0, :2, :2].expand(4, 2, 2).clone(), x(2, 4)),
        tolerance=1e-4,
        options=Options(dynamic=False),
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_functions(name: str) -> None:
    require_equal(FUNCTIONS[name], (x(4, 20) * 4,), tolerance=1e-4)


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_functions(name: str) -> None:
    require_equal(lambda a, b: COMPLEX[name](torch.complex(a, b)), (x(4, 5), x(4, 5)), tolerance=1e-4)


def test_windows_and_frequencies() -> None:
    require_equal(
        lambda x: (
            x + torch.hamming_window(8),
            torch.blackman_window(9, periodic=False),
            torch.bartlett_window(7),
            torch.kaiser_window(8, periodic=True, beta=5.0),
            torch.fft.fftfreq(x.shape[1], 0.5),
            torch.fft.rfftfreq(9),
        ),
        (x(2, 8),),
    )


def test_common_divisors_and_multiples() -> None:
    a, b = torch.tensor([[-4, 0, 6], [9, 7, 0]]), torch.tensor([[6, 0, -15], [3, 0, 8]])
    require_equal(lambda a, b: (torch.gcd(a, b), torch.lcm(a, b)), (a, b))


def test_convolutions_of_complex_numbers() -> None:
    kernel, bias = torch.randn(4, 3, 3, dtype=torch.cfloat), torch.randn(4, dtype=torch.cfloat)
    back = torch.randn(4, 2, 3, dtype=torch.cfloat)

    def convolved(a: Any, b: Any) -> Any:
        z = torch.nn.functional.conv1d(torch.complex(a, b), kernel, bias, padding="same", dilation=2)
        return torch.view_as_real(torch.nn.functional.conv_transpose1d(z, back, stride=2))

    require_equal(convolved, (x(2, 3, 8), x(2, 3, 8)), tolerance=1e-4)


def test_complex_numbers_pass_through_parts_without_gradients() -> None:
    def rotated(x: Any) -> Any:
        with torch.no_grad():
            turns = torch.polar(torch.ones(4), torch.arange(4.0))
            halves = turns * 0.5, turns * 2
        return torch.view_as_real(torch.view_as_complex(x) * halves[0] + halves[1])

    require_equal(rotated, (x(3, 4, 2),))
