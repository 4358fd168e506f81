"""Denormal numbers: what becomes of them while kernels run.

Many processors compute with numbers below the least normal one at a hundredth of their speed, and float32 has no more
than a few digits left there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np

Denormals = Literal["auto", "keep", "flush"]
"""To flush them: kernels take them for zero and give zero. ``auto`` does where what kernels read of constants has some:
training left them there in place of zeros, and what is computed with them has more of them."""

_BLOCK = 1 << 18
"""Numbers that are looked at together, so that what is found out of them stays in the cache."""


def flushes(denormals: Denormals, in_constants: bool) -> bool:
    """Whether kernels flush denormal numbers.

    Args:
        denormals: What is asked for.
        in_constants: Whether there are some in the constants that kernels read.
    """
    return denormals == "flush" or (denormals == "auto" and in_constants)


def holds_denormals(arrays: Iterable[np.ndarray]) -> bool:
    """Whether there is a denormal number in contiguous arrays of float32; those of other types are passed over."""
    return any(_holds(array.reshape(-1).view(np.uint32)) for array in arrays if array.dtype == np.float32)


def _holds(bits: np.ndarray) -> bool:
    # Twice the bits are the bits without the sign: below 1 << 24 the exponent is 0, and 0 wraps around to the largest.
    return any(
        bool(((bits[at : at + _BLOCK] << 1) - np.uint32(1) < np.uint32((1 << 24) - 1)).any())
        for at in range(0, bits.size, _BLOCK)
    )
