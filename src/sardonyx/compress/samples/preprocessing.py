"""Preprocessing of samples, as a function or as a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import OptionError
from sardonyx.rewrite.verify.inputs import required_inputs
from sardonyx.runtime.session import Session

Preprocess = Callable[..., Any] | str | os.PathLike[str] | ir.Model
"""The computation of feeds from an item: a function, or a model (``.onnx``) that runs on each item.

An item is an image (uint8 [height, width, 3]), audio (float32 [frames] or [channels, frames], and the frames a second
as a second argument), or a sample of an archive or iterable. The result is feeds by name, an array for a model with one
input, or a tuple of arrays. The outputs of a model are feeds by their names if these are inputs, else by their order;
samples by the names of the inputs that they feed, which a model does not read, are feeds as they are.
"""


def loaded(preprocess: Preprocess, names: Sequence[str]) -> Callable[..., Any]:
    """Return a preprocessing as a function.

    Args:
        preprocess: The preprocessing.
        names: The names of the inputs that the result feeds.

    Raises:
        OptionError: The preprocessing is neither a function nor a model.
        SardonyxError: The model cannot be read.
    """
    if isinstance(preprocess, (str, os.PathLike, ir.Model)):
        return _Program(preprocess, names)
    if not callable(preprocess):
        raise OptionError(f"expected a function or a model, got {type(preprocess).__name__}.", where="preprocess")
    return preprocess


class _Program:
    """A model that computes feeds from items.

    Args:
        model: The model.
        names: The names of the inputs that the results feed.
    """

    def __init__(self, model: str | os.PathLike[str] | ir.Model, names: Sequence[str]) -> None:
        self._session = Session(model, compile="wait")
        self._inputs = required_inputs(self._session.model)
        self._names = names
        self._outputs = [info.name for info in self._session.get_outputs()]

    def __call__(self, item: Any, rate: int | None = None) -> Any:
        if isinstance(item, Mapping):
            feeds = dict(item)
            own = {str(value.name) for value in self._inputs}
            if not own <= feeds.keys() and feeds.keys() >= set(self._names):
                return feeds  # Computed already, as the samples of `--eval` often are.
        else:
            values: list[Any] = [item, *([] if rate is None or len(self._inputs) < 2 else [np.int64(rate)])]
            if len(values) != len(self._inputs):
                raise OptionError(
                    f"expected a model with {len(values)} inputs, got {len(self._inputs)}.", where="preprocess"
                )
            feeds = {str(one.name): _fitted(one, value) for one, value in zip(self._inputs, values, strict=True)}
        results = self._session.run(None, feeds)
        by_name = dict(zip(self._outputs, results, strict=True))
        if all(name in by_name for name in self._names):
            return {name: by_name[name] for name in self._names}
        return tuple(results)


def _fitted(value: ir.Value, item: Any) -> np.ndarray:
    """Return an item in the type of an input, with an axis of size 1 in front if the input has one more axis."""
    array = np.asarray(item)
    if value.shape is not None and len(value.shape) == array.ndim + 1:
        array = array[None]
    return array if value.dtype is None else array.astype(value.dtype.numpy(), copy=False)
