"""The samples of a search: read as often as needed, some held back to judge."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from sardonyx.compress.samples import Data, Feeds, Preprocess, Split, read_samples, split_samples

MOST_JUDGED = 16
"""Samples that are held back: every candidate runs on them."""


class SampleSource:
    """Samples to learn from, any number of times, and samples that judge.

    Args:
        data: The data; files are read anew in every pass, any other iterable is read once and stored.
        model: The model.
        preprocess: A function or a model that computes feeds from the items of the data.

    Attributes:
        count: The number of samples.
        judged: The samples that judge; all of them if there are fewer than four.
        is_held_out: True if no method learns from the judged samples.

    Raises:
        OptionError: The data hold no sample, or a sample does not fit.
        ModelFileError: The data cannot be read.
    """

    def __init__(self, data: Data, model: ir.Model, preprocess: Preprocess | None = None) -> None:
        self._model, self._preprocess = model, preprocess
        self._data: Data = data if isinstance(data, (str, os.PathLike, Mapping)) else list(data)
        split = self._split()
        for _ in split.fitting():
            pass
        self.count, self.judged, self.is_held_out = split.count, tuple(split.judged[:MOST_JUDGED]), split.is_held_out

    def __iter__(self) -> Iterator[Feeds]:
        """Yield the samples to learn from."""
        return self._split().fitting()

    def _split(self) -> Split:
        return split_samples(read_samples(self._data, self._model, self._preprocess), MOST_JUDGED)
