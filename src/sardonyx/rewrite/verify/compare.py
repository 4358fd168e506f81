"""When two outputs count as equal, and what is said when they do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

TOLERANCE = 1e-4
"""Largest difference allowed to rewrites that are not exact, relative to the output's largest element."""

COARSE: Mapping[str, float] = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Types that cannot show ``TOLERANCE``: the distance of neighbouring numbers, relative to them."""


def tolerance(value: Any) -> float:
    """The difference allowed to a rewrite that is not exact: of 16-bit types, two steps of their own."""
    if isinstance(value, (list, tuple)):
        return max((tolerance(v) for v in value), default=TOLERANCE)
    return max(TOLERANCE, 2 * COARSE.get(str(getattr(value, "dtype", "")), 0.0))


@dataclass(frozen=True)
class Difference:
    """How far one output is from what it should be.

    Attributes:
        output: Its name.
        error: Largest absolute difference over the largest finite magnitude of the reference; infinite
            where types, shapes or the places of NaN and infinity differ.
        bitwise: Whether the bits are equal (NaN payloads aside).
        detail: What differs, in words, where ``error`` does not say it.
    """

    output: str
    error: float
    bitwise: bool
    detail: str = ""


@dataclass(frozen=True)
class Verdict:
    """What verification found.

    Attributes:
        status: ``"proved"``, ``"proved by parts"``, ``"different"`` or ``"not proved"``.
        samples: Input sets on which both models ran.
        sizes: The assignment of open sizes of each sample.
        worst: Largest relative error of any output on any sample.
        exact: Whether all outputs had equal bits.
        reason: Why it is not proved, what differs, or how integers were judged.
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
        """The verdict as plain data."""
        return asdict(self)


def difference(name: str, want: Any, got: Any) -> Difference:
    """Compare one output; sequences and maps element by element."""
    if isinstance(want, (list, tuple)) and isinstance(got, (list, tuple)):
        if len(want) != len(got):
            return Difference(name, float("inf"), False, f"{len(got)} elements for {len(want)}")
        parts = [difference(name, a, b) for a, b in zip(want, got, strict=True)]
        return _worst(name, parts)
    if isinstance(want, dict) and isinstance(got, dict):
        if list(want) != list(got):
            return Difference(name, float("inf"), False, "other keys")
        return _worst(name, [difference(name, want[k], got[k]) for k in want])
    if want is None or got is None:
        same = want is None and got is None
        return Difference(name, 0.0 if same else float("inf"), same, "" if same else "one is empty")
    return _array_difference(name, np.asarray(want), np.asarray(got))


def _worst(name: str, parts: list[Difference]) -> Difference:
    if not parts:
        return Difference(name, 0.0, True)
    worst = max(parts, key=lambda d: (d.error, not d.bitwise))
    return Difference(name, worst.error, all(p.bitwise for p in parts), worst.detail)


def _array_difference(name: str, want: np.ndarray, got: np.ndarray) -> Difference:
    if want.dtype != got.dtype or want.shape != got.shape:
        detail = f"{got.dtype}{list(got.shape)} for {want.dtype}{list(want.shape)}"
        return Difference(name, float("inf"), False, detail)
    if want.dtype.kind in "OUS":
        same = bool(np.array_equal(want, got))
        return Difference(name, 0.0 if same else float("inf"), same, "" if same else "other strings")
    if want.tobytes() == got.tobytes():
        return Difference(name, 0.0, True)
    if want.dtype.kind in "biu":
        count = int((want != got).sum())
        if not count:
            return Difference(name, 0.0, True)
        return Difference(name, float("inf"), False, f"{count} of {want.size} integers differ")
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    a, b = want.astype(wide), got.astype(wide)
    finite = np.isfinite(a)
    special = ~finite
    if bool((np.isfinite(b) != finite).any()) or not np.array_equal(a[special], b[special], equal_nan=True):
        return Difference(name, float("inf"), False, "NaN or infinity in other places")
    if not finite.any():
        return Difference(name, 0.0, True)
    gap = float(np.abs(a[finite] - b[finite]).max())
    bitwise = gap == 0.0 and bool(np.array_equal(np.signbit(a[finite].real), np.signbit(b[finite].real)))
    largest = float(np.abs(a[finite]).max())
    return Difference(name, gap / largest if largest else gap, bitwise)


def tells_something(answers: Mapping[str, Any]) -> bool:
    """Whether outputs could show a fault: not all NaN or empty, and not every one a single repeated number."""
    return any(_tells(value) for value in answers.values())


def _tells(value: Any) -> bool:
    if isinstance(value, (list, tuple, dict)):
        return bool(value)
    if not isinstance(value, np.ndarray) or value.dtype.kind in "OUS":
        return value is not None and np.size(value) > 0
    if value.dtype.kind in "fc":
        value = value[np.isfinite(value)]
    return value.size == 1 or (value.size > 1 and bool((value != value.reshape(-1)[0]).any()))


def varies(samples: Sequence[Mapping[str, Any]]) -> bool:
    """Whether some output that is not NaN alone begins with another number in another sample."""
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
