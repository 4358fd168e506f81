"""Feature preprocessing: scale, normalize, impute, binarize, select, concatenate.

Source: ONNX-ML, *Scaler*, *Normalizer*, *Imputer*, *Binarizer*, *ArrayFeatureExtractor*, *FeatureVectorizer*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sardonyx.core import language as L
from sardonyx.core.ir import types as t
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError
from sardonyx.ops.registry import operator

DOMAIN = "ai.onnx.ml"


@operator("Scaler", since=1, domain=DOMAIN)
def scaler(x: Tensor, *, offset: Sequence[float] = (0.0,), scale: Sequence[float] = (1.0,)) -> Tensor:
    features = L.cast(x, t.FLOAT)
    return (features - L.constant(list(offset), t.FLOAT)) * L.constant(list(scale), t.FLOAT)


@operator("Normalizer", since=1, domain=DOMAIN)
def normalizer(x: Tensor, *, norm: str = "MAX") -> Tensor:
    """Divide rows by their norm; a row of norm 0 is unchanged."""
    rows = L.cast(x, t.FLOAT)
    match norm:
        case "MAX":
            size = L.reduce_max(rows, [-1], keepdims=True)
        case "L1":
            size = L.reduce_sum(L.abs_(rows), [-1], keepdims=True)
        case "L2":
            size = L.norm_of(L.reduce_sum(rows * rows, [-1], keepdims=True))
        case _:
            raise InvalidModelError(f"unknown norm {norm!r}.", remedy="Use 'MAX', 'L1' or 'L2'.")
    return rows / L.where(L.equal(size, 0), 1, size)


@operator("Imputer", since=1, domain=DOMAIN)
def imputer(
    x: Tensor,
    *,
    imputed_value_floats: Sequence[float] = (),
    replaced_value_float: float = 0.0,
    imputed_value_int64s: Sequence[int] = (),
    replaced_value_int64: int = 0,
) -> Tensor:
    if t.is_float(x.dtype):
        missing = L.is_nan(x) if math.isnan(replaced_value_float) else L.equal(x, replaced_value_float)
        return L.where(missing, L.constant(list(imputed_value_floats), x.dtype), x)
    return L.where(L.equal(x, replaced_value_int64), L.constant(list(imputed_value_int64s), x.dtype), x)


@operator("Binarizer", since=1, domain=DOMAIN)
def binarizer(x: Tensor, *, threshold: float = 0.0) -> Tensor:
    return L.cast(L.cast(x, t.DOUBLE) > threshold, x.dtype)


@operator("ArrayFeatureExtractor", since=1, domain=DOMAIN)
def array_feature_extractor(x: Tensor, indices: Tensor) -> Tensor:
    """Select entries of the last axis; one row stays a row."""
    entries = L.take(x, L.reshape(indices, (L.product(indices.shape),)), -1)
    return L.unsqueeze(entries, [0]) if x.rank == 1 else entries


@operator("FeatureVectorizer", since=1, domain=DOMAIN)
def feature_vectorizer(*xs: Tensor, inputdimensions: Sequence[int] = ()) -> Tensor:
    """Concatenate the rows of all inputs, cropped or zero-padded to ``inputdimensions`` entries."""
    rows = [L.cast(L.flatten_to(x, 1) if x.rank > 1 else L.reshape(x, (1, L.product(x.shape))), t.FLOAT) for x in xs]
    widths: Sequence[int | None] = inputdimensions or [None] * len(rows)
    if len(widths) != len(rows):
        raise InvalidModelError(f"expected {len(rows)} numbers in `inputdimensions`, got {len(widths)}.")
    return L.concat([_resize_row(row, width) for row, width in zip(rows, widths, strict=True)], -1)


def _resize_row(row: Tensor, width: int | None) -> Tensor:
    """Crop or zero-pad rows to a width."""
    if width is None or row.shape[1] == width:
        return row
    return L.pad(row, [0, 0], [0, width - row.shape[1]])
