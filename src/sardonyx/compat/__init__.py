"""Drop-in modules: names, signatures and result types of other packages, implemented by Sardonyx."""

from __future__ import annotations

import importlib
import sys

from sardonyx.compat.module_finder import DropInFinder
from sardonyx.errors import OptionError

INSTALLABLE = ("onnxconverter_common", "onnxoptimizer", "onnxruntime", "onnxsim", "onnxslim")
"""Packages that a drop-in module can replace."""


def install(name: str) -> None:
    """Let ``import name`` load the drop-in module, in this process.

    Other modules below ``name``, such as ``onnxruntime.transformers``, are imported from the replaced package if the
    package is installed.

    Args:
        name: The package, for example ``"onnxruntime"``.

    Raises:
        OptionError: No drop-in module has this name, or the package itself was imported before.
    """
    if name not in INSTALLABLE:
        raise OptionError(
            f"unknown drop-in module {name!r}", where="name", remedy=f"Choose from {', '.join(INSTALLABLE)}."
        )
    ours = importlib.import_module(f"{__name__}.{name}")
    present = sys.modules.get(name)
    if present is not None and present is not ours:
        raise OptionError(f"{name} is already imported", where="name", remedy="Install the drop-in module first.")
    if present is None:
        sys.meta_path.insert(0, DropInFinder(name))
        sys.modules[name] = ours
