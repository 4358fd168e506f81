"""Fields of a configuration, each checked for its type and range."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sardonyx.errors import ModelFileError

LARGEST = 1 << 20
"""Largest size that a configuration may request."""


class Fields:
    """Fields by name.

    Args:
        values: The fields.
        where: The file, for errors.
        defaults: Values of fields that are missing.
    """

    def __init__(self, values: Mapping[str, Any], where: str, defaults: Mapping[str, Any] | None = None) -> None:
        self._values = {**(defaults or {}), **values}
        self.where = where

    def get(self, *names: str) -> Any:
        """Return the first of the fields that is present and not null, else None."""
        return next((self._values[name] for name in names if self._values.get(name) is not None), None)

    def changed(self, **values: Any) -> Fields:
        """Return fields with other values for some."""
        return Fields({**self._values, **values}, self.where)

    def present(self) -> dict[str, Any]:
        """Return the fields that are not null."""
        return {name: value for name, value in self._values.items() if value is not None}

    def has(self, name: str) -> bool:
        """Return True if the field is present and not null."""
        return self.get(name) is not None

    def error(self, name: str, value: Any, expected: str) -> ModelFileError:
        """Return the error of a field with a bad value."""
        return ModelFileError(f"field '{name}' is {str(value)[:60]}, expected {expected}", where=self.where)

    def _value(self, names: tuple[str, ...], default: Any) -> Any:
        value = self.get(*names)
        if value is None:
            value = default
        if value is None:
            raise ModelFileError(f"field '{names[0]}' is missing", where=self.where)
        return value

    def integer(self, *names: str, default: int | None = None, low: int = 1, high: int = LARGEST) -> int:
        """Return an integer from `low` to `high`.

        Raises:
            ModelFileError: The field is missing, of another type, or out of range.
        """
        value = self._value(names, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(names[0], value, f"an integer from {low} to {high}")
        return value

    def real(self, *names: str, default: float | None = None, low: float = 0.0, high: float = 1e30) -> float:
        """Return a finite number from `low` to `high`; see :meth:`integer`."""
        value = self._value(names, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise self.error(names[0], value, f"a number from {low:g} to {high:g}")
        return float(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return a truth value."""
        value = self._value((name,), default)
        if not isinstance(value, bool):
            raise self.error(name, value, "true or false")
        return value

    def text(self, *names: str, default: str | None = None) -> str:
        """Return a text."""
        value = self._value(names, default)
        if not isinstance(value, str):
            raise self.error(names[0], value, "a text")
        return value

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        """Return a list of `count` finite positive numbers."""
        value = self._value((name,), None)
        if not isinstance(value, list) or len(value) != count:
            raise self.error(name, value, f"a list of {count} numbers")
        for item in value:
            if isinstance(item, bool) or not isinstance(item, (int, float)) or not math.isfinite(item) or item <= 0:
                raise self.error(name, item, "positive numbers")
        return tuple(float(item) for item in value)

    def items(self, name: str, count: int, allowed: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return a list of `count` of the allowed values, or None if the field is missing."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != count or any(item not in allowed for item in value):
            raise self.error(name, value, f"a list of {count} values of {', '.join(map(str, allowed))}")
        return tuple(value)

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Return a mapping, empty if the field is missing."""
        value = self.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise self.error(name, value, "a mapping")
        return value or {}
