"""Random numbers: ``Random*``, ``Bernoulli``, ``Multinomial``, ``Dropout``.

Source: ONNX Operators, *RandomNormal*, *RandomNormalLike*, *RandomUniform*, *RandomUniformLike*, *Bernoulli*,
*Multinomial*, *Dropout*; Srivastava et al. (2014). Numbers are drawn in double precision, then rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core import language as L
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType
from sardonyx.core.language import Size, Tensor
from sardonyx.errors import ExecutionError, InvalidModelError
from sardonyx.ops.registry import operator


def _draw_normal(
    shape: Sequence[Size], dtype: DType, mean: float, scale: float, seed: float | None, identity: str
) -> Tensor:
    return L.cast(mean + scale * L.normal(shape, t.DOUBLE, seed=seed, identity=identity), dtype)


def _draw_uniform(
    shape: Sequence[Size], dtype: DType, low: float, high: float, seed: float | None, identity: str
) -> Tensor:
    return L.cast(low + (high - low) * L.uniform(shape, t.DOUBLE, seed=seed, identity=identity), dtype)


def _float_dtype(x: Tensor, dtype: int | None) -> DType:
    result = x.dtype if dtype is None else t.element_type(dtype)
    if not t.is_float(result):
        raise InvalidModelError(
            f"expected a float type for random numbers, got {result.name.lower()}.", remedy="Set a float `dtype`."
        )
    return result


@operator("RandomNormal", since=1)
def random_normal(
    *,
    dtype: int = int(t.FLOAT),
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    shape: Sequence[int],
    identity: str,
) -> Tensor:
    return _draw_normal(shape, t.element_type(dtype), mean, scale, seed, identity)


@operator("RandomNormalLike", since=1)
def random_normal_like(
    x: Tensor,
    *,
    dtype: int | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    identity: str,
) -> Tensor:
    return _draw_normal(x.shape, _float_dtype(x, dtype), mean, scale, seed, identity)


@operator("RandomUniform", since=1)
def random_uniform(
    *,
    dtype: int = int(t.FLOAT),
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
    shape: Sequence[int],
    identity: str,
) -> Tensor:
    return _draw_uniform(shape, t.element_type(dtype), low, high, seed, identity)


@operator("RandomUniformLike", since=1)
def random_uniform_like(
    x: Tensor,
    *,
    dtype: int | None = None,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
    identity: str,
) -> Tensor:
    return _draw_uniform(x.shape, _float_dtype(x, dtype), low, high, seed, identity)


@operator("Bernoulli", since=15)
def bernoulli(x: Tensor, *, dtype: int | None = None, seed: float | None = None, identity: str) -> Tensor:
    drawn = L.uniform(x.shape, t.DOUBLE, seed=seed, identity=identity) < L.cast(x, t.DOUBLE)
    return L.cast(drawn, x.dtype if dtype is None else t.element_type(dtype))


@operator("Multinomial", since=7)
def multinomial(
    x: Tensor, *, dtype: int = int(t.INT32), sample_size: int = 1, seed: float | None = None, identity: str
) -> Tensor:
    """Draw classes: each is the interval of the cumulative probability that contains a uniform number."""
    logits = L.cast(x, t.DOUBLE)
    ends = L.cumulative("add", L.exp(logits - L.reduce_max(logits, [1], keepdims=True)), 1)
    total = L.slice_(ends, 1, x.shape[1] - 1, x.shape[1])
    drawn = total * L.uniform((x.shape[0], sample_size), t.DOUBLE, seed=seed, identity=identity)
    passed = L.unsqueeze(drawn, [2]) >= L.unsqueeze(ends, [1])
    return L.cast(L.reduce_sum(L.cast(passed, t.INT64), [2]), t.element_type(dtype))


def _drop(x: Tensor, ratio: Tensor, seed: float | None, identity: str) -> tuple[Tensor, Tensor]:
    """Return ``x`` after dropout, scaled to preserve the mean, and the mask of surviving elements."""
    if ratio.is_constant and not 0 <= float(L.static_scalar(ratio)) < 1:
        raise ExecutionError(f"the ratio of Dropout is {L.static_scalar(ratio)}.", remedy="Use a ratio in [0, 1).")
    mask = L.uniform(x.shape, t.DOUBLE, seed=seed, identity=identity) >= ratio
    return L.where(mask, x * L.cast(1 / (1 - ratio), x.dtype), 0), mask


@operator("Dropout", since=12)
def dropout(
    x: Tensor,
    ratio: Tensor | None = None,
    training_mode: Tensor | None = None,
    *,
    seed: int | None = None,
    identity: str,
) -> tuple[Tensor, Tensor]:
    whole = L.full(x.shape, True, t.BOOL)
    if training_mode is None:
        return x, whole
    rate = L.constant(0.5) if ratio is None else L.reshape(L.cast(ratio, t.DOUBLE), ())
    y, mask = L.cond(L.reshape(training_mode, ()), lambda: _drop(x, rate, seed, identity), lambda: (x, whole))
    return y, mask  # type: ignore[return-value]


@operator("Dropout", since=7)
def dropout_in_inference(x: Tensor, *, ratio: float = 0.5, opset: int) -> tuple[Tensor, Tensor]:
    return x, L.full(x.shape, 1, t.BOOL if opset >= 10 else x.dtype)


@operator("Dropout", since=1)
def dropout_by_attribute(x: Tensor, *, is_test: int = 0, ratio: float = 0.5, identity: str) -> tuple[Tensor, Tensor]:
    if is_test:
        return x, L.ones_like(x)
    y, mask = _drop(x, L.constant(ratio, t.DOUBLE), None, identity)
    return y, L.cast(mask, x.dtype)
