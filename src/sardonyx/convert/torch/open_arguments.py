"""Functions of torch that take sizes as plain integers, as equal programs for open sizes.

torch fixes a size that becomes such an argument: ``F.max_pool1d(x, x.shape[2])``, ``torch.hann_window(x.shape[1])``.
A program here replaces its function while torch captures, and returns ``NotImplemented`` for arguments that the
function itself keeps open.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from sardonyx.convert.torch import open_matrices


def replacements() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Yield owner, name and replacement of every function."""
    for owner, name, equal in (*_FUNCTIONS, *open_matrices.FUNCTIONS):
        yield owner, name, _if_open(getattr(owner, name), equal)


def _if_open(own: Callable[..., Any], equal: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `equal` if an argument has an open size, and `own` if `equal` does not apply."""

    @functools.wraps(own)
    def call(*args: Any, **kwargs: Any) -> Any:
        if any(map(_has_open_size, pytree.tree_leaves((args, kwargs)))):
            result = equal(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return own(*args, **kwargs)

    return call


def _has_open_size(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in leaf.shape)
    return isinstance(leaf, torch.SymInt)


def _is_open(*values: Any) -> bool:
    return any(isinstance(value, torch.SymInt) for value in pytree.tree_leaves(values))


# Lines and windows.


def _line(start: Any, end: Any, steps: Any, *, dtype: Any = None, **options: Any) -> Any:
    """Return evenly spaced numbers, counted from the closer end as torch does."""
    dtype = dtype or torch.get_default_dtype()
    if not _is_open(steps) or not dtype.is_floating_point or options.get("out") is not None:
        return NotImplemented
    index = torch.arange(steps)
    step = (end - start) / torch.sym_max(steps - 1, 1)
    line = torch.where(index < (steps + 1) // 2, start + step * index, end - step * (steps - 1 - index))
    return line.to(dtype)


def _powers_on_line(start: Any, end: Any, steps: Any, base: float = 10.0, **options: Any) -> Any:
    line = _line(start, end, steps, **options)
    return NotImplemented if line is NotImplemented else torch.pow(base, line)


def _window(shape: Callable[..., Any]) -> Callable[..., Any]:
    """Return a window function; `shape` computes the window at positions from 0 to 1, in float64."""

    def window(window_length: Any, periodic: bool = True, *parameters: Any, dtype: Any = None, **options: Any) -> Any:
        named = {name: options[name] for name in ("alpha", "beta") if name in options}
        gaps = window_length if periodic else torch.sym_max(window_length - 1, 1)
        position = torch.arange(window_length, dtype=torch.float64) / gaps
        is_single = torch.sym_max(2 - window_length, 0)
        # A window of one element is 1.
        values = shape(position, *parameters, **named) * (1 - is_single) + is_single
        return values.to(dtype or torch.get_default_dtype())

    return window


def _cosines(*weights: float) -> Callable[[Any], Any]:
    return lambda position: sum(weight * torch.cos(2 * math.pi * k * position) for k, weight in enumerate(weights))


def _hamming(position: Any, alpha: float = 0.54, beta: float = 0.46) -> Any:
    return alpha - beta * torch.cos(2 * math.pi * position)


def _kaiser(position: Any, beta: float = 12.0) -> Any:
    inner = (1 - (2 * position - 1) ** 2).clamp(min=0).sqrt()
    return torch.i0(beta * inner) / torch.i0(torch.tensor(beta, dtype=torch.float64))


def _frequencies(n: Any, d: float = 1.0, *, dtype: Any = None, **_: Any) -> Any:
    index = torch.arange(n)
    whole = index - torch.where(index > (n - 1) // 2, n, 0)
    return (whole / (n * d)).to(dtype or torch.get_default_dtype())


def _half_frequencies(n: Any, d: float = 1.0, *, dtype: Any = None, **_: Any) -> Any:
    return (torch.arange(n // 2 + 1) / (n * d)).to(dtype or torch.get_default_dtype())


# Windows of tensors.


def _unfolded(x: Any, dimension: int, size: Any, step: Any) -> Any:
    """Return windows along an axis, elements of a window last."""
    if not _is_open(size, step):
        return NotImplemented
    axis = dimension % x.ndim
    count = (x.shape[axis] - size) // step + 1
    index = torch.arange(count)[:, None] * step + torch.arange(size)
    parts = x.index_select(axis, index.flatten()).unflatten(axis, (count, size))
    return parts.movedim(axis + 1, -1)


def _pool(rank: int, reduce: Callable[[Any, int], Any]) -> Callable[..., Any]:
    """Return a pool over windows of an open size, which covers the axis in most programs."""

    def pool(input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, *rest: Any, **options: Any) -> Any:
        kernel = _spread(kernel_size, rank)
        strides = kernel if stride is None or stride == [] else _spread(stride, rank)
        switches = ("ceil_mode", "return_indices", "divisor_override")
        is_plain = not rest and not any(options.get(name) for name in switches) and options.get("dilation", 1) == 1
        if not _is_open(kernel, strides) or not is_plain or any(pad != 0 for pad in _spread(padding, rank)):
            return NotImplemented
        result = input
        for i, (size, step) in enumerate(zip(kernel, strides, strict=True)):
            axis = i - rank
            if statically_known_true(size == input.shape[axis]):
                result = reduce(result, axis).unsqueeze(axis)
            else:
                result = reduce(result.unfold(axis, size, step), -1)
        return result

    return pool


def _spread(value: Any, rank: int) -> list[Any]:
    values = list(value) if isinstance(value, (tuple, list)) else [value]
    return values * rank if len(values) == 1 else values


def _power_pool(name: str, rank: int) -> Callable[..., Any]:
    """Return a pool of powers over the average pool of a name, as torch has it."""

    def pool(input: Any, norm_type: Any, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Any:
        if not _is_open(kernel_size, stride) or ceil_mode:
            return NotImplemented
        total = getattr(F, name)(input.pow(norm_type), kernel_size, stride) * math.prod(_spread(kernel_size, rank))
        return (torch.sign(total) * F.relu(total.abs())).pow(1.0 / norm_type)

    return pool


def _folded(
    input: Any, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Any:
    """Return the sum of patches at their places in an image of an open size."""
    numbers = [_spread(value, 2) for value in (kernel_size, dilation, padding, stride)]
    if not _is_open(output_size) or _is_open(numbers) or input.ndim != 3:
        return NotImplemented
    kernel, dilations, pads, strides = numbers
    sizes = [size + 2 * pad for size, pad in zip(_spread(output_size, 2), pads, strict=True)]
    counts = [
        (size - d * (k - 1) - 1) // step + 1 for size, d, k, step in zip(sizes, dilations, kernel, strides, strict=True)
    ]
    patches = input.reshape(input.shape[0], -1, *kernel, *counts)
    result = input.new_zeros(input.shape[0], patches.shape[1], *sizes)
    ends = [(count - 1) * step + 1 for count, step in zip(counts, strides, strict=True)]
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            top, left = i * dilations[0], j * dilations[1]
            target = result[:, :, top : top + ends[0] : strides[0], left : left + ends[1] : strides[1]]
            target += patches[:, :, i, j]
    return result[:, :, pads[0] : sizes[0] - pads[0], pads[1] : sizes[1] - pads[1]]


def _grid_of_transform(theta: Any, size: Sequence[Any], align_corners: bool | None = None) -> Any:
    """Return the sampling positions of an affine transform."""
    spatial = list(size)[2:]
    if not _is_open(spatial):
        return NotImplemented
    axes = []
    for length in reversed(spatial):
        # Positions of pixels' centers, or of the first and the last pixel at the borders.
        edge = 1.0 if align_corners else (length - 1) / length
        axes.append(torch.linspace(-1, 1, length, dtype=theta.dtype) * edge)
    grids = torch.meshgrid(*reversed(axes), indexing="ij")[::-1]
    points = torch.stack([*grids, torch.ones_like(grids[0])], -1).flatten(0, -2)
    return (points @ theta.mT).unflatten(1, spatial)


# Pairs and products.


def _triangle(row: Any, col: Any, offset: Any, *, is_upper: bool, dtype: Any = None) -> Any:
    """Return the positions in a triangle of a square matrix, row by row, in closed form."""
    if not statically_known_true(row == col) or _is_open(offset) or (offset < 0 if is_upper else offset > 0):
        return NotImplemented
    rows = torch.sym_max(row - abs(offset), 0)
    count = rows * (rows + 1) // 2
    index = torch.arange(count)
    if is_upper:
        index = count - 1 - index
    line = (((8 * index.double() + 1).sqrt() - 1) / 2).floor().long()
    column = index - line * (line + 1) // 2
    pair = [rows - 1 - line, row - 1 - column] if is_upper else [line - offset, column]
    return torch.stack(pair).to(dtype or torch.int64)


def _upper_indices(row: Any, col: Any, offset: Any = 0, *, dtype: Any = None, **_: Any) -> Any:
    return _triangle(row, col, offset, is_upper=True, dtype=dtype)


def _lower_indices(row: Any, col: Any, offset: Any = 0, *, dtype: Any = None, **_: Any) -> Any:
    return _triangle(row, col, offset, is_upper=False, dtype=dtype)


def _pair_distances(input: Any, p: float = 2.0) -> Any:
    if not _is_open(input.shape[0]):
        return NotImplemented
    first, second = _upper_indices(input.shape[0], input.shape[0], 1)
    return torch.linalg.vector_norm(input[first] - input[second], p, -1)


def _combinations(input: Any, r: int = 2, with_replacement: bool = False) -> Any:
    if r != 2 or not _is_open(input.shape[0]):
        return NotImplemented
    return input[_upper_indices(input.shape[0], input.shape[0], 0 if with_replacement else 1)].T


def _vandermonde(x: Any, N: Any = None, increasing: bool = False) -> Any:
    count = x.shape[0] if N is None else N
    if not _is_open(count):
        return NotImplemented
    powers = torch.arange(count)
    return x[:, None] ** (powers if increasing else count - 1 - powers)


def _ascending_vandermonde(x: Any, *, N: Any = None) -> Any:
    return _vandermonde(x, N, increasing=True) if x.ndim == 1 else NotImplemented


def _one_hot(tensor: Any, num_classes: Any = -1) -> Any:
    return (tensor.unsqueeze(-1) == torch.arange(num_classes)).long() if _is_open(num_classes) else NotImplemented


def _taken_along(input: Any, indices: Any, dim: Any = None) -> Any:
    if dim is None:
        return input.flatten().gather(0, indices.flatten())
    if input.ndim != indices.ndim:
        return NotImplemented
    axis = dim % input.ndim
    shape = list(torch.broadcast_shapes(*([*x.shape[:axis], 1, *x.shape[axis + 1 :]] for x in (input, indices))))
    wide, at = (x.expand([*shape[:axis], x.shape[axis], *shape[axis + 1 :]]) for x in (input, indices))
    return wide.gather(axis, at)


def _kronecker(input: Any, other: Any) -> Any:
    rank = max(input.ndim, other.ndim)
    x, y = (one.reshape([1] * (rank - one.ndim) + list(one.shape)) for one in (input, other))
    wide = x.reshape([s for size in x.shape for s in (size, 1)]) * y.reshape([s for size in y.shape for s in (1, size)])
    return wide.reshape([a * b for a, b in zip(x.shape, y.shape, strict=True)])


def _gradient(input: Any, *, spacing: Any = 1, dim: Any = None, edge_order: int = 1) -> Any:
    if not isinstance(spacing, (int, float)) or edge_order != 1:
        return NotImplemented
    axes = list(range(input.ndim)) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    results = []
    for axis in axes:
        count = input.shape[axis]
        first = input.narrow(axis, 1, 1) - input.narrow(axis, 0, 1)
        last = input.narrow(axis, count - 1, 1) - input.narrow(axis, count - 2, 1)
        middle = (input.narrow(axis, 2, count - 2) - input.narrow(axis, 0, count - 2)) / 2
        results.append(torch.cat([first, middle, last], axis) / spacing)
    return results


_FUNCTIONS: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (torch, "linspace", _line),
    (torch, "logspace", _powers_on_line),
    (torch, "hann_window", _window(_cosines(0.5, -0.5))),
    (torch, "hamming_window", _window(_hamming)),
    (torch, "blackman_window", _window(_cosines(0.42, -0.5, 0.08))),
    (torch, "bartlett_window", _window(lambda position: 1 - (2 * position - 1).abs())),
    (torch, "kaiser_window", _window(_kaiser)),
    (torch.fft, "fftfreq", _frequencies),
    (torch.fft, "rfftfreq", _half_frequencies),
    (torch.Tensor, "unfold", _unfolded),
    *((F, f"avg_pool{rank}d", _pool(rank, torch.Tensor.mean)) for rank in (1, 2, 3)),
    *((F, f"max_pool{rank}d", _pool(rank, torch.Tensor.amax)) for rank in (1, 2, 3)),
    (F, "lp_pool1d", _power_pool("avg_pool1d", 1)),
    (F, "lp_pool2d", _power_pool("avg_pool2d", 2)),
    (F, "fold", _folded),
    (F, "affine_grid", _grid_of_transform),
    (torch, "triu_indices", _upper_indices),
    (torch, "tril_indices", _lower_indices),
    (torch, "pdist", _pair_distances),
    (F, "pdist", _pair_distances),
    (torch, "combinations", _combinations),
    (torch, "vander", _vandermonde),
    (torch.linalg, "vander", _ascending_vandermonde),
    (F, "one_hot", _one_hot),
    (torch, "take_along_dim", _taken_along),
    (torch.Tensor, "take_along_dim", _taken_along),
    (torch, "kron", _kronecker),
    (torch.Tensor, "kron", _kronecker),
    (torch, "gradient", _gradient),
)
"""Owner and name of every function, and the equal program."""
