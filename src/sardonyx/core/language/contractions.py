"""Sums of products and windows: contractions, convolutions, transforms."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core.dim import Size, floor_div
from sardonyx.core.eval.tensor import Tensor, apply, broadcast_shapes, broadcast_to
from sardonyx.core.ir.types import DType
from sardonyx.core.language.movement import concat, permute, reshape, squeeze, unsqueeze
from sardonyx.core.language.reductions import reduce_sum
from sardonyx.core.language.sources import arange
from sardonyx.errors import ShapeError


def contract(
    x: Tensor,
    y: Tensor,
    *,
    batch: Sequence[tuple[int, int]] = (),
    left: Sequence[int],
    right: Sequence[int],
    dtype: DType | None = None,
) -> Tensor:
    """Return sums of products over paired axes; see the primitive."""
    return apply("contract", x, y, batch=tuple(batch), left=tuple(left), right=tuple(right), dtype=dtype or x.dtype)


def matmul(x: Tensor, y: Tensor, dtype: DType | None = None) -> Tensor:
    """Return the matrix product as numpy's ``matmul``: vectors are promoted, leading axes broadcast."""
    if x.rank == 0 or y.rank == 0:
        raise ShapeError("expected operands of rank ≥ 1 for a matrix product, got a scalar.")
    if x.rank == 1:
        return squeeze(matmul(unsqueeze(x, [0]), y, dtype), [-2 if y.rank > 1 else 0])
    if y.rank == 1:
        return squeeze(matmul(x, unsqueeze(y, [-1]), dtype), [-1])
    if y.rank == 2:
        return contract(x, y, left=[x.rank - 1], right=[0], dtype=dtype)
    shared = broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x, y = (broadcast_to(v, (*shared, *v.shape[-2:])) for v in (x, y))
    n = len(shared)
    return contract(x, y, batch=[(i, i) for i in range(n)], left=[n + 1], right=[n], dtype=dtype)


def einsum(equation: str, *operands: Tensor, dtype: DType | None = None) -> Tensor:
    """Return products summed by the letters of an explicit equation, e.g. ``"bhqd,bhkd->bhqk"``.

    No ellipsis. Operands are contracted from left to right; a letter of a single operand is summed there, and a letter
    that occurs twice in one operand selects the diagonal.
    """
    left_side, result = equation.replace(" ", "").split("->")
    terms = left_side.split(",")
    pairs = [_take_diagonal(x, term) for x, term in zip(operands, terms, strict=True)]
    (x, letters), rest = pairs[0], pairs[1:]
    for position, (y, others) in enumerate(rest):
        later = set(result).union(*(term for _, term in rest[position + 1 :]))
        x, letters = _contract_pair(x, letters, y, others, later, dtype)
    x, letters = _sum_letters(x, letters, set(result))
    missing = set(result) - set(letters)
    if missing:
        raise ShapeError(f"{''.join(sorted(missing))} of the result {result!r} does not occur in any operand.")
    return permute(x, [letters.index(c) for c in result])


def _take_diagonal(x: Tensor, letters: str) -> tuple[Tensor, str]:
    if len(letters) != x.rank:
        raise ShapeError(f"{letters!r} names {len(letters)} axes, but the operand has {x.rank}.")
    for letter in dict.fromkeys(letters):
        while letters.count(letter) > 1:
            a, b = letters.index(letter), letters.rindex(letter)
            first = permute(x, [a, b, *(i for i in range(x.rank) if i not in (a, b))])
            along = [unsqueeze(arange(size), [-1]) for size in first.shape[:2]]  # Axes of one letter have one size.
            x = apply("gather", first, concat(along, -1), batch=0)
            letters = letter + "".join(c for i, c in enumerate(letters) if i not in (a, b))
    return x, letters


def _sum_letters(x: Tensor, letters: str, remaining: set[str]) -> tuple[Tensor, str]:
    summed = [i for i, c in enumerate(letters) if c not in remaining]
    return (reduce_sum(x, summed), "".join(c for c in letters if c in remaining)) if summed else (x, letters)


def _contract_pair(x: Tensor, xs: str, y: Tensor, ys: str, later: set[str], dtype: DType | None) -> tuple[Tensor, str]:
    x, xs = _sum_letters(x, xs, later | set(ys))
    y, ys = _sum_letters(y, ys, later | set(xs))
    shared = [c for c in xs if c in ys]
    x, y = _match_sizes(x, xs, y, ys, shared)
    batch = [c for c in shared if c in later]
    inner = [c for c in shared if c not in later]
    result = contract(
        x,
        y,
        batch=[(xs.index(c), ys.index(c)) for c in batch],
        left=[xs.index(c) for c in inner],
        right=[ys.index(c) for c in inner],
        dtype=dtype,
    )
    return result, "".join([*batch, *(c for c in xs if c not in shared), *(c for c in ys if c not in shared)])


def _match_sizes(x: Tensor, xs: str, y: Tensor, ys: str, shared: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Repeat axes of size 1 to the other operand's size of the same letter."""
    a, b = list(x.shape), list(y.shape)
    for c in shared:
        i, j = xs.index(c), ys.index(c)
        a[i] = b[j] = broadcast_shapes((a[i],), (b[j],))[0]
    return broadcast_to(x, tuple(a)), broadcast_to(y, tuple(b))


def convolve(
    x: Tensor,
    w: Tensor,
    *,
    strides: Sequence[int],
    padding: Sequence[tuple[Size, Size]],
    kernel_dilation: Sequence[int] | None = None,
    base_dilation: Sequence[int] | None = None,
    groups: Size = 1,
    dtype: DType | None = None,
) -> Tensor:
    """Return a convolution of [N, C, *spatial] with [M, C/groups, *kernel] to [N, M, *spatial]."""
    n = len(strides)
    channels, features = x.shape[1], w.shape[0]
    if isinstance(groups, int) and (groups < 1 or (isinstance(features, int) and features % groups)):
        raise ShapeError(f"expected a multiple of {groups} groups, got {features} features.")
    if channels != w.shape[1] * groups and isinstance(channels, int) and isinstance(w.shape[1], int):
        raise ShapeError(
            f"the input has {channels} channels, but the weights have {groups} groups of {w.shape[1]}.",
        )
    grouped = reshape(x, (x.shape[0], groups, w.shape[1], *x.shape[2:]))
    result = apply(
        "convolve",
        permute(grouped, [1, 0, *range(2, 3 + n)]),
        reshape(w, (groups, floor_div(features, groups), *w.shape[1:])),
        strides=tuple(strides),
        padding=tuple(padding),
        base_dilation=tuple(base_dilation or (1,) * n),
        kernel_dilation=tuple(kernel_dilation or (1,) * n),
        dtype=dtype or x.dtype,
    )
    by_image = permute(result, [1, 0, *range(2, 3 + n)])
    return reshape(by_image, (x.shape[0], features, *result.shape[3:]))


def reduce_window(
    kind: str,
    x: Tensor,
    window: Sequence[int],
    *,
    strides: Sequence[int],
    padding: Sequence[tuple[Size, Size]],
    dilation: Sequence[int] | None = None,
) -> Tensor:
    """Return a reduction over windows of the last axes; see the primitive."""
    return apply(
        "reduce_window",
        x,
        kind=kind,
        window=tuple(window),
        strides=tuple(strides),
        padding=tuple(padding),
        dilation=tuple(dilation or (1,) * len(window)),
    )


def fft(x: Tensor, inverse: bool = False) -> Tensor:
    """Return the discrete Fourier transform of complex numbers along the last axis, unscaled."""
    return apply("fft", x, inverse=inverse)


def determinant(x: Tensor) -> Tensor:
    """Return the determinants of the matrices in the last two axes."""
    return apply("determinant", x)
