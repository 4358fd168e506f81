"""The Euclidean length of the gradients of all parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sardonyx.core import language as L
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType
from sardonyx.core.language import Tensor


def length_type(dtypes: Iterable[DType]) -> DType:
    """Return the type of a length of gradients of some types: that of the widest, at least float32."""
    return t.DOUBLE if t.DOUBLE in set(dtypes) else t.FLOAT


def length_of(gradients: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean length of all gradients as one vector."""
    dtype = length_type(one.dtype for one in gradients)
    wide = [L.cast(g, dtype) for g in gradients]  # Before the squares, which may exceed a narrower type.
    squares = [L.reduce_sum(g * g) for g in wide]
    total = squares[0]
    for square in squares[1:]:
        total = total + square
    return L.sqrt(total)
