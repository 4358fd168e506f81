"""Integers of the discrete Laplace and discrete Gaussian distributions, exactly, from the random bits of the system.

Noise of floating-point numbers betrays what it hides: not every number can be a sum of the value and the noise. These
samplers compute with integers alone.

Source: C. Canonne, G. Kamath, T. Steinke, "The Discrete Gaussian for Differential Privacy", 2020, algorithms 1 to 3.
"""

from __future__ import annotations

import math
from fractions import Fraction
from secrets import randbelow


def discrete_laplace(scale: int) -> int:
    """Return an integer n with a probability in proportion to exp(-abs(n) / scale).

    Args:
        scale: The scale, at least 1.
    """
    while True:
        rest = randbelow(scale)
        if not _bernoulli_exp(rest, scale):
            continue
        whole = 0
        while _bernoulli_exp(1, 1):
            whole += 1
        size = rest + scale * whole
        is_negative = bool(randbelow(2))
        if not (is_negative and size == 0):
            return -size if is_negative else size


def discrete_gaussian(variance: Fraction) -> int:
    """Return an integer n with a probability in proportion to exp(-n**2 / (2 * variance)).

    Args:
        variance: The variance, above 0.
    """
    scale = math.isqrt(math.floor(variance)) + 1
    while True:
        drawn = discrete_laplace(scale)
        distance = abs(drawn) - variance / scale
        exponent = distance * distance / (2 * variance)
        if _bernoulli_exp(exponent.numerator, exponent.denominator):
            return drawn


def _bernoulli_exp(numerator: int, denominator: int) -> bool:
    """Return True with the probability exp(-numerator / denominator)."""
    while numerator > denominator:
        if not _bernoulli_exp_below_one(1, 1):
            return False
        numerator -= denominator
    return _bernoulli_exp_below_one(numerator, denominator)


def _bernoulli_exp_below_one(numerator: int, denominator: int) -> bool:
    count = 1
    while randbelow(denominator * count) < numerator:
        count += 1
    return count % 2 == 1
