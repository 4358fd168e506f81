"""Tensors created from numbers and sizes alone."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core.dim import Size
from sardonyx.core.eval.tensor import Operand, Tensor, apply, broadcast_to, constant
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType
from sardonyx.core.language.static_values import normalized_axis


def full(shape: Sequence[Size], value: Operand, dtype: DType) -> Tensor:
    """Return a tensor of one repeated value."""
    one = value if isinstance(value, Tensor) else constant(value, dtype)
    return broadcast_to(one, tuple(shape))


def full_like(x: Tensor, value: Operand) -> Tensor:
    """Return a tensor of one repeated value, with the shape and element type of ``x``."""
    return full(x.shape, value, x.dtype)


def zero(dtype: DType) -> Tensor:
    """Return a scalar 0; for strings, the empty one."""
    return constant("" if dtype == t.STRING else 0, dtype)


def zeros_like(x: Tensor) -> Tensor:
    """Return zeros with the shape and element type of ``x``."""
    return full_like(x, 0)


def ones_like(x: Tensor) -> Tensor:
    """Return ones with the shape and element type of ``x``."""
    return full_like(x, 1)


def iota(shape: Sequence[Size], axis: int, dtype: DType = t.INT64) -> Tensor:
    """Return 0, 1, 2 … along an axis."""
    return apply("iota", shape=tuple(shape), axis=normalized_axis(axis, len(shape)), dtype=dtype)


def arange(count: Size, dtype: DType = t.INT64) -> Tensor:
    """Return 0, 1, 2 … as a vector."""
    return iota((count,), 0, dtype)


def uniform(shape: Sequence[Size], dtype: DType, *, seed: float | None, identity: str) -> Tensor:
    """Return uniform random numbers in [0, 1)."""
    return apply("random", kind="uniform", shape=tuple(shape), dtype=dtype, seed=seed, identity=identity)


def normal(shape: Sequence[Size], dtype: DType, *, seed: float | None, identity: str) -> Tensor:
    """Return random numbers of mean 0 and standard deviation 1."""
    return apply("random", kind="normal", shape=tuple(shape), dtype=dtype, seed=seed, identity=identity)
