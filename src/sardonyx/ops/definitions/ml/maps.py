"""Maps: conversion to tensors and back.

Source: ONNX-ML, *ZipMap*, *CastMap*, *DictVectorizer*.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.core.eval.host_function import unknown_size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import MapType, SequenceType, TensorType, Type
from sardonyx.errors import ExecutionError, InvalidModelError
from sardonyx.ops.registry import host_operator

DOMAIN = "ai.onnx.ml"
REASON = "maps are not tensors"


def _zip_map_types(
    x: Type, *, classlabels_int64s: Sequence[int] = (), classlabels_strings: Sequence[str] = ()
) -> tuple[Type]:
    key = t.STRING if classlabels_strings else t.INT64
    return (SequenceType(MapType(key, TensorType(t.FLOAT, ()))),)


@host_operator("ZipMap", since=1, domain=DOMAIN, types=_zip_map_types, reason=REASON)
def zip_map(
    x: np.ndarray, *, classlabels_int64s: Sequence[int] = (), classlabels_strings: Sequence[str] = ()
) -> tuple[list[dict[Any, float]]]:
    """Return a dict for each row, with Python numbers and sorted keys; of equal labels the last wins."""
    labels: Sequence[int] | Sequence[str] = classlabels_strings or classlabels_int64s
    rows = x if x.ndim == 2 else np.atleast_2d(x)
    if rows.shape[1] != len(labels):
        raise InvalidModelError(f"expected one label for each of {rows.shape[1]} columns of ZipMap, got {len(labels)}.")
    keys, columns = _keys(tuple(labels))
    ordered = rows if columns is None else rows[:, columns]
    return ([dict(zip(keys, row, strict=True)) for row in ordered.tolist()],)


@functools.lru_cache(maxsize=64)
def _keys(labels: tuple[int, ...] | tuple[str, ...]) -> tuple[list[int] | list[str], np.ndarray | None]:
    """Return the keys of the maps, and the columns of their values; None for all columns in order."""
    columns: dict[Any, int] = {label: column for column, label in enumerate(labels)}
    keys = sorted(columns)
    return keys, None if keys == list(labels) else np.array([columns[key] for key in keys], np.intp)


_CASTS = {"TO_FLOAT": t.FLOAT, "TO_STRING": t.STRING, "TO_INT64": t.INT64}


def _cast_map_types(x: Type, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> tuple[Type]:
    if cast_to not in _CASTS:
        raise InvalidModelError(f"unknown cast_to {cast_to!r}.", remedy=f"Use one of {', '.join(_CASTS)}.")
    return (TensorType(_CASTS[cast_to], (1, max_map if map_form == "SPARSE" else unknown_size())),)


@host_operator("CastMap", since=1, domain=DOMAIN, types=_cast_map_types, reason=REASON)
def cast_map(
    x: dict[int, Any], *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1
) -> tuple[np.ndarray]:
    """Return the values in key order; ``SPARSE`` puts each at the index of its key, with zeros between."""
    convert: Any = {"TO_FLOAT": float, "TO_INT64": lambda v: int(float(v)), "TO_STRING": str}[cast_to]
    values = [convert(x[key]) for key in sorted(x)]
    if map_form == "SPARSE":
        values = [
            convert(x[key]) if key in x else convert(0) if cast_to != "TO_STRING" else "" for key in range(max_map)
        ]
        if any(not 0 <= key < max_map for key in x):
            raise ExecutionError(f"expected map keys from 0 to {max_map - 1} (max_map), got another key.")
    return (np.array([values], t.numpy_dtype(_CASTS[cast_to])),)


def _dict_vectorizer_types(
    x: Type, *, int64_vocabulary: Sequence[int] = (), string_vocabulary: Sequence[str] = ()
) -> tuple[Type]:
    assert isinstance(x, MapType) and isinstance(x.value, TensorType)
    return (TensorType(x.value.dtype, (1, len(int64_vocabulary) or len(string_vocabulary))),)


@host_operator("DictVectorizer", since=1, domain=DOMAIN, types=_dict_vectorizer_types, reason=REASON)
def dict_vectorizer(
    x: dict[Any, Any], *, int64_vocabulary: Sequence[int] = (), string_vocabulary: Sequence[str] = ()
) -> tuple[np.ndarray]:
    vocabulary: Sequence[Any] = string_vocabulary or int64_vocabulary
    sample = next(iter(x.values()), 0.0)
    if isinstance(sample, str):
        return (np.array([[x.get(key, "") for key in vocabulary]], object),)
    return (np.array([[x.get(key, 0) for key in vocabulary]], np.asarray(sample).dtype),)
