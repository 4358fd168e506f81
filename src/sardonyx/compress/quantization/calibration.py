"""Calibration: samples, and statistics of activations that compiled code observes over the samples."""

from __future__ import annotations

import itertools
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.ranges import Statistics
from sardonyx.errors import EvaluationError, ModelFileError, OptionError
from sardonyx.rewrite.verify.inputs import require_fit, required_inputs
from sardonyx.runtime.session import Session

Feeds = Mapping[str, Any]
Data = Iterable[Feeds] | Feeds | str | os.PathLike[str]
"""Feeds by name, an iterable of feeds, or the path of an ``.npz`` file with samples in axis 0."""

MAX_JUDGED = 32
"""Samples that are held back to judge the result."""


def samples(data: Data, model: ir.Model) -> Iterator[Feeds]:
    """Yield the samples of data, checked against the model's inputs.

    Raises:
        OptionError: A sample does not fit the inputs of the model.
        ModelFileError: The file cannot be read.
    """
    if isinstance(data, (str, os.PathLike)):
        yield from _stored(Path(data), model)
        return
    for number, sample in enumerate([data] if isinstance(data, Mapping) else data):
        if not isinstance(sample, Mapping):
            raise OptionError(
                f"expected a mapping from names of inputs to arrays, got {type(sample).__name__}.",
                where=f"data, sample {number}",
            )
        require_fit(model, sample)
        yield sample


def _stored(path: Path, model: ir.Model) -> Iterator[Feeds]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name.removeprefix("in::"): stored[name] for name in stored.files}
    except (OSError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        raise ModelFileError(f"cannot be read as samples: {error}", where=str(path)) from error
    inputs = required_inputs(model)
    missing = [str(value.name) for value in inputs if value.name not in arrays]
    if missing:
        raise OptionError(
            f"missing input {', '.join(missing)}.", where=str(path), remedy=f"The file has: {', '.join(arrays)}."
        )
    arrays = {str(value.name): arrays[str(value.name)] for value in inputs}
    steps = {str(value.name): _batch(value) for value in inputs}
    counts = {len(array) // steps[name] if array.ndim else 0 for name, array in arrays.items()}
    if len(counts) != 1 or not min(counts):
        raise OptionError("expected the same number of samples in axis 0 of every array.", where=str(path))
    for number in range(counts.pop()):
        sample = {name: array[number * steps[name] : (number + 1) * steps[name]] for name, array in arrays.items()}
        require_fit(model, sample)
        yield sample


def _batch(value: ir.Value) -> int:
    size = value.shape[0] if value.shape is not None and len(value.shape) else None
    return size if isinstance(size, int) and size > 0 else 1


class Observation:
    """Statistics of activations, and the samples that were held back.

    Args:
        model: The float model.
        names: The names of the activations.
        data: See :func:`samples`. Every fourth sample, up to a number, is held back, if there are four.

    Attributes:
        statistics: The statistics by name.
        judged: The samples to judge the result on.
        count: The number of samples.
        is_held_out: True if the judged samples are in no statistics.

    Raises:
        OptionError: The data hold no sample, or a sample does not fit.
        EvaluationError: An activation is not finite.
        SardonyxError: The model does not run on a sample.
    """

    def __init__(self, model: ir.Model, names: Sequence[str], data: Data) -> None:
        self.statistics = {name: Statistics() for name in names}
        self.judged: list[Feeds] = []
        self.count = 0
        inputs = {str(value.name) for value in model.graph.inputs}
        self._fed = [name for name in names if name in inputs]
        self._inner = [name for name in names if name not in inputs]
        session = Session(model, compile="wait")
        stream = samples(data, model)
        head = list(itertools.islice(stream, 4))
        if not head:
            raise OptionError("expected at least one sample.", where="data", remedy="Give samples of real inputs.")
        self.is_held_out = len(head) == 4
        for number, sample in enumerate(itertools.chain(head, stream)):
            self.count += 1
            if self.is_held_out and number % 4 == 3 and len(self.judged) < MAX_JUDGED:
                self.judged.append(sample)
                continue
            if not self.is_held_out:
                self.judged.append(sample)
            self._observe(session, sample, number)

    def _observe(self, session: Session, sample: Feeds, number: int) -> None:
        values = dict(zip(self._inner, session.run(self._inner, sample), strict=True)) if self._inner else {}
        values |= {name: np.asarray(sample[name]) for name in self._fed}
        for name, value in values.items():
            try:
                self.statistics[name].add(np.asarray(value))
            except ValueError as error:
                raise EvaluationError(
                    "the activation holds values that are not finite.",
                    where=f"{name}, sample {number}",
                    remedy="Remove the sample, or exclude the nodes that read the activation.",
                ) from error
