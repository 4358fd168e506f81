"""Lazy public names of packages: a module is imported when a name is first read."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sardonyx.base.gc_pause import imports_frozen


def lazy_names(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package, which imports the module of a name on first use.

    Args:
        package: The name of the package.
        names: The public names, by module.
    """
    modules = {name: module for module, exported in names.items() for name in exported}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with imports_frozen():
            value = getattr(importlib.import_module(modules[name]), name)
        own = sys.modules.get(f"{package}.{name}")
        if own is not None:
            # A sub-package that is also a function remains the attribute, so that its modules can be imported.
            return own
        setattr(sys.modules[package], name, value)
        return value

    return get
