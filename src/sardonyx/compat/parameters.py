"""What each parameter of a drop-in module does here: for the error of a refused one, and for the reference page."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sardonyx.errors import OptionError, UnsupportedError


@dataclass(frozen=True)
class Works:
    """A parameter that does here what it does there.

    Attributes:
        note: How it differs, if it does.
    """

    note: str = ""


@dataclass(frozen=True)
class Refused:
    """A parameter of which only some values are taken.

    Attributes:
        reason: Why.
        taken: Values taken beside the default, which mean here what the default means.
    """

    reason: str
    taken: tuple[Any, ...] = ()


Parameters = Mapping[str, Works | Refused]


class RefusedParameterError(OptionError, UnsupportedError):
    """A parameter was given a value that is not available here; the message names the parameter."""


def require_available(function: Callable[..., Any], parameters: Parameters, values: Mapping[str, Any]) -> None:
    """Refuse values of refused parameters other than their defaults.

    Raises:
        RefusedParameterError: names the parameter.
    """
    signature = inspect.signature(function).parameters
    for name, about in parameters.items():
        if not isinstance(about, Refused):
            continue
        default = signature[name].default if name in signature else None
        value = values.get(name, default)
        if not any(value is each or (type(value) is type(each) and value == each) for each in (default, *about.taken)):
            raise RefusedParameterError(
                f"{name}={value!r} is not available: {about.reason}",
                where=function.__name__,
                remedy=f"Leave {name} out.",
            )
