"""Operations along axes: reductions, cumulative sums, sorting."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core.dim import Size, product
from sardonyx.core.eval.tensor import Tensor, apply, size_tensor
from sardonyx.core.language.elementwise import cast, exp, log, stop_gradient
from sardonyx.core.language.movement import reshape
from sardonyx.core.language.static_values import normalized_axes, normalized_axis


def _reduce(kind: str, x: Tensor, axes: Sequence[int] | None, keepdims: bool) -> Tensor:
    over = tuple(range(x.rank)) if axes is None else normalized_axes(axes, x.rank)
    result = apply("reduce", x, kind=kind, axes=over) if over else x
    return reshape(result, [1 if a in over else size for a, size in enumerate(x.shape)]) if keepdims else result


def reduce_sum(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Return the sum over axes, by default all."""
    return _reduce("add", x, axes, keepdims)


def reduce_product(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Return the product over axes, by default all."""
    return _reduce("mul", x, axes, keepdims)


def reduce_max(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Return the maximum over axes, by default all; for no elements, the least value of the type."""
    return _reduce("max", x, axes, keepdims)


def reduce_min(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Return the minimum over axes, by default all; for no elements, the greatest value of the type."""
    return _reduce("min", x, axes, keepdims)


def reduce_mean(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Return the mean over axes, by default all."""
    over = tuple(range(x.rank)) if axes is None else normalized_axes(axes, x.rank)
    count = cast(size_tensor([product([x.shape[a] for a in over])], ()), x.dtype)
    return reduce_sum(x, over, keepdims) / count


def all_of(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Return True if all elements are true, over axes."""
    return _reduce("and", x, axes, keepdims)


def any_of(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Return True if any element is true, over axes."""
    return _reduce("or", x, axes, keepdims)


def argmax(x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
    """Return the index of the maximum along an axis, the first of equals."""
    return _reduce("argmax", x, [axis], keepdims)


def argmin(x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
    """Return the index of the minimum along an axis, the first of equals."""
    return _reduce("argmin", x, [axis], keepdims)


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Return exponentials over their sum; the maximum is subtracted first to prevent overflow."""
    e = exp(x - stop_gradient(reduce_max(x, [axis], keepdims=True)))
    return e / reduce_sum(e, [axis], keepdims=True)


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Return the logarithm of the softmax."""
    shifted = x - stop_gradient(reduce_max(x, [axis], keepdims=True))
    return shifted - log(reduce_sum(exp(shifted), [axis], keepdims=True))


def cumulative(kind: str, x: Tensor, axis: int) -> Tensor:
    """Return the cumulative ``add``, ``mul``, ``max`` or ``min`` along an axis."""
    return apply("scan", x, kind=kind, axis=normalized_axis(axis, x.rank))


def sort(x: Tensor, axis: int, descending: bool = False) -> Tensor:
    """Return the indices that sort along an axis; stable."""
    return apply("sort", x, axis=normalized_axis(axis, x.rank), descending=descending)


def top_k(x: Tensor, axis: int, k: Size, largest: bool = True) -> Tensor:
    """Return the indices of the ``k`` largest (smallest) along an axis, sorted, equal elements in order."""
    return apply("top_k", x, axis=normalized_axis(axis, x.rank), k=k, largest=largest)
