"""Comparisons of sizes and types that assume what only a run decides.

Sizes that are only known at run time are assumed equal, or in the required order, unless the contrary is proven;
:func:`recorded_assumptions` records each assumption.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from sardonyx.core.dim import Size, at_least, dim_min, equal
from sardonyx.core.ir.types import MapType, Shape, TensorType, TupleType, Type
from sardonyx.errors import ShapeError

assumed_pairs: ContextVar[dict[tuple[Size, Size], None] | None] = ContextVar(
    "sardonyx_sizes_assumed_equal", default=None
)
"""The pairs of sizes that type rules assume equal; None if the pairs are not recorded."""


def same_size(a: Size, b: Size) -> bool:
    """Return True unless the sizes are proven different."""
    if a is b or a == b:
        return True
    answer = equal(a, b)
    if answer is None and (pairs := assumed_pairs.get()) is not None:
        pairs[a, b] = None
    return answer is not False


@contextmanager
def recorded_assumptions(pairs: dict[tuple[Size, Size], None] | None) -> Iterator[None]:
    """Add the pairs of sizes that type rules assume equal to ``pairs``; None to record no pairs inside."""
    token = assumed_pairs.set(pairs)
    try:
        yield
    finally:
        assumed_pairs.reset(token)


def require_same_shapes(name: str, a: Shape, b: Shape) -> None:
    """Check that shapes may be equal.

    Raises:
        ShapeError: The ranks differ, or two sizes are proven different.
    """
    if a is b or a == b:
        return
    if len(a) != len(b) or not all(same_size(x, y) for x, y in zip(a, b, strict=True)):
        raise ShapeError(f"expected equal shapes for {name}, got {shape_text(a)} and {shape_text(b)}.")


def exceeds(a: Size, b: Size) -> bool:
    """Return True if ``a`` is proven greater than ``b``; an undecided order is assumed to be a ≤ b."""
    if isinstance(a, int) and isinstance(b, int):
        return a > b
    answer = at_least(b, a)
    if answer is None and (pairs := assumed_pairs.get()) is not None:
        pairs[dim_min(a, b), a] = None
    return answer is False


def require_sizes(shape: Shape) -> None:
    """Check that no size is proven negative.

    Raises:
        ShapeError: A size is negative.
    """
    for size in shape:
        if size.__class__ is int:
            if size < 0:
                raise ShapeError(f"{shape_text(shape)} has a negative size.")
        elif assumed_pairs.get() is not None:
            exceeds(0, size)


def shape_text(shape: Sequence[Size]) -> str:
    """Return the sizes for a message."""
    return "[" + ", ".join(map(str, shape)) + "]"


def same_type(a: Type, b: Type) -> bool:
    """Return True if types may be equal at run time."""
    if a is b or a == b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        if a.dtype != b.dtype:
            return False
        if a.shape is None or b.shape is None:
            return True
        return len(a.shape) == len(b.shape) and all(map(same_size, a.shape, b.shape))
    if isinstance(a, TupleType) and isinstance(b, TupleType):
        return len(a.results) == len(b.results) and all(map(same_type, a.results, b.results))
    if isinstance(a, MapType) and isinstance(b, MapType):
        return a.key == b.key and same_type(a.value, b.value)
    return same_type(a.element, b.element)  # type: ignore[union-attr]
