"""The identity of the compiler: the sources of this package as imported, its dependencies, and LLVM."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from pathlib import Path

from sardonyx.base.artifact_store import digest
from sardonyx.compiler.llvm.object_code import toolchain

COMPILING = ("base", "compiler", "core", "model", "ops", "rewrite", "runtime")
"""Packages that decide the result of compilation; the packages above only request a compilation."""


def _sources(folders: list[str]) -> list[str]:
    """Return the Python files in folders, with size and modification time."""
    files, pending = [], [*folders]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                name = entry.name
                if name.endswith(".py"):
                    state = entry.stat()
                    files.append(f"{entry.path} {state.st_size} {state.st_mtime_ns}")
                elif "." not in name and name != "__pycache__" and entry.is_dir():
                    pending.append(entry.path)
    return sorted(files)


_SOURCES = "\n".join(_sources([f"{Path(__file__).parents[2]}/{part}" for part in COMPILING]))
"""The package as this process imported it: later edits of files do not affect this process."""


@functools.cache
def build_digest() -> str:
    """Return a digest of this package and its dependencies, by the states of their files."""
    others = [_installation(name) for name in ("numpy", "ml_dtypes", "onnx", "onnx_ir")]
    return digest(sys.modules["sardonyx"].__version__, toolchain(), _SOURCES, *others)


def _installation(name: str) -> str:
    """Identify an installed package without importing it: its path, size and time of installation."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return name
    state = Path(spec.origin).stat()
    return f"{spec.origin} {state.st_size} {state.st_mtime_ns}"
