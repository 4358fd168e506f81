"""Recomputation: the cost of computing a value in each reader instead of storing the value once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sardonyx.compiler.analysis.axis_collapsing import find_axes_in_last
from sardonyx.compiler.analysis.constant_values import is_closed
from sardonyx.compiler.analysis.patterns import skip_broadcasts
from sardonyx.compiler.analysis.primitive_traits import ELEMENTWISE, dtype_of, is_elementwise
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.schedule.groups import operations
from sardonyx.compiler.schedule.kernel_support import ANCHORS
from sardonyx.compiler.tiling import costs
from sardonyx.core.dim import Size, equal
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.errors import SizeLimitError

_INDEX_DTYPES = (t.INT64, t.INT32, t.BOOL)
_GATHER_OPERATIONS = 2
_MOST_OPERATIONS = 1000
"""Limit of a count: shared operands are counted repeatedly, exponentially often in deep graphs."""


_KEPT_ORDER = frozenset({"reshape", "broadcast", "stop_gradient"})
"""Movements that leave elements in their order, or repeat them."""

_MOST_SOURCES = 2
"""Most values in memory that a reader reads in place of one."""


class Recomputation:
    """Costs of recomputing values of one function.

    Args:
        users: The readers of each value, in the order of computation.
    """

    def __init__(self, users: Mapping[Value, Sequence[Value]]) -> None:
        self._users = users
        self._operations: dict[Value, int] = {}
        for value in users:
            self.operations(value)  # In order, so that no chain of operands is followed by recursion.

    def is_cheap(self, value: Value) -> bool:
        """Return True if recomputing an element costs less than storing and loading the element."""
        return self.operations(value) <= costs.RECOMPUTED_OPERATIONS

    def operations(self, value: Value) -> int:
        """Return the operations for an element of a value, from values that kernels store, in additions."""
        count = self._operations.get(value)
        if count is None:
            count = 0
            if value.op in ELEMENTWISE:
                count = operations((value,))
            elif value.op == "gather":
                count = _GATHER_OPERATIONS
            if value.op not in ANCHORS and value.op not in ("reduce", "get"):
                count += sum(self.operations(operand) for operand in value.operands)
            self._operations[value] = count = min(count, _MOST_OPERATIONS)
        return count

    def repeated_from(self, value: Value) -> list[tuple[Value, frozenset[Value]]] | None:
        """Return the values from which each reader may compute a value, each with the values between both.

        Values of fewer elements, such as a number of each row, are not listed. The result is None if this takes more
        than :data:`.costs.REPEATED_OPERATIONS`, or if a value between has another reader or moves elements.
        """
        sources: list[Value] = []
        between: dict[Value, None] = {value: None}
        cost = 0
        members = [value]
        for member in members:
            cost += operations((member,))
            if cost > costs.REPEATED_OPERATIONS:
                return None
            for operand in member.operands:
                if is_closed(operand) or has_fewer(shape_of(skip_broadcasts(operand)), shape_of(value)):
                    continue
                inner = is_elementwise(operand) or operand.op in _KEPT_ORDER
                if inner and all(user in between for user in self._users[operand]):
                    between[operand] = None
                    members.append(operand)
                elif operand not in sources:
                    sources.append(operand)
        if len(sources) > _MOST_SOURCES:
            return None
        return [(source, frozenset(between)) for source in sources]

    def is_index(self, value: Value) -> bool:
        """Return True for one integer, such as an index, that is cheaper to recompute than to load."""
        return (
            value.op in ELEMENTWISE
            and dtype_of(value) in _INDEX_DTYPES
            and math.prod(shape_of(value)) == 1
            and all(dtype_of(operand) in _INDEX_DTYPES for operand in value.operands)
            and self.is_cheap(value)
        )

    def divides_indices(self, value: Value) -> bool:
        """Return True if recomputing a value at its reader would divide the index in every lane.

        The reader's last axis is several axes of the value, and an operand is broadcast along only some of these.
        """
        shapes = [shape_of(user) for user in self._users[value] if user.op == "reshape"]
        joined = [axes for shape in shapes if len(axes := find_axes_in_last(shape, shape_of(value))) > 1]
        parts = [value] if joined else []
        for part in parts:
            if part.op == "broadcast" and any(
                shape_of(part.operands[0])[axis] != 1 for axes in joined for axis in axes
            ):
                return True
            if is_elementwise(part):
                parts += [operand for operand in part.operands if operand not in parts]
        return False


def has_same_shape(a: tuple[Size, ...], b: tuple[Size, ...]) -> bool:
    """Return True if two shapes are known to be equal."""
    return len(a) == len(b) and all(x == y or bool(equal(x, y)) for x, y in zip(a, b, strict=True))


def has_same_count(a: tuple[Size, ...], b: tuple[Size, ...]) -> bool:
    """Return True if two shapes are known to have equally many elements."""
    if a == b:
        return True
    x, y = _count(a), _count(b)
    return x is not None and y is not None and (x == y or bool(equal(x, y)))


def has_fewer(a: tuple[Size, ...], b: tuple[Size, ...]) -> bool:
    """Return True if a shape has fewer elements than another; symbols count as larger than numbers."""
    if a == b:
        return False
    x, y = _count(a), _count(b)
    if isinstance(x, int) and isinstance(y, int):
        return x < y
    return x is None or y is None or not (x == y or equal(x, y))


def _count(shape: tuple[Size, ...]) -> Size | None:
    """Return the number of elements of a shape; None if the expression is too long."""
    try:
        return math.prod(shape)
    except SizeLimitError:
        return None
