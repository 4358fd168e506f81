"""Drop-in modules: names, signatures and result types of other packages, implemented by Sardonyx."""

from __future__ import annotations

import importlib
import sys

from sardonyx.errors import OptionError

INSTALLABLE = {
    "onnxruntime": (
        "", ".capi", ".capi.onnxruntime_pybind11_state", ".capi._pybind_state",
        ".capi.onnxruntime_inference_collection",
    ),
    "onnxoptimizer": ("",),
    "onnxsim": ("",),
    "onnxslim": ("",),
}  # fmt: skip
"""Packages that a drop-in module can replace, with the modules of each."""


def install(name: str) -> None:
    """Let ``import name`` load the drop-in module, in this process.

    Args:
        name: The package, for example ``"onnxruntime"``.

    Raises:
        OptionError: No drop-in module has this name, or the package itself was imported before.
    """
    if name not in INSTALLABLE:
        raise OptionError(
            f"unknown drop-in module {name!r}", where="name", remedy=f"Choose from {', '.join(INSTALLABLE)}."
        )
    ours = {f"{name}{part}": importlib.import_module(f"{__name__}.{name}{part}") for part in INSTALLABLE[name]}
    present = sys.modules.get(name)
    if present is not None and present is not ours[name]:
        raise OptionError(f"{name} is already imported", where="name", remedy="Install the drop-in module first.")
    sys.modules.update(ours)
