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
from sardonyx.errors import ExecutionError, InvalidModelError, TypeMismatchError
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


def _vocabulary(
    map_types: Sequence[MapType], int64_vocabulary: Sequence[int], string_vocabulary: Sequence[str]
) -> tuple[Sequence[Any], t.DType]:
    """Return the keys in the order of the elements, and the type of the elements."""
    (kind,) = map_types
    assert isinstance(kind.value, TensorType)
    name = "string_vocabulary" if kind.key == t.STRING else "int64_vocabulary"
    vocabulary: Sequence[Any] = string_vocabulary if kind.key == t.STRING else int64_vocabulary
    if not vocabulary:
        raise InvalidModelError(f"DictVectorizer of {kind} needs `{name}`.")
    return vocabulary, kind.value.dtype


def _dict_vectorizer_types(
    x: Type,
    *,
    int64_vocabulary: Sequence[int] = (),
    string_vocabulary: Sequence[str] = (),
    map_types: Sequence[MapType],
) -> tuple[Type]:
    if not map_types:
        raise TypeMismatchError(f"expected a map for DictVectorizer, got {x}.")
    vocabulary, dtype = _vocabulary(map_types, int64_vocabulary, string_vocabulary)
    return (TensorType(dtype, (1, len(vocabulary))),)


@host_operator("DictVectorizer", since=1, domain=DOMAIN, types=_dict_vectorizer_types, reason=REASON)
def dict_vectorizer(
    x: dict[Any, Any],
    *,
    int64_vocabulary: Sequence[int] = (),
    string_vocabulary: Sequence[str] = (),
    map_types: Sequence[MapType],
) -> tuple[np.ndarray]:
    """Return the value of each key of the vocabulary, [1, keys]; zero or an empty string for an absent key."""
    vocabulary, dtype = _vocabulary(map_types, int64_vocabulary, string_vocabulary)
    absent = "" if dtype == t.STRING else 0
    return (np.array([[x.get(key, absent) for key in vocabulary]], t.numpy_dtype(dtype)),)
