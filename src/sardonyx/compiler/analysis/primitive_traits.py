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
"""Primitives whose element is computed from the operands' elements at the same place; but for some of ``bitcast``."""

ORDERED = frozenset({"scan", "sort", "top_k", "determinant", "fft"})
"""Primitives that go along a row in order, and read each element once."""

EXTREMA = frozenset({"argmax", "argmin"})
"""Reductions that give indices."""

REGIONS = frozenset({"concat", "pad", "scatter"})
"""Written part by part."""

WHOLE = CONTROL | {"call", "host"}
"""With several results: one kernel, or several, that nothing is fused with."""


def is_elementwise(value: Value) -> bool:
    """Whether an element is computed from the operands' elements at the same place."""
    return value.op in ELEMENTWISE and not changes_width(value)


def changes_width(value: Value) -> bool:
    """Whether elements are put together, or taken apart, along a last axis."""
    return value.op == "bitcast" and len(shape_of(value)) != len(shape_of(value.operands[0]))


def dtype_of(value: Value) -> t.DType:
    """The element type of a tensor value."""
    assert isinstance(value.type, TensorType)
    return value.type.dtype


def is_splat(value: Value) -> bool:
    """Whether a constant is one number everywhere."""
    return value.is_constant and value.known.size >= 1 and (value.known.size == 1 or _all_same(value.known))


def _all_same(array: np.ndarray) -> bool:
    return array.size <= 4096 and bool((array.ravel()[:1].view(np.uint8) == array.reshape(-1, 1).view(np.uint8)).all())


@dataclass
class Rows:
    """What the reductions of a group share.

    Attributes:
        shape: The sizes of what is reduced.
        axes: The axes that go away.
    """

    shape: tuple[Size, ...]
    axes: tuple[int, ...]

    @property
    def kept(self) -> tuple[Size, ...]:
        """The sizes of the result."""
        return tuple(size for axis, size in enumerate(self.shape) if axis not in self.axes)
