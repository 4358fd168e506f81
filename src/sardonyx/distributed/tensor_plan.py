"""The plan of tensor-parallel parts: which values of a Core function are divided, and where ways exchange results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sardonyx.core.ir.graph import CLOSED, Function, Value
from sardonyx.core.ir.types import TensorType
from sardonyx.distributed.axis_rules import Axes, divide, is_divisible, own_axes, shape_of

LEAST_ELEMENTS = 4096
"""Elements of weights from which a product is divided: a smaller one costs less than an exchange."""

_TABLE_ELEMENTS = 1 << 20
"""Elements of a table from which its rows are divided: the ways exchange the rows that a request reads."""

PARTIAL = -1
"""In place of a divided axis: the results of all ways, added, are the value."""


@dataclass
class Plan:
    """The plan of a function.

    Attributes:
        function: The function.
        ways: The number of ways.
        axis: The divided axis of each value, :data:`PARTIAL`, or None for values that every way has whole.
        operands: The axes along which each value needs its operands.
        stage: The stage that computes each value; ways exchange results between stages.
        exchanged: Divided values that every reader needs whole.
    """

    function: Function
    ways: int
    axis: dict[Value, int | None] = field(default_factory=dict)
    operands: dict[Value, Axes] = field(default_factory=dict)
    stage: dict[Value, int] = field(default_factory=dict)
    exchanged: frozenset[Value] = frozenset()

    @property
    def divided_products(self) -> list[Value]:
        """The products whose weights are divided."""
        return [value for value in self.function.values if _weights(value) is not None and self.axis[value] is not None]

    def is_joined(self, operand: Value, needed: int | None) -> bool:
        """Return True if a value is exchanged before it is read along an axis."""
        axis = self.axis[operand]
        return axis is not None and (axis != needed or operand in self.exchanged)

    def present(self, operand: Value) -> int | None:
        """Return the divided axis of a value as its readers find it; None if they find the whole."""
        axis = self.axis[operand]
        return None if axis == PARTIAL or operand in self.exchanged else axis


def plan(function: Function, ways: int) -> Plan:
    """Return the plan for a function without calls.

    A product of a whole value and weights is divided along an axis that the weights alone have, and a table of
    embeddings along its last axis, whose rows are exchanged at once. Divisions follow the rules; where there is none,
    the ways exchange what they have. A value that one reader needs whole is whole for all.
    """
    tables = [value for value in function.values if value.op == "gather" and _divided_table(value, ways) is not None]
    exchanged = frozenset(tables)
    while True:
        layout = Plan(function, ways, exchanged=exchanged)
        for value in function.inputs:
            layout.axis[value], layout.stage[value] = None, 0
        for value in function.values:
            if value not in layout.axis:
                _add(layout, value)
        read_whole = frozenset(
            operand
            for value in function.values
            for operand, need in zip(value.operands, layout.operands.get(value, ()), strict=False)
            if layout.present(operand) is not None and layout.is_joined(operand, need)
        )
        if not read_whole:
            return layout
        exchanged |= read_whole


def _add(layout: Plan, value: Value) -> None:
    operands = value.operands
    whole: Axes = (None,) * len(operands)
    axis, needed = None, whole
    if value.level != CLOSED:
        present = tuple(layout.present(one) for one in operands)
        division = None
        if any(one is not None for one in present):
            division = divide(value, present, layout.ways)
        elif (seed := _divided_weights(value, layout.ways)) is not None:
            division = divide(value, seed, layout.ways)
        if division is not None:
            axis = PARTIAL if division.axis is None else division.axis
            needed = division.operands
    layout.axis[value], layout.operands[value] = axis, needed
    layout.stage[value] = max(
        (layout.stage[one] + layout.is_joined(one, need) for one, need in zip(operands, needed, strict=True)), default=0
    )


def _weights(value: Value) -> int | None:
    """Return the position of the weights of a product of a value and constants; None for other values."""
    if value.op not in ("contract", "convolve"):
        return None
    closed = [operand.level == CLOSED for operand in value.operands]
    return closed.index(True) if closed.count(True) == 1 else None


def _divided_weights(value: Value, ways: int) -> Axes | None:
    """Return the operands' axes of a product, or of the rows of a table, that begins a division."""
    if value.op == "gather":
        return _divided_table(value, ways)
    side = _weights(value)
    if side is None:
        return None
    weights = value.operands[side]
    sizes = [size for size in shape_of(weights) if isinstance(size, int)]
    if len(sizes) < len(shape_of(weights)) or math.prod(sizes) < LEAST_ELEMENTS:
        return None
    for axis in _weights_axes(value, side):
        if is_divisible(weights, axis, ways):
            return (axis, None) if side == 0 else (None, axis)
    return None


def _divided_table(value: Value, ways: int) -> Axes | None:
    table, indices = value.operands
    sizes = [size for size in shape_of(table) if isinstance(size, int)]
    is_large = len(sizes) == len(shape_of(table)) and math.prod(sizes) >= _TABLE_ELEMENTS
    if table.level != CLOSED or indices.level == CLOSED or not is_large:
        return None
    axis = len(sizes) - 1
    return (axis, None) if is_divisible(table, axis, ways) else None


def _weights_axes(value: Value, side: int) -> Sequence[int]:
    """Return the axes of the weights that the other operand lacks."""
    if value.op == "convolve":
        return [1] if side == 1 and shape_of(value.operands[1])[0] == 1 else []
    return own_axes(value, side)


def is_tensor(value: Value) -> bool:
    """Return True for tensors, which alone are exchanged between stages."""
    return isinstance(value.type, TensorType) and value.type.shape is not None
