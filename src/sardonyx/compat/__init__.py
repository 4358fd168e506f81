"""Drop-in modules: the names, signatures and result types of other packages, answered by Sardonyx."""

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
"""Packages that a drop-in module can stand for, with the modules of each."""


def install(name: str) -> None:
    """Let ``import name`` find the drop-in module, in this process.

    Args:
        name: The package, ``"onnxruntime"`` for one.

    Raises:
        OptionError: There is no drop-in module of this name, or the package itself was imported before.
    """
    if name not in INSTALLABLE:
        raise OptionError(f"there is no drop-in for {name!r}.", where="name", remedy=f"For: {', '.join(INSTALLABLE)}.")
    ours = {f"{name}{part}": importlib.import_module(f"{__name__}.{name}{part}") for part in INSTALLABLE[name]}
    there = sys.modules.get(name)
    if there is not None and there is not ours[name]:
        raise OptionError(f"{name} was imported already.", where="name", remedy="Install the drop-in before.")
    sys.modules.update(ours)
