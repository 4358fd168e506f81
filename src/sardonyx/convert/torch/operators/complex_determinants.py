"""Determinants of complex matrices, by elimination with pivots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.convert.torch.operators.linear_algebra import column_of, exchanged, repeated, row_numbers, row_of
from sardonyx.convert.torch.operators.registry import of_complex
from sardonyx.convert.torch.operators.spectral import joined, part
from sardonyx.core import language as L
from sardonyx.core.eval.tensor import Tensor

Pair = tuple[Tensor, Tensor]
"""Real and imaginary part."""


def _product(a: Pair, b: Pair) -> Pair:
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _elimination(a: Tensor) -> tuple[Pair, Tensor]:
    """Return the determinants divided by their sizes, and the logarithms of the sizes."""
    real, imaginary = part(a, 0), part(a, 1)
    shape = real.shape[:-2]

    def step(k: Tensor, x: Any, y: Any, phase_x: Any, phase_y: Any, total: Any) -> Sequence[Tensor]:
        rows = row_numbers(x)
        sizes = column_of(x, k) * column_of(x, k) + column_of(y, k) * column_of(y, k)
        pivot = L.argmax(L.where(rows >= k, sizes, L.constant(-1, sizes.dtype)), x.rank - 2, keepdims=True)
        x, y = exchanged(x, k, pivot), exchanged(y, k, pivot)
        top = row_of(x, k), row_of(y, k)
        at = L.reshape(k, [1])
        head = L.take(top[0], at, x.rank - 1), L.take(top[1], at, x.rank - 1)
        square = head[0] * head[0] + head[1] * head[1]
        is_zero = L.equal(square, 0)
        divisor = L.where(is_zero, L.ones_like(square), square)
        inverse = head[0] / divisor, -head[1] / divisor
        factor = _product((column_of(x, k), column_of(y, k)), inverse)
        change = _product(factor, top)
        below = rows > k
        x, y = L.where(below, x - change[0], x), L.where(below, y - change[1], y)
        length = L.sqrt(square)
        unit = [L.reshape(L.where(is_zero, head[i], head[i] / L.sqrt(divisor)), shape) for i in (0, 1)]
        phase = _product((phase_x, phase_y), (unit[0], unit[1]))
        swapped = L.reshape(L.not_equal(pivot, k), shape)
        phase_x, phase_y = (L.where(swapped, -value, value) for value in phase)
        return [x, y, phase_x, phase_y, total + L.log(L.reshape(length, shape))]

    one = L.full(shape, 1, real.dtype)
    state = [real, imaginary, one, L.zeros_like(one), L.zeros_like(one)]
    _, _, phase_x, phase_y, total = repeated(real.shape[-1], state, step)
    return (phase_x, phase_y), total


@of_complex("linalg_det.default", "det.default")
def _det(a: Tensor) -> Tensor:
    phase, total = _elimination(a)
    size = L.exp(total)
    return joined(phase[0] * size, phase[1] * size)


@of_complex("_linalg_det.default")
def _det_full(a: Tensor) -> tuple[Tensor, None, None]:
    return _det(a), None, None


@of_complex("linalg_slogdet.default", "slogdet.default")
def _slogdet(a: Tensor) -> tuple[Tensor, Tensor]:
    phase, total = _elimination(a)
    return joined(*phase), total


@of_complex("_linalg_slogdet.default")
def _slogdet_full(a: Tensor) -> tuple[Any, ...]:
    return *_slogdet(a), None, None
