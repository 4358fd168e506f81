"""Other legal answers of the interpreter: its functions rounded another way within the accuracy of compiled code.

An operator that quantizes what it has computed moves a result by a whole step of the quantization if a function
differs in its last bit at the border between two codes. Compiled functions are accurate to 2 ulp, not equal to those of
numpy, so that both sides of such a border are right. A wider tolerance would also accept wrong answers; an
answer of the interpreter with functions that differ by at most 2 ulp cannot be one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from sardonyx.core.rules.numpy_rules import NUMPY_RULES, NumpyRule

ULPS = 2
"""Greatest error of compiled functions, in units of the last place."""

FUNCTIONS = ("exp", "log", "tanh", "erf", "sin", "cos", "div", "sqrt")
"""The primitives whose results are rounded another way."""


@contextmanager
def other_roundings(seed: int) -> Iterator[None]:
    """Let the interpreter's functions differ from numpy's by up to :data:`ULPS` units of the last place."""
    numbers = np.random.default_rng(seed)

    def rounded(rule: NumpyRule) -> NumpyRule:
        def compute(*operands: Any, **params: Any) -> Any:
            result = np.asarray(rule(*operands, **params))
            if result.dtype.kind != "f":
                return result
            steps = numbers.integers(-ULPS, ULPS + 1, result.shape)
            for _ in range(ULPS):
                result = np.where(
                    steps == 0, result, np.nextafter(result, np.copysign(np.inf, steps), dtype=result.dtype)
                )
                steps = steps - np.sign(steps)
            return np.asarray(result)

        return compute

    with patch.dict(NUMPY_RULES, {name: rounded(NUMPY_RULES[name]) for name in FUNCTIONS}):
        yield
