"""Conditions that a counted size is 0 or at most 1, kept as assertions of a captured program.

torch takes counted sizes for at least 2 where it asks for no guard, so it never learns a smaller upper bound; yet it
drops the assertion of such a bound, as one that the learned bounds imply. A loop that ends when no rows are left would
lose the condition on which it ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import sympy
from torch.fx.experimental.symbolic_shapes import RuntimeAssert, ShapeEnv
from torch.utils._sympy.functions import Max

from sardonyx.base.replaced_attributes import replaced


@contextlib.contextmanager
def small_bounds() -> Iterator[None]:
    """Write upper bounds of counted sizes below 2 as equations inside of the ``with`` statement."""
    own = ShapeEnv.guard_or_defer_runtime_assert

    def defer(self: Any, expression: Any, message: str, *rest: Any, **options: Any) -> bool:
        is_kept: bool = own(self, expression, message, *rest, **options)
        symbols = getattr(expression, "free_symbols", ())
        for rows in [self.deferred_runtime_asserts.get(symbol, []) for symbol in symbols]:
            rows[:] = [_as_equation(row, self.size_like) for row in rows]
        return is_kept

    with replaced(ShapeEnv, "guard_or_defer_runtime_assert", defer):
        yield


def _as_equation(row: RuntimeAssert, counted: set[Any]) -> RuntimeAssert:
    """Return the assertion of a bound below 2 as that of an equation; others unchanged."""
    expression = row.expr
    if not isinstance(expression, sympy.LessThan):
        return row
    size, bound = expression.args
    if size not in counted or not isinstance(bound, sympy.Integer) or bound >= 2:
        return row
    return RuntimeAssert(sympy.Eq(Max(size, bound), bound) if bound > 0 else sympy.Eq(size, 0), row.msg, row.stack)
