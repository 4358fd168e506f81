"""The version of the installed ``onnx`` package, read without importing the package."""

from __future__ import annotations

import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from sardonyx.errors import MissingDependencyError

OLDEST = (1, 21)
"""The oldest version that Sardonyx runs with, as in ``pyproject.toml``."""

_VERSION = re.compile(rb"version\s*(?::\s*str\s*)?=\s*[\"'](\d+)\.(\d+)[^\"']*[\"']")

_MODULE_OPTION = re.compile(r"-[bBdEiIOPqsSuvx]*m.*")
"""The option of Python that names a module to run, also after options of one letter, or joined with the name."""


def require_onnx() -> None:
    """Raise if the installed ``onnx`` is too old; a package whose version cannot be read is accepted.

    Raises:
        MissingDependencyError: The package is older than :data:`OLDEST`.
        SystemExit: The same, in a command of Sardonyx: the process ends with the message and without a traceback.
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
    error = MissingDependencyError(
        f"onnx {installed} is installed, and Sardonyx needs {oldest} or newer.",
        remedy=f'Install it: pip install "onnx>={oldest}".',
    )
    if _is_command():
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    raise error


def _is_command() -> bool:
    """Return True if the process is ``sardonyx`` or ``python -m sardonyx…``, and no program that imports Sardonyx."""
    program = sys.argv[0] if sys.argv else ""
    # While Python locates the module of `-m`, the first argument is "-m" itself.
    if program == "-m":
        words = sys.orig_argv
        index = next(i for i, word in enumerate(words) if i and _MODULE_OPTION.fullmatch(word))
        module = words[index].partition("m")[2] or words[index + 1]
        return module.partition(".")[0] == "sardonyx"
    return Path(program).stem == "sardonyx"
