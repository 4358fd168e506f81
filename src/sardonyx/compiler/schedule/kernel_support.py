"""Primitives, element types and sizes for which kernels exist."""

from __future__ import annotations

from sardonyx.compiler.analysis.element_types import MOVED_DTYPES, SMALL_DTYPES
from sardonyx.compiler.analysis.primitive_traits import ELEMENTWISE, ORDERED, REGIONS, changes_width, dtype_of
from sardonyx.compiler.analysis.strided_views import MOVEMENTS, shape_of
from sardonyx.compiler.codegen import elementwise
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import TensorType

SOURCES = frozenset({"iota", "constant", "dims"})
"""Primitives without operands, or of sizes alone."""

ANCHORS = frozenset({"contract", "convolve", "reduce_window"}) | ORDERED
"""Primitives around which a kernel is built."""

_ARITHMETIC = frozenset({"reduce", "contract", "convolve", "reduce_window", "scatter"}) | ORDERED - {"fft"}
_MOVED_ONLY = SMALL_DTYPES | {t.COMPLEX64}


def refuse_primitive(value: Value) -> str | None:
    """Return the reason why a value of one tensor has no kernel; None if a kernel exists."""
    if not isinstance(value.type, TensorType):
        return f"{value.op} gives {type(value.type).__name__}"
    for part in (value, *value.operands):
        if not isinstance(part.type, TensorType) or part.type.dtype not in MOVED_DTYPES:
            return f"{value.op} of {part.type}"
        if part.type.dtype in _MOVED_ONLY and value.op in _ARITHMETIC:
            return f"{value.op} of {part.type}"
    if value.op == "fft" and isinstance(points := shape_of(value)[-1], int) and points & (points - 1):
        return f"numpy's transform of {points} points is faster than one by a convolution"
    if changes_width(value):
        small = SMALL_DTYPES & {dtype_of(value), dtype_of(value.operands[0])}
        return f"bitcast of {value.operands[0].type} to {value.type}" if small else None
    if value.op in ELEMENTWISE:
        dtypes = [dtype_of(operand) for operand in value.operands]
        return None if elementwise.supported(value.op, dtypes, value.params) else f"{value.op} of {value.type}"
    if value.op in MOVEMENTS | SOURCES | REGIONS | ANCHORS or value.op in ("reduce", "gather"):
        return None
    return f"{value.op} has no kernel"
