"""What goes along axes: reductions, cumulative sums, order."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core.dim import Size, product
from sardonyx.core.eval.tensor import Tensor, apply, size_tensor
from sardonyx.core.language.elementwise import cast, exp, log, stop_gradient
from sardonyx.core.language.movement import reshape
from sardonyx.core.language.static_values import normalized_axes, normalized_axis


def _reduce(kind: str, x: Tensor, axes: Sequence[int] | None, keepdims: bool) -> Tensor:
    over = tuple(range(x.rank)) if axes is None else normalized_axes(axes, x.rank)
    found = apply("reduce", x, kind=kind, axes=over) if over else x
    return reshape(found, [1 if a in over else size for a, size in enumerate(x.shape)]) if keepdims else found


def reduce_sum(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """The sum over axes, by default all."""
    return _reduce("add", x, axes, keepdims)


def reduce_product(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """The product over axes, by default all."""
    return _reduce("mul", x, axes, keepdims)


def reduce_max(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """The greatest over axes, by default all; of nothing, the least that the type has."""
    return _reduce("max", x, axes, keepdims)


def reduce_min(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """The least over axes, by default all; of nothing, the greatest that the type has."""
    return _reduce("min", x, axes, keepdims)


def reduce_mean(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """The mean over axes, by default all."""
    over = tuple(range(x.rank)) if axes is None else normalized_axes(axes, x.rank)
    count = cast(size_tensor([product([x.shape[a] for a in over])], ()), x.dtype)
    return reduce_sum(x, over, keepdims) / count


def all_of(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Whether all are true."""
    return _reduce("and", x, axes, keepdims)


def any_of(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Whether any is true."""
    return _reduce("or", x, axes, keepdims)


def argmax(x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
    """The index of the greatest along an axis, the first of equals."""
    return _reduce("argmax", x, [axis], keepdims)


def argmin(x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
    """The index of the least along an axis, the first of equals."""
    return _reduce("argmin", x, [axis], keepdims)


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Exponentials over their sum; the maximum is subtracted first, for range."""
    e = exp(x - stop_gradient(reduce_max(x, [axis], keepdims=True)))
    return e / reduce_sum(e, [axis], keepdims=True)


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """The logarithm of the softmax."""
    shifted = x - stop_gradient(reduce_max(x, [axis], keepdims=True))
    return shifted - log(reduce_sum(exp(shifted), [axis], keepdims=True))


def cumulative(kind: str, x: Tensor, axis: int) -> Tensor:
    """Cumulative ``add``, ``mul``, ``max`` or ``min`` along an axis."""
    return apply("scan", x, kind=kind, axis=normalized_axis(axis, x.rank))


def sort(x: Tensor, axis: int, descending: bool = False) -> Tensor:
    """The indices that sort along an axis, equal elements in order."""
    return apply("sort", x, axis=normalized_axis(axis, x.rank), descending=descending)


def top_k(x: Tensor, axis: int, k: Size, largest: bool = True) -> Tensor:
    """The indices of the ``k`` largest (smallest) along an axis, sorted, equal elements in order."""
    return apply("top_k", x, axis=normalized_axis(axis, x.rank), k=k, largest=largest)
