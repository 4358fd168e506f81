"""Symbols in place of sizes that are too long to compute with, bound at run time.

All knowledge of such a size is lost but its name; little is known of a size of this length. Equal sizes share one
name during its lifetime, as equal values are one object.
"""

from __future__ import annotations

from sardonyx.core import language as L
from sardonyx.core.dim import Size, at_least, is_long
from sardonyx.core.eval.tensor import Tensor, apply, bind, size_tensor
from sardonyx.core.ir.graph import Value


def with_named_sizes(value: Value) -> Value:
    """Return the value with symbols in place of long sizes, in its shape or among its elements.

    Args:
        value: Any value; returned unchanged without long sizes.

    Raises:
        SizeLimitError: The number of elements exceeds the limits.
    """
    if not isinstance(value, Tensor) or value.type.shape is None:
        return value
    sizes = value.params["sizes"] if value.op == "dims" else value.shape
    if not any(map(is_long, sizes)):
        return value
    if value.op == "dims":
        return size_tensor([_named_number(size) for size in sizes], value.params["shape"], value.dtype)
    return apply("reshape", value, shape=tuple([_named(size) for size in sizes]))


def has_long_forms(value: Value) -> bool:
    """Return True if a size of a value, in its shape or among its elements, is a long expression."""
    if not isinstance(value, Tensor) or value.type.shape is None:
        return False
    sizes = value.params["sizes"] if value.op == "dims" else value.shape
    return any(is_long(size) and (size.atom is None or size.atom.kind != "symbol") for size in sizes)


def _named(size: Size) -> Size:
    """Return a size ≥ 0, or the symbol for a long one."""
    return bind(size_tensor([size]), (0,)) if is_long(size) else size


def _named_number(number: Size) -> Size:
    """Return a number of any sign with symbols for its positive and negative parts, as symbols are ≥ 0."""
    if not is_long(number) or at_least(number, 0):
        return _named(number)
    whole = size_tensor([number])
    return bind(L.maximum(whole, 0), (0,)) - bind(L.maximum(-whole, 0), (0,))
