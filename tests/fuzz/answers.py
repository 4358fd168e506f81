"""Equality of answers, up to the differences between compiled code and interpreter that the documentation allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_RELATIVE = {2: 1e-2, 4: 1e-3, 8: 1e-6}
"""Tolerances of floats by their bytes, relative and of the greatest element."""


EXTREME = 1e6
"""Floats from here on, and smaller ones than its inverse, are extreme."""


def difference(
    feeds: Mapping[str, Any], actual: list[Any], expected: list[Any], *, nearby_integers: bool = False, width: int = 8
) -> str:
    """Describe the first difference between answers; empty if they agree.

    Floats are compared if no feed has extreme floats: sums of these depend on the order of the additions.

    Args:
        feeds: The inputs.
        actual: The answers of compiled code.
        expected: The answers of the interpreter.
        nearby_integers: Integers may differ by 1; those of 8 bits always may.
        width: Bytes of the narrowest floats that the model computes with.
    """
    for number, (a, b) in enumerate(zip(actual, expected, strict=True)):
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            if _is_same(a, b):
                continue
            if mismatch := _of_arrays(a, b, not has_extreme(feeds), nearby_integers, width):
                return f"output {number}: {mismatch}"
        elif type(a) is not type(b) or (isinstance(a, list) and len(a) != len(b)):
            return f"output {number}: {type(a).__name__} and {type(b).__name__}"
    return ""


def has_extreme(feeds: Mapping[str, Any]) -> bool:
    """Return True if a feed has a float with an extreme size, NaN or infinity."""
    return any(_has_extreme(x) for x in feeds.values())


def _has_extreme(x: Any) -> bool:
    if not isinstance(x, np.ndarray) or x.dtype.kind not in "fcV":
        return False
    size = np.abs(x.astype(np.complex128 if x.dtype.kind == "c" else np.float64))
    return not bool(((size == 0) | ((size < EXTREME) & (size > 1 / EXTREME))).all())


def _is_same(a: np.ndarray, b: np.ndarray) -> bool:
    """Return True for arrays of the same bytes, which most answers are; no comparison of elements is as fast."""
    return a.dtype == b.dtype and a.shape == b.shape and a.dtype.kind not in "OSU" and a.tobytes() == b.tobytes()


def _of_arrays(a: np.ndarray, b: np.ndarray, floats: bool, nearby: bool, width: int) -> str:
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}"
    if a.dtype.kind in "OSU":
        # Not as lists, which would take more memory than a child process has.
        return "" if np.array_equal(a, b) else "texts differ"
    if a.dtype.kind == "b":
        equal = a == b
    elif a.dtype.kind in "iu":
        # The standard leaves open which integer a float out of range becomes; roundings of equal sums may differ by 1.
        limits = np.iinfo(a.dtype)
        near = (nearby or a.dtype.itemsize == 1) & (np.where(a > b, a - b, b - a) <= 1)
        equal = (a == b) | near | np.isin(a, (limits.min, limits.max)) | np.isin(b, (limits.min, limits.max))
    elif not floats:
        return ""
    else:
        x, y = (v if v.dtype.kind in "fc" else v.astype(np.float32) for v in (a, b))
        tolerance = _RELATIVE.get(min(a.dtype.itemsize // (2 if a.dtype.kind == "c" else 1), width), 0.3)
        with np.errstate(all="ignore"):
            wide = np.complex128 if x.dtype.kind == "c" else np.float64
            finite = np.abs(y[np.isfinite(y)])
            greatest = float(finite.max(initial=1.0))
            equal = np.isclose(x.astype(wide), y.astype(wide), tolerance, tolerance * greatest, equal_nan=True)
            # Sums in another order, and products with padding, give NaN for infinity and the reverse.
            equal |= ~(np.isfinite(x) & np.isfinite(y))
    if np.all(equal):
        return ""
    at = tuple(int(i) for i in np.argwhere(~np.asarray(equal, bool))[0])
    return f"at {list(at)} {a[at]} and {b[at]}"
