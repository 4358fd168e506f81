"""Functions of torch inside of ``vmap`` and gradients, with rules that keep sizes open.

torch's own rules for a mapped axis, and for gradients in forward direction, read sizes as integers, which fixes them in
a capture. The functions here are equal ones whose rules are programs of Python; they apply inside of a transform of
``torch.func`` alone.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional as F


def replacements() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Yield owner, name and replacement of every function."""
    for owner, name, equal in _FUNCTIONS:
        yield owner, name, _if_transformed(getattr(owner, name), equal)


@contextlib.contextmanager
def open_tangents() -> Iterator[None]:
    """Give tangents of tensors with open sizes the layout of these; torch's own function requires numbers."""
    library = torch.library.Library("aten", "IMPL", "Meta")
    library.impl("_new_zeros_with_same_feature_meta", _like_primal, allow_override=True)
    try:
        yield
    finally:
        library._destroy()


def _like_primal(tangent: Any, primal: Any, *, self_num_batch_dims: int = 0) -> Any:
    mapped = list(tangent.shape[:self_num_batch_dims])
    elements = primal.untyped_storage().nbytes() // primal.element_size()
    strides: list[Any] = []
    total = elements
    for size in reversed(mapped):
        strides.insert(0, total)
        total = total * size
    shape, layout = [*mapped, *primal.shape], [*strides, *primal.stride()]
    return tangent.new_empty([total]).as_strided(shape, layout, primal.storage_offset())


def _if_transformed(own: Callable[..., Any], equal: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `equal` inside of a transform, and `own` if `equal` does not apply."""

    @functools.wraps(own)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch._C._functorch.maybe_current_level() is not None:
            result = equal(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return own(*args, **kwargs)

    return call


def _first_axis(info: Any, axes: Sequence[int | None], tensors: Sequence[Any]) -> list[Any]:
    """Return tensors whose mapped axis is the first; others are repeated along a new one."""
    return [
        x.unsqueeze(0).expand(info.batch_size, *x.shape) if axis is None else x.movedim(axis, 0)
        for x, axis in zip(tensors, axes, strict=True)
    ]


_own_cat, _own_gather = torch.cat, torch.gather


class _Concatenated(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(axis: int, *xs: Any) -> Any:
        return _own_cat(xs, axis)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.axis, *xs = inputs
        ctx.sizes = [x.shape[ctx.axis] for x in xs]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        start, parts = 0, []
        for size in ctx.sizes:
            parts.append(gradient.narrow(ctx.axis, start, size))
            start = start + size
        return None, *parts

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        return _Concatenated.apply(ctx.axis, *tangents)

    @staticmethod
    def vmap(info: Any, axes: Any, axis: int, *xs: Any) -> Any:
        return _Concatenated.apply(axis + 1, *_first_axis(info, axes[1:], xs)), 0


class _Gathered(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(x: Any, axis: int, index: Any) -> Any:
        return _own_gather(x, axis, index)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.axis, index = inputs
        ctx.shape = x.shape
        ctx.save_for_backward(index)
        ctx.save_for_forward(index)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (index,) = ctx.saved_tensors
        return _Scattered.apply(gradient, ctx.axis, index, tuple(ctx.shape)), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Any, *_: Any) -> Any:
        (index,) = ctx.saved_tensors
        return _Gathered.apply(tangent, ctx.axis, index)

    @staticmethod
    def vmap(info: Any, axes: Any, x: Any, axis: int, index: Any) -> Any:
        x, index = _first_axis(info, (axes[0], axes[2]), (x, index))
        return _Gathered.apply(x, axis + 1, index), 0


class _Scattered(torch.autograd.Function):  # type: ignore[misc]
    """Sums at indices, the gradient of `_Gathered`."""

    @staticmethod
    def forward(x: Any, axis: int, index: Any, shape: Any) -> Any:
        return x.new_zeros(shape).scatter_add(axis, index, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.axis, index, ctx.shape = inputs
        ctx.save_for_backward(index)
        ctx.save_for_forward(index)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (index,) = ctx.saved_tensors
        return _Gathered.apply(gradient, ctx.axis, index), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Any, *_: Any) -> Any:
        (index,) = ctx.saved_tensors
        return _Scattered.apply(tangent, ctx.axis, index, ctx.shape)

    @staticmethod
    def vmap(info: Any, axes: Any, x: Any, axis: int, index: Any, shape: Any) -> Any:
        x, index = _first_axis(info, (axes[0], axes[2]), (x, index))
        return _Scattered.apply(x, axis + 1, index, (info.batch_size, *shape)), 0


def _selected(input: Any, dim: int, index: Any, **options: Any) -> Any:
    if options or input.ndim == 0 or index.ndim != 1:
        return NotImplemented
    axis = dim % input.ndim
    line = index.reshape([-1 if i == axis else 1 for i in range(input.ndim)])
    shape = [-1 if i == axis else size for i, size in enumerate(input.shape)]
    return _Gathered.apply(input, axis, line.expand(shape))


def _concatenated(tensors: Any, dim: int = 0, **options: Any) -> Any:
    tensors = list(tensors)
    is_plain = not options and len({(x.ndim, x.dtype) for x in tensors}) == 1
    return _Concatenated.apply(dim % tensors[0].ndim, *tensors) if is_plain and tensors[0].ndim else NotImplemented


def _gathered(input: Any, dim: int, index: Any, **options: Any) -> Any:
    return _Gathered.apply(input, dim % input.ndim, index) if not options and input.ndim else NotImplemented


def _layer_norm(input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    axes = list(range(-len(normalized_shape), 0))
    if tuple(input.shape[axes[0] :]) != tuple(normalized_shape):
        return NotImplemented
    centered = input - input.mean(axes, keepdim=True)
    result = centered * (centered.square().mean(axes, keepdim=True) + eps).rsqrt()
    result = result if weight is None else result * weight
    return result if bias is None else result + bias


_FUNCTIONS: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (torch, "cat", _concatenated),
    (torch, "concat", _concatenated),
    (torch, "concatenate", _concatenated),
    (torch, "gather", _gathered),
    (torch.Tensor, "gather", _gathered),
    (torch, "index_select", _selected),
    (torch.Tensor, "index_select", _selected),
    (F, "layer_norm", _layer_norm),
)
"""Owner and name of every function, and the equal program."""
