"""Products in a narrow type inside a function of float32: mixed precision.

The operands of products are rounded; everything between stays in float32. The gradients of a product are products of
rounded operands too, because the gradient of a conversion is a conversion. Convolutions stay in float32: they have no
kernel for bfloat16, and conversions would cost more than they save.
"""

from __future__ import annotations

from typing import Any

from sardonyx.core import language as L
from sardonyx.core.eval.run_context import tracing
from sardonyx.core.eval.tensor import apply
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import DType
from sardonyx.core.language import Tensor
from sardonyx.core.transform.rewriting import Match, Rewriter, RuleSet

PRODUCTS = RuleSet("mixed precision")


@PRODUCTS.rule("contract", exact=False)
def _round_operands(m: Match, x: Tensor, y: Tensor, **params: Any) -> Tensor | None:
    if t.FLOAT not in (x.dtype, y.dtype) or x.dtype != y.dtype:
        return None
    narrow: DType = m.context
    # A rounded result has a rounded cotangent: the products of the backward pass are narrow too.
    own = {**params, "dtype": narrow}
    return L.cast(apply(m.op, L.cast(x, narrow), L.cast(y, narrow), **own), t.FLOAT)


class _Rounding(Rewriter):
    def function(self, inner: Function) -> Function:
        nested = super().function(inner)
        return _Rounding(nested, PRODUCTS, self._context).rewrite(nested)


def with_narrow_products(inner: Function, dtype: DType) -> Function:
    """Return the function with products of float32, also those in loops and branches, computed in another type.

    Args:
        inner: The function.
        dtype: The type of operands and results of products, which add in float32.
    """
    with tracing():
        return _Rounding(inner, PRODUCTS, dtype).rewrite(inner)
