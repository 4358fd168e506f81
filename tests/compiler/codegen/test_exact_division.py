"""Quotients without a division round to the integers of the division."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from sardonyx.compiler.codegen.exact_division import Quotient, quotient

LOW, HIGH = -128, 255


def drawn_scales(seed: int, count: int) -> list[float]:
    rng = np.random.default_rng(seed)
    odd = (2 * rng.integers(1, 1 << 20, count) + 1).astype(np.float32) * np.float32(2) ** rng.integers(-30, -15, count)
    return [float(x) for x in np.concatenate([np.exp(rng.uniform(-12, 8, count)).astype(np.float32), odd])]


def nearest_float(exact: Fraction) -> np.float32:
    """Round to the nearest float, ties to even."""
    near = np.float32(float(exact))
    around = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    return min(around, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(np.uint32)) & 1))


def emulated(function: Quotient, x: np.float32) -> np.float32:
    if not function.factor:
        return np.float32(x / np.float32(function.divisor))
    if not function.rest:
        return np.float32(x * np.float32(function.factor))
    small = np.float32(x * np.float32(function.rest))
    return nearest_float(Fraction(float(x)) * Fraction(function.factor) + Fraction(float(small)))


@pytest.mark.parametrize("seed", range(3))
def test_integers_are_those_of_a_division(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for scale in drawn_scales(seed, 4):
        function, s = quotient(scale, LOW, HIGH), np.float32(scale)
        halves = (rng.integers(LOW - 2, HIGH + 2, 60) + np.float32(0.5)).astype(np.float32) * s
        for x in np.concatenate([halves, np.nextafter(halves, -s), np.nextafter(halves, s * 999)]):
            expected = np.clip(np.round(x / s), LOW, HIGH)
            assert np.clip(np.round(emulated(function, x)), LOW, HIGH) == expected, (scale, x)


def test_powers_of_two_are_products() -> None:
    assert quotient(0.125, LOW, HIGH) == Quotient(0.125, 8.0)


@pytest.mark.parametrize("scale", [1e-30, 3e38, 1e-45])
def test_scales_without_a_useful_reciprocal_are_divided_by(scale: float) -> None:
    assert not quotient(scale, LOW, HIGH).factor


def test_most_scales_take_two_instructions() -> None:
    functions = [quotient(scale, 0, 255) for scale in drawn_scales(9, 50)]
    assert sum(bool(function.factor) for function in functions) > 90
