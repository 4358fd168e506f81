"""Samples from what callers have: mappings, arrays, archives, folders of images and audio."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compress.samples.archives import read_archive
from sardonyx.compress.samples.folders import Recording, read_file, sample_files
from sardonyx.compress.samples.missing_values import require_numbers
from sardonyx.compress.samples.numbering import Sample
from sardonyx.compress.samples.preprocessing import Preprocess, loaded
from sardonyx.errors import EvaluationError, ModelFileError, OptionError, SardonyxError
from sardonyx.rewrite.verify.inputs import require_fit, required_inputs

_IMAGES = "Compute the input from images (uint8 [height, width, 3]) by `preprocess`, a function or a model."

Feeds = Mapping[str, Any]
"""Arrays by the name of the input."""

Data = Iterable[Any] | Feeds | str | os.PathLike[str]
"""Feeds, an array or an iterable of feeds or arrays, the path of an ``.npz`` file or a folder of images or audio."""


def read_samples(
    data: Data, model: ir.Model, preprocess: Preprocess | None = None, where: str = "data"
) -> Iterator[Feeds]:
    """Yield samples one by one, each checked against the inputs of the model.

    Args:
        data: Feeds by name; an array with samples in axis 0 (for a model with one input); an iterable, read once, of
            feeds, of arrays (for a model with one input), or of tuples of arrays in the order of the inputs; the path
            of an ``.npz`` file whose arrays hold samples in axis 0; or the path of a folder of files (``.npz``,
            ``.npy``, images, ``.wav``), of which each is a sample.
        model: The model that the samples are for.
        preprocess: A function or a model that computes the feeds of one item; see :data:`Preprocess`.
        where: The name of the data in messages.

    Raises:
        OptionError: A sample does not fit the inputs of the model.
        EvaluationError: The preprocessing raised, or a sample holds NaN where the model expects numbers.
        ModelFileError: A file cannot be read.
        MissingDependencyError: The folder has images, and pillow is not installed.
    """
    inputs = required_inputs(model)
    function = None if preprocess is None else loaded(preprocess, [str(value.name) for value in inputs])
    shape = inputs[0].shape if len(inputs) == 1 else None
    if function is None and isinstance(data, np.ndarray) and shape is not None and data.ndim == len(shape):
        data = _rows(data, shape)
    for number, item in enumerate(_items(data, inputs)):
        value: Any = item
        if function is not None:
            value = _preprocessed(function, item, number)
        yield Sample(number, _feeds(value, model, inputs, f"{where}, sample {number}"))


def _preprocessed(function: Callable[..., Any], item: Any, number: int) -> Any:
    """Return the result of a preprocessing.

    Raises:
        EvaluationError: The function raised.
    """
    try:
        return function(item.frames, item.rate) if isinstance(item, Recording) else function(item)
    except SardonyxError:
        raise
    except Exception as error:
        raise EvaluationError(
            f"the function raised {type(error).__name__}: {error}",
            where=f"preprocess, sample {number}",
            remedy="Call the function with this item to see the whole traceback.",
        ) from error


def _items(data: Data, inputs: Sequence[ir.Value]) -> Iterator[Any]:
    """Yield the items of data as they are stored."""
    if isinstance(data, (str, os.PathLike)):
        path = Path(data)
        if path.is_dir():
            yield from map(read_file, sample_files(path))
        elif path.suffix == ".npz" or not path.exists():
            yield from read_archive(path, inputs)
        else:
            raise ModelFileError(
                f"cannot be read as samples: expected an .npz file or a folder, got '{path.suffix}'.", where=str(path)
            )
        return
    if isinstance(data, Mapping):
        yield data
        return
    yield from items_of(data)


def items_of(data: object, where: str = "data") -> Iterator[Any]:
    """Yield the items of an iterable, such as a generator or a data loader.

    Raises:
        EvaluationError: The iterable raised.
        OptionError: The object is not iterable.
    """
    if not isinstance(data, Iterable):
        raise OptionError(
            f"expected feeds, an iterable or a path, got {type(data).__name__}.",
            where=where,
            remedy="Give arrays by the name of the input.",
        )
    iterator: Iterator[Any] | None = None
    for number in itertools.count():
        try:
            iterator = iter(data) if iterator is None else iterator
            item = next(iterator)
        except StopIteration:
            return
        except SardonyxError:
            raise
        except Exception as error:
            raise EvaluationError(
                f"the iterable raised {type(error).__name__}: {error}",
                where=f"{where}, sample {number}",
                remedy="Iterate over the data to see the whole traceback.",
            ) from error
        yield item


def _rows(data: np.ndarray, shape: ir.Shape) -> Iterator[np.ndarray]:
    """Yield samples of an array that holds them along axis 0: as many rows as the model fixes, else one.

    Raises:
        OptionError: The rows are no multiple of those of a sample.
    """
    count = shape[0] if len(shape) and isinstance(shape[0], int) and shape[0] > 0 else 1
    if not data.ndim or len(data) % count:
        raise OptionError(
            f"expected a multiple of {count} rows in axis 0, got an array of shape {list(data.shape)}.", where="data"
        )
    for start in range(0, len(data), count):
        yield data[start : start + count]


def _feeds(value: Any, model: ir.Model, inputs: Sequence[ir.Value], where: str) -> Feeds:
    """Return an item as feeds that fit the model."""
    if isinstance(value, Recording):
        value = value.frames
    if isinstance(value, Mapping):
        feeds = {str(name): _array(array) for name, array in value.items()}
    else:
        arrays = list(value) if isinstance(value, (tuple, list)) else [value]
        if len(arrays) != len(inputs):
            raise OptionError(
                f"expected a mapping from names of inputs to arrays, or {len(inputs)} arrays, got "
                f"{len(arrays)} of type {type(value).__name__}.",
                where=where,
                remedy=f"Inputs of the model are: {', '.join(str(one.name) for one in inputs)}.",
            )
        feeds = {str(one.name): _array(array) for one, array in zip(inputs, arrays, strict=True)}
    try:
        require_fit(model, feeds)
    except OptionError as error:
        remedy = _IMAGES if _is_image(value) else error.remedy
        raise OptionError(error.problem, where=where, remedy=remedy) from error
    require_numbers(feeds, inputs, where)
    return feeds


def _is_image(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 3 and value.shape[-1] == 3


def _array(value: Any) -> Any:
    """Return the array of a tensor of another library; anything else unchanged."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu()
    numpy = getattr(value, "numpy", None)
    if callable(numpy):
        return numpy()
    return np.asarray(value) if isinstance(value, (int, float, bool)) else value
