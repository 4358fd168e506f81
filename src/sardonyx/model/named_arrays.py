"""Arrays by name in an .npz file, which was written by anyone."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from sardonyx.errors import ModelFileError

LABEL_NAMES = ("labels", "label", "y", "targets", "target", "truth")
"""Names of arrays of labels, in order of preference."""

_REMEDY = "Write the file with numpy.savez."


def read_named_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file by name.

    Raises:
        ModelFileError: The file cannot be read as .npz, or holds an array of Python objects.
    """
    try:
        if not zipfile.is_zipfile(path):
            with path.open("rb") as file:
                is_array = file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX
            kind = "a single array" if is_array else "a file of another kind"
            raise ModelFileError(f"expected named arrays (.npz), got {kind}.", where=str(path), remedy=_REMEDY)
        with np.load(path, allow_pickle=False) as stored:
            return {name: _array(stored[name], name, path) for name in stored.files}
    except OSError as error:
        raise ModelFileError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
    except (ValueError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        problem = "an array is damaged, or holds Python objects, which are not read"
        raise ModelFileError(problem, where=str(path), remedy=_REMEDY) from error


def true_dtype(stored: np.dtype[Any]) -> np.dtype[Any]:
    """Return the element type of a stored array: bfloat16 for two bytes without a type, as numpy writes bfloat16."""
    return np.dtype(ml_dtypes.bfloat16) if stored == np.dtype("V2") else stored


def _array(stored: object, name: str, path: Path) -> np.ndarray:
    if isinstance(stored, np.ndarray):
        return stored.view(true_dtype(stored.dtype))
    raise ModelFileError(f"the entry '{name}' is not an array.", where=str(path), remedy=_REMEDY)
