"""Checks of options: numbers, counts, and the fields of classes of options."""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection, Iterable
from dataclasses import field, fields
from typing import Any

from sardonyx.errors import OptionError


def require_count(value: Any, where: str, *, least: float = 1, limit: int | None = None) -> None:
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
        lowest = f" of at least {least}" if math.isfinite(least) else ""
        raise OptionError(f"expected an integer{lowest}{most}, got {_shown(value)}.", where=where)


def require_instance(value: Any, kind: type, where: str, expected: str) -> None:
    """Check that an option is an instance of a class.

    Args:
        value: The option.
        kind: The class.
        where: The name of the option.
        expected: The words for an instance: ``"a LoRA"``.

    Raises:
        OptionError: The option is of another type.
    """
    if not isinstance(value, kind):
        raise OptionError(f"expected {expected}, got {_shown(value)}.", where=where)


def listed(value: Any) -> tuple[Any, ...]:
    """Return the members of an option; one that is a text, or no collection, is the only member."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)


def require_names(value: Any, where: str) -> tuple[str, ...]:
    """Return the names of an option: a text is one name, not a collection of its letters.

    Args:
        value: The option.
        where: Its name.

    Raises:
        OptionError: The option is no text and no collection of texts.
    """
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
        raise OptionError(f"expected a collection of names, got {_shown(value)}.", where=where)
    return tuple(names)


def require_number(
    value: Any,
    where: str,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> None:
    """Check that an option is a finite number.

    Args:
        value: The option.
        where: Its name.
        above: A number that the option must exceed; None for none.
        least: The smallest permitted number; None for none.
        most: The largest permitted number; None for none.
        below: A number that must exceed the option; None for none.

    Raises:
        OptionError: The option is of another type, or out of range.
    """
    number = _as_float(value)
    if (
        math.isfinite(number)
        and (above is None or number > above)
        and (least is None or number >= least)
        and (most is None or number <= most)
        and (below is None or number < below)
    ):
        return
    limits = {"above": above, "of at least": least, "of at most": most, "below": below}
    bounds = " and ".join(f"{words} {limit:g}" for words, limit in limits.items() if limit is not None)
    raise OptionError(f"expected a number{bounds and ' ' + bounds}, got {_shown(value)}.", where=where)


def _as_float(value: Any) -> float:
    """Return a number as a float; infinity if it is too large, NaN for values of other types."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _shown(value: Any) -> str:
    """Return the text of a value in a message; Python writes no integer of thousands of digits."""
    try:
        return repr(value)
    except ValueError:
        return "an integer of too many digits"


def option(default: Any, *, kind: type | None = None, **limits: float) -> Any:
    """Return a field of a dataclass of options, which :func:`require_options` checks.

    Args:
        default: The default.
        kind: The type of values; that of the default by default. A default of None permits None.
        limits: Limits of :func:`require_number`, or of :func:`require_count` for integers.
    """
    return field(default=default, metadata={"kind": kind or type(default), "limits": limits})


def require_options(options: Any, besides: Collection[str] = ()) -> None:
    """Check the fields of a dataclass whose types are numbers, texts and flags.

    A field without :func:`option` is checked by the type of its default; fields of other types are left out.

    Args:
        options: The dataclass.
        besides: Names of further fields to leave out.

    Raises:
        OptionError: A field is of another type, or out of range.
    """
    for one in fields(options):
        value, kind = getattr(options, one.name), one.metadata.get("kind", type(one.default))
        if one.name in besides or (value is None and one.default is None):
            continue
        limits = one.metadata.get("limits", {})
        if kind is float:
            require_number(value, one.name, **limits)
        elif kind is int:
            require_count(value, one.name, **({"least": -math.inf} | limits))
        elif kind is bool and not isinstance(value, bool):
            raise OptionError(f"expected True or False, got {_shown(value)}.", where=one.name)
        elif kind is str and not isinstance(value, str):
            raise OptionError(f"expected a text, got {_shown(value)}.", where=one.name)
