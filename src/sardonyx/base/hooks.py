"""Functions of upper packages that lower packages call by name, imported on first use.

Imports run one way. Where a lower package must call an upper one, the top of the package registers the function here,
and the lower package looks the function up.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from sardonyx.errors import UnsupportedError

_LOCATIONS: dict[str, tuple[str, str]] = {}


def register_hook(name: str, module: str, function: str) -> None:
    """Register a function under a name; the module is imported when the function is first looked up."""
    _LOCATIONS[name] = module, function


def hook(name: str) -> Callable[..., Any]:
    """Return the function of a name.

    Raises:
        UnsupportedError: No function is registered.
    """
    if name not in _LOCATIONS:
        raise UnsupportedError(f"no function is registered for {name!r}.", remedy="Import sardonyx as a whole.")
    module, function = _LOCATIONS[name]
    result: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return result
