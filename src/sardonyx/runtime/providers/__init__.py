"""Providers by name: engines of this package, other engines, and engines that packages register.

A package registers a provider by an entry point of the group ``sardonyx.providers``::

    [project.entry-points."sardonyx.providers"]
    mine = "my_package:MyProvider"

The entry point is called with :class:`Settings` and returns a :class:`Provider`, available as ``providers=["mine"]``.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sardonyx.errors import OptionError
from sardonyx.runtime.providers.protocol import Answer, Claim, Factory, Provider, Refusal, Runner, Settings, Shrinking

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

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
    """Return the names of all providers, including registered ones."""
    return [*_OWN, *(name for name in _registered() if name not in _OWN)]


def installed() -> list[str]:
    """Return the names of this package's providers whose engines are installed."""
    return [name for name in _OWN if name in ("native", "reference") or importlib.util.find_spec(name) is not None]


def _registered() -> Mapping[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {entry_point.name: entry_point for entry_point in entry_points(group=GROUP)}


def make(named: str, settings: Settings) -> Provider:
    """Return the provider of a name.

    Args:
        named: A name, with an optional device after a colon.
        settings: The settings; the device of the name replaces theirs.

    Raises:
        OptionError: Unknown provider.
        MissingDependencyError: The package of the provider is not installed.
    """
    name, _, device = named.partition(":")
    factory: Callable[[Settings], Any]
    if name in _OWN:
        module, attribute = _OWN[name]
        factory = getattr(importlib.import_module(module), attribute)
    elif (entry_point := _registered().get(name)) is not None:
        factory = entry_point.load()
    else:
        raise OptionError(f"unknown provider {name!r}.", where="providers", remedy=f"Choose from {', '.join(known())}.")
    return required(factory(replace(settings, device=device)), name)


def required(candidate: object, where: str) -> Provider:
    """Return a provider, after checking that the object is one.

    Raises:
        OptionError: The object is not a provider.
    """
    if isinstance(candidate, type):
        raise OptionError(
            f"expected a provider, got the class {candidate.__name__}.", where=where, remedy="Pass an instance."
        )
    if not isinstance(candidate, Provider):
        raise OptionError(
            f"expected a provider, got {type(candidate).__name__}.",
            where=where,
            remedy="A provider has `name`, `capability` and `compile`.",
        )
    return candidate
