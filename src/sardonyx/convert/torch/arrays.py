"""Tensors of torch as arrays, and back: element types that numpy lacks, complex numbers as pairs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch

_FOREIGN_TYPES = {name: getattr(torch, name) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")}
"""Element types that numpy has from ``ml_dtypes``, by their name in both."""


def as_torch(array: Any, like: Any) -> Any:
    """Return an array as the kind of value that an example is: a tensor of its type, or a number."""
    if isinstance(like, torch.Tensor):
        foreign = _FOREIGN_TYPES.get(array.dtype.name)
        if foreign is None:
            value = torch.from_numpy(np.array(array, copy=True))
        else:
            bits = np.int16 if array.dtype.itemsize == 2 else np.uint8
            value = torch.from_numpy(np.array(array).view(bits).copy()).view(foreign)
        return torch.view_as_complex(value) if like.is_complex() else value.to(like.dtype)
    return type(like)(array.item()) if isinstance(like, (int, float, bool)) else array


def as_array(tensor: torch.Tensor) -> Any:
    """Return a tensor as an array; complex numbers as pairs of real ones on a last axis."""
    value = tensor.detach().cpu()
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    for name, foreign in _FOREIGN_TYPES.items():
        if value.dtype == foreign:
            bits = torch.int16 if value.element_size() == 2 else torch.uint8
            return value.contiguous().view(bits).numpy().view(getattr(ml_dtypes, name))
    return value.resolve_neg().contiguous().numpy()
