"""Conditions on numbers that depend on data, kept as assertions of a captured program where torch would drop them.

- torch takes counted sizes for at least 2 where it asks for no guard, so it never learns a smaller upper bound; yet it
  drops the assertion of such a bound, as one that the learned bounds imply. A loop that ends when no rows are left
  would lose the condition on which it ended. Bounds of numbers in floating point are dropped too.
- torch writes no conditions on numbers in floating point that are rounded to integers, or on integers among them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import sympy
import torch
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.symbolic_shapes import RuntimeAssert, ShapeEnv
from torch.utils._sympy.functions import Max, Min
from torch.utils._sympy.reference import PythonReferenceAnalysis
from torch.utils._sympy.symbol import SymT, symbol_is_type

from sardonyx.base.replaced_attributes import replaced


@contextlib.contextmanager
def kept_bounds() -> Iterator[None]:
    """Write bounds that torch would drop as equations inside of the ``with`` statement."""
    own = ShapeEnv.guard_or_defer_runtime_assert

    def defer(self: Any, expression: Any, message: str, *rest: Any, **options: Any) -> bool:
        is_kept: bool = own(self, expression, message, *rest, **options)
        symbols = getattr(expression, "free_symbols", ())
        for rows in [self.deferred_runtime_asserts.get(symbol, []) for symbol in symbols]:
            rows[:] = [_as_equation(row, self.size_like) for row in rows]
        return is_kept

    with replaced(ShapeEnv, "guard_or_defer_runtime_assert", defer):
        yield


@contextlib.contextmanager
def kept_roundings() -> Iterator[None]:
    """Write conditions on rounded numbers as assertions inside of the ``with`` statement."""

    def calling(function: Callable[[Any], Any]) -> Any:
        def call(x: Any, dtype: Any) -> Any:
            if isinstance(x, torch.fx.Proxy):
                return x.tracer.create_proxy("call_function", function, (x,), {})
            return function(x)

        return staticmethod(call)

    with (
        replaced(symbolic_shapes, "_has_uninterpretable_sympy_function", lambda expression: False),
        replaced(PythonReferenceAnalysis, "floor_to_int", calling(math.floor)),
        replaced(PythonReferenceAnalysis, "ceil_to_int", calling(math.ceil)),
        replaced(PythonReferenceAnalysis, "round_to_int", calling(round)),
        replaced(PythonReferenceAnalysis, "trunc_to_int", calling(torch.sym_int), is_new=True),
    ):
        yield


def _as_equation(row: RuntimeAssert, counted: set[Any]) -> RuntimeAssert:
    """Return the assertion of a bound that torch would drop as that of an equation; others unchanged."""
    expression = row.expr
    if not isinstance(expression, (sympy.LessThan, sympy.GreaterThan)):
        return row
    less, greater = expression.lts, expression.gts
    if less.is_Symbol and greater.is_number and (_is_float(less) or (less in counted and greater < 2)):
        is_zero = less in counted and greater <= 0
        equation = sympy.Eq(less, 0) if is_zero else sympy.Eq(Max(less, greater), greater)
    elif greater.is_Symbol and less.is_number and _is_float(greater):
        equation = sympy.Eq(Min(greater, less), less)
    else:
        return row
    return RuntimeAssert(equation, row.msg, row.stack)


def _is_float(symbol: Any) -> bool:
    """Return True if a symbol of torch is a number in floating point that depends on data."""
    return bool(symbol_is_type(symbol, SymT.UNBACKED_FLOAT))
