"""Sizes that are too long to compute with, under names of their own: symbols that are bound to them at run time.

What is known of such a size is lost but for its name, which of one that is so long is little. Equal sizes have one
name as long as it is in use, as equal values are one.
"""

from __future__ import annotations

from sardonyx.core import language as L
from sardonyx.core.dim import Size, at_least, is_long
from sardonyx.core.eval.tensor import Tensor, apply, bind, size_tensor
from sardonyx.core.ir.graph import Value


def with_named_sizes(value: Value) -> Value:
    """The same value with symbols in place of long sizes, in its shape and among its elements where these are sizes.

    Args:
        value: Any value; it is given back itself where no size is long.

    Raises:
        SizeLimitError: The number of its elements passes the limits.
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
    """Whether a size of a value, in its shape or among its elements, is long and more than a symbol."""
    if not isinstance(value, Tensor) or value.type.shape is None:
        return False
    sizes = value.params["sizes"] if value.op == "dims" else value.shape
    return any(is_long(size) and (size.atom is None or size.atom.kind != "symbol") for size in sizes)


def _named(size: Size) -> Size:
    """A size that is not negative, or its name."""
    return bind(size_tensor([size]), (0,)) if is_long(size) else size


def _named_number(number: Size) -> Size:
    """A number that may be negative, or what it is above 0 less what it is below: a name is never negative."""
    if not is_long(number) or at_least(number, 0):
        return _named(number)
    whole = size_tensor([number])
    return bind(L.maximum(whole, 0), (0,)) - bind(L.maximum(-whole, 0), (0,))
