"""Conversion of numbers to and from decimals: shortest round-trip formatting, correctly rounded parse."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sardonyx.model.text.patterns import pattern

_INTEGERS: Final = pattern(r"\s*+-?+[0-9]{1,20}+\s*+(?:,\s*+-?+[0-9]{1,20}+\s*+)*+", re.ASCII)
_NUMBERS: Final = pattern(
    r"\s*+-?+[0-9]{1,40}+(?:\.[0-9]{0,40}+)?+(?:[eE][+-]?+[0-9]{1,5}+)?+\s*+"
    r"(?:,\s*+-?+[0-9]{1,40}+(?:\.[0-9]{0,40}+)?+(?:[eE][+-]?+[0-9]{1,5}+)?+\s*+)*+",
    re.ASCII,
)


class NumberError(ValueError):
    """A number of a list is outside the range of its type."""


def split_plain(body: str, *, integers: bool) -> list[str] | None:
    """Split a list without comments or special values; None if the list must be read token by token."""
    pattern = _INTEGERS if integers else _NUMBERS
    return body.split(",") if pattern.fullmatch(body) else None


def format_floats(values: npt.NDArray[Any]) -> list[str] | None:
    """Format float32 or float64 values as the shortest decimals that parse to the same bits.

    Returns:
        The decimals in order, or None if a NaN has a payload, which no decimal can express.
    """
    texts: list[str] = values.astype(str).tolist()
    is_nan = np.isnan(values)
    if is_nan.any():
        quiet = np.array([np.nan, -np.nan], values.dtype)
        quiet[1] = np.copysign(quiet[0], -1)
        for index in np.flatnonzero(is_nan).tolist():
            bits = values[index].tobytes()
            if bits not in (quiet[0].tobytes(), quiet[1].tobytes()):
                return None
            texts[index] = "-nan" if bits == quiet[1].tobytes() else "nan"
    return texts


def parse_floats(texts: Sequence[str], dtype: np.dtype[np.generic]) -> npt.NDArray[Any]:
    """Parse decimal numbers, each rounded once (ties to even), as C's ``strtof`` and ``strtod`` do.

    Raises:
        NumberError: A finite number is beyond the type's range.
    """
    doubles = np.array([float(text) for text in texts], np.float64)
    with np.errstate(over="ignore"):
        values = doubles.astype(dtype)
    infinite = np.isinf(values)
    for index in np.flatnonzero(infinite).tolist():
        if "n" not in texts[index].lower():
            raise NumberError(f"number {index + 1}, {texts[index].strip()}, is beyond the range of {dtype.name}")
    if dtype.itemsize == 4:
        _repair_double_rounding(values, doubles, texts)
    return values


def _repair_double_rounding(values: npt.NDArray[Any], doubles: npt.NDArray[np.float64], texts: Sequence[str]) -> None:
    """Correct float32 values whose double is halfway between two float32: rounding twice may err."""
    inexact = np.flatnonzero(np.isfinite(values) & (values.astype(np.float64) != doubles))
    if not inexact.size:
        return
    near = values[inexact]
    toward = np.where(doubles[inexact] > near.astype(np.float64), np.inf, -np.inf).astype(np.float32)
    with np.errstate(over="ignore"):
        far = np.nextafter(near, toward)
    middle = (near.astype(np.float64) + far.astype(np.float64)) / 2
    for position in np.flatnonzero(middle == doubles[inexact]).tolist():
        index = int(inexact[position])
        exact = Fraction(texts[index].strip()) - Fraction(float(doubles[index]))
        if exact:
            pick = max if exact > 0 else min
            values[index] = pick(near[position], far[position])


def parse_integers(texts: Sequence[str], dtype: np.dtype[np.generic]) -> npt.NDArray[Any]:
    """Parse decimal integers.

    Raises:
        NumberError: A text is not an integer, or its value does not fit the type.
    """
    bounds = np.iinfo(dtype)  # type: ignore[type-var]
    numbers = []
    for index, text in enumerate(texts):
        try:
            number = int(text)
        except ValueError:
            raise NumberError(f"number {index + 1}, {text.strip()[:40]}, is not an integer") from None
        if not bounds.min <= number <= bounds.max:
            raise NumberError(f"number {index + 1}, {text.strip()[:40]}, is not between {bounds.min} and {bounds.max}")
        numbers.append(number)
    return np.array(numbers, dtype)
