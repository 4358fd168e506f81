"""Products of which the columns are gates: ``[..., gates * units]``, cut into parts that are combined unit by unit.

The steps of recurrent layers are such products, and gated linear units: what is computed from all gates of a unit
follows in the product's own kernel. Its weights lie so that a register tile holds all gates of the same units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sardonyx.compiler.analysis.constant_values import is_closed
from sardonyx.compiler.analysis.primitive_traits import dtype_of, is_elementwise
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

MOST_GATES = 4
"""As many vectors of sums as a tile may have."""

_MOST_RESULTS = 3


@dataclass(frozen=True)
class Gates:
    """A product of gates, and what is computed of them.

    Attributes:
        product: The ``contract``, ``[..., gates * units]``.
        units: Columns of a gate.
        parts: The slices that are gates, and their numbers.
        results: What is computed of them unit by unit and read elsewhere, in order.
        members: All values between, with these.
    """

    product: Value
    units: int
    parts: Mapping[Value, int]
    results: tuple[Value, ...]
    members: frozenset[Value]

    @property
    def count(self) -> int:
        """How many gates there are."""
        columns = shape_of(self.product)[-1]
        assert isinstance(columns, int)
        return columns // self.units


def gates(
    product: Value, order: Sequence[Value], users: Mapping[Value, Sequence[Value]], kept: Callable[[Value], bool]
) -> Gates | None:
    """A ``contract`` as a product of gates; None where its columns are none.

    Args:
        product: The ``contract``.
        order: All values, operands first, from the product on.
        users: Who reads a value.
        kept: Whether a value has to be in memory.
    """
    if not _is_plain(product) or not any(user.op == "slice" or is_elementwise(user) for user in users[product]):
        return None
    found = _Search(product)
    for value in order:
        found.take(value)
    inside = found.inside
    ends = [v for v in found.narrow if kept(v) or any(user not in inside for user in users[v])]
    others = [v for v in (*found.wide, *found.parts) if kept(v) or any(user not in inside for user in users[v])]
    several = len(frozenset().union(*(found.reads[end] for end in ends))) > 1
    if others or not several or len(ends) > _MOST_RESULTS:
        return None
    return Gates(product, found.units, found.parts, tuple(ends), frozenset(inside))


def _is_plain(product: Value) -> bool:
    """Whether a product is one of rows by a matrix of weights."""
    params, weights = product.params, product.operands[1]
    return (
        not params["batch"]
        and len(params["left"]) == len(params["right"]) == 1
        and dtype_of(product) in (t.FLOAT, t.DOUBLE)
        and len(shape_of(weights)) == 2
        and all(isinstance(size, int) for size in shape_of(weights))
        and is_closed(weights)
    )


class _Search:
    """What is computed of a product place by place, value by value.

    Args:
        product: The product.

    Attributes:
        units: Columns of a gate; 0 as long as no part was met.
        wide: Values of all columns.
        parts: Slices of these, and which gate they are.
        narrow: Values of a gate's columns.
        reads: The gates that each of those needs.
    """

    def __init__(self, product: Value) -> None:
        self.units = 0
        self.wide: dict[Value, None] = {product: None}
        self.parts: dict[Value, int] = {}
        self.narrow: dict[Value, None] = {}
        self.reads: dict[Value, frozenset[int]] = {}
        self._outside: set[Value] = set()

    @property
    def inside(self) -> set[Value]:
        """All that was found."""
        return {*self.wide, *self.parts, *self.narrow}

    def take(self, value: Value) -> None:
        """Look at a value, after its operands."""
        if value in self.wide:
            return
        operands = value.operands
        wide, narrow = [v for v in operands if v in self.wide], [v for v in operands if v in self.reads]
        outside = any(v in self._outside for v in operands)
        if not wide and not narrow and not outside:
            return
        if outside or (wide and narrow):
            self._outside.add(value)
        elif wide and is_elementwise(value):
            self.wide[value] = None
        elif wide and (gate := self._gate(value)) is not None:
            self.parts[value] = gate
            self.reads[value] = frozenset((gate,))
        elif narrow and is_elementwise(value):
            self.narrow[value] = None
            self.reads[value] = frozenset().union(*(self.reads[v] for v in narrow))
        else:
            self._outside.add(value)

    def _gate(self, value: Value) -> int | None:
        """Which gate a value is."""
        if value.op != "slice":
            return None
        shape = shape_of(value.operands[0])
        first, last = value.params["starts"][-1], value.params["limits"][-1]
        whole = value.params["starts"][:-1] == (0,) * (len(shape) - 1) and shape_of(value)[:-1] == shape[:-1]
        if not whole or set(value.params["strides"]) != {1} or not isinstance(first, int) or not isinstance(last, int):
            return None
        units, columns = last - first, shape[-1]
        assert isinstance(columns, int)
        fits = units > 0 and columns % units == 0 and first % units == 0 and 1 < columns // units <= MOST_GATES
        if not fits or self.units not in (0, units):
            return None
        self.units = units
        return first // units
