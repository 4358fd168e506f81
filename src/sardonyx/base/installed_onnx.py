"""The version of the installed ``onnx`` package, read without importing the package."""

from __future__ import annotations

import re
from importlib.machinery import PathFinder
from pathlib import Path

from sardonyx.errors import MissingDependencyError

OLDEST = (1, 21)
"""The oldest version that Sardonyx runs with, as in ``pyproject.toml``."""

_VERSION = re.compile(rb"version\s*(?::\s*str\s*)?=\s*[\"'](\d+)\.(\d+)[^\"']*[\"']")


def require_onnx() -> None:
    """Raise if the installed ``onnx`` is too old; a package whose version cannot be read is accepted.

    Raises:
        MissingDependencyError: The package is older than :data:`OLDEST`.
    """
    spec = PathFinder.find_spec("onnx")
    if spec is None or not spec.origin:
        return
    try:
        match = _VERSION.search(Path(spec.origin).with_name("version.py").read_bytes())
    except OSError:
        return
    if match is None or (int(match[1]), int(match[2])) >= OLDEST:
        return
    installed = f"{int(match[1])}.{int(match[2])}"
    oldest = ".".join(map(str, OLDEST))
    raise MissingDependencyError(
        f"onnx {installed} is installed, and Sardonyx needs {oldest} or newer.",
        remedy=f'Install it: pip install "onnx>={oldest}".',
    )
