"""Criteria for equal outputs, and the description of differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

TOLERANCE = 1e-4
"""Maximum difference of a rewrite that is not exact, relative to the output's largest element."""

COARSE: Mapping[str, float] = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Types coarser than ``TOLERANCE``: their relative distance of neighbouring numbers."""


def tolerance(value: Any) -> float:
    """Return the tolerance of an inexact rewrite; for 16-bit types, two units in the last place."""
    if isinstance(value, (list, tuple)):
        return max((tolerance(v) for v in value), default=TOLERANCE)
    return max(TOLERANCE, 2 * COARSE.get(str(getattr(value, "dtype", "")), 0.0))


@dataclass(frozen=True)
class Difference:
    """Deviation of one output from its reference.

    Attributes:
        output: Its name.
        error: Largest absolute difference over the largest finite magnitude of the reference; infinite
            if types, shapes or the positions of NaN and infinity differ.
        bitwise: True if the bits are equal (NaN payloads aside).
        detail: The deviation in words, if ``error`` does not express it.
    """

    output: str
    error: float
    bitwise: bool
    detail: str = ""


@dataclass(frozen=True)
class Verdict:
    """Result of verification.

    Attributes:
        status: ``"proved"``, ``"proved by parts"``, ``"different"`` or ``"not proved"``.
        samples: Number of input sets on which both models ran.
        sizes: The values of the open sizes in each sample.
        worst: Largest relative error of any output on any sample.
        exact: True if all outputs had equal bits.
        reason: The reason for a missing proof, the difference, or the criterion for integers.
        peak_bytes: Peak resident memory of the process that ran the models.
    """

    status: str
    samples: int = 0
    sizes: tuple[Mapping[str, int], ...] = ()
    worst: float = 0.0
    exact: bool = True
    reason: str = ""
    peak_bytes: int = 0
    notes: tuple[str, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as plain data."""
        return asdict(self)


def difference(name: str, expected: Any, actual: Any) -> Difference:
    """Compare one output; sequences and maps element by element."""
    if isinstance(expected, (list, tuple)) and isinstance(actual, (list, tuple)):
        if len(expected) != len(actual):
            return Difference(name, float("inf"), False, f"expected {len(expected)} elements, got {len(actual)}")
        parts = [difference(name, a, b) for a, b in zip(expected, actual, strict=True)]
        return _worst(name, parts)
    if isinstance(expected, dict) and isinstance(actual, dict):
        if list(expected) != list(actual):
            return Difference(name, float("inf"), False, "other keys")
        return _worst(name, [difference(name, expected[k], actual[k]) for k in expected])
    if expected is None or actual is None:
        same = expected is None and actual is None
        return Difference(name, 0.0 if same else float("inf"), same, "" if same else "one is empty")
    return _array_difference(name, np.asarray(expected), np.asarray(actual))


def _worst(name: str, parts: list[Difference]) -> Difference:
    if not parts:
        return Difference(name, 0.0, True)
    worst = max(parts, key=lambda d: (d.error, not d.bitwise))
    return Difference(name, worst.error, all(p.bitwise for p in parts), worst.detail)


def _array_difference(name: str, expected: np.ndarray, actual: np.ndarray) -> Difference:
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        detail = f"expected {expected.dtype}{list(expected.shape)}, got {actual.dtype}{list(actual.shape)}"
        return Difference(name, float("inf"), False, detail)
    if expected.dtype.kind in "OUS":
        same = bool(np.array_equal(expected, actual))
        return Difference(name, 0.0 if same else float("inf"), same, "" if same else "other strings")
    if expected.tobytes() == actual.tobytes():
        return Difference(name, 0.0, True)
    if expected.dtype.kind in "biu":
        count = int((expected != actual).sum())
        if not count:
            return Difference(name, 0.0, True)
        return Difference(name, float("inf"), False, f"{count} of {expected.size} integers differ")
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = expected.astype(wide), actual.astype(wide)
    finite = np.isfinite(a)
    special = ~finite
    if bool((np.isfinite(b) != finite).any()) or not np.array_equal(a[special], b[special], equal_nan=True):
        return Difference(name, float("inf"), False, "NaN or infinity at other indices")
    if not finite.any():
        return Difference(name, 0.0, True)
    gap = float(np.abs(a[finite] - b[finite]).max())
    bitwise = gap == 0.0 and bool(np.array_equal(np.signbit(a[finite].real), np.signbit(b[finite].real)))
    largest = float(np.abs(a[finite]).max())
    return Difference(name, gap / largest if largest else gap, bitwise)


def is_informative(answers: Mapping[str, Any]) -> bool:
    """Return True if outputs can reveal a fault: not all NaN, empty, or a single repeated number."""
    return any(_has_information(value) for value in answers.values())


def _has_information(value: Any) -> bool:
    if isinstance(value, (list, tuple, dict)):
        return bool(value)
    if not isinstance(value, np.ndarray) or value.dtype.kind in "OUS":
        return value is not None and np.size(value) > 0
    if value.dtype.kind in "fc":
        value = value[np.isfinite(value)]
    return value.size == 1 or (value.size > 1 and bool((value != value.reshape(-1)[0]).any()))


def varies(samples: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if the first element of some non-NaN output differs between samples."""
    if len(samples) < 2:
        return False
    first = samples[0]
    for other in samples[1:]:
        for name, value in first.items():
            if not isinstance(value, np.ndarray) or not isinstance(other[name], np.ndarray):
                continue
            if value.dtype.kind in "fc" and (np.isnan(value).all() or np.isnan(other[name]).all()):
                continue
            if value.size and other[name].size and value.reshape(-1)[0] != other[name].reshape(-1)[0]:
                return True
    return False
