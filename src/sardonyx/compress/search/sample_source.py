"""The samples of a search: read as often as needed, some held back to judge."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compress.samples import Data, Feeds, Preprocess, Split, items_of, read_samples, split_samples

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
        digest: A text that other samples, or the same in another order, do not have.

    Raises:
        OptionError: The data hold no sample, or a sample does not fit.
        ModelFileError: The data cannot be read.
    """

    def __init__(self, data: Data, model: ir.Model, preprocess: Preprocess | None = None) -> None:
        self._model, self._preprocess = model, preprocess
        self._data: Data = data
        if not isinstance(data, (str, os.PathLike, Mapping, np.ndarray)):
            self._data = list(items_of(data))
        split, digest = self._split(), hashlib.blake2b()
        for sample in split.fitting():
            _add(digest, sample)
        for sample in split.judged if split.is_held_out else ():
            _add(digest, sample)
        self.digest = digest.hexdigest()
        self.count, self.judged, self.is_held_out = split.count, tuple(split.judged[:MOST_JUDGED]), split.is_held_out

    def __iter__(self) -> Iterator[Feeds]:
        """Yield the samples to learn from."""
        return self._split().fitting()

    def _split(self) -> Split:
        return split_samples(read_samples(self._data, self._model, self._preprocess), MOST_JUDGED)


def _add(digest: hashlib.blake2b, value: Any) -> None:
    """Add the feeds of a sample, a sequence of tensors, or a tensor to a digest."""
    if isinstance(value, Mapping):
        for name, own in sorted(value.items()):
            digest.update(repr(name).encode())
            _add(digest, own)
    elif isinstance(value, (list, tuple)):
        digest.update(f"{len(value)} of".encode())
        for own in value:
            _add(digest, own)
    else:
        array = np.asarray(value)
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes())
