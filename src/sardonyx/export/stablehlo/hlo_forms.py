"""The table of StableHLO forms by primitive, and the readings of values that forms share."""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import DType, Shape
from sardonyx.export.stablehlo.text_writer import Operand, TextWriter

HloRule = Callable[..., Operand]

HLO_FORMS: dict[str, HloRule] = {}


def hlo_form(*names: str) -> Callable[[HloRule], HloRule]:
    """Register the StableHLO form of primitives."""

    def register(rule: HloRule) -> HloRule:
        HLO_FORMS.update(dict.fromkeys(names, rule))
        return rule

    return register


def dtype_of(value: Value) -> DType:
    """Return the element type of a tensor value."""
    return value.type.dtype  # type: ignore[union-attr]


def shape_of(value: Value) -> Shape:
    """Return the sizes of a tensor value."""
    return value.type.shape  # type: ignore[union-attr,return-value]


def number_like(w: TextWriter, number: float, like: Operand) -> Operand:
    """Return a number in the type and shape of an operand."""
    return w.full(number, like.dtype, like.shape)
