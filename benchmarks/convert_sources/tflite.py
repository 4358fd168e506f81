"""The TensorFlow Lite files of the folder that SARDONYX_TFLITE names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def cases() -> dict[str, Callable[[], tuple[str, None]]]:
    """Return paths by file name."""
    folder = os.environ.get("SARDONYX_TFLITE", "")
    if not folder:
        raise SystemExit("SARDONYX_TFLITE names no folder of .tflite files")
    return {path.stem: (lambda path=path: (str(path), None)) for path in sorted(Path(folder).rglob("*.tflite"))}
