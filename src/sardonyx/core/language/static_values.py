"""What must be known while a function is traced: numbers among operands, axes, ranks, sizes."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core.dim import Dim, Size, equal
from sardonyx.core.eval.assumptions import find_assumption
from sardonyx.core.eval.tensor import Tensor, bind, size_tensor, sizes_of
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType
from sardonyx.core.language import elementwise
from sardonyx.core.language.elementwise import cast
from sardonyx.errors import NeedsValueError, ShapeError


def static(x: Tensor, what: str = "a value") -> list[int]:
    """The elements of a small integer tensor as ints.

    Raises:
        NeedsValueError: They are only known at run time.
    """
    found = sizes_of(x)
    if found is None or any(isinstance(size, Dim) for size in found):
        told = find_assumption(x)
        if told is not None:
            return [int(each) for each in told.ravel()]
        raise NeedsValueError(f"{what} is computed from data.", value=x, where=x.origin)
    return [int(size) for size in found]  # type: ignore[arg-type]


def static_scalar(x: Tensor, what: str = "a value") -> float | int | bool | str:
    """The one element of a tensor as a Python number.

    Raises:
        NeedsValueError: It is only known at run time.
        ShapeError: There are more elements than one.
    """
    found = x.known if x.is_constant else find_assumption(x)
    if found is None:
        raise NeedsValueError(f"{what} is computed from data.", value=x, where=x.origin)
    if found.size != 1:
        raise ShapeError(f"{what} is one number, and {found.size} were given.")
    return found.reshape(()).item()  # type: ignore[no-any-return]


def elements(x: Tensor) -> tuple[Size, ...] | None:
    """The elements of a small integer tensor as sizes (any sign), where known or expressions; else None."""
    return sizes_of(x)


def sizes(x: Tensor, what: str = "a size") -> tuple[Size, ...]:
    """The elements of an integer tensor of rank 0 or 1 as sizes; those computed from data become fresh symbols.

    Raises:
        NeedsValueError: Their number is only known at run time.
        ShapeError: One is negative.
    """
    found = sizes_of(x)
    if found is None:
        count = static_size(x, 0, f"the number of elements of {what}") if x.rank else 1
        found = tuple(bind(x, (i,) if x.rank else ()) for i in range(count))
    for size in found:
        if isinstance(size, int) and size < 0:
            raise ShapeError(f"{what} is {size}.", remedy="Sizes are not negative.")
    return found


def static_size(x: Tensor, axis: int, what: str) -> int:
    """The size of an axis as an int.

    Raises:
        NeedsValueError: It is only known at run time.
    """
    size = x.shape[axis]
    if isinstance(size, int):
        return size
    told = find_assumption(size_tensor([size], ()))
    if told is None:
        raise NeedsValueError(f"{what} is computed from data.", value=x, where=x.origin)
    return int(told)


def is_one(sizes: Sequence[Size], what: str) -> list[bool]:
    """Which of some sizes are 1.

    Raises:
        NeedsValueError: That is only known at run time.
    """
    told = [equal(size, 1) for size in sizes]
    open_ones = [size for size, found in zip(sizes, told, strict=True) if found is None]
    if not open_ones:
        return [bool(found) for found in told]
    answer = find_assumption(elementwise.equal(size_tensor(open_ones), 1))
    if answer is None:
        raise NeedsValueError(what)
    answers = iter(answer.tolist())
    return [bool(next(answers) if found is None else found) for found in told]


def one_size(x: Tensor, what: str) -> Size:
    """The one element of an integer tensor as a size.

    Raises:
        ShapeError: There is another number of elements, or it is negative.
    """
    found = sizes(x, what)
    if len(found) != 1:
        raise ShapeError(f"{what} is one number, and {len(found)} are given.")
    return found[0]


def normalized_axis(axis: int, rank: int) -> int:
    """The axis counted from the front.

    Raises:
        ShapeError: There is no such axis.
    """
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} is out of range for rank {rank}.", remedy=f"Axes are {-rank} to {rank - 1}.")
    return axis + rank if axis < 0 else axis


def normalized_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """The axes counted from the front.

    Raises:
        ShapeError: There is no such axis, or one occurs twice.
    """
    found = tuple(normalized_axis(axis, rank) for axis in axes)
    if len(set(found)) != len(found):
        raise ShapeError(f"an axis occurs twice in {list(axes)}.")
    return found


def of_rank(x: Tensor, rank: int, what: str) -> Tensor:
    """The tensor itself, which must have so many axes.

    Raises:
        ShapeError: It has another rank.
    """
    if x.rank != rank:
        raise ShapeError(f"{what} has {rank} axes, and {x.type} was given.")
    return x


def number(size: Size, dtype: DType = t.INT64) -> Tensor:
    """A size as a scalar."""
    return cast(size_tensor([size], ()), dtype)


def shape_tensor(x: Tensor) -> Tensor:
    """The shape as an int64 tensor."""
    return size_tensor(x.shape)
