"""Labels in files of samples: the arrays that are not inputs of the model."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from sardonyx.compress.evidence.measurement import Evaluate
from sardonyx.compress.evidence.metrics import metric
from sardonyx.compress.samples import Preprocess, read_samples
from sardonyx.errors import ModelFileError, OptionError
from sardonyx.model.named_arrays import LABEL_NAMES

LABEL_PREFIX = "truth::"
"""Prefix of the names of labels in files that hold outputs too; inputs have ``in::``."""

BOXES = ("boxes", "labels", "image_index")


def read_labels(path: str | os.PathLike[str], inputs: Collection[str], metric: str) -> dict[str, np.ndarray] | None:
    """Return the labels in an ``.npz`` file of samples.

    Args:
        path: The file.
        inputs: Names of the inputs of the model.
        metric: The name of the metric, for which some arrays have fixed names: ``map50`` reads boxes.

    Returns:
        The labels by name; None for perplexity of a file without labels, whose labels are the next tokens.

    Raises:
        ModelFileError: The file cannot be read.
        OptionError: The file has no labels, or several arrays could be the labels.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            marked = [name for name in stored.files if name.startswith(LABEL_PREFIX)]
            others = [name for name in stored.files if name.removeprefix("in::") not in inputs and "::" not in name]
            arrays = {name.removeprefix(LABEL_PREFIX): stored[name] for name in marked or others}
    except (OSError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        raise ModelFileError(f"cannot be read as labelled samples: {error}", where=os.fspath(path)) from error
    if metric == "map50" and set(BOXES) <= arrays.keys():
        return {name: arrays[name] for name in BOXES}
    if not arrays:
        if metric == "perplexity":
            return None
        raise OptionError(
            "the file has no labels: every array is an input of the model.",
            where=os.fspath(path),
            remedy="Add an array 'labels' with one label a sample.",
        )
    if len(arrays) == 1:
        return arrays
    for name in LABEL_NAMES:
        if name in arrays:
            return {name: arrays[name]}
    raise OptionError(
        f"several arrays could be the labels: {', '.join(arrays)}.",
        where=os.fspath(path),
        remedy="Name the array of labels 'labels'.",
    )


def stored_metric(
    name: str, path: str | os.PathLike[str], model: ir.Model, preprocess: Preprocess | None = None
) -> Evaluate:
    """Return a function that measures a session on an ``.npz`` file of samples with labels.

    Args:
        name: The name of the metric; see :func:`sardonyx.metric`.
        path: The file: the inputs of the model, samples in axis 0, and the labels.
        model: The model.
        preprocess: A function or a model that computes feeds from the items of the file.

    Raises:
        ModelFileError: The file cannot be read.
        OptionError: The metric is unknown, or labels or samples do not fit.
    """
    labels = read_labels(path, [str(value.name) for value in model.graph.inputs], name)
    return metric(name, labels, read_samples(path, model, preprocess, os.fspath(path)))
