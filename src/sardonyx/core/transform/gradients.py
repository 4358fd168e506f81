"""The gradient of every primitive: from the cotangent of the result to the operands' cotangents.

A rule receives the result, its cotangent, the operands and the parameters, and returns a cotangent for each operand,
None for operands without gradient. Cotangents of complex numbers are the gradients by real and imaginary part,
``d/dre + i d/dim``. Among equal elements of a maximum or minimum, the first receives the gradient, as in ``argmax``.

Primitives with bodies (``cond``, ``loop``, ``call``) are in :mod:`.differentiation`, which fills the same table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size, at_least, dim_max, equal, floor_div
from sardonyx.core.eval.tensor import apply
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import DType, Shape, numpy_dtype
from sardonyx.core.language import Tensor

Cotangents = Sequence["Tensor | None"]
GradientRule = Callable[..., Any]

GRADIENTS: dict[str, GradientRule] = {}

FLAT: dict[str, str] = {}
"""Primitives that no gradient flows through, with the reason."""

_LAST_INDEX = np.iinfo(np.int64).max


def gradient_rule(*names: str) -> Callable[[GradientRule], GradientRule]:
    """Register the gradient rule of primitives."""

    def register(rule: GradientRule) -> GradientRule:
        GRADIENTS.update(dict.fromkeys(names, rule))
        return rule

    return register


def _flat(names: str, reason: str) -> None:
    def rule(y: Tensor, dy: Tensor, *operands: Tensor, **params: Any) -> Cotangents:
        return (None,) * len(operands)

    for name in names.split():
        GRADIENTS[name] = rule
        FLAT[name] = reason


_flat("sign floor ceil round", "constant between its jumps")
_flat("not and or xor shift_left shift_right", "of bits")
_flat("equal less", "gives booleans")
_flat("sort top_k", "gives indices; gathering by them has a gradient")
_flat("constant input iota dims random", "reads no floating-point operand")
_flat("bind", "gives a size")
_flat("stop_gradient", "that is what it is for")


def conj(x: Tensor) -> Tensor:
    """Return the complex conjugate; real numbers unchanged."""
    if t.kind(x.dtype) != "complex":
        return x
    real = t.FLOAT if x.dtype == t.COMPLEX64 else t.DOUBLE
    return L.bitcast(L.bitcast(x, real) * L.constant([1, -1], real), x.dtype)


# Elementwise.

_DERIVATIVES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "abs": lambda x, y: L.sign(x),
    "exp": lambda x, y: y,
    "log": lambda x, y: 1 / x,
    "sqrt": lambda x, y: 0.5 / y,
    "sin": lambda x, y: L.cos(x),
    "cos": lambda x, y: -L.sin(x),
    "tan": lambda x, y: 1 + y * y,
    "asin": lambda x, y: 1 / L.sqrt(1 - x * x),
    "acos": lambda x, y: -1 / L.sqrt(1 - x * x),
    "atan": lambda x, y: 1 / (1 + x * x),
    "sinh": lambda x, y: L.cosh(x),
    "cosh": lambda x, y: L.sinh(x),
    "tanh": lambda x, y: 1 - y * y,
    "asinh": lambda x, y: 1 / L.sqrt(x * x + 1),
    "acosh": lambda x, y: 1 / (L.sqrt(x - 1) * L.sqrt(x + 1)),
    "atanh": lambda x, y: 1 / (1 - x * x),
    "erf": lambda x, y: 2 / math.sqrt(math.pi) * L.exp(-x * x),
}
"""Derivatives of one operand, of it and the result."""


def _chain(derivative: Callable[[Tensor, Tensor], Tensor]) -> GradientRule:
    def rule(y: Tensor, dy: Tensor, x: Tensor) -> Cotangents:
        return (dy * conj(derivative(x, y)),)

    return rule


GRADIENTS |= {name: _chain(derivative) for name, derivative in _DERIVATIVES.items()}


@gradient_rule("neg")
def _neg(y: Tensor, dy: Tensor, x: Tensor) -> Cotangents:
    return (-dy,)


@gradient_rule("add")
def _add(y: Tensor, dy: Tensor, a: Tensor, b: Tensor) -> Cotangents:
    return dy, dy


@gradient_rule("sub")
def _sub(y: Tensor, dy: Tensor, a: Tensor, b: Tensor) -> Cotangents:
    return dy, -dy


@gradient_rule("mul")
def _mul(y: Tensor, dy: Tensor, a: Tensor, b: Tensor) -> Cotangents:
    return dy * conj(b), dy * conj(a)


@gradient_rule("div")
def _div(y: Tensor, dy: Tensor, a: Tensor, b: Tensor) -> Cotangents:
    return dy / conj(b), -dy * conj(y / b)


def power_of_logistic(value: Value) -> Value | None:
    """Return the power ``exp(z)`` of a real quotient ``a / (1 + exp(z))``; None for other values."""
    if value.op != "div" or not t.is_float(value.type.dtype) or value.operands[1].op != "add":  # type: ignore[union-attr]
        return None
    for power, one in (terms := value.operands[1].operands, terms[::-1]):
        if power.op == "exp" and _is_splat(one, 1):
            return power
    return None


def logistic_cotangents(y: Tensor, dy: Tensor, a: Tensor, b: Tensor, power: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cotangents of ``a`` and ``z`` in ``y = a / (1 + exp(z))``, where the power may be infinite.

    The other share is the power times the share: the difference of 1 and a share near 1 would have few digits.
    """
    share = y if _is_splat(a, 1) else 1 / b
    greatest = float(ml_dtypes.finfo(numpy_dtype(power.dtype)).max)  # type: ignore[no-untyped-call]
    return dy * share, -dy * y * (L.minimum(power, greatest) * share)


def softmax_axes(value: Value) -> tuple[int, ...] | None:
    """Return the axes of a softmax, a real quotient ``exp(z) / sum(exp(z))``; None for other values."""
    if value.op != "div" or not t.is_float(value.type.dtype) or value.operands[0].op != "exp":  # type: ignore[union-attr]
        return None
    powers, total = value.operands
    while total.op in ("broadcast", "reshape"):
        total = total.operands[0]
    if total.op != "reduce" or total.params["kind"] != "add" or total.operands[0] is not powers:
        return None
    axes: tuple[int, ...] = total.params["axes"]
    return axes if value.operands[1] is _expanded(total, axes, powers.type.shape) else None  # type: ignore[arg-type,union-attr]


def softmax_cotangent(y: Tensor, dy: Tensor, axes: Sequence[int]) -> Tensor:
    """Return the cotangent of ``z`` in ``y = exp(z) / sum(exp(z))``, which needs no power in memory."""
    return y * (dy - L.reduce_sum(y * dy, axes, keepdims=True))


@gradient_rule("rem")
def _rem(y: Tensor, dy: Tensor, a: Tensor, b: Tensor) -> Cotangents:
    return dy, -dy * L.round_((a - y) / b)


@gradient_rule("pow")
def _pow(y: Tensor, dy: Tensor, a: Tensor, b: Tensor) -> Cotangents:
    """At exponent 0 the base has no say, and at base 0 an exponent that is not negative has none."""
    by_base = L.where(L.equal(b, 0), 0, b * a ** (b - 1))
    if t.kind(a.dtype) == "complex":
        return dy * conj(by_base), dy * conj(L.where(L.equal(a, 0), 0, y * L.log(a)))
    return dy * by_base, dy * L.where(L.equal(a, 0) & (b >= 0), 0, y * L.log(a))


def _is_splat(x: Value, number: float) -> bool:
    while x.op in ("broadcast", "reshape"):
        x = x.operands[0]
    return x.is_constant and bool(np.all(np.asarray(x.known) == number))


@gradient_rule("max")
def _max(y: Tensor, dy: Tensor, a: Tensor, b: Tensor) -> Cotangents:
    """A tie with the constant 0 goes to the constant: rectifiers have the gradient 0 at 0, as in torch and JAX.

    The sign of the result decides, so that the operand need not be in memory.
    """
    if _is_splat(b, 0):
        return L.where(b < y, dy, 0), None
    second = a < b
    return L.where(second, 0, dy), L.where(second, dy, 0)


@gradient_rule("min")
def _min(y: Tensor, dy: Tensor, a: Tensor, b: Tensor) -> Cotangents:
    second = b < a
    return L.where(second, 0, dy), L.where(second, dy, 0)


@gradient_rule("select")
def _select(y: Tensor, dy: Tensor, condition: Tensor, a: Tensor, b: Tensor) -> Cotangents:
    return None, L.where(condition, dy, 0), L.where(condition, 0, dy)


# Conversions.


@gradient_rule("convert")
def _convert(y: Tensor, dy: Tensor, x: Tensor, **params: Any) -> Cotangents:
    """Saturation and rounding are taken for the identity."""
    return (L.cast(dy, x.dtype),)


_COMPONENT = {t.COMPLEX64: t.FLOAT, t.COMPLEX128: t.DOUBLE}


@gradient_rule("bitcast")
def _bitcast(y: Tensor, dy: Tensor, x: Tensor, *, dtype: DType) -> Cotangents:
    """Of complex numbers and pairs of their parts; other bits have no gradient."""
    parts = _COMPONENT.get(x.dtype) == dtype or _COMPONENT.get(dtype) == x.dtype
    return (L.bitcast(dy, x.dtype) if parts else None,)


# Contractions.


def _expanded(y: Tensor, axes: Sequence[int], shape: Shape) -> Tensor:
    """Repeat the result of a reduction along the reduced axes."""
    return L.broadcast_to(L.reshape(y, [1 if a in axes else size for a, size in enumerate(shape)]), shape)


def _with_last(x: Tensor, axes: Sequence[int]) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return the tensor with some axes flattened into a last one, and the inverse function."""
    order = [*(a for a in range(x.rank) if a not in axes), *axes]
    moved = L.permute(x, order)
    leading = moved.shape[: x.rank - len(axes)]

    def back(flat: Tensor) -> Tensor:
        return L.permute(L.reshape(flat, moved.shape), [order.index(a) for a in range(x.rank)])

    return L.reshape(moved, (*leading, L.product(moved.shape[len(leading) :]))), back


def _before(x: Tensor) -> Tensor:
    """Products of all elements before each one, along the last axis."""
    first = L.full((*x.shape[:-1], 1), 1, x.dtype)
    shifted = L.slice_(L.concat([first, x], -1), -1, 0, x.shape[-1])
    return L.cumulative("mul", shifted, -1)


@gradient_rule("reduce")
def _reduce(y: Tensor, dy: Tensor, x: Tensor, *, kind: str, axes: tuple[int, ...]) -> Cotangents:
    if kind == "add":
        return (_expanded(dy, axes, x.shape),)
    flat, back = _with_last(x, axes)
    if kind == "mul":  # Of all others, so that zeros divide nothing.
        others = conj(_before(flat) * L.reverse(_before(L.reverse(flat, [-1])), [-1]))
        return (back(others) * _expanded(dy, axes, x.shape),)
    if kind not in ("max", "min"):
        return (None,)
    if flat.shape[-1] == 0:
        return (L.zeros_like(x),)
    if at_least(flat.shape[-1], 1) is True:
        first = (L.argmax if kind == "max" else L.argmin)(flat, -1)
    else:  # The least of no indices is the identity of the minimum, where `argmax` of no elements is an error.
        is_extreme = L.equal(flat, L.unsqueeze(y, [-1]))
        if t.is_float(x.dtype):
            is_extreme = is_extreme | L.is_nan(flat)
        indices = L.iota(flat.shape, -1)
        first = L.reduce_min(L.where(is_extreme, indices, _LAST_INDEX), [-1])
    first = L.unsqueeze(first, [-1])
    return (L.where(back(L.equal(L.iota(flat.shape, -1), first)), _expanded(dy, axes, x.shape), 0),)


@gradient_rule("contract")
def _contract(
    y: Tensor,
    dy: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    batch: tuple[tuple[int, int], ...],
    left: tuple[int, ...],
    right: tuple[int, ...],
    dtype: DType,
) -> Cotangents:
    n = len(batch)
    a_free = [i for i in range(a.rank) if i not in left and i not in [pair[0] for pair in batch]]
    b_free = [i for i in range(b.rank) if i not in right and i not in [pair[1] for pair in batch]]
    a_axes, b_axes = range(n, n + len(a_free)), range(n + len(a_free), y.rank)
    a_batch, b_batch = ([pair[k] for pair in batch] for k in (0, 1))
    da = L.contract(dy, conj(b), batch=list(enumerate(b_batch)), left=b_axes, right=b_free, dtype=dtype)
    a_order = [*a_batch, *a_free, *(left[right.index(q)] for q in sorted(right))]
    summed = [right[left.index(p)] for p in sorted(left)]
    b_order = [*b_batch, *b_free, *summed]
    if b_order == sorted(b_order):
        db = L.contract(
            dy, conj(a), batch=list(zip(range(n), a_batch, strict=True)), left=a_axes, right=a_free, dtype=dtype
        )
    else:
        b_order = [*b_batch, *summed, *b_free]
        db = L.contract(
            conj(a), dy, batch=list(zip(a_batch, range(n), strict=True)), left=a_free, right=a_axes, dtype=dtype
        )
    return L.cast(_invert_permutation(da, a_order), a.dtype), L.cast(_invert_permutation(db, b_order), b.dtype)


def _invert_permutation(x: Tensor, order: Sequence[int]) -> Tensor:
    """Invert a permutation of the axes."""
    return L.permute(x, [order.index(axis) for axis in range(x.rank)])


@gradient_rule("convolve")
def _convolve(
    y: Tensor,
    dy: Tensor,
    x: Tensor,
    w: Tensor,
    *,
    strides: tuple[int, ...],
    padding: tuple[tuple[Size, Size], ...],
    base_dilation: tuple[int, ...],
    kernel_dilation: tuple[int, ...],
    dtype: DType,
) -> Cotangents:
    """Convolutions again: of the cotangent with the reversed kernel, and of the input with the cotangent."""
    for_x: list[tuple[Size, Size]] = []
    for_w: list[tuple[Size, Size]] = []
    for axis, (stride, (low, _), base, dilation) in enumerate(
        zip(strides, padding, base_dilation, kernel_dilation, strict=True), 3
    ):
        size, kernel, count = x.shape[axis], w.shape[axis], y.shape[axis]
        reach, span = dilation * (kernel - 1), stride * (count - 1)
        for_x.append((reach - low, (size - 1) * base - span + low))
        for_w.append((low, reach - (size - 1) * base - low + span))
    swapped = [0, 2, 1, *range(3, x.rank)]
    spatial = range(3, x.rank)
    options = {"dtype": dtype}
    dx = apply("convolve", dy, L.reverse(L.permute(conj(w), swapped), spatial), strides=base_dilation,
               padding=tuple(for_x), base_dilation=strides, kernel_dilation=kernel_dilation, **options)  # fmt: skip
    dw = apply("convolve", L.permute(conj(x), swapped), L.permute(dy, swapped), strides=kernel_dilation,
               padding=tuple(for_w), base_dilation=base_dilation, kernel_dilation=strides, **options)  # fmt: skip
    return L.cast(dx, x.dtype), L.cast(L.permute(dw, swapped), w.dtype)


@gradient_rule("reduce_window")
def _reduce_window(
    y: Tensor,
    dy: Tensor,
    x: Tensor,
    *,
    kind: str,
    window: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[tuple[Size, Size], ...],
    dilation: tuple[int, ...],
) -> Cotangents:
    leading = x.rank - len(window)
    if kind in ("max", "min"):
        at = L.reduce_window("arg" + kind, x, window, strides=strides, padding=padding, dilation=dilation)
        lead, positions = x.shape[:leading], L.product(y.shape[leading:])
        flat = L.full((*lead, L.product(x.shape[leading:])), 0, x.dtype)
        rows = L.reshape(L.maximum(at, 0), (*lead, positions, 1))
        updates = L.reshape(L.where(at < 0, 0, dy), (*lead, positions))  # A window of padding alone has no position.
        return (L.reshape(apply("scatter", flat, rows, updates, kind="add", batch=leading), x.shape),)
    if kind != "add":
        return (None,)
    low: list[Size] = [0] * leading
    high: list[Size] = [0] * leading
    for axis, (size, stride, (before, _), step) in enumerate(
        zip(window, strides, padding, dilation, strict=True), leading
    ):
        low.append(step * (size - 1) - before)
        high.append(x.shape[axis] - 1 - (y.shape[axis] - 1) * stride + before)
    spread = L.pad(dy, low, high, 0, [0] * leading + [stride - 1 for stride in strides])
    ones, none = [1] * len(window), [(0, 0)] * len(window)
    return (L.reduce_window("add", spread, window, strides=ones, padding=none, dilation=dilation),)


# Movement.


@gradient_rule("reshape")
def _reshape(y: Tensor, dy: Tensor, x: Tensor, *, shape: Shape) -> Cotangents:
    return (L.reshape(dy, x.shape),)


@gradient_rule("permute")
def _permute(y: Tensor, dy: Tensor, x: Tensor, *, axes: tuple[int, ...]) -> Cotangents:
    return (_invert_permutation(dy, axes),)


@gradient_rule("broadcast")
def _broadcast(y: Tensor, dy: Tensor, x: Tensor, *, shape: Shape) -> Cotangents:
    """Summed where it was repeated; where only the run tells, over as many repetitions as there are."""
    repeated = [a for a, size in enumerate(x.shape) if size == 1 and shape[a] != 1]
    dx = L.reduce_sum(dy, repeated, keepdims=True) if repeated else dy
    for axis, size in enumerate(x.shape):
        if isinstance(size, Dim) and equal(size, shape[axis]) is not True and at_least(size, 2) is not True:
            dx = _summed_if_one(dx, axis, size)
    return (L.reshape(dx, x.shape),)


def _summed_if_one(dx: Tensor, axis: int, size: Size) -> Tensor:
    """Return the cotangent along an axis of ``size``: summed if the size is 1, else unchanged.

    The axis is split into repetitions and elements; a condition would copy all values that depend on sizes alone into
    both branches, and a chain of conditions doubles with each.
    """
    repetitions = floor_div(dx.shape[axis], dim_max(size, 1))
    split = L.reshape(dx, (*dx.shape[:axis], repetitions, size, *dx.shape[axis + 1 :]))
    return L.reduce_sum(split, [axis])


@gradient_rule("slice")
def _slice(y: Tensor, dy: Tensor, x: Tensor, *, starts: Shape, limits: Shape, strides: tuple[int, ...]) -> Cotangents:
    high: list[Size] = []
    for axis, (start, stride) in enumerate(zip(starts, strides, strict=True)):
        if stride > 1:  # Every element with the ones that were left out after it.
            count = dy.shape[axis]
            wide = L.unsqueeze(dy, [axis + 1])
            wide = L.pad(wide, [0] * wide.rank, [stride - 1 if a == axis + 1 else 0 for a in range(wide.rank)])
            dy = L.reshape(wide, (*dy.shape[:axis], count * stride, *dy.shape[axis + 1 :]))
        high.append(x.shape[axis] - start - dy.shape[axis])
    return (L.pad(dy, starts, high),)


@gradient_rule("pad")
def _pad(
    y: Tensor, dy: Tensor, x: Tensor, value: Tensor, *, low: Shape, high: Shape, interior: tuple[int, ...]
) -> Cotangents:
    cropped = L.pad(dy, [-size for size in low], [-size for size in high])
    zeros, steps = (0,) * x.rank, tuple(between + 1 for between in interior)
    dx = (
        apply("slice", cropped, starts=zeros, limits=cropped.shape, strides=steps)
        if max(interior, default=0)
        else cropped
    )
    added = L.pad(L.full(x.shape, False, t.BOOL), low, high, True, interior)
    return dx, L.reduce_sum(L.where(added, dy, 0))


@gradient_rule("concat")
def _concat(y: Tensor, dy: Tensor, *xs: Tensor, axis: int) -> Cotangents:
    parts: list[Tensor] = []
    start: Size = 0
    for x in xs:
        parts.append(L.slice_(dy, axis, start, start + x.shape[axis]))
        start = start + x.shape[axis]
    return parts


@gradient_rule("gather")
def _gather(y: Tensor, dy: Tensor, x: Tensor, indices: Tensor, *, batch: int) -> Cotangents:
    return apply("scatter", L.zeros_like(x), indices, dy, kind="add", batch=batch), None


@gradient_rule("scatter")
def _scatter(
    y: Tensor, dy: Tensor, x: Tensor, indices: Tensor, updates: Tensor, *, kind: str, batch: int
) -> Cotangents:
    def read(source: Tensor) -> Tensor:
        return apply("gather", source, indices, batch=batch)

    def written(target: Tensor, values: Tensor, kind: str) -> Tensor:
        return apply("scatter", target, indices, values, kind=kind, batch=batch)

    if kind == "add":
        return dy, None, read(dy)
    if kind == "mul":
        return _scatter_mul(dy, x, updates, read, written)
    order = _order_of(indices, updates)
    if kind == "set":
        last = L.equal(read(written(L.full(x.shape, -1, t.INT64), order, "max")), order)
        return written(dy, L.zeros_like(updates), "set"), None, L.where(last, read(dy), 0)
    unchanged = L.equal(x, y)
    late = L.full_like(order, (1 << 62))
    reached = L.where(L.equal(updates, read(y)) & L.logical_not(read(unchanged)), order, late)
    first = L.equal(read(written(L.full(x.shape, 1 << 62, t.INT64), reached, "min")), reached) & (reached < late)
    return L.where(unchanged, dy, 0), None, L.where(first, read(dy), 0)


def _order_of(indices: Tensor, updates: Tensor) -> Tensor:
    """The number of the index vector that writes each update."""
    rows = indices.shape[:-1]
    numbers = L.reshape(L.arange(L.product(rows)), (*rows, *(1,) * (updates.rank - len(rows))))
    return L.broadcast_to(numbers, updates.shape)


def _scatter_mul(
    dy: Tensor,
    x: Tensor,
    updates: Tensor,
    read: Callable[[Tensor], Tensor],
    written: Callable[[Tensor, Tensor, str], Tensor],
) -> Cotangents:
    """Multiply by the product of all other factors, counting zeros to exclude divisions by 0."""
    zero = L.equal(updates, 0)
    others = read(written(x, L.where(zero, 1, updates), "mul"))
    zeros = read(written(L.zeros_like(x), L.cast(zero, x.dtype), "add"))
    alone = L.where(zero, others, others / L.where(zero, 1, updates))
    counted = L.equal(zeros, L.cast(zero, x.dtype))  # No factor besides this one is 0.
    factors = written(L.ones_like(x), updates, "mul")
    return dy * factors, None, L.where(counted, read(dy) * alone, 0)


@gradient_rule("reverse")
def _reverse(y: Tensor, dy: Tensor, x: Tensor, *, axes: tuple[int, ...]) -> Cotangents:
    return (L.reverse(dy, axes),)


# Order and special.


@gradient_rule("scan")
def _scan(y: Tensor, dy: Tensor, x: Tensor, *, kind: str, axis: int) -> Cotangents:
    if kind == "add":
        return (L.reverse(L.cumulative("add", L.reverse(dy, [axis]), axis), [axis]),)
    if kind == "mul":
        flat, back = _with_last(x, [axis])
        return (back(_before(flat) * _after(flat, _with_last(dy, [axis])[0])),)
    one = [1 if a == axis else 0 for a in range(x.rank)]
    earlier = L.pad(y, one, [-count for count in one], 0)
    newer = earlier < x if kind == "max" else x < earlier
    since = L.cumulative("max", L.where(newer, L.iota(x.shape, axis), 0), axis)
    return (L.scatter_elements(L.zeros_like(x), since, dy, axis, "add"),)


def _after(x: Tensor, dy: Tensor) -> Tensor:
    """Return for each element the sum of the later cotangents times the elements between.

    The sum includes the element's own cotangent; all along the last axis.
    """
    rows, cotangents = (L.permute(v, [v.rank - 1, *range(v.rank - 1)]) for v in (x, dy))
    count = rows.shape[0]

    def once(i: Tensor, total: Tensor, factor: Tensor) -> tuple[None, list[Tensor], list[Tensor]]:
        at = L.reshape(L.size_tensor([count - 1], ()) - i, (1,))
        total = apply("gather", cotangents, at, batch=0) + factor * total
        return None, [total, apply("gather", rows, at, batch=0)], [total]

    none = L.full(rows.shape[1:], 0, x.dtype)
    _, (totals,) = L.loop(L.size_tensor([count], ()), None, [none, none], once)
    return L.permute(L.reverse(totals, [0]), [*range(1, x.rank), 0])


@gradient_rule("fft")
def _fft(y: Tensor, dy: Tensor, x: Tensor, *, inverse: bool) -> Cotangents:
    return (L.fft(dy, inverse=not inverse),)


@gradient_rule("determinant")
def _determinant(y: Tensor, dy: Tensor, x: Tensor) -> Cotangents:
    """The cofactors, which singular matrices have as well: determinants without a row and a column."""
    n = x.shape[-1]
    lead, fewer = x.rank - 2, dim_max(n - 1, 0)
    others = L.iota((n, fewer), 1)
    others = L.where(others < L.iota((n, fewer), 0), others, others + 1)  # [i, r]: the r-th index besides i.
    without = L.permute(L.take(x, others, -2), [*range(lead), lead, lead + 2, lead + 1])  # [i, column, r]
    minors = L.take(without, others, -2)  # [i, j, s, r]
    sign = 1 - 2 * L.remainder(L.iota((n, n), 0) + L.iota((n, n), 1), 2)
    cofactors = L.determinant(minors) * L.cast(sign, x.dtype)
    return (conj(cofactors) * L.unsqueeze(dy, [lead, lead + 1]),)
