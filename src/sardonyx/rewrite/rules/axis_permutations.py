"""Orders of axes: what a Transpose makes of a value, and how an operator is said of operands in another order.

A value v *has the order p* where it is held as w with v = Transpose(w, perm=p): axis a of v is axis p[a] of w. No rule
stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import EXACT, Exactness, Expr, Op
from sardonyx.rewrite.site import Site

Order = tuple[int, ...]
Operand = Expr | ir.Value | np.ndarray | None


@dataclass(frozen=True)
class Said:
    """An operator said of operands in another order.

    Attributes:
        data: The places of the operands whose axes count.
        order: The order that its outputs have then.
        build: The operator on other operands, given for all of its places.
        exactness: Whether it gives equal bits in any order.
    """

    data: tuple[int, ...]
    order: Order
    build: Callable[[Sequence[Operand]], Expr]
    exactness: Exactness = EXACT


def inverse(order: Sequence[int]) -> Order:
    """The permutation that undoes this one."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def composed(inner: Sequence[int], outer: Sequence[int]) -> Order:
    """The permutation of a Transpose by ``outer`` of a Transpose by ``inner``."""
    return tuple(inner[axis] for axis in outer)


def retold(s: Site, inputs: Mapping[int, Operand] | None = None, **attrs: Any) -> Callable[[Sequence[Operand]], Expr]:
    """The node's operator with some operands and attributes of its own, and the rest as given."""
    node = s.node

    def build(operands: Sequence[Operand]) -> Expr:
        own = inputs or {}
        last = max([len(operands) - 1, *own])
        said = [own[i] if i in own else operands[i] if i < len(operands) else None for i in range(last + 1)]
        attributes = dict[str, Any](node.attributes) | attrs
        return Op((node.op_type,))(*said, n_outputs=len(node.outputs), **attributes)

    return build


def has_rank(s: Site, order: Order) -> bool:
    """Whether the root's first operand has so many axes."""
    return facts.rank(s.input(0)) == len(order)
