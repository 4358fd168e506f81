"""Canonical form: each construct that the scheduler matches is written in a single way.

- A ``convolve`` reads an image ``[N, G * C, spatial]`` and returns an image ``[N, G * M, spatial]``; the movements from
  and to Core's form are adjacent to the ``convolve``.
- A division by a constant is a multiplication, unless the reciprocal would lose more than a rounding, or a rounding
  would decide an integer: an element that is read, a code of a quantization.
- A window over a whole image is a ``reduce``.
- A product of two computed operands sums along the last axes of the first; a permute after a product that exchanges
  rows and columns exchanges the operands.
- Products of dequantized values are products of int8 codes (:mod:`sardonyx.compiler.passes.int8_matmul`). This is not a
  pass of its own: a convolution of codes needs the image and the movements that the rule for ``convolve`` has at hand.
- A convolution in float32 of numbers that are bfloat16 is one of bfloat16, if that is faster
  (:mod:`sardonyx.compiler.passes.bfloat16_convolutions`).
- Rows of a dequantized table are dequantized rows (:mod:`sardonyx.compiler.passes.gathered_tables`).
- Known rows at equal distances are a slice.
- Dequantized weights of other products keep their codes (:mod:`sardonyx.compiler.passes.low_bit_matmul`).

Passes before: calls are inlined (:mod:`sardonyx.compiler.passes.inline_calls`) and slices at the iteration number of a
loop are elements (:mod:`sardonyx.compiler.passes.loop_slices`). The pass after merges products with a common operand
(:mod:`sardonyx.compiler.passes.merge_matmuls`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from sardonyx.compiler.analysis.code_tables import find_code_tables
from sardonyx.compiler.analysis.constant_values import is_closed
from sardonyx.compiler.analysis.patterns import skip_broadcasts
from sardonyx.compiler.analysis.primitive_traits import ELEMENTWISE, dtype_of
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.analysis.weight_gradients import has_kernel
from sardonyx.compiler.passes.bfloat16_convolutions import narrow_operands
from sardonyx.compiler.passes.computed_codes import multiply_computed_codes
from sardonyx.compiler.passes.gathered_tables import gather_rows
from sardonyx.compiler.passes.int8_matmul import image_operands, multiply_codes
from sardonyx.compiler.passes.low_bit_matmul import keep_low_bits
from sardonyx.compiler.passes.window_products import multiply_windows
from sardonyx.compiler.target.description import Target
from sardonyx.core.eval.tensor import Tensor, apply, constant
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.transform.rewriting import Match, RuleSet

CANONICAL_FORMS = RuleSet("canonicalize")


@dataclass
class _Context:
    """State of one pass.

    Attributes:
        target: The processor.
        images: The image of each result of a ``convolve``, before the movements to Core's form.
        swapped: By a result of a ``convolve`` in Core's form: the same before the last permute.
        whole: Results of a ``convolve`` in float32 that are exact sums of integers.
        users: Number of readers of each value of the function.
        decisive: Values whose last bit may decide which element is read, or which branch of a comparison holds, and
            values that decide an element of a table of codes.
        attentive: Scores of an attention, which one kernel computes from floats.
    """

    target: Target
    images: dict[Value, Tensor] = field(default_factory=dict)
    swapped: dict[Value, Tensor] = field(default_factory=dict)
    whole: set[Value] = field(default_factory=set)
    users: Counter[Value] = field(default_factory=Counter)
    decisive: frozenset[Value] = frozenset()
    attentive: frozenset[Value] = frozenset()


def canonicalize(inner: Function, target: Target) -> Function:
    """Return the function with all primitives in canonical form.

    Calls are inlined before; bodies of loops and branches of choices are left unchanged.
    """
    users = Counter(operand for value in inner.values for operand in value.operands)
    users.update(inner.results)
    context = _Context(target, users=users, decisive=_decisive(inner), attentive=_attentive(inner))
    return CANONICAL_FORMS.apply(inner, context)


_STEPS = frozenset({"floor", "ceil", "round", "less", "equal", "rem"})
"""Functions that jump: a rounding before them changes the result by more than a rounding."""

_PASSING = frozenset({"reshape", "permute", "broadcast", "slice", "concat", "reverse", "pad"}) | ELEMENTWISE


def _decisive(inner: Function) -> frozenset[Value]:
    """Return the operands of jumps and the indices of gathers, with the values that they are computed from.

    A conversion to integers is a jump too, but for numbers that are rounded: these are codes of a quantization.
    """
    decisive, truncated = set[Value](), set[Value]()
    for value in reversed(inner.values):
        if _truncates(value) or (value.op in _PASSING - {"round"} and value in truncated):
            truncated.update(value.operands)
        if value.op in _STEPS or (value.op in _PASSING and value in decisive):
            decisive.update(value.operands)
        elif value.op in ("gather", "scatter"):
            decisive.add(value.operands[1])
    for table in find_code_tables(inner.values, inner.results):
        # Lookups cost the same for any function: tables have the codes of the reference, also those of ties.
        decisive.update(table.interior)
    return frozenset(decisive | truncated)


def _attentive(inner: Function) -> frozenset[Value]:
    """Return the products from which the weights of another product are computed by a softmax, without a rounding."""
    scores = set[Value]()
    for product in inner.values:
        weights = skip_broadcasts(product.operands[0]) if product.op == "contract" else product
        if product.op != "contract" or weights.op != "div" or weights.operands[0].op != "exp":
            continue
        seen, waiting = set[Value](), [weights.operands[0]]
        while waiting:
            value = waiting.pop()
            if value.op == "contract":
                scores.add(value)
            elif value not in seen and value.op in _PASSING - {"round"} | {"reduce"}:
                seen.add(value)
                waiting += value.operands
    return frozenset(scores)


def _truncates(value: Value) -> bool:
    """Return True for a conversion of floats to integers."""
    return value.op == "convert" and t.is_float(dtype_of(value.operands[0])) and not t.is_float(dtype_of(value))


@CANONICAL_FORMS.rule("reduce_window")
def whole_window(m: Match, x: Tensor, **params: Any) -> Value | None:
    """A ``reduce_window`` whose only window covers an axis is a ``reduce`` over the axis."""
    axes = _covered_axes(x, params)
    if axes is None:
        return None
    reduced = apply("reduce", x, kind=params["kind"], axes=axes)
    reduced.origin = reduced.origin or m.value.origin
    return apply("reshape", reduced, shape=m.type.shape)


@CANONICAL_FORMS.rule("contract")
def int8_product(m: Match, x: Tensor, y: Tensor, **params: Any) -> Value | None:
    """A product of dequantized values is a product of int8 codes, scaled."""
    codes = multiply_codes(params, x, y, m.context.target)
    if codes is not None or m.value in m.context.attentive:
        return codes
    return multiply_computed_codes(params, x, y, m.context.target)


@CANONICAL_FORMS.rule("contract")
def low_bit_product(m: Match, x: Tensor, y: Tensor, **params: Any) -> Value | None:
    """A product by dequantized weights is a product by weights of few bits in one form."""
    return keep_low_bits(params, x, y)


@CANONICAL_FORMS.rule("contract")
def product_of_rows(m: Match, x: Tensor, y: Tensor, **params: Any) -> Value | None:
    """A product of two computed operands reads the first along its last axes, which a permute makes last."""
    if is_closed(x) or is_closed(y):
        return None
    a, b = _reverse_smaller(x, y, **params)
    return _multiply_rows(a, b, **params) or (None if a is x else apply("contract", a, b, **params))


@CANONICAL_FORMS.rule("reduce")
def sum_of_reversed(m: Match, x: Tensor, *, kind: str, axes: tuple[int, ...]) -> Value | None:
    """A reduction of all elements of a reversed axis is that of the axis."""
    if x.op != "reverse" or kind not in ("add", "mul", "max", "min") or not set(x.params["axes"]) <= set(axes):
        return None
    return apply("reduce", x.operands[0], kind=kind, axes=axes)


@CANONICAL_FORMS.rule("permute")
def exchanged_product(m: Match, x: Tensor, *, axes: tuple[int, ...]) -> Value | None:
    """The permute that exchanges rows and columns of a product is the product of the exchanged operands."""
    (source,) = m.value.operands
    if x.op != "contract" or m.context.users[source] != 1 or any(map(is_closed, x.operands)):
        return None
    a, b = cast("tuple[Tensor, Tensor]", x.operands)
    batch, left, right = (x.params[name] for name in ("batch", "left", "right"))
    first, rows = len(batch), len(shape_of(a)) - len(batch) - len(left)
    if axes != (*range(first), *range(first + rows, len(axes)), *range(first, first + rows)):
        return None
    params = {"batch": tuple((j, i) for i, j in batch), "left": right, "right": left, "dtype": x.params["dtype"]}
    return _multiply_rows(b, a, **params) or apply("contract", b, a, **params)


@CANONICAL_FORMS.rule("gather")
def gathered_rows(m: Match, x: Tensor, at: Tensor, *, batch: int) -> Value | None:
    """Rows of a table that constants define are computed from rows of the constants."""
    return gather_rows(x, at, batch)


@CANONICAL_FORMS.rule("gather")
def sliced_rows(m: Match, x: Tensor, at: Tensor, *, batch: int) -> Value | None:
    """Known entries at equal distances, such as half of the channels, are a slice: a view that loops can follow."""
    if batch or not at.is_constant or shape_of(at)[-1] != 1 or is_closed(x):
        return None
    rows = np.asarray(at.known, np.int64).reshape(-1)
    size, steps = shape_of(x)[0], np.unique(np.diff(rows))
    if not rows.size or len(steps) > 1 or not isinstance(size, int) or rows.min() < 0 or rows.max() >= size:
        return None
    step = int(steps[0]) if len(steps) else 1
    if step <= 0:
        return None
    first, last, rest = int(rows[0]), int(rows[-1]) + 1, shape_of(x)[1:]
    part = apply(
        "slice", x, starts=(first, *(0 for _ in rest)), limits=(last, *rest), strides=(step, *(1 for _ in rest))
    )
    return apply("reshape", part, shape=m.type.shape)


@CANONICAL_FORMS.rule("permute")
def permuted_image(m: Match, x: Tensor, *, axes: tuple[int, ...]) -> Value | None:
    """The permute that swaps the axes of a convolution back cancels."""
    swapped: Tensor | None = m.context.swapped.get(x)
    return swapped if axes == _swap(m.value) else None


@CANONICAL_FORMS.rule("permute")
def cancelled_permutes(m: Match, x: Tensor, *, axes: tuple[int, ...]) -> Value | None:
    """Two permutes that cancel are none, as after a convolution that became a product."""
    if x.op != "permute" or [x.params["axes"][axis] for axis in axes] != list(range(len(axes))):
        return None
    return x.operands[0]


@CANONICAL_FORMS.rule("reshape")
def reshaped_product(m: Match, x: Tensor, *, shape: tuple[Any, ...]) -> Value | None:
    """A reshape of a reshaped product is one reshape."""
    if x.op != "reshape" or x.operands[0].op != "contract":
        return None
    return apply("reshape", x.operands[0], shape=shape)


@CANONICAL_FORMS.rule("reshape")
def reshaped_image(m: Match, x: Tensor, *, shape: tuple[Any, ...]) -> Value | None:
    """A reshape of a convolution in Core's form is a reshape of the image."""
    image = m.context.images.get(x)
    if image is None:
        return None
    reshaped: Tensor = image if shape == shape_of(image) else apply("reshape", image, shape=shape)
    m.context.images[reshaped] = image
    return reshaped


@CANONICAL_FORMS.rule("convolve")
def product_of_windows(m: Match, x: Tensor, w: Tensor, **params: Any) -> Value | None:
    """A convolution of a small image by large computed weights is a product with the windows of the image."""
    return multiply_windows(m.value, x, w, params)


@CANONICAL_FORMS.rule("convolve")
def convolve_images(m: Match, x: Tensor, w: Tensor, **params: Any) -> Value | None:
    """A ``convolve`` of images, between the movements from and to Core's form."""
    if has_kernel(m.value):
        return None
    x, params = _spread_image(x, params)
    groups, batch, channels, *spatial = shape_of(x)
    image = _image_of(x)
    shape = (batch, groups * channels, *spatial)
    if image is None:
        image = apply("permute", x, axes=_swap(x))
    if shape_of(image) != shape:
        image = apply("reshape", image, shape=shape)
    narrow = image_operands(image, w, params, m.context.target)
    halves = narrow_operands(m.value, image, w, params, m.context.target) if narrow is None else None
    if halves is not None:
        result = _convolve(*halves, params)
    elif narrow is not None:
        image, weights, narrow_params, finish = narrow
        sums = _convolve(image, weights, narrow_params)
        if sums.dtype == t.FLOAT:
            m.context.whole.add(sums)
        result = finish(sums)
    else:
        result = _convolve(image, w, params)
    result.origin = result.origin or m.value.origin
    filters, out = shape_of(w)[1], shape_of(result)[2:]
    split = apply("reshape", result, shape=(batch, groups, filters, *out))
    permuted = apply("permute", split, axes=_swap(x))
    m.context.images[split] = m.context.images[result] = result
    m.context.swapped[permuted] = split
    # Sizes of a spread image are other expressions of the same numbers.
    return permuted if permuted.type == m.type else apply("reshape", permuted, shape=m.type.shape)


@CANONICAL_FORMS.rule("convert")
def exact_sums(m: Match, x: Tensor, *, dtype: t.DType, **params: Any) -> Value | None:
    """Exact sums of integers in float32 that are converted to integers and back are unchanged."""
    return x.operands[0] if dtype == t.FLOAT and x.op == "convert" and x.operands[0] in m.context.whole else None


@CANONICAL_FORMS.rule("div")
def reciprocal(m: Match, x: Tensor, divisor: Tensor) -> Value | None:
    """``x / c`` is ``x * (1 / c)`` if the reciprocal is normal, and exact where the last bit is decisive."""
    known = divisor.operands[0] if divisor.op == "broadcast" else divisor
    dtype = m.type.dtype
    if not known.is_constant or dtype not in (t.FLOAT, t.DOUBLE):
        return None
    array = np.asarray(known.known)
    with np.errstate(all="ignore"):
        inverse = (1 / array).astype(array.dtype)
    if m.value in m.context.decisive and not (np.abs(np.frexp(array)[0]) == 0.5).all():
        return None
    smallest = np.finfo(array.dtype).tiny
    if not (np.isfinite(inverse).all() and (np.abs(inverse) >= smallest).all()):
        return None
    factor = constant(inverse, dtype)
    if not divisor.is_constant:
        factor = apply("broadcast", factor, shape=divisor.params["shape"])
    return apply("mul", x, factor)


def _reverse_smaller(x: Tensor, y: Tensor, **params: Any) -> tuple[Tensor, Tensor]:
    """Return the operands of a product, of which the one with fewer known rows or columns is reversed along K."""
    left, right = params["left"], params["right"]
    if y.op == "reverse" and set(y.params["axes"]) <= set(right) and _free(x, left) < _free(y, right):
        axes = [left[right.index(axis)] for axis in y.params["axes"]]
        return apply("reverse", x, axes=tuple(sorted(axes))), cast("Tensor", y.operands[0])
    if x.op == "reverse" and set(x.params["axes"]) <= set(left) and _free(y, right) < _free(x, left):
        axes = [right[left.index(axis)] for axis in x.params["axes"]]
        return cast("Tensor", x.operands[0]), apply("reverse", y, axes=tuple(sorted(axes)))
    return x, y


def _free(x: Tensor, summed: Sequence[int]) -> int:
    """Return the elements of an operand for each step of K, as far as known."""
    return math.prod(size for axis, size in enumerate(shape_of(x)) if axis not in summed and isinstance(size, int))


def _multiply_rows(x: Tensor, y: Tensor, **params: Any) -> Value | None:
    """Return a product whose first operand is permuted so that sums run along its last axes; None if they do."""
    batch, left, rank = params["batch"], params["left"], len(shape_of(x))
    axes_of_batch = [a for a, _ in batch]
    free = [axis for axis in range(rank) if axis not in left and axis not in axes_of_batch]
    if not free or tuple(left) == tuple(range(rank - len(left), rank)):
        return None
    moved = apply("permute", x, axes=(*axes_of_batch, *free, *left))
    pairs = tuple((i, b) for i, (_, b) in enumerate(batch))
    return apply("contract", moved, y, **{**params, "batch": pairs, "left": tuple(range(rank - len(left), rank))})


def _covered_axes(x: Value, params: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the axes covered by the only window of a ``reduce_window``; None for several windows."""
    shape = shape_of(x)
    if params["kind"] not in ("add", "max", "min"):
        return None
    leading, covered = len(shape) - len(params["window"]), []
    for axis, (size, window, stride, padding, dilation) in enumerate(
        zip(shape[leading:], params["window"], params["strides"], params["padding"], params["dilation"], strict=True),
        leading,
    ):
        if padding != (0, 0) or not ((window == size and dilation == 1) or window == stride == 1):
            return None
        if window != 1:
            covered.append(axis)
    return tuple(covered) or None


def _convolve(image: Tensor, weights: Value, params: Mapping[str, Any]) -> Tensor:
    """Return the image ``[N, G * M, spatial]`` of a ``convolve`` of an image ``[N, G * C, spatial]``."""
    batch, _, *spatial = shape_of(image)
    groups, filters, channels = shape_of(weights)[:3]
    split = apply("reshape", image, shape=(batch, groups, channels, *spatial))
    convolved = apply("convolve", apply("permute", split, axes=_swap(split)), weights, **params)
    out = shape_of(convolved)[3:]
    return apply("reshape", apply("permute", convolved, axes=_swap(split)), shape=(batch, groups * filters, *out))


def _spread_image(x: Tensor, params: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """Return an image with its zeros between elements where kernels need a padding that is not known."""
    dilation, padding = params["base_dilation"], params["padding"]
    spread = [base > 1 and not isinstance(low, int) for base, (low, _) in zip(dilation, padding, strict=True)]
    if not any(spread):
        return x, params
    leading = (0,) * (len(shape_of(x)) - len(spread))
    low, high = (
        (*leading, *(pair[end] if there else 0 for pair, there in zip(padding, spread, strict=True))) for end in (0, 1)
    )
    between = (*leading, *(base - 1 if there else 0 for base, there in zip(dilation, spread, strict=True)))
    padded = apply("pad", x, constant(0, x.dtype), low=low, high=high, interior=between)
    return padded, {
        **params,
        "padding": tuple((0, 0) if there else pair for pair, there in zip(padding, spread, strict=True)),
        "base_dilation": tuple(1 if there else base for base, there in zip(dilation, spread, strict=True)),
    }


def _swap(value: Value) -> tuple[int, ...]:
    return (1, 0, *range(2, len(shape_of(value))))


def _image_of(x: Value) -> Tensor | None:
    """Return the image that reshape and permute convert to the operand of a ``convolve``, or None."""
    if x.op == "permute" and x.params["axes"] == _swap(x) and x.operands[0].op == "reshape":
        return x.operands[0].operands[0]  # type: ignore[return-value]
    return None
