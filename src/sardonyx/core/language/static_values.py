"""Values that must be known while a function is traced: numbers among operands, axes, ranks, sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.core.dim import Dim, Size, equal
from sardonyx.core.eval.assumptions import find_assumption
from sardonyx.core.eval.tensor import Tensor, apply, bind, constant, size_tensor, sizes_of
from sardonyx.core.ir import types as t
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.ir.types import DType
from sardonyx.core.language import elementwise
from sardonyx.core.language.elementwise import cast
from sardonyx.errors import NeedsValueError, ShapeError

_ELEMENTWISE = frozenset(p.name for p in PRIMITIVES.values() if p.kind in ("unary", "binary", "ternary"))

_LONGEST_CHAIN = 64
"""Operations between an element of a shape and known values; Python's stack bounds the walk."""


def static(x: Tensor, name: str = "a value") -> list[int]:
    """Return the elements of a small integer tensor as ints.

    Raises:
        NeedsValueError: The elements are only known at run time.
    """
    known = sizes_of(x)
    if known is None or any(isinstance(size, Dim) for size in known):
        assumed = find_assumption(x)
        if assumed is not None:
            return [int(element) for element in assumed.ravel()]
        raise NeedsValueError(f"{name} is computed from data.", value=x, where=x.origin)
    return [int(size) for size in known]  # type: ignore[arg-type]


def static_scalar(x: Tensor, name: str = "a value") -> float | int | bool | str:
    """Return the single element of a tensor as a Python number.

    Raises:
        NeedsValueError: The element is only known at run time.
        ShapeError: There are more elements than one.
    """
    value = x.known if x.is_constant else find_assumption(x)
    if value is None:
        raise NeedsValueError(f"{name} is computed from data.", value=x, where=x.origin)
    if value.size != 1:
        raise ShapeError(f"expected one number for {name}, got {value.size}.")
    return value.reshape(()).item()  # type: ignore[no-any-return]


def elements(x: Tensor) -> tuple[Size, ...] | None:
    """Return the elements of a small integer tensor as sizes of any sign; None if some are unknown."""
    return sizes_of(x)


def sizes(x: Tensor, name: str = "a size") -> tuple[Size, ...]:
    """Return the elements of an integer tensor of rank 0 or 1 as sizes; unknown ones become fresh symbols.

    Raises:
        NeedsValueError: The number of elements is only known at run time.
        ShapeError: The rank exceeds 1, or an element is negative.
    """
    if x.rank > 1:
        raise ShapeError(f"expected a tensor of one axis for {name}, got {x.type}.")
    values = sizes_of(x)
    if values is None:
        count = static_size(x, 0, f"the number of elements of {name}") if x.rank else 1
        elements = _KnownElements()
        values = tuple(elements.size(x, i) if x.rank else bind(x, ()) for i in range(count))
    for size in values:
        if isinstance(size, int) and size < 0:
            raise ShapeError(f"{name} is {size}.", remedy="Give a size that is not negative.")
    return values


class _KnownElements:
    """Elements of vectors of which other elements are unknown; each is computed once, as ``x + x`` reads one twice."""

    def __init__(self) -> None:
        self._known: dict[tuple[Tensor, int], Tensor | None] = {}

    def size(self, x: Tensor, index: int) -> Size:
        """Return an element as a size; a fresh symbol if the element is unknown."""
        element = self._element(x, index, 0)
        values = None if element is None else sizes_of(element)
        return bind(x, (index,)) if values is None else values[0]

    def _element(self, x: Tensor, index: int, depth: int) -> Tensor | None:
        """Return an element as a vector; None if it is unknown, or the chain of operations to it is long."""
        if depth > _LONGEST_CHAIN:
            return None
        if (x, index) not in self._known:
            self._known[x, index] = self._computed(x, index, depth + 1)
        return self._known[x, index]

    def _computed(self, x: Tensor, index: int, depth: int) -> Tensor | None:
        values = sizes_of(x)
        if values is not None:
            return size_tensor([values[index]], dtype=x.dtype)
        if x.is_constant:
            return constant(x.known[index : index + 1], x.dtype)
        operands: list[Tensor] = list(x.operands)  # type: ignore[arg-type]
        if x.op == "concat":
            for operand in operands:
                size = operand.shape[0]
                if not isinstance(size, int):
                    return None
                if index < size:
                    return self._element(operand, index, depth)
                index -= size
        if x.op == "broadcast":
            return self._element(operands[0], 0 if operands[0].shape == (1,) else index, depth)
        if x.op == "select":
            condition = self._element(operands[0], index, depth)
            if condition is not None and condition.is_constant:
                return self._element(operands[1 if condition.known.all() else 2], index, depth)
        if x.op not in _ELEMENTWISE:
            return None
        parts = [self._element(operand, index, depth) for operand in operands]
        known = [part for part in parts if part is not None]
        if x.op in ("and", "or"):
            decides = (
                x.op == "or"
            )  # False decides a conjunction, and True a disjunction, whatever the other operand is.
            if any(part.is_constant and bool(part.known.all()) == decides for part in known):
                return constant(np.array([decides]))
        return apply(x.op, *known, **x.params) if len(known) == len(parts) else None


def static_size(x: Tensor, axis: int, name: str) -> int:
    """Return the size of an axis as an int.

    Raises:
        NeedsValueError: The size is only known at run time.
        ShapeError: The tensor has no such axis.
    """
    if not -x.rank <= axis < x.rank:
        raise ShapeError(f"expected an axis {axis} of {x.type}, which has {name}.")
    size = x.shape[axis]
    if isinstance(size, int):
        return size
    assumed = find_assumption(size_tensor([size], ()))
    if assumed is None:
        raise NeedsValueError(f"{name} is computed from data.", value=x, where=x.origin)
    return int(assumed)


def is_one(sizes: Sequence[Size], question: str) -> list[bool]:
    """Return for each size True if it is 1.

    Raises:
        NeedsValueError: The answer is only known at run time.
    """
    known = [equal(size, 1) for size in sizes]
    open_ones = [size for size, one in zip(sizes, known, strict=True) if one is None]
    if not open_ones:
        return [bool(one) for one in known]
    answer = find_assumption(elementwise.equal(size_tensor(open_ones), 1))
    if answer is None:
        raise NeedsValueError(question)
    answers = iter(answer.tolist())
    return [bool(next(answers) if one is None else one) for one in known]


def is_equal(a: Size, b: Size, question: str) -> bool:
    """Return True if two sizes are equal.

    Raises:
        NeedsValueError: The answer is only known at run time.
    """
    known = equal(a, b)
    if known is None:
        answer = find_assumption(elementwise.equal(size_tensor([a]), size_tensor([b])))
        if answer is None:
            raise NeedsValueError(question)
        known = bool(answer.all())
    return known


def one_size(x: Tensor, name: str) -> Size:
    """Return the single element of an integer tensor as a size.

    Raises:
        ShapeError: There is another number of elements, or the element is negative.
    """
    values = sizes(x, name)
    if len(values) != 1:
        raise ShapeError(f"expected one number for {name}, got {len(values)}.")
    return values[0]


def normalized_axis(axis: int, rank: int) -> int:
    """Return the axis counted from the front.

    Raises:
        ShapeError: The axis is out of range.
    """
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} is out of range for rank {rank}.", remedy=f"Axes are {-rank} to {rank - 1}.")
    return axis + rank if axis < 0 else axis


def normalized_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return the axes counted from the front.

    Raises:
        ShapeError: An axis is out of range or occurs twice.
    """
    normalized = tuple(normalized_axis(axis, rank) for axis in axes)
    if len(set(normalized)) != len(normalized):
        raise ShapeError(f"an axis occurs twice in {list(axes)}.")
    return normalized


def of_rank(x: Tensor, rank: int, name: str) -> Tensor:
    """Return the tensor after checking its rank.

    Raises:
        ShapeError: The rank differs.
    """
    if x.rank != rank:
        raise ShapeError(f"expected {rank} axes for {name}, got {x.type}.")
    return x


def number(size: Size, dtype: DType = t.INT64) -> Tensor:
    """Return a size as a scalar."""
    return cast(size_tensor([size], ()), dtype)


def shape_tensor(x: Tensor) -> Tensor:
    """Return the shape as an int64 tensor."""
    return size_tensor(x.shape)
