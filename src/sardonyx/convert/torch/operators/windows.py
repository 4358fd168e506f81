"""Windows of signals, and frequencies of Fourier transforms."""

from __future__ import annotations

import math
from typing import Any

from sardonyx.convert.torch.operators.bessel import modified_i0
from sardonyx.convert.torch.operators.creation import result_dtype
from sardonyx.convert.torch.operators.promotion import cast, tensor_of
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.convert.torch.operators.sizes import size_of
from sardonyx.core import language as L
from sardonyx.core.dim import dim_max, floor_div
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t


def _phase(length: Any, periodic: bool) -> Tensor:
    """Return the positions in a window, from 0 to 1: of float64."""
    count = size_of(length)
    gaps = count if periodic else dim_max(count - 1, 1)
    return cast(L.arange(count), t.DOUBLE) / tensor_of(gaps, t.DOUBLE)


def _cosines(length: Any, periodic: bool, *weights: float) -> Tensor:
    """Return a sum of cosines; a window of one element is 1."""
    if size_of(length) == 1:
        return L.full((1,), 1, result_dtype())
    turn = _phase(length, periodic) * (2 * math.pi)
    total = L.full_like(turn, weights[0])
    for k, weight in enumerate(weights[1:], 1):
        total = total + weight * L.cos(turn * float(k))
    return cast(total, result_dtype())


@aten("hann_window.default", "hann_window.periodic")
def _hann(length: Any, periodic: bool = True, **_: Any) -> Tensor:
    return _cosines(length, periodic, 0.5, -0.5)


@aten(
    "hamming_window.default",
    "hamming_window.periodic",
    "hamming_window.periodic_alpha",
    "hamming_window.periodic_alpha_beta",
)
def _hamming(length: Any, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, **_: Any) -> Tensor:
    return _cosines(length, periodic, alpha, -beta)


@aten("blackman_window.default", "blackman_window.periodic")
def _blackman(length: Any, periodic: bool = True, **_: Any) -> Tensor:
    return _cosines(length, periodic, 0.42, -0.5, 0.08)


@aten("bartlett_window.default", "bartlett_window.periodic")
def _bartlett(length: Any, periodic: bool = True, **_: Any) -> Tensor:
    if size_of(length) == 1:
        return L.full((1,), 1, result_dtype())
    return cast(1 - L.abs_(2 * _phase(length, periodic) - 1), result_dtype())


@aten("kaiser_window.default", "kaiser_window.periodic", "kaiser_window.beta")
def _kaiser(length: Any, periodic: bool = True, beta: float = 12.0, **_: Any) -> Tensor:
    if size_of(length) == 1:
        return L.full((1,), 1, result_dtype())
    middle = 2 * _phase(length, periodic) - 1
    inner = beta * L.sqrt(L.maximum(1 - middle * middle, 0.0))
    return cast(modified_i0(inner) / modified_i0(L.full((), beta, t.DOUBLE)), result_dtype())


@aten("fft_fftfreq.default")
def _frequencies(n: Any, d: float = 1.0, **_: Any) -> Tensor:
    count = size_of(n)
    line = L.arange(count)
    whole = line - L.where(line > tensor_of(floor_div(count - 1, 2)), tensor_of(count), 0)
    return cast(cast(whole, t.DOUBLE) / (tensor_of(count, t.DOUBLE) * d), result_dtype())


@aten("fft_rfftfreq.default")
def _half_frequencies(n: Any, d: float = 1.0, **_: Any) -> Tensor:
    count = size_of(n)
    line = cast(L.arange(floor_div(count, 2) + 1), t.DOUBLE)
    return cast(line / (tensor_of(count, t.DOUBLE) * d), result_dtype())
