"""Products in a narrow type inside a function of float32: mixed precision.

The operands of products are rounded; everything between stays in float32. Convolutions stay in float32: they have no
kernel for bfloat16, and conversions would cost more than they save. Conversions of values that all iterations of a loop
share, such as weights, are computed once before the loop.
"""

from __future__ import annotations

from typing import Any

from sardonyx.core import language as L
from sardonyx.core.eval.run_context import tracing
from sardonyx.core.eval.substitution import Substitution, substitute_values
from sardonyx.core.eval.tensor import apply, function_input
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value, function
from sardonyx.core.ir.types import DType
from sardonyx.core.language import Tensor
from sardonyx.core.transform.rewriting import Match, Rewriter, RuleSet

PRODUCTS = RuleSet("mixed precision")


@PRODUCTS.rule("contract", exact=False)
def _round_operands(m: Match, x: Tensor, y: Tensor, **params: Any) -> Tensor | None:
    if t.FLOAT not in (x.dtype, y.dtype) or x.dtype != y.dtype:
        return None
    narrow: DType = m.context
    own = {**params, "dtype": narrow}
    return L.cast(apply(m.op, L.cast(x, narrow), L.cast(y, narrow), **own), t.FLOAT)


class _Rounding(Rewriter):
    def rebuild(self, value: Value) -> Value:
        rebuilt = super().rebuild(value)
        return _with_shared_conversions(rebuilt, self.level) if rebuilt.op == "loop" else rebuilt

    def function(self, inner: Function) -> Function:
        nested = super().function(inner)
        return _Rounding(nested, PRODUCTS, self._context).rewrite(nested)


def _with_shared_conversions(loop: Value, level: int) -> Value:
    """Return a loop whose body reads conversions of shared values as further shared values.

    Args:
        loop: The loop.
        level: The nesting level of the function of the loop.
    """
    body, first = loop.params["body"], 2 + loop.params["carried"]
    inside = set(body.values).__contains__
    shared = set(body.inputs[first:])
    invariant: set[Value] = set()
    for value in body.values:
        is_movement = value.op in ("convert", "permute", "reshape") and not value.definers
        if value in shared or value.op == "constant" or (is_movement and invariant.issuperset(value.operands)):
            invariant.add(value)
    moved = [
        value for value in body.values if value in invariant and value.op == "convert"
        and any(user not in invariant for user in body.values if value in user.operands)
    ]  # fmt: skip
    if not moved:
        return loop
    outer = dict(zip(body.inputs[first:], loop.operands[first:], strict=True))
    values = substitute_values(moved, outer, level=level, inside=inside)
    inputs = [function_input(body.level, len(body.inputs) + i, value.type) for i, value in enumerate(moved)]
    results = substitute_values(
        body.results, dict(zip(moved, inputs, strict=True)), level=body.level, inside=inside
    )  # fmt: skip
    params = {**loop.params, "body": function(body.name, [*body.inputs, *inputs], results, body.level)}
    return Substitution({}, {}, level, inside).record(loop, (*loop.operands, *values), params)


def with_narrow_products(inner: Function, dtype: DType) -> Function:
    """Return the function with products of float32, also those in loops and branches, computed in another type.

    Args:
        inner: The function.
        dtype: The type of operands and results of products, which add in float32.
    """
    with tracing():
        return _Rounding(inner, PRODUCTS, dtype).rewrite(inner)
