"""Which integers a target multiplies and adds several of in a lane."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.target.description import Target
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import DType


@dataclass(frozen=True)
class Form:
    """How integers are multiplied.

    Attributes:
        left: The element type of the first operand.
        right: The element type of the weights.
        together: How many products are added up in a lane at once.
    """

    left: DType
    right: DType
    together: int

    def products(self, x: Value, w: Value) -> bool:
        """Whether these are operands of such products."""
        return dtype_of(x) == self.left and dtype_of(w) == self.right


def forms(target: Target) -> list[Form]:
    """What the target has, the fastest first."""
    known = Form(t.UINT8, t.INT8, target.together(8)), Form(t.INT16, t.INT16, target.together(16))
    return [form for form in known if form.together > 1]


def form_of(x: Value, w: Value, target: Target) -> Form | None:
    """The form in which two operands are multiplied; None where they are numbers like any others."""
    return next((form for form in forms(target) if form.products(x, w)), None)
