"""``len`` of a tensor as a symbolic size, in the modules of the user's program.

Python requires a number from ``__len__``, so torch fixes the size, or refuses a size that depends on data.
"""

from __future__ import annotations

import builtins
import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch

_FOREIGN = frozenset(("builtins", "numpy", "sardonyx", "torch", ""))
"""Packages whose modules keep Python's ``len``."""


@contextlib.contextmanager
def symbolic_lengths(program: torch.nn.Module) -> Iterator[None]:
    """Replace ``len`` inside of the ``with`` statement, in the packages of a module's parts."""
    packages = {_package(owner) for part in program.modules() for owner in (type(part), part.forward)} - _FOREIGN
    changed = [
        vars(module)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in packages and "len" not in getattr(module, "__dict__", {"len": None})
    ]
    for names in changed:
        names["len"] = length
    try:
        yield
    finally:
        for names in changed:
            names.pop("len", None)


def _package(owner: Any) -> str:
    return str(getattr(owner, "__module__", "")).partition(".")[0]


def length(value: Any) -> Any:
    """Return the length of a value, a symbolic size for a tensor."""
    if isinstance(value, torch.Tensor) and value.dim() and type(value).__len__ is torch.Tensor.__len__:
        return value.shape[0]
    return builtins.len(value)
