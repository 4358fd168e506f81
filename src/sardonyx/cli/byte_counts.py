"""Sizes of memory in options."""

from __future__ import annotations

from sardonyx.errors import OptionError

_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "B": 1}


def parse_bytes(text: str, where: str) -> int:
    """Return the bytes of a text such as ``64MiB``.

    Args:
        text: A positive number, with or without a unit.
        where: The option, for errors.

    Raises:
        OptionError: The text is no size.
    """
    for unit, size in _UNITS.items():
        number = text.removesuffix(unit)
        if number != text and number.isdecimal() and int(number) > 0:
            return int(number) * size
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise OptionError(f"expected a size such as 64MiB, got {text!r}.", where=where)
