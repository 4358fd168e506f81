"""Checks of options that are numbers."""

from __future__ import annotations

import math
import numbers
from typing import Any

from sardonyx.errors import OptionError


def require_count(value: Any, where: str, *, least: int = 1, limit: int | None = None) -> None:
    """Check that an option is an integer.

    Args:
        value: The option.
        where: Its name.
        least: The smallest permitted number.
        limit: The first number that is too large; None for any.

    Raises:
        OptionError: The option is of another type, or out of range.
    """
    is_count = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_count or value < least or (limit is not None and value >= limit):
        most = "" if limit is None else f" and below {limit:,}"
        raise OptionError(f"expected an integer of at least {least}{most}, got {value!r}.", where=where)


def require_number(value: Any, where: str, *, above: float | None = None, least: float | None = None) -> None:
    """Check that an option is a finite number.

    Args:
        value: The option.
        where: Its name.
        above: A number that the option must exceed; None for none.
        least: The smallest permitted number; None for none.

    Raises:
        OptionError: The option is of another type, or out of range.
    """
    number = math.nan if isinstance(value, bool) or not isinstance(value, numbers.Real) else float(value)
    if math.isfinite(number) and (above is None or number > above) and (least is None or number >= least):
        return
    bound = f" above {above:g}" if above is not None else f" of at least {least:g}" if least is not None else ""
    raise OptionError(f"expected a number{bound}, got {value!r}.", where=where)
