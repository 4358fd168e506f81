"""Support of each parameter of a drop-in module, for errors and for the reference page."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sardonyx.errors import OptionError, UnsupportedError


@dataclass(frozen=True)
class Works:
    """A parameter with the original's meaning.

    Attributes:
        note: The difference, if any.
    """

    note: str = ""


@dataclass(frozen=True)
class Refused:
    """A parameter that accepts only some values.

    Attributes:
        reason: The reason.
        accepted: Accepted values in addition to the default, with the same meaning as the default.
    """

    reason: str
    accepted: tuple[Any, ...] = ()


Parameters = Mapping[str, Works | Refused]


class RefusedParameterError(OptionError, UnsupportedError):
    """A parameter has an unavailable value; the message names the parameter."""


def require_available(function: Callable[..., Any], parameters: Parameters, values: Mapping[str, Any]) -> None:
    """Refuse values of refused parameters other than their defaults.

    Raises:
        RefusedParameterError: An unavailable value; names the parameter.
    """
    signature = inspect.signature(function).parameters
    for name, support in parameters.items():
        if not isinstance(support, Refused):
            continue
        default = signature[name].default if name in signature else None
        value = values.get(name, default)
        allowed = (default, *support.accepted)
        if not any(value is other or (type(value) is type(other) and value == other) for other in allowed):
            raise RefusedParameterError(
                f"{name}={value!r} is not available: {support.reason}",
                where=function.__name__,
                remedy=f"Omit {name}.",
            )
