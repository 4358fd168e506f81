"""Public ONNX models: those of SARDONYX_SUITES and the models beside, whose weights are drawn."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

LARGEST = 64 << 20
"""Bytes of a file; larger ones are left out."""


def cases() -> dict[str, Callable[[], tuple[str, Any]]]:
    """Return paths of models with real inputs, by name; none without SARDONYX_SUITES."""
    suites = os.environ.get("SARDONYX_SUITES")
    if not suites:
        return {}
    real = {path.stem: functools.partial(_real, path) for path in sorted((Path(suites) / "real").glob("*.onnx"))}
    folder = Path(suites).parent / "models"
    drawn = {path.stem: functools.partial(_drawn, path) for path in sorted(folder.glob("*.dyn.onnx"))}
    return {**real, **drawn}


def _real(path: Path) -> tuple[str, Any]:
    feeds = path.with_suffix(".npz")
    if not feeds.exists():
        return str(path), None
    with np.load(feeds, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    inputs = {name.removeprefix("in::"): array for name, array in arrays.items() if name.startswith("in::")}
    return str(path), inputs or None


def _drawn(path: Path) -> tuple[str, Any]:
    out = Path(tempfile.gettempdir()) / "sardonyx-models"
    model = out / path.name
    if not model.exists():
        command = [sys.executable, str(path.parent / "materialize.py"), str(out), path.stem]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    if model.stat().st_size > LARGEST:
        raise OSError(f"the model has more than {LARGEST} bytes")
    return str(model), None
