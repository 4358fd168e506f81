"""Random numbers: other draws than torch's of the same distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sardonyx.convert.torch.operators.ordering import ordered
from sardonyx.convert.torch.operators.promotion import cast, core_dtype, tensor_of
from sardonyx.convert.torch.operators.registry import aten, site
from sardonyx.convert.torch.operators.sizes import size_of
from sardonyx.core import language as L
from sardonyx.core.dim import Size
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType


def _result() -> Any:
    result = site.get().result
    return result[0] if isinstance(result, (tuple, list)) else result


def _dtype() -> DType:
    return core_dtype(_result().dtype)


def _shape(args: Sequence[Any]) -> list[Size]:
    """Return the shape among the arguments: that of a tensor, or the list of sizes."""
    for value in args:
        if isinstance(value, Tensor):
            return list(value.shape)
        if isinstance(value, (tuple, list)):
            return [size_of(size) for size in value]
    return []


def uniform(shape: Sequence[Size], dtype: DType, suffix: str = "") -> Tensor:
    """Return numbers of the uniform distribution over [0, 1), other ones for each call of the program."""
    drawn = dtype if dtype in (t.FLOAT, t.DOUBLE) else t.FLOAT
    return cast(L.uniform(shape, drawn, seed=None, identity=site.get().name + suffix), dtype)


def _normal(shape: Sequence[Size], dtype: DType) -> Tensor:
    drawn = dtype if dtype in (t.FLOAT, t.DOUBLE) else t.FLOAT
    return cast(L.normal(shape, drawn, seed=None, identity=site.get().name), dtype)


@aten("rand.default", "rand_like.default", "rand.generator")
def _rand(*args: Any, **_: Any) -> Tensor:
    return uniform(_shape(args), _dtype())


@aten("randn.default", "randn_like.default", "randn.generator", "normal_functional.default")
def _randn(*args: Any, **_: Any) -> Tensor:
    return _normal(_shape(args), _dtype())


@aten("normal.float_float")
def _normal_numbers(mean: float, std: float, size: Sequence[Any], **_: Any) -> Tensor:
    return _normal([size_of(one) for one in size], _dtype()) * std + mean


@aten("normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor")
def _normal_tensors(mean: Any, std: Any = 1.0, **_: Any) -> Tensor:
    dtype = _dtype()
    shape = mean.shape if isinstance(mean, Tensor) else std.shape
    return _normal(shape, dtype) * tensor_of(std, dtype) + tensor_of(mean, dtype)


@aten("uniform.default")
def _uniform(x: Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> Tensor:
    return uniform(x.shape, x.dtype) * (high - low) + low


def _integers(shape: Sequence[Size], low: Any, high: Any) -> Tensor:
    low, high = tensor_of(low, t.DOUBLE), tensor_of(high, t.DOUBLE)
    return cast(L.floor(uniform(shape, t.DOUBLE) * (high - low) + low), _dtype())


@aten("randint.default", "randint_like.default")
def _randint(first: Any, second: Any, *rest: Any, **_: Any) -> Tensor:
    if isinstance(first, Tensor):
        return _integers(first.shape, 0, second)
    return _integers(_shape([second]), 0, first)


@aten("randint.low", "randint_like.low_dtype")
def _randint_between(first: Any, second: Any, third: Any, **_: Any) -> Tensor:
    if isinstance(first, Tensor):
        return _integers(first.shape, second, third)
    return _integers(_shape([third]), first, second)


@aten("randperm.default")
def _randperm(n: Any, **_: Any) -> Tensor:
    size = size_of(n)
    return cast(ordered(uniform([size], t.FLOAT), 0, size, False)[1], _dtype())


@aten("bernoulli.default")
def _bernoulli(x: Tensor, **_: Any) -> Tensor:
    return cast(uniform(x.shape, x.dtype) < x, x.dtype)


@aten("bernoulli.p", "bernoulli.Tensor")
def _bernoulli_number(x: Tensor, p: Any = 0.5, **_: Any) -> Tensor:
    return cast(uniform(x.shape, t.FLOAT) < tensor_of(p, t.FLOAT), x.dtype)


@aten("exponential.default")
def _exponential(x: Tensor, rate: float = 1.0, **_: Any) -> Tensor:
    return L.log(1 - uniform(x.shape, x.dtype)) * (-1 / rate)


@aten("multinomial.default")
def _multinomial(x: Tensor, num_samples: Any, replacement: bool = False, **_: Any) -> Tensor:
    count = size_of(num_samples)
    if not replacement:
        noise = -L.log(-L.log(uniform(x.shape, x.dtype) + 1e-20) + 1e-20)
        return ordered(L.log(x) + noise, -1, count, True)[1]
    ends = L.cumulative("add", x, x.rank - 1)
    total = L.slice_(ends, -1, ends.shape[-1] - 1, ends.shape[-1])
    draws = uniform([*x.shape[:-1], count], x.dtype) * total
    return L.reduce_sum(cast(L.unsqueeze(draws, [-1]) >= L.unsqueeze(ends, [-2]), t.INT64), [-1])


def _dropped(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    mask = uniform(x.shape, t.FLOAT) >= p
    scale = 1 / (1 - p) if p < 1 else 0.0
    return x * cast(mask, x.dtype) * scale, mask


@aten("log_normal.default")
def _log_normal(x: Tensor, mean: float = 1.0, std: float = 2.0, **_: Any) -> Tensor:
    return L.exp(_normal(x.shape, x.dtype) * std + mean)


@aten("cauchy.default")
def _cauchy(x: Tensor, median: float = 0.0, sigma: float = 1.0, **_: Any) -> Tensor:
    return L.tan((uniform(x.shape, x.dtype) - 0.5) * math.pi) * sigma + median
