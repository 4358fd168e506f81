"""Orders of axes: the permutation of a Transpose, and operators rebuilt for operands in another order.

A value v *has the order p* if v = Transpose(w, perm=p) for a stored w: axis a of v is axis p[a] of w. This module has
no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import EXACT, Exactness, Expr, Op
from sardonyx.rewrite.site import Site

Order = tuple[int, ...]
Operand = Expr | ir.Value | np.ndarray | None


@dataclass(frozen=True)
class Reordered:
    """An operator rebuilt for operands in another order.

    Attributes:
        data: Indices of the operands whose axes count.
        order: The order of the outputs.
        build: The operator as a function of all its operands.
        exactness: EXACT if the bits are equal in any order.
    """

    data: tuple[int, ...]
    order: Order
    build: Callable[[Sequence[Operand]], Expr]
    exactness: Exactness = EXACT


def invert_order(order: Sequence[int]) -> Order:
    """Return the inverse permutation."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def compose_orders(inner: Sequence[int], outer: Sequence[int]) -> Order:
    """Return the permutation of a Transpose by ``outer`` of a Transpose by ``inner``."""
    return tuple(inner[axis] for axis in outer)


def rebuild_reordered(
    s: Site, inputs: Mapping[int, Operand] | None = None, **attrs: Any
) -> Callable[[Sequence[Operand]], Expr]:
    """Return a builder of the node's operator with some operands and attributes replaced."""
    node = s.node

    def build(operands: Sequence[Operand]) -> Expr:
        own = inputs or {}
        last = max([len(operands) - 1, *own])
        said = [own[i] if i in own else operands[i] if i < len(operands) else None for i in range(last + 1)]
        attributes = dict[str, Any](node.attributes) | attrs
        return Op((node.op_type,))(*said, n_outputs=len(node.outputs), **attributes)

    return build


def has_rank(s: Site, order: Order) -> bool:
    """Return True if the root's first operand has as many axes as the order."""
    return facts.rank(s.input(0)) == len(order)
