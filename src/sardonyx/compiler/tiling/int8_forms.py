"""The pairs of integer types whose products a target adds up in a lane."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling import costs
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import DType


@dataclass(frozen=True)
class Form:
    """Element types of the operands of an integer dot product.

    Attributes:
        left: The element type of the first operand.
        right: The element type of the weights.
        dot_width: Adjacent products that one lane adds up in one instruction.
    """

    left: DType
    right: DType
    dot_width: int

    def products(self, x: Value, w: Value) -> bool:
        """Return True if the operands have these element types."""
        return dtype_of(x) == self.left and dtype_of(w) == self.right


def forms(target: Target) -> list[Form]:
    """Return the forms of the target, the fastest first."""
    known = Form(t.UINT8, t.INT8, target.together(8)), Form(t.INT16, t.INT16, target.together(16))
    return [form for form in known if form.dot_width > 1]


def suits_planes(channels: int, filters: int, taps: int, width: int | None, target: Target) -> bool:
    """Return True if floats multiply images of few channels or filters faster than lanes that hold few bytes.

    Args:
        channels: Channels of the image.
        filters: Filters.
        taps: Elements of the window of a channel.
        width: Elements of a row of the image; None if open.
        target: The processor.
    """
    lanes = target.lanes(32)
    if lanes < 16:
        return False
    if taps == 1:
        return channels * filters <= costs.MOST_PLANAR_PRODUCTS
    is_wide = width is None or width >= costs.FEWEST_PLANAR_COLUMNS or channels == 1
    if channels <= 2 and filters * channels <= lanes // 2:
        return is_wide
    # Lanes are channels, which are added at the end.
    return channels >= 2 * lanes * filters or (filters == 1 and channels >= lanes)


def form_of(x: Value, w: Value, target: Target) -> Form | None:
    """Return the form in which two operands are multiplied; None if they are ordinary numbers."""
    return next((form for form in forms(target) if form.products(x, w)), None)
