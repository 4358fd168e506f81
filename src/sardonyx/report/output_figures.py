"""Figures of the outputs of one run: type, shape, range, NaN and infinity, and the difference from expected values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sardonyx.errors import OptionError
from sardonyx.report.accuracy import in_wider_type
from sardonyx.rewrite.verify.compare import difference


@dataclass(frozen=True)
class OutputFigures:
    """One output.

    Attributes:
        name: Its name.
        type: Element type of an array; ``sequence``, ``map`` or ``empty`` of other values.
        shape: Sizes of an array; the length of a sequence or map.
        least: The smallest finite element; None without numbers.
        largest: The largest finite element; None without numbers.
        mean: Mean of the finite elements; None without numbers.
        nan: Number of NaN.
        infinite: Number of infinite elements.
        error: Largest absolute difference from the expected output over its largest magnitude; infinite if types,
            shapes or integers differ; None without an expected output.
        detail: The difference in words, if numbers do not describe it.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    least: float | None
    largest: float | None
    mean: float | None
    nan: int
    infinite: int
    error: float | None = None
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return asdict(self)


def output_figures(outputs: Mapping[str, Any], expected: Mapping[str, Any] | None = None) -> Iterator[OutputFigures]:
    """Yield the figures of each output.

    Args:
        outputs: Values by name.
        expected: Expected values, by name, of some or all outputs.

    Raises:
        OptionError: An expected output does not exist.
    """
    for name in expected or ():
        if name not in outputs:
            raise OptionError(
                f"unknown output '{name}'", where="expected", remedy=f"Outputs of the model: {', '.join(outputs)}."
            )
    for name, value in outputs.items():
        error, detail = None, ""
        if expected is not None and name in expected:
            worst = difference(name, *in_wider_type(expected[name], value))
            error, detail = worst.error, worst.detail
        yield _figures(name, value, error, detail)


def special_counts(array: np.ndarray) -> tuple[int, int]:
    """Return the numbers of NaN and of infinite elements."""
    if not _has_specials(array):
        return 0, 0
    nan = np.isnan(array)
    return int(nan.sum()), int((~np.isfinite(array) & ~nan).sum())


def _has_specials(array: np.ndarray) -> bool:
    # The kind of bfloat16 and other types of `ml_dtypes` is "V" or "f".
    return array.dtype.kind in "fc" or array.dtype.name.startswith(("bfloat", "float"))


def _figures(name: str, value: Any, error: float | None, detail: str) -> OutputFigures:
    if not isinstance(value, np.ndarray):
        kind = "empty" if value is None else "map" if isinstance(value, dict) else "sequence"
        length = () if value is None else (len(value),)
        return OutputFigures(name, kind, length, None, None, None, 0, 0, error, detail)
    nan, infinite = special_counts(value)
    kind = "string" if value.dtype.kind in "OUS" else value.dtype.name
    finite = _finite_numbers(value)
    numbers = (None, None, None) if finite is None else (finite.min(), finite.max(), finite.mean())
    least, largest, mean = (None if number is None else float(number) for number in numbers)
    return OutputFigures(name, kind, value.shape, least, largest, mean, nan, infinite, error, detail)


def _finite_numbers(array: np.ndarray) -> np.ndarray | None:
    """Return the finite elements as float64; None if there are none, or if the elements are not real numbers."""
    if array.dtype.kind in "OUSc":
        return None
    wide = array.astype(np.float64)
    finite: np.ndarray = wide[np.isfinite(wide)]
    return finite if finite.size else None
