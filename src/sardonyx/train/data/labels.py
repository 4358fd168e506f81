"""Labels of stored data, and weights of classes that follow from their frequencies."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.errors import OptionError
from sardonyx.model.named_arrays import LABEL_NAMES, read_named_arrays
from sardonyx.train.data.folders import LabeledFiles

_MOST_CLASSES = 1 << 24
"""Most classes that are counted if their number is not known: a larger label is none, for example a number of a row."""


def labels_of(path: str | os.PathLike[str], name: str | None = None) -> np.ndarray:
    """Return the labels of an ``.npz`` file, or the classes of the files in a folder.

    Args:
        path: The file or folder.
        name: The name of the labels; None for the first of :data:`LABEL_NAMES` that the file has, which may replace
            any of these names too.

    Raises:
        ModelFileError: The file cannot be read.
        OptionError: The file has no labels.
    """
    where = Path(path)
    if where.is_dir():
        return LabeledFiles(where).labels
    arrays = read_named_arrays(where)
    for candidate in (*([] if name is None else [name]), *(LABEL_NAMES if name is None or name in LABEL_NAMES else ())):
        if candidate in arrays:
            return np.asarray(arrays[candidate])
    raise OptionError("the data have no labels.", where=str(path), remedy=f"The data have: {', '.join(arrays)}.")


def balanced_weights(labels: Any, classes: int | None = None, ignore: int | None = None) -> tuple[float, ...]:
    """Return a factor for each class: the inverse of its frequency, with a mean of 1 over the samples.

    Args:
        labels: Class indices of any shape.
        classes: Number of classes; by default one more than the largest label. A class without sample has the factor 1.
        ignore: A label that counts nothing; labels below 0 never count.

    Raises:
        OptionError: The labels are no class indices, or beyond the classes.
    """
    array = np.asarray(labels)
    if array.dtype.kind not in "iu":
        raise OptionError(f"expected class indices, got elements of type {array.dtype}.", where="class_weights")
    array = array.ravel()
    array = array[(array >= 0) & (array != ignore)]
    if not array.size:
        raise OptionError("expected at least one label.", where="class_weights")
    limit = _MOST_CLASSES if classes is None else classes
    if int(array.max()) >= limit:
        raise OptionError(f"expected labels below {limit:,}, got {int(array.max())}.", where="class_weights")
    counts = np.bincount(array.astype(np.int64), minlength=classes or 0)
    present = np.count_nonzero(counts)
    return tuple(float(array.size / (present * count)) if count else 1.0 for count in counts)
