"""Orthogonal polynomials by their recurrences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sardonyx.convert.torch.operators.elementwise import where_
from sardonyx.convert.torch.operators.promotion import cast, floating, is_number, promoted
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.convert.torch.operators.sizes import aligned, common_shape
from sardonyx.core import language as L
from sardonyx.core.eval.tensor import Tensor, constant
from sardonyx.core.ir import types as t


@dataclass(frozen=True)
class _Family:
    """A family of polynomials of degree n.

    Attributes:
        first: The polynomial of degree 1.
        step: The polynomial of degree k from those of degrees k - 1 and k - 2, with x and k.
        shifted: True if the argument is 2 x - 1.
    """

    first: Callable[[Tensor], Tensor]
    step: Callable[[Tensor, Any, Tensor, Tensor], Tensor]
    shifted: bool = False


def _double(x: Tensor, k: Any, last: Tensor, before: Tensor) -> Tensor:
    return 2 * x * last - before


_CHEBYSHEV: dict[str, Callable[[Tensor], Tensor]] = {
    "t": lambda x: x,
    "u": lambda x: 2 * x,
    "v": lambda x: 2 * x - 1,
    "w": lambda x: 2 * x + 1,
}
_FAMILIES = {f"chebyshev_polynomial_{kind}": _Family(first, _double) for kind, first in _CHEBYSHEV.items()} | {
    f"shifted_chebyshev_polynomial_{kind}": _Family(first, _double, True) for kind, first in _CHEBYSHEV.items()
}
_FAMILIES["hermite_polynomial_h"] = _Family(lambda x: 2 * x, lambda x, k, p, q: 2 * x * p - 2 * (k - 1) * q)
_FAMILIES["hermite_polynomial_he"] = _Family(lambda x: x, lambda x, k, p, q: x * p - (k - 1) * q)
_FAMILIES["laguerre_polynomial_l"] = _Family(
    lambda x: 1 - x, lambda x, k, p, q: ((2 * k - 1 - x) * p - (k - 1) * q) / k
)
_FAMILIES["legendre_polynomial_p"] = _Family(lambda x: x, lambda x, k, p, q: ((2 * k - 1) * x * p - (k - 1) * q) / k)


def _of_number(family: _Family, x: Tensor, n: int) -> Tensor:
    if n < 0:
        return L.zeros_like(x)
    before, last = L.ones_like(x), family.first(x)
    if n == 0:
        return before
    for k in range(2, n + 1):
        before, last = last, family.step(x, k, last, before)
    return last


def _of_tensor(family: _Family, x: Tensor, n: Tensor) -> Tensor:
    """Return the polynomials of degrees that are elements: a loop up to the greatest."""
    degree = cast(n, t.INT64)

    def step(i: Tensor, before: Tensor, last: Tensor, result: Tensor) -> Any:
        k = i + 2
        new = family.step(x, cast(k, x.dtype), last, before)
        return None, [last, new, where_(L.equal(degree, k), new, result)], []

    one, first = L.ones_like(x), family.first(x)
    start = where_(L.equal(degree, 0), one, where_(L.equal(degree, 1), first, L.zeros_like(x)))
    flat = L.concat([L.reshape(degree, [L.product(degree.shape)]), constant([1])], 0)
    count = L.reduce_max(flat, [0]) - 1
    (_, _, result), _ = L.loop(count, None, [one, first, start], step)
    return result  # type: ignore[no-any-return]


def _translation(family: _Family) -> Callable[[Any, Any], Tensor]:
    def translation(x: Any, n: Any) -> Tensor:
        if is_number(n):
            x = floating(x)
            value = cast(x, t.DOUBLE)
            return cast(_of_number(family, 2 * value - 1 if family.shifted else value, int(n)), x.dtype)
        x, n = promoted(floating(x) if isinstance(x, Tensor) else float(x), floating(n))
        dtype, shape = x.dtype, common_shape(x, n)
        value, n = cast(aligned(x, shape), t.DOUBLE), aligned(n, shape)
        return cast(_of_tensor(family, 2 * value - 1 if family.shifted else value, n), dtype)

    return translation


for _name, _family in _FAMILIES.items():
    aten(f"special_{_name}.default", f"special_{_name}.n_scalar", f"special_{_name}.x_scalar")(_translation(_family))
