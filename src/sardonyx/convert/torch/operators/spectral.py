"""Complex numbers, and Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.convert.torch.operators.promotion import cast
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.convert.torch.operators.sizes import size_of
from sardonyx.core import language as L
from sardonyx.core.dim import Size, floor_div
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t

REAL = {t.COMPLEX64: t.FLOAT, t.COMPLEX128: t.DOUBLE}
_COMPLEX = {t.FLOAT: t.COMPLEX64, t.DOUBLE: t.COMPLEX128}


def is_complex(x: Tensor) -> bool:
    """Return True for complex numbers."""
    return x.dtype in REAL


def pairs(x: Tensor) -> Tensor:
    """Return complex numbers as pairs on a last axis."""
    return L.bitcast(x, REAL[x.dtype])


def joined(real: Tensor, imaginary: Tensor) -> Tensor:
    """Return complex numbers of their parts."""
    both = L.concat([L.unsqueeze(real, [-1]), L.unsqueeze(imaginary, [-1])], -1)
    return L.bitcast(both, _COMPLEX[real.dtype])


def part(x: Tensor, index: int) -> Tensor:
    """Return the real parts (0) or the imaginary parts (1) of complex numbers."""
    return L.entry(pairs(x), index, -1)


@aten("view_as_real.default", "view_as_real_copy.default")
def _view_as_real(x: Tensor) -> Tensor:
    return pairs(x)


@aten("view_as_complex.default", "view_as_complex_copy.default")
def complex_of(x: Tensor) -> Tensor:
    """Return pairs on a last axis as complex numbers."""
    return L.bitcast(x, _COMPLEX[x.dtype])


@aten("real.default")
def _real(x: Tensor) -> Tensor:
    return part(x, 0) if is_complex(x) else x


@aten("imag.default")
def _imag(x: Tensor) -> Tensor:
    return part(x, 1)


@aten("_conj.default", "conj.default", "conj_physical.default", "_conj_physical.default")
def _conj(x: Tensor) -> Tensor:
    return joined(part(x, 0), -part(x, 1)) if is_complex(x) else x


@aten("resolve_neg.default", "resolve_conj.default")
def _resolve(x: Tensor) -> Tensor:
    return x


def arc(y: Tensor, x: Tensor) -> Tensor:
    """Return the angle of the vector (x, y), in (-π, π]."""
    pi = 3.141592653589793
    steep = L.abs_(y) > L.abs_(x)
    top, bottom = L.where(steep, x, y), L.where(steep, y, x)
    ratio = L.atan(top / L.where(L.equal(bottom, 0), L.ones_like(bottom), bottom))
    half = L.where(y < 0, L.full_like(y, -pi / 2), L.full_like(y, pi / 2))
    back = L.where(y < 0, L.full_like(y, -pi), L.full_like(y, pi))
    flat = L.where(x < 0, ratio + back, ratio)
    return L.where(steep, half - ratio, L.where(L.equal(x, 0) & L.equal(y, 0), L.zeros_like(y), flat))


@aten("angle.default")
def _angle(x: Tensor) -> Tensor:
    if is_complex(x):
        return arc(part(x, 1), part(x, 0))
    real = x if t.is_float(x.dtype) else cast(x, t.FLOAT)
    return L.where(real < 0, L.full_like(real, 3.141592653589793), L.where(L.is_nan(real), real, L.zeros_like(real)))


def magnitude(x: Tensor) -> Tensor:
    """Return the absolute values of complex numbers."""
    a, b = L.abs_(part(x, 0)), L.abs_(part(x, 1))
    large, small = L.maximum(a, b), L.minimum(a, b)
    ratio = small / L.where(L.equal(large, 0), L.ones_like(large), large)
    return large * L.sqrt(ratio * ratio + 1)


# Transforms.


def _scaled(x: Tensor, normalization: int, count: Size) -> Tensor:
    """Divide by nothing (0), the root of the count (1), or the count (2)."""
    if normalization == 0:
        return x
    number = cast(L.number(count), REAL.get(x.dtype, x.dtype))
    factor = 1 / (L.sqrt(number) if normalization == 1 else number)
    if not is_complex(x):
        return x * factor
    return L.bitcast(pairs(x) * factor, x.dtype)


def _along(x: Tensor, axis: int, inverse: bool) -> Tensor:
    last = x.rank - 1
    return L.swap_axes(L.fft(L.swap_axes(x, axis, last), inverse), axis, last)


def _axes(x: Tensor, dims: Sequence[int]) -> list[int]:
    return [L.normalized_axis(int(dim), x.rank) for dim in dims]


@aten("_fft_c2c.default")
def _fft_c2c(x: Tensor, dim: Sequence[int], normalization: int, forward: bool) -> Tensor:
    axes = _axes(x, dim)
    count = L.product([x.shape[axis] for axis in axes])
    for axis in axes:
        x = _along(x, axis, not forward)
    return _scaled(x, normalization, count)


@aten("_fft_r2c.default")
def _fft_r2c(x: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Tensor:
    axes = _axes(x, dim)
    count = L.product([x.shape[axis] for axis in axes])
    last = axes[-1]
    size = x.shape[last]
    y = joined(x, L.zeros_like(x))
    for axis in reversed(axes):
        y = _along(y, axis, False)
        if axis == last and onesided:
            y = L.slice_(y, axis, 0, floor_div(size, 2) + 1)
    return _scaled(y, normalization, count)


@aten("_fft_c2r.default")
def _fft_c2r(x: Tensor, dim: Sequence[int], normalization: int, last_dim_size: Any) -> Tensor:
    axes = _axes(x, dim)
    last, size = axes[-1], size_of(last_dim_size)
    for axis in axes[:-1]:
        x = _along(x, axis, True)
    half = floor_div(size, 2) + 1
    mirrored = L.slice_(x, last, 1, size - half + 1)
    whole = L.concat([x, _conj(L.reverse(mirrored, [last]))], last)
    count = L.product([size if axis == last else x.shape[axis] for axis in axes])
    return _scaled(part(_along(whole, last, True), 0), normalization, count)


@aten("fft_fftshift.default")
def _fftshift(x: Tensor, dim: Sequence[int] | None = None) -> Tensor:
    return _shifted(x, dim, lambda size: size - floor_div(size, 2))


@aten("fft_ifftshift.default")
def _ifftshift(x: Tensor, dim: Sequence[int] | None = None) -> Tensor:
    return _shifted(x, dim, lambda size: floor_div(size, 2))


def _shifted(x: Tensor, dim: Sequence[int] | None, middle: Any) -> Tensor:
    for axis in range(x.rank) if dim is None else _axes(x, dim):
        at = middle(x.shape[axis])
        x = L.concat([L.slice_(x, axis, at, x.shape[axis]), L.slice_(x, axis, 0, at)], axis)
    return x
