"""What can run a model or parts of it, by name: our own engines, others, and what packages register.

A package registers a provider by an entry point of the group ``sardonyx.providers``::

    [project.entry-points."sardonyx.providers"]
    mine = "my_package:MyProvider"

Its value is called with :class:`Settings` and gives a :class:`Provider`, which ``providers=["mine"]`` finds.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from sardonyx.errors import OptionError
from sardonyx.runtime.providers.protocol import Answer, Claim, Factory, Provider, Refusal, Runner, Settings, Shrinking

__all__ = [
    "Answer",
    "Claim",
    "Factory",
    "Provider",
    "Refusal",
    "Runner",
    "Settings",
    "Shrinking",
    "installed",
    "known",
    "make",
    "required",
]

GROUP = "sardonyx.providers"

_OWN = {
    "native": ("sardonyx.runtime.compiled.native_provider", "NativeProvider"),
    "reference": ("sardonyx.runtime.providers.reference", "ReferenceProvider"),
    "onnxruntime": ("sardonyx.runtime.providers.onnxruntime", "OnnxRuntimeProvider"),
    "openvino": ("sardonyx.runtime.providers.openvino", "OpenVinoProvider"),
}


def known() -> list[str]:
    """The names of all providers, those that packages register among them."""
    return [*_OWN, *(name for name in _registered() if name not in _OWN)]


def installed() -> list[str]:
    """The names of our own providers whose packages are there."""
    return [name for name in _OWN if name in ("native", "reference") or importlib.util.find_spec(name) is not None]


def _registered() -> Mapping[str, EntryPoint]:
    return {each.name: each for each in entry_points(group=GROUP)}


def make(named: str, settings: Settings) -> Provider:
    """The provider of a name.

    Args:
        named: A name, with or without a device after a colon.
        settings: What it is told; the device is taken from the name.

    Raises:
        OptionError: There is none.
        MissingDependencyError: What it stands on is not installed.
    """
    name, _, device = named.partition(":")
    factory: Callable[[Settings], Any]
    if name in _OWN:
        place, of = _OWN[name]
        factory = getattr(importlib.import_module(place), of)
    elif (found := _registered().get(name)) is not None:
        factory = found.load()
    else:
        raise OptionError(
            f"there is no provider {name!r}.", where="providers", remedy=f"There are: {', '.join(known())}."
        )
    return required(factory(replace(settings, device=device)), name)


def required(made: object, where: str) -> Provider:
    """What is to be a provider, if it is one.

    Raises:
        OptionError: It is not.
    """
    if isinstance(made, type):
        raise OptionError(f"{made.__name__} is a class.", where=where, remedy="Give an instance of it.")
    if not isinstance(made, Provider):
        raise OptionError(
            f"{type(made).__name__} is no provider.", where=where, remedy="It needs `name`, `capability` and `compile`."
        )
    return made
