"""Products whose columns are gates, ``[..., gates * units]``, combined unit by unit.

Examples are the steps of recurrent layers and gated linear units. The computation from all gates of a unit becomes the
epilogue of the product's kernel. The weights are packed so that a register tile holds all gates of the same units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sardonyx.compiler.analysis.constant_values import is_closed
from sardonyx.compiler.analysis.low_bit_weights import match_low_bits
from sardonyx.compiler.analysis.primitive_traits import dtype_of, is_elementwise
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

MOST_GATES = 4
"""Maximum number of gates: a tile holds one vector of sums for each gate."""

_MOST_RESULTS = 3


@dataclass(frozen=True)
class Gates:
    """A product of gates and the computation from the gates.

    Attributes:
        product: The ``contract``, ``[..., gates * units]``.
        units: Columns of a gate.
        parts: The slices that are gates, with the gate's index.
        results: The values computed from gates unit by unit and read elsewhere, in order.
        members: The product and all values from there to the results.
    """

    product: Value
    units: int
    parts: Mapping[Value, int]
    results: tuple[Value, ...]
    members: frozenset[Value]

    @property
    def count(self) -> int:
        """Number of gates."""
        columns = shape_of(self.product)[-1]
        assert isinstance(columns, int)
        return columns // self.units


def find_gates(
    product: Value, order: Sequence[Value], users: Mapping[Value, Sequence[Value]], is_stored: Callable[[Value], bool]
) -> Gates | None:
    """Match a ``contract`` as a product of gates; return None if the columns are not gates.

    Args:
        product: The ``contract``.
        order: All values from the product on, operands first.
        users: The readers of a value.
        is_stored: Returns True if a value must be in memory.
    """
    if not _is_plain(product) or not any(user.op == "slice" or is_elementwise(user) for user in users[product]):
        return None
    search = _Search(product)
    for value in order:
        search.add(value)
    members = search.members

    def is_read_outside(value: Value) -> bool:
        return is_stored(value) or any(user not in members for user in users[value])

    results = [value for value in search.narrow if is_read_outside(value)]
    several = len(frozenset().union(*(search.reads[result] for result in results))) > 1
    if any(map(is_read_outside, (*search.wide, *search.parts))) or not several or len(results) > _MOST_RESULTS:
        return None
    return Gates(product, search.units, search.parts, tuple(results), frozenset(members))


def _is_plain(product: Value) -> bool:
    """Return True if a product multiplies rows by a constant matrix of weights."""
    params, weights = product.params, product.operands[1]
    return (
        not params["batch"]
        and len(params["left"]) == len(params["right"]) == 1
        and dtype_of(product) in (t.FLOAT, t.DOUBLE)
        and len(shape_of(weights)) == 2
        and all(isinstance(size, int) for size in shape_of(weights))
        and is_closed(weights)
        and match_low_bits(weights) is None
    )


class _Search:
    """The elementwise computation from the columns of a product, collected value by value.

    Args:
        product: The product.

    Attributes:
        units: Columns of a gate; 0 before the first part.
        wide: Values of all columns.
        parts: Slices of ``wide`` values, with the index of the gate.
        narrow: Values with the columns of one gate.
        reads: The gates that a part or a ``narrow`` value depends on.
    """

    def __init__(self, product: Value) -> None:
        self.units = 0
        self.wide: dict[Value, None] = {product: None}
        self.parts: dict[Value, int] = {}
        self.narrow: dict[Value, None] = {}
        self.reads: dict[Value, frozenset[int]] = {}
        self._outside: set[Value] = set()

    @property
    def members(self) -> set[Value]:
        """The values collected so far."""
        return {*self.wide, *self.parts, *self.narrow}

    def add(self, value: Value) -> None:
        """Classify a value whose operands are already classified."""
        if value in self.wide:
            return
        operands = value.operands
        wide, narrow = [v for v in operands if v in self.wide], [v for v in operands if v in self.reads]
        is_outside = any(v in self._outside for v in operands)
        if not wide and not narrow and not is_outside:
            return
        if is_outside or (wide and narrow):
            self._outside.add(value)
        elif wide and is_elementwise(value):
            self.wide[value] = None
        elif wide and (gate := self._gate_index(value)) is not None:
            self.parts[value] = gate
            self.reads[value] = frozenset((gate,))
        elif narrow and is_elementwise(value):
            self.narrow[value] = None
            self.reads[value] = frozenset().union(*(self.reads[v] for v in narrow))
        else:
            self._outside.add(value)

    def _gate_index(self, value: Value) -> int | None:
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
