"""Dates and durations of data frames: whole numbers of ticks since 1970, in the unit of the column.

An array of dates has the element type ``datetime64`` of numpy and int64 values in the graph; a missing date is the
smallest integer. Calendar: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", ``civil_from_days``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx.convert.tabular.arrays import TIMED, Array, has_missing, lifted, time_type, where
from sardonyx.errors import UnsupportedError

MISSING = np.iinfo(np.int64).min
"""The number of a missing date or duration."""

_COMPARISONS = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)


def date_type(values: Any) -> np.dtype[Any]:
    """Return the element type of dates, which records if some are missing."""
    return time_type(values.dtype, bool(np.isnat(values).any()))


def ticks(array: Array) -> Array:
    """Return dates or durations as integers."""
    return Array(array.builder, array.value, np.int64)


def is_missing_date(array: Array) -> Array:
    """Return True where a date or duration is missing."""
    return np.equal(ticks(array), np.int64(MISSING))


def _of_ticks(numbers: Array, dtype: np.dtype[Any]) -> Array:
    return Array(numbers.builder, numbers.value, dtype)


def _unit(dtype: np.dtype[Any]) -> str:
    return np.datetime_data(dtype)[0]


def per_second(dtype: np.dtype[Any]) -> int:
    """Return the ticks of a second."""
    return int(np.timedelta64(1, "s") / np.timedelta64(1, _unit(dtype)))


def computed(ufunc: np.ufunc, inputs: Sequence[Any]) -> Any:
    """Return a universal function of dates and durations.

    Raises:
        UnsupportedError: The function has no translation for these operands, or their units differ.
    """
    array = next(one for one in inputs if isinstance(one, Array) and one.dtype.kind in "mM")
    unit = _unit(array.dtype)
    parts = [_operand(one, array, unit) for one in inputs]
    kinds = "".join(kind for kind, _, _ in parts)
    numbers = [number for _, number, _ in parts]
    missing = None
    for _, _, gap in parts:
        missing = gap if missing is None else missing if gap is None else missing | gap
    if missing is None:
        raise UnsupportedError(f"numpy.{ufunc.__name__} of numbers and dates has no translation")
    if ufunc in _COMPARISONS and kinds in ("MM", "mm"):
        result = ufunc(*numbers)
        return result | missing if ufunc is np.not_equal else result & np.logical_not(missing)
    has_gaps = any(has_missing(one.dtype) for one in inputs if isinstance(one, Array) and one.dtype.kind in "mM")
    duration, date = (time_type(np.dtype(f"{kind}8[{unit}]"), has_gaps) for kind in "mM")
    table: dict[tuple[np.ufunc, str], tuple[Callable[..., Any], np.dtype[Any]]] = {
        (np.subtract, "MM"): (np.subtract, duration),
        (np.subtract, "Mm"): (np.subtract, date),
        (np.subtract, "mm"): (np.subtract, duration),
        (np.add, "Mm"): (np.add, date),
        (np.add, "mM"): (np.add, date),
        (np.add, "mm"): (np.add, duration),
        (np.multiply, "mn"): (_scaled, duration),
        (np.multiply, "nm"): (lambda a, b: _scaled(b, a), duration),
        (np.negative, "m"): (np.negative, duration),
        (np.absolute, "m"): (np.absolute, duration),
    }
    if (ufunc, kinds) in table:
        function, dtype = table[ufunc, kinds]
        return _of_ticks(where(missing, np.int64(MISSING), function(*numbers)), dtype)
    if ufunc is np.divide and kinds == "mm":
        return where(missing, np.nan, _as_float(numbers[0]) / _as_float(numbers[1]))
    if ufunc is np.floor_divide and kinds == "mm":
        whole = _floored(*(lifted(array.builder, number, np.dtype(np.int64)) for number in numbers))
        return where(missing, np.nan, whole.cast(np.float64)) if has_gaps else whole
    if ufunc is np.isnan:
        return missing
    names = {"M": "dates", "m": "durations", "n": "numbers"}
    raise UnsupportedError(f"numpy.{ufunc.__name__} of {', '.join(names[kind] for kind in kinds)} has no translation")


def _as_float(number: Any) -> Any:
    return number.cast(np.float64) if isinstance(number, Array) else float(number)


def _scaled(duration: Any, factor: Any) -> Any:
    if isinstance(factor, (int, np.integer)):
        return duration * np.int64(factor)
    raise UnsupportedError("durations times fractions have no translation")


def _operand(value: Any, array: Array, unit: str) -> tuple[str, Any, Array | None]:
    """Return the kind of an operand, its number in ticks, and True where it is missing."""
    if isinstance(value, Array):
        if value.dtype.kind not in "mM":
            return "n", value, None
        if _unit(value.dtype) != unit:
            raise UnsupportedError(f"dates in {unit} and in {_unit(value.dtype)} in one expression have no translation")
        return value.dtype.kind, ticks(value), is_missing_date(value)
    if isinstance(value, str) and array.dtype.kind == "M":
        value = np.datetime64(value)
    value = value.to_numpy() if hasattr(value, "to_numpy") else value
    scalar = np.asarray(value)
    if scalar.dtype.kind == "O" and hasattr(value, "isoformat"):
        scalar = np.asarray(np.datetime64(value))
    elif scalar.dtype.kind == "O" and hasattr(value, "total_seconds"):
        scalar = np.asarray(np.timedelta64(value))
    if scalar.dtype.kind in "mM":
        exact = scalar.astype(f"{scalar.dtype.kind}8[{unit}]")
        if exact.astype(scalar.dtype) != scalar:
            raise UnsupportedError(f"{value} is finer than the column, whose unit is {unit}")
        return scalar.dtype.kind, np.int64(exact.astype(np.int64)), None
    return "n", value, None


def _quotient(x: Array, divisor: Any) -> Array:
    """Return integers divided and rounded down, without rounding of 64 bits to floats."""
    return (x - x.node("Mod", divisor)).node("Div", divisor)


def _floored(x: Array, divisor: Array) -> Array:
    """Return quotients of durations rounded down; 0 for a divisor of 0, as numpy has them."""
    is_zero = np.equal(divisor, np.int64(0))
    return where(is_zero, np.int64(0), _quotient(x, where(is_zero, np.int64(1), divisor)))


TIMED.append(computed)


class DateParts:
    """Parts of the dates or durations of a column, as ``series.dt``."""

    def __init__(self, array: Array, wrapped: Callable[[Array], Any]) -> None:
        if array.dtype.kind not in "mM":
            raise UnsupportedError("a column of other values has no dates: give example rows with dates")
        self._array, self._wrapped = array, wrapped

    def _number(self, value: Any) -> Any:
        """Return a part as pandas does: as integers, or NaN for missing dates if the examples have some."""
        if has_missing(self._array.dtype):
            value = where(is_missing_date(self._array), np.nan, value.cast(np.float64))
        return self._wrapped(value)

    def _day(self) -> Any:
        return _quotient(ticks(self._array), 86400 * per_second(self._array.dtype))

    def _within(self) -> Any:
        """Return the ticks since midnight."""
        return ticks(self._array) - self._day() * np.int64(86400 * per_second(self._array.dtype))

    def _civil(self) -> tuple[Any, Any, Any]:
        """Return year, month and day."""
        shifted = self._day() + np.int64(719468)
        era = _quotient(shifted, 146097)
        day = shifted - era * np.int64(146097)
        year = _quotient(day - _quotient(day, 1460) + _quotient(day, 36524) - _quotient(day, 146096), 365)
        of_year = day - (year * np.int64(365) + _quotient(year, 4) - _quotient(year, 100))
        part = _quotient(of_year * np.int64(5) + np.int64(2), 153)
        month = part + where(part < np.int64(10), np.int64(3), np.int64(-9))
        of_month = of_year - _quotient(part * np.int64(153) + np.int64(2), 5) + np.int64(1)
        whole = year + era * np.int64(400) + (month <= np.int64(2)).cast(np.int64)
        return whole, month, of_month

    def _leap(self) -> Any:
        year = self._civil()[0]
        by = [np.equal(year - _quotient(year, n) * np.int64(n), np.int64(0)) for n in (4, 100, 400)]
        return (by[0] & np.logical_not(by[1])) | by[2]

    def _length(self) -> Any:
        """Return the number of days of the month."""
        month = self._civil()[1]
        days = month.constant(np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)).rows(month)
        return days + (self._leap() & np.equal(month, np.int64(2))).cast(np.int64)

    def _of_year(self) -> Any:
        _, month, day = self._civil()
        starts = np.array([0, 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334], np.int64)
        return month.constant(starts).rows(month) + day + (self._leap() & (month > np.int64(2))).cast(np.int64)

    def _weekday(self) -> Any:
        shifted = self._day() + np.int64(3)
        return shifted - _quotient(shifted, 7) * np.int64(7)

    def _part_of_time(self, seconds: int, count: int) -> Any:
        whole = _quotient(self._within(), seconds * per_second(self._array.dtype))
        return whole - _quotient(whole, count) * np.int64(count)

    def total_seconds(self) -> Any:
        """Return durations in seconds."""
        seconds = ticks(self._array).cast(np.float64) / float(per_second(self._array.dtype))
        return self._wrapped(where(is_missing_date(self._array), np.nan, seconds))

    def normalize(self) -> Any:
        """Return dates at midnight."""
        midnight = self._day() * np.int64(86400 * per_second(self._array.dtype))
        return self._wrapped(
            _of_ticks(where(is_missing_date(self._array), np.int64(MISSING), midnight), self._array.dtype)
        )

    def __getattr__(self, name: str) -> Any:
        """Return a part of the dates or durations by name; refuse others."""
        parts = _DURATION_PARTS if self._array.dtype.kind == "m" else _DATE_PARTS
        if name in parts:
            value = parts[name](self)
            if value.dtype.kind == "b":
                return self._wrapped(value & np.logical_not(is_missing_date(self._array)))
            return self._number(value if name == "days" else value.cast(np.int32))
        raise UnsupportedError(f"Series.dt.{name} has no translation")


def _quarter(parts: Any) -> Any:
    return _quotient(parts._civil()[1] + np.int64(2), 3)


def _starts(parts: Any, months: int) -> Any:
    _, month, day = parts._civil()
    month = month - np.int64(1)
    return np.equal(day, np.int64(1)) & np.equal(month - _quotient(month, months) * np.int64(months), np.int64(0))


def _ends(parts: Any, months: int) -> Any:
    _, month, day = parts._civil()
    return np.equal(day, parts._length()) & np.equal(month - _quotient(month, months) * np.int64(months), np.int64(0))


_DATE_PARTS: dict[str, Callable[[Any], Any]] = {
    "year": lambda parts: parts._civil()[0],
    "month": lambda parts: parts._civil()[1],
    "day": lambda parts: parts._civil()[2],
    "hour": lambda parts: parts._part_of_time(3600, 24),
    "minute": lambda parts: parts._part_of_time(60, 60),
    "second": lambda parts: parts._part_of_time(1, 60),
    "quarter": _quarter,
    "is_leap_year": lambda parts: parts._leap(),
    "is_month_start": lambda parts: _starts(parts, 1),
    "is_quarter_start": lambda parts: _starts(parts, 3),
    "is_year_start": lambda parts: _starts(parts, 12),
    "is_month_end": lambda parts: _ends(parts, 1),
    "is_quarter_end": lambda parts: _ends(parts, 3),
    "is_year_end": lambda parts: _ends(parts, 12),
    **dict.fromkeys(("dayofweek", "day_of_week", "weekday"), lambda parts: parts._weekday()),
    **dict.fromkeys(("dayofyear", "day_of_year"), lambda parts: parts._of_year()),
    **dict.fromkeys(("days_in_month", "daysinmonth"), lambda parts: parts._length()),
}

_DURATION_PARTS: dict[str, Callable[[Any], Any]] = {
    "days": lambda parts: parts._day(),
    "seconds": lambda parts: _quotient(parts._within(), per_second(parts._array.dtype)),
}
