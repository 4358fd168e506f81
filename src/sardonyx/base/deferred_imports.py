"""Deferred imports of modules that a dependency imports and rarely uses.

``onnx_ir`` imports ``sympy`` for arithmetic on symbolic dimensions, which Sardonyx does with sizes of its own
(:mod:`sardonyx.core.dim`). The import of ``sympy`` takes longer than all other imports for loading a model. ``onnx``
imports the text formats of protobuf, tools that no session uses, and the parsers of e-mail for its own version: half
of its import.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_DEFERRED = {
    "onnx_ir": ("sympy", "onnx_ir._symbolic_shapes", "onnx_ir.schemas", "packaging.version", "shutil", "tempfile"),
    "onnx": (
        "calendar",
        "google.protobuf.internal.python_message",
        "google.protobuf.json_format",
        "google.protobuf.text_format",
        "importlib.metadata",
        "onnx.compose",
        "onnx.gen_proto",
        "onnx.utils",
    ),
}
"""Modules to defer while a package is imported."""


class _DeferredModule(ModuleType):
    """A module, imported when one of its attributes is first read."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]  # An attribute is read before the end of the deferral.
        return getattr(importlib.import_module(self.__name__), name)


class _DeferredMetadata(_DeferredModule):
    """``importlib.metadata``: packages read their own version while they are imported."""

    def version(self, distribution_name: str) -> str:
        """Return the version in the name of the installation's folder, if there is one; else ask the module."""
        versions = [version for folder in sys.path for version in _installed_versions(folder, distribution_name)]
        return versions[0] if versions else str(self.__getattr__("version")(distribution_name))


def _installed_versions(folder: str, distribution: str) -> list[str]:
    """Return the versions of a distribution in a folder of packages, as in the names of ``.dist-info`` folders."""
    prefix, suffix = f"{distribution}-", ".dist-info"
    try:
        with os.scandir(folder or ".") as entries:
            names = [entry.name for entry in entries]
    except OSError:  # An archive, or a folder that does not exist.
        return []
    return [name[len(prefix) : -len(suffix)] for name in names if name.startswith(prefix) and name.endswith(suffix)]


_STAND_INS = {"importlib.metadata": _DeferredMetadata}
"""Modules of which an attribute is read while they are deferred."""


@contextlib.contextmanager
def deferred(names: Sequence[str]) -> Iterator[None]:
    """Defer imports of these modules inside of the ``with`` statement; modules in memory stay unchanged.

    Afterwards, a deferred module is an attribute of its package, unless the module itself was imported meanwhile.

    Args:
        names: The full names of the modules.
    """
    modules = {name: _STAND_INS.get(name, _DeferredModule)(name) for name in names if name not in sys.modules}
    sys.modules.update(modules)
    for name, module in modules.items():
        _set_attribute(name, module)
    try:
        yield
    finally:
        for name, module in modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
                _set_attribute(name, module)


def _set_attribute(name: str, module: ModuleType) -> None:
    """Make a module an attribute of its package, if the package is imported and has no such attribute."""
    package, _, own = name.rpartition(".")
    if package in sys.modules and own not in vars(sys.modules[package]):
        setattr(sys.modules[package], own, module)


class _Finder:
    """Finder of the packages in the table: the other finders find them, and their own imports are deferred."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the specification of a package of the table; None for other modules."""
        names = _DEFERRED.get(name)
        if names is None:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            with deferred(names):
                execute(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def defer_imports() -> None:
    """Defer imports of the packages in the table that are not imported yet."""
    if not all(name in sys.modules for name in _DEFERRED):
        sys.meta_path.insert(0, _Finder())


def imported_module(name: str) -> ModuleType | None:
    """Return a module that is in memory; None if no thread has begun to import the module.

    Args:
        name: The full name of the module. If another thread imports the module now, the function waits for the end.
    """
    return importlib.import_module(name) if name in sys.modules else None
