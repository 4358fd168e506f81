"""Files of PyTorch: exported programs and TorchScript. Pickled modules are never loaded."""

from __future__ import annotations

import contextlib
import os
import zipfile
from pathlib import Path
from typing import Any

import torch

from sardonyx.convert.torch.archives import require_harmless_program, require_harmless_script
from sardonyx.convert.torch.members import opened
from sardonyx.convert.torch.pickles import without_pickles
from sardonyx.errors import ModelFileError

PICKLED = "a pickle of a module or of weights, which may execute any code when loaded"


def load_file(path: str | os.PathLike[str], *, trust: bool = False) -> Any:
    """Return the exported program or the TorchScript module of a file.

    Args:
        path: The file.
        trust: True if the file may execute code.

    Raises:
        ModelFileError: The file is a pickle, damaged, of another kind, or asks for more than operators on tensors.
    """
    kind = _kind_of(Path(path))
    where = os.fspath(path)
    if kind == "pickle":
        raise ModelFileError(
            f"expected an exported program or TorchScript, got {PICKLED}.",
            where=where,
            remedy="Build the module in a file.py:function that loads its weights with `weights_only=True`.",
        )
    if not trust:
        (require_harmless_program if kind == "program" else require_harmless_script)(Path(path))
    try:
        if kind == "script":
            return torch.jit.load(where, map_location="cpu")
        with contextlib.nullcontext() if trust else without_pickles():
            return torch.export.load(where)
    except ModelFileError:
        raise
    except Exception as error:  # torch's readers raise exceptions of unrelated classes.
        problem = f"cannot be read: {type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
        raise ModelFileError(problem, where=where, remedy="Save it again with this version of torch.") from error


def _kind_of(path: Path) -> str:
    """Return ``program``, ``script`` or ``pickle`` by the members of the archive."""
    if not zipfile.is_zipfile(path):
        if _first_bytes(path) in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
            return "pickle"
        raise ModelFileError(
            "expected an archive of torch (.pt2, TorchScript).",
            where=str(path),
            remedy="Save it again with `torch.export.save`, or copy the whole file.",
        )
    with opened(path) as members:
        names = members.names
    if any(name.endswith("constants.pkl") for name in names) and any("/code/" in name for name in names):
        return "script"
    if any(name.endswith("data.pkl") for name in names) and not any("models/" in name for name in names):
        return "pickle"
    return "program"


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(2)
    except OSError as error:
        raise ModelFileError(f"cannot be read: {error.strerror}", where=str(path)) from error
