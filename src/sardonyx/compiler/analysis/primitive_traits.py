"""Properties of primitives and values that fusion, lowering and code generation share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sardonyx.compiler.analysis.control_flow import CONTROL
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.ir.types import TensorType

ELEMENTWISE = frozenset(
    name for name, row in PRIMITIVES.items() if row.kind in ("unary", "binary", "ternary")
) | {"convert", "bitcast"}  # fmt: skip
"""Primitives whose elements depend on the operands' elements at the same index.

The exception is a ``bitcast`` between widths, see :func:`changes_width`.
"""

ORDERED = frozenset({"scan", "sort", "top_k", "determinant", "fft"})
"""Primitives that process a row in order, and read each element once."""

EXTREMA = frozenset({"argmax", "argmin"})
"""Reductions that return indices."""

REGIONS = frozenset({"concat", "pad", "scatter"})
"""Primitives whose result is written part by part."""

WHOLE = CONTROL | {"call", "host"}
"""Primitives, most with several results, that become one or more kernels without fusion."""


def is_elementwise(value: Value) -> bool:
    """Return True if each element depends on the operands' elements at the same index only."""
    return value.op in ELEMENTWISE and not changes_width(value)


def changes_width(value: Value) -> bool:
    """Return True for a ``bitcast`` that combines or splits elements along a last axis."""
    return value.op == "bitcast" and len(shape_of(value)) != len(shape_of(value.operands[0]))


def dtype_of(value: Value) -> t.DType:
    """Return the element type of a tensor value."""
    assert isinstance(value.type, TensorType)
    return value.type.dtype


def is_splat(value: Value) -> bool:
    """Return True if all elements of a constant are equal to the bit."""
    return value.is_constant and value.known.size >= 1 and (value.known.size == 1 or _all_same(value.known))


def _all_same(array: np.ndarray) -> bool:
    if array.dtype.hasobject:  # Texts have no bits in the array.
        return array.size <= 4096 and bool((array == array.ravel()[0]).all())
    if array.size > 4096:
        return False
    contents = array.tobytes()
    first = contents[: array.itemsize]
    return contents.endswith(first) and contents == first * array.size


@dataclass
class Rows:
    """The shape and axes shared by the reductions of a group.

    Attributes:
        shape: Shape of the reduced values.
        axes: The reduced axes.
    """

    shape: tuple[Size, ...]
    axes: tuple[int, ...]

    @property
    def result_shape(self) -> tuple[Size, ...]:
        """Shape of the result."""
        return tuple(size for axis, size in enumerate(self.shape) if axis not in self.axes)
