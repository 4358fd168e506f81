"""Treatment of denormal numbers in kernels.

Many processors are a hundred times slower with numbers below the smallest normal number, where float32 has only a few
digits left.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np

Denormals = Literal["auto", "keep", "flush"]
"""``flush``: kernels read denormal numbers as zero and give zero. ``auto``: flush if constants contain denormal
numbers.

Training leaves denormal weights in place of zeros, and results computed from them contain more denormal numbers.
"""

_BLOCK = 1 << 18
"""Numbers that are tested at a time, so that temporaries stay in the cache."""

_SMALL = 1 << 14
"""Numbers of an array below which arrays are tested together."""


def flushes(denormals: Denormals, in_constants: bool) -> bool:
    """Return True if kernels flush denormal numbers.

    Args:
        denormals: The requested treatment.
        in_constants: True if the constants that kernels read contain denormal numbers.
    """
    return denormals == "flush" or (denormals == "auto" and in_constants)


def holds_denormals(arrays: Iterable[np.ndarray]) -> bool:
    """Return True if a contiguous float32 array contains a denormal number; arrays of other types are ignored."""
    small, large = list[np.ndarray](), list[np.ndarray]()
    for array in arrays:
        if array.dtype == np.float32:
            (small if array.size < _SMALL else large).append(array.reshape(-1))
    if len(small) > 1:  # One test of all takes less time than a test of each.
        small = [np.concatenate(small)]
    return any(_holds(array.view(np.uint32)) for array in [*small, *large])


def _holds(bits: np.ndarray) -> bool:
    # Doubling drops the sign bit: below 1 << 24 the exponent is 0, and subtracting 1 wraps zero to the largest number.
    return any(
        bool(((bits[at : at + _BLOCK] << 1) - np.uint32(1) < np.uint32((1 << 24) - 1)).any())
        for at in range(0, bits.size, _BLOCK)
    )
