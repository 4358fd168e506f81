"""Coverage of faults: values that can fail are computed whole, or a guard lets the interpreter decide.

An index out of its axis and an integer division by zero set the fault flag where a kernel computes the element. A
fused value is computed at the elements that its readers need, which may be fewer than all: a slice reads a part, and
a reader with a further axis of size 0 reads nothing. The interpreter computes every element and refuses the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from sardonyx.compiler.analysis.constant_values import is_closed
from sardonyx.compiler.analysis.primitive_traits import WHOLE, dtype_of, is_elementwise
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.codegen.elementwise import can_fault
from sardonyx.compiler.schedule.fusion import Grouping
from sardonyx.core.dim import Dim, Size, dim_min, product
from sardonyx.core.ir.graph import Value

REASON = "an error in elements that no reader needs must be noticed"

_Sizes = frozenset[Size]
_Axes = frozenset[int]
_PARTIAL = frozenset({"convolve", "reduce_window", "slice"})
"""Primitives that may leave elements of their operand unread."""


class FaultCoverage:
    """The fused values of a grouping that can fail, and the readers that compute their elements.

    Args:
        grouping: The groups.

    Attributes:
        stored: Values that must be written to memory, with the reason: every reader leaves elements out.
        guards: Pairs of sizes that are equal if a reader computes each value with elements; see
            :mod:`.analysis.shape_guards`.
    """

    def __init__(self, grouping: Grouping) -> None:
        self._grouping = grouping
        self._results = frozenset(grouping.function.results)
        self._known: dict[tuple[Value, _Axes], _Sizes | None] = {}
        self.stored: dict[Value, str] = {}
        self.guards: list[tuple[Size, Size]] = []
        for value in grouping.order:
            if _can_fail(value) and not is_closed(value) and not self._is_whole(value) and self._is_computed(value):
                self._cover(value)

    def _cover(self, value: Value) -> None:
        sizes = self._fewest(value, _axes_of_faults(value))
        if sizes is None:
            self.stored[value] = REASON
            return
        own = {size for size in shape_of(value) if isinstance(size, Dim)}
        further = [size for size in sizes - own if isinstance(size, Dim) or size == 0]
        if further:
            exists = _product(own)
            self.guards.append((exists * _product(further), exists))

    def _is_whole(self, value: Value) -> bool:
        """Return True if a kernel or the interpreter computes every element of a value."""
        group = self._grouping.group(value)
        return value in self._grouping.host or (group is not None and value in group.roots)

    def _is_computed(self, value: Value) -> bool:
        """Return True if a result depends on a value in more than its sizes."""
        return value in self._results or any(True for _ in self._readers(value))

    def _readers(self, value: Value) -> Iterator[Value]:
        return (user for user in self._grouping.users[value] if user.op != "dims")

    def _fewest(self, value: Value, axes: _Axes) -> _Sizes | None:
        """Return sizes that must be positive for a value to be read whole; None if every reader leaves elements out.

        Args:
            value: The value.
            axes: The axes that must be read whole; of any other axis, one element is enough.
        """
        best: _Sizes | None = None
        for user in self._readers(value):
            followed = _axes_in_reader(user, value, axes)
            sizes = None if followed is None else self._demand(user, followed)
            if sizes is not None and (best is None or len(sizes) < len(best)):
                best = sizes
        return best

    def _demand(self, value: Value, axes: _Axes) -> _Sizes | None:
        """Return sizes that must be positive for a value to be computed whole; None if parts are never computed."""
        key = value, axes
        if key not in self._known:
            own: _Sizes = frozenset() if value.op in WHOLE else frozenset(shape_of(value))
            is_whole = self._is_whole(value) or value in self._results
            inner = frozenset() if is_whole else self._fewest(value, axes)
            self._known[key] = None if inner is None else own | inner
        return self._known[key]


def _can_fail(value: Value) -> bool:
    """Return True for an index that may be out of its axis, and a divisor that may be zero."""
    if value.op == "gather":
        source, indices = value.operands
        sizes = shape_of(source)[value.params["batch"] :]
        depth = shape_of(indices)[-1]
        if not indices.is_constant or not isinstance(depth, int):
            return True
        return not all(isinstance(size, int) for size in sizes[:depth])
    if not is_elementwise(value) or not can_fault(value.op, [dtype_of(operand) for operand in value.operands]):
        return False
    second = value.operands[1]
    while second.op in ("broadcast", "reshape", "permute"):
        second = second.operands[0]
    if not second.is_constant:
        return True
    elements = np.asarray(second.known)
    return bool((elements < 0).any() if value.op == "pow" else (elements == 0).any())


def _axes_of_faults(value: Value) -> _Axes:
    """Return the axes along which the faults of a value differ: those of the indices of a gather, else all."""
    indices = value.operands[1]
    return frozenset(range(len(shape_of(indices)) - 1 if value.op == "gather" else len(shape_of(value))))


def _axes_in_reader(user: Value, value: Value, axes: _Axes) -> _Axes | None:
    """Return the axes of a reader that must be computed whole for some axes of a value to be read whole.

    None if elements along the axes are left out even if the reader is computed whole.
    """
    if user.op in _PARTIAL and user.op != "slice":
        return None
    if user.op == "slice":
        params, shape = user.params, shape_of(value)
        parts = zip(shape, params["starts"], params["limits"], params["strides"], strict=True)
        whole = [start == 0 and limit == size and stride == 1 for size, start, limit, stride in parts]
        return axes if all(whole[axis] for axis in axes) else None
    if user.op == "pad" and value is user.operands[0]:
        pads = [(user.params["low"][axis], user.params["high"][axis]) for axis in axes]
        return axes if all(isinstance(pad, int) and pad >= 0 for pair in pads for pad in pair) else None
    if user.op == "gather" and value is user.operands[0]:
        indexed, leading = shape_of(user.operands[1])[-1], len(shape_of(user.operands[1])) - 1
        first = user.params["batch"] + indexed if isinstance(indexed, int) else len(shape_of(value))
        return None if any(axis < first for axis in axes) else frozenset(axis - first + leading for axis in axes)
    if user.op == "permute":
        return frozenset(at for at, axis in enumerate(user.params["axes"]) if axis in axes)
    keeps_axes = is_elementwise(user) or user.op in ("broadcast", "reverse", "stop_gradient", "pad")
    if not axes or user.op in WHOLE or keeps_axes:
        return axes if not axes or keeps_axes else frozenset()
    return frozenset(range(len(shape_of(user))))


def _product(sizes: Iterable[Size]) -> Size:
    """Return 1 if all sizes are positive, else 0."""
    return product(dim_min(1, size) for size in sizes)
