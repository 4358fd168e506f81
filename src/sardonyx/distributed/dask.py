"""Dask: a model over the blocks of an array, or over the partitions of a data frame."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from sardonyx.base.extras import require
from sardonyx.distributed.image import Image
from sardonyx.distributed.predictor import Predictor, checked_columns
from sardonyx.errors import FeedError, OptionError
from sardonyx.model.load import Loadable


def map_blocks(array: Any, model: Loadable | Image) -> Any:
    """Return the first output of a model for a Dask array that is chunked along the batch alone.

    Args:
        array: The input, of shape ``[rows, …]`` with chunks of whole rows.
        model: A model with one input, or its image.

    Raises:
        MissingDependencyError: Dask is not installed.
        OptionError: The model has several inputs, or the array is chunked along other axes.
    """
    require("dask", "dask", "Dask")
    image = model if isinstance(model, Image) else Image.compile(model)
    predictor = _predictor(image)
    if len(predictor.inputs) != 1:
        raise OptionError(f"expected one input, the model has {', '.join(predictor.inputs)}.", where="model")
    if any(len(chunks) > 1 for chunks in array.chunks[1:]):
        raise OptionError("expected chunks of whole rows.", where="array", remedy="Rechunk the array along axis 0.")
    sample = _apply(np.zeros((1, *array.shape[1:]), array.dtype), image)
    return array.map_blocks(
        _apply,
        _sent_once(image),
        dtype=sample.dtype,
        chunks=(array.chunks[0], *((size,) for size in sample.shape[1:])),
        drop_axis=list(range(1, array.ndim)),
        new_axis=list(range(1, sample.ndim)),
    )


def map_partitions(frame: Any, model: Loadable | Image, *, columns: Mapping[str, str] | None = None) -> Any:
    """Return a Dask data frame with the outputs of a model as further columns.

    A column holds numbers for an input of shape ``[rows]``, and arrays or lists, one a row, for an input of more axes;
    likewise for outputs.

    Args:
        frame: The data frame.
        model: The model, or its image.
        columns: The column of each input whose name differs: column by input.

    Raises:
        MissingDependencyError: Dask's data frames are not installed.
        OptionError: The frame is none of Dask, or the columns are no mapping.
        FeedError: A column is missing, or holds texts.
    """
    require("dask.dataframe", "dask", "Dask")
    import pandas as pd

    if not hasattr(frame, "map_partitions") or not hasattr(frame, "columns"):
        raise OptionError(f"expected a data frame of Dask, got {type(frame).__name__}.", where="frame")
    items = _items(columns)
    image = model if isinstance(model, Image) else Image.compile(model)
    predictor = _predictor(image, items)
    predictor.require_columns(frame.columns)
    for column in predictor.numeric_columns:
        if isinstance(frame.dtypes[column], pd.StringDtype):
            raise FeedError(
                "the column holds texts, the input numbers.", where=column,
                remedy='Dask turns arrays into texts: set its option "dataframe.convert-string" to False.',
            )  # fmt: skip
    added = {name: pd.Series([], dtype=dtype or object) for name, dtype in predictor.column_types().items()}
    return frame.map_partitions(_apply_to_frame, _sent_once(image), items, meta=frame._meta.assign(**added))


def _sent_once(image: Image) -> Any:
    """Return an image as a task of its own: as an argument, each task would carry the bytes.

    Dask does so itself with large arguments, but measures an object without its fields.
    """
    from dask import delayed

    return delayed(image, name=f"sardonyx-image-{image.digest}-{image.threads}", traverse=False)


def _items(columns: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    return tuple(checked_columns(columns).items())


def _apply_to_frame(part: Any, image: Image, columns: tuple[tuple[str, str], ...]) -> Any:
    predictor = _predictor(image, columns)
    outputs = predictor({name: part[name].to_numpy() for name in predictor.columns})
    added = {}
    for name, dtype in predictor.column_types().items():
        values = outputs[name]
        added[name] = values if dtype is not None and np.ndim(values) == 1 else list(values)
    return part.assign(**added)


def _apply(block: np.ndarray, image: Image) -> np.ndarray:
    predictor = _predictor(image)
    return np.asarray(next(iter(predictor.predict({predictor.inputs[0]: block}).values())))


@lru_cache(maxsize=8)
def _predictor(image: Image, columns: tuple[tuple[str, str], ...] = ()) -> Predictor:
    return Predictor(image, dict(columns))
