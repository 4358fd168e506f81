"""Import of the modules of an installed drop-in package."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any


class _AliasLoader(Loader):
    """Loader of a module of Sardonyx under the name of the replaced package.

    Args:
        name: The name of the module of Sardonyx.
        alias: The name under which programs import the module.
    """

    def __init__(self, name: str, alias: str) -> None:
        self._name, self._alias = name, alias
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module, imported under its own name, so that each class exists once."""
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own specification, which the import has replaced, and alias the modules below.

        Without an alias, a later import of a module would replace a function of the same name in its package.
        """
        module.__spec__ = self._spec
        for name, loaded in list(sys.modules.items()):
            if name.startswith(f"{self._name}."):
                sys.modules.setdefault(self._alias + name.removeprefix(self._name), loaded)


class DropInFinder(MetaPathFinder):
    """Finder of the modules below a drop-in package.

    A module of Sardonyx comes first. Any other module is taken from the replaced package if that is installed: most of
    ``onnxruntime.transformers`` and ``onnxruntime.tools`` is Python code over the interface of ``onnxruntime``.

    Args:
        package: The name of the replaced package.
    """

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of a module below the package; None for other modules."""
        if not fullname.startswith(f"{self._package}."):
            return None
        ours = f"{__package__}.{fullname}"
        if _exists(ours):
            return importlib.util.spec_from_loader(fullname, _AliasLoader(ours, fullname), is_package=False)
        return PathFinder.find_spec(fullname, self._folders(fullname, path))

    def _folders(self, fullname: str, path: Sequence[str] | None) -> list[str]:
        """Return the folders of the replaced package, or of a package below, that may hold the module."""
        original = PathFinder.find_spec(self._package)
        roots = original.submodule_search_locations if original is not None else None
        return [*(path or ()), *(str(Path(root, *fullname.split(".")[1:-1])) for root in roots or ())]


def _exists(name: str) -> bool:
    parent = name.rpartition(".")[0]
    if parent not in sys.modules and not _exists(parent):
        return False
    return name in sys.modules or importlib.util.find_spec(name) is not None


def attributes_below(package: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package, which imports its own modules, and those that ``DropInFinder`` adds.

    Args:
        package: The name under which programs import the package.
    """

    def get(name: str) -> Any:
        ours = f"{__package__}.{package}.{name}"
        if not name.startswith("__") and _exists(ours):
            return importlib.import_module(ours)
        fullname = f"{package}.{name}"
        if package not in sys.modules or name.startswith("__") or importlib.util.find_spec(fullname) is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return importlib.import_module(fullname)

    return get
