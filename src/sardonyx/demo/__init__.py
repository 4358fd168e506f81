"""Two small trained models, raw as PyTorch exported them, with real inputs.

`digits_classifier` classifies 8x8 handwritten digits; `digits_detector` finds digits in images of any size and ends in
`NonMaxSuppression`. This folder's `README.md` describes their origin and quality; `examples/train_digits.py` in the
source tree trains both.
"""

from __future__ import annotations

import atexit
from contextlib import ExitStack
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from sardonyx.errors import OptionError

__all__ = ["inputs", "names", "outputs", "path", "truth"]

_NAMES = ("digits_classifier", "digits_detector")

# A package imported from an archive has no files on disk: temporary copies exist until the interpreter exits.
_copies = ExitStack()
atexit.register(_copies.close)


def names() -> tuple[str, ...]:
    """Return the names of the shipped models, in alphabetical order."""
    return _NAMES


def path(name: str) -> Path:
    """Return the ONNX file of a shipped model.

    Args:
        name: One of `names()`.

    Raises:
        OptionError: No model of that name is shipped.
    """
    return _file(name, ".onnx")


def inputs(name: str) -> dict[str, np.ndarray]:
    """Return held-out inputs of a shipped model, by the graph input's name.

    `digits_classifier`: `image` float32 (360, 1, 8, 8); `digits_detector`: `image` float32 (8, 1, 96, 128). Pixels
    are whole numbers from 0 (paper) to 16 (ink).

    Args:
        name: One of `names()`.

    Raises:
        OptionError: No model of that name is shipped.
    """
    return _arrays(name, "in::")


def outputs(name: str) -> dict[str, np.ndarray]:
    """Return PyTorch's results for `inputs(name)` before the export, by the graph output's name.

    `digits_classifier`: `probabilities` float32 (360, 10). `digits_detector`: `boxes` float32 (detections, 4) as
    x1, y1, x2, y2 in pixels, `scores` float32 (detections,), `labels` int64 (detections,), and `image_index` int64
    (detections,), the index of the image in the batch.

    Args:
        name: One of `names()`.

    Raises:
        OptionError: No model of that name is shipped.
    """
    return _arrays(name, "out::")


def truth(name: str) -> dict[str, np.ndarray]:
    """Return the true labels of `inputs(name)`.

    `digits_classifier`: `labels` int64 (360,). `digits_detector`: `boxes` float32 (digits, 4), `labels` int64
    (digits,) and `image_index` int64 (digits,), as in `outputs`.

    Args:
        name: One of `names()`.

    Raises:
        OptionError: No model of that name is shipped.
    """
    return _arrays(name, "truth::")


@cache
def _file(name: str, suffix: str) -> Path:
    if name not in _NAMES:
        raise OptionError(f"unknown model {name!r}", where="name", remedy=f"Choose {' or '.join(_NAMES)}.")
    return _copies.enter_context(as_file(files(__name__) / f"{name}{suffix}"))


def _arrays(name: str, prefix: str) -> dict[str, np.ndarray]:
    with np.load(_file(name, ".npz"), allow_pickle=False) as archive:
        return {key.removeprefix(prefix): archive[key] for key in archive.files if key.startswith(prefix)}
