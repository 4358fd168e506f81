"""Label tables, from numbers or strings to others: two lists, and a default for absent keys.

Source: ONNX-ML, *LabelEncoder*, *CategoryMapper*, *OneHotEncoder*.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import cast

import numpy as np

from sardonyx.core import language as L
from sardonyx.core.eval.host_function import HostFunction, host
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType, Type
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError
from sardonyx.ops.registry import operator

DOMAIN = "ai.onnx.ml"


def class_labels(ints: Sequence[int], strings: Sequence[str]) -> Tensor:
    """Return the labels of a classifier: int64 or string."""
    return L.constant(list(strings), t.STRING) if strings else L.constant(list(ints), t.INT64)


@functools.lru_cache(64)
def _number_table(words: tuple[str, ...], numbers: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(reversed(words), reversed(numbers), strict=True))


def _look_up(
    x: np.ndarray, *, keys_strings: tuple[str, ...], values_int64s: tuple[int, ...], default_int64: int
) -> tuple[np.ndarray]:
    numbers = _number_table(keys_strings, values_int64s)
    values = [numbers.get(word, default_int64) for word in x.ravel().tolist()]
    return (np.array(values, np.int64).reshape(x.shape),)


def _look_up_type(x: Type, **_: object) -> tuple[Type]:
    assert isinstance(x, TensorType)
    return (TensorType(t.INT64, x.shape),)


_number_words = HostFunction("LabelEncoder", _look_up_type, _look_up, domain=DOMAIN, since=2)


def find_positions(x: Tensor, words: Sequence[str]) -> Tensor:
    """Return the index of each string in a list of words, int64; -1 for other strings."""
    (at,) = host(
        _number_words, x, keys_strings=tuple(words), values_int64s=tuple(range(len(words))), default_int64=-1
    )  # fmt: skip
    return cast(Tensor, at)


def map_labels(x: Tensor, keys: Tensor, values: Tensor, default: Tensor) -> Tensor:
    """Return for each element the value of the equal key (NaN equals NaN), else the default."""
    if keys.shape != values.shape:
        raise InvalidModelError(f"a table has {keys.shape[0]} keys and {values.shape[0]} values.")
    if x.dtype == t.STRING:
        at = find_positions(x, keys.known.tolist())
        return L.where(at < 0, default, L.take(values, L.maximum(at, 0), 0))
    hit = L.equal(L.unsqueeze(x, [-1]), keys)
    if t.is_float(x.dtype):
        hit = hit | (L.is_nan(L.unsqueeze(x, [-1])) & L.is_nan(keys))
    at = L.argmax(L.cast(hit, t.UINT8), -1)
    return L.where(L.any_of(hit, [-1]), L.take(values, at, 0), default)


@operator("LabelEncoder", since=2, domain=DOMAIN)
def label_encoder(
    x: Tensor,
    *,
    keys_tensor: Tensor | None = None,
    keys_strings: Sequence[str] = (),
    keys_int64s: Sequence[int] = (),
    keys_floats: Sequence[float] = (),
    values_tensor: Tensor | None = None,
    values_strings: Sequence[str] = (),
    values_int64s: Sequence[int] = (),
    values_floats: Sequence[float] = (),
    default_tensor: Tensor | None = None,
    default_string: str = "_Unused",
    default_int64: int = -1,
    default_float: float = -0.0,
) -> Tensor:
    keys = _table("keys", keys_tensor, keys_strings, keys_int64s, keys_floats)
    values = _table("values", values_tensor, values_strings, values_int64s, values_floats)
    if keys.dtype != x.dtype:
        raise InvalidModelError(
            f"expected an input of the keys' type {keys.dtype.name.lower()}, got {x.dtype.name.lower()}."
        )
    chosen = {t.STRING: default_string, t.INT64: default_int64, t.FLOAT: default_float}.get(values.dtype, -1)
    default = L.constant(chosen, values.dtype) if default_tensor is None else L.reshape(default_tensor, ())
    return map_labels(x, keys, values, default)


def _table(
    name: str, tensor: Tensor | None, strings: Sequence[str], ints: Sequence[int], floats: Sequence[float]
) -> Tensor:
    if tensor is not None:
        return L.reshape(tensor, (L.product(tensor.shape),))
    lists = [(list(kind), dtype) for kind, dtype in ((strings, t.STRING), (ints, t.INT64), (floats, t.FLOAT)) if kind]
    if len(lists) != 1:
        raise InvalidModelError(f"LabelEncoder needs exactly one of its lists of {name}, got {len(lists)}.")
    return L.constant(*lists[0])


@operator("LabelEncoder", since=1, domain=DOMAIN)
def label_encoder_of_classes(
    x: Tensor, *, classes_strings: Sequence[str] = (), default_int64: int = -1, default_string: str = "_Unused"
) -> Tensor:
    """Map strings to their positions, or back (the first version)."""
    return category_mapper(
        x,
        cats_strings=classes_strings,
        cats_int64s=range(len(classes_strings)),
        default_int64=default_int64,
        default_string=default_string,
    )


@operator("CategoryMapper", since=1, domain=DOMAIN)
def category_mapper(
    x: Tensor,
    *,
    cats_strings: Sequence[str] = (),
    cats_int64s: Sequence[int] = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Tensor:
    words, numbers = L.constant(list(cats_strings), t.STRING), L.constant(list(cats_int64s), t.INT64)
    if x.dtype == t.STRING:
        return map_labels(x, words, numbers, L.constant(default_int64, t.INT64))
    return map_labels(x, numbers, words, L.constant(default_string, t.STRING))


@operator("OneHotEncoder", since=1, domain=DOMAIN)
def one_hot_encoder(
    x: Tensor, *, cats_int64s: Sequence[int] = (), cats_strings: Sequence[str] = (), zeros: int = 1
) -> Tensor:
    """Encode categories; without ``zeros`` every element must be a category, which is not checked."""
    if x.dtype == t.STRING:
        labels, categories = find_positions(x, cats_strings), L.constant(list(range(len(cats_strings))), t.INT64)
    else:
        labels, categories = L.cast(x, t.INT64), L.constant(list(cats_int64s), t.INT64)
    return L.cast(L.equal(L.unsqueeze(labels, [-1]), categories), t.FLOAT)
