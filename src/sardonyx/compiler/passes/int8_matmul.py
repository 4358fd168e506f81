"""Products of integers of 8 bits, for instructions that multiply and add several of them in each lane.

Models write these in two ways: integers less a zero point are multiplied (``MatMulInteger``, ``QLinearConv``), or they
are made floats, shifted and scaled, and the floats are multiplied (``DequantizeLinear`` before ``Conv``). Either way
the integers themselves are what is multiplied here, and scales follow behind, where they are fused. What zero points
add is ``sum((x - z) * w) = sum(x * w) - z * sum(w)``, where weights are known; or they are taken off beforehand, where
operands have 16 bits.

Only weights that are known become operands of such products. Of two operands that a run computes, those of at most
:data:`EXACT` products of 8 bits are multiplied as floats, which hold them exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sardonyx.compiler.analysis.constant_values import computed, is_closed
from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.codegen.integer_dot import overflowing
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling.gemm import GemmProblem, choose_gemm
from sardonyx.compiler.tiling.int8_forms import Form, forms
from sardonyx.core.eval.tensor import Tensor, apply, constant
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import DType

_WIDEST = 255
"""The largest difference of two integers of 8 bits."""

EXACT = (1 << 24) // (_WIDEST * _WIDEST)
"""So many products of such differences have sums that float32 holds exactly."""

_CODES = (t.UINT8, t.INT8)
_MOVES = ("reshape", "permute", "stop_gradient")


@dataclass(frozen=True)
class Quantized:
    """A value that stands for integers: ``(codes - zero) * scale``.

    Attributes:
        codes: The integers, of 8 bits.
        zero: A scalar of int32; None for 0.
        scale: A scalar of float32; None for 1.
    """

    codes: Tensor
    zero: Tensor | None = None
    scale: Tensor | None = None


def quantized(value: Value) -> Quantized | None:
    """A value as integers of 8 bits; None where it is something else."""
    if dtype_of(value) in _CODES:
        return Quantized(value) if isinstance(value, Tensor) else None
    if value.op == "convert":
        source = value.operands[0]
        exact = dtype_of(value) in (t.INT32, t.FLOAT)
        return Quantized(source) if exact and dtype_of(source) in _CODES and isinstance(source, Tensor) else None
    if value.op in _MOVES:
        found = quantized(value.operands[0])
        if found is None or value.op == "stop_gradient":
            return found
        return replace(found, codes=apply(value.op, found.codes, **value.params))
    if value.op == "sub":
        found, zero = quantized(value.operands[0]), _zero_point(value.operands[1])
        if found is None or zero is None or found.zero is not None or found.scale is not None:
            return None
        return replace(found, zero=zero)
    if value.op == "mul" and dtype_of(value) == t.FLOAT:
        for operand, other in (value.operands, reversed(value.operands)):
            scale = _scalar(other)
            found = quantized(operand) if scale is not None else None
            if found is not None and found.scale is None:
                return replace(found, scale=scale)
    return None


def _scalar(value: Value) -> Tensor | None:
    """The one number that a value repeats; None where it holds several."""
    while value.op in ("broadcast", "reshape") and math.prod(shape_of(value)) != 1:
        value = value.operands[0]
    if math.prod(shape_of(value)) != 1:
        return None
    while value.op in ("broadcast", "reshape") and shape_of(value):
        value = value.operands[0]
    return apply("reshape", value, shape=()) if shape_of(value) else value  # type: ignore[return-value]


def _zero_point(value: Value) -> Tensor | None:
    """A zero point as int32; None where the value is no such thing."""
    found = _scalar(value)
    if found is None:
        return None
    if found.is_constant:
        (number,) = np.asarray(found.known).reshape(-1)
        whole = int(number) if np.isfinite(number) else None
        return constant(np.int32(whole), t.INT32) if whole is not None and whole == number else None
    if found.op == "convert" and dtype_of(found.operands[0]) in _CODES:
        return _converted(found.operands[0], t.INT32)
    return None


def _converted(value: Value, dtype: DType) -> Tensor:
    return apply("convert", value, dtype=dtype, saturate=True, rounding="up")


@dataclass(frozen=True)
class _Weights:
    """Weights that are known.

    Attributes:
        numbers: Integers.
        scale: What they are multiplied by, along the axes that are not summed; None for 1.
    """

    numbers: np.ndarray
    scale: np.ndarray | None

    @property
    def largest(self) -> int:
        """The largest magnitude."""
        return int(np.abs(self.numbers.astype(np.int64)).max(initial=0))


def _weights(value: Value, summed: tuple[int, ...]) -> _Weights | None:
    """A closed value as integers times a scale for each element of the axes that are not summed."""
    if not is_closed(value):
        return None
    moves = []
    inner = value
    while inner.op in _MOVES:
        moves.append(inner)
        inner = inner.operands[0]

    def moved(part: Value) -> np.ndarray:
        for move in reversed(moves):
            part = part if move.op == "stop_gradient" else apply(move.op, part, **move.params)
        return computed(part)

    scale = None
    if inner.op == "mul" and dtype_of(value) == t.FLOAT:
        first, second = inner.operands
        numbers, factors = (moved(first), moved(second)) if second.op == "broadcast" else (moved(second), moved(first))
        scale = factors[tuple(slice(1) if axis in summed else slice(None) for axis in range(factors.ndim))]
        if not np.array_equal(np.broadcast_to(scale, factors.shape), factors):
            return None
        scale = scale.reshape([size for axis, size in enumerate(factors.shape) if axis not in summed])
    elif dtype_of(value) in (*_CODES, t.INT32):
        numbers = moved(inner)
    else:
        return None
    whole = numbers.astype(np.int32)
    return _Weights(whole, scale) if np.array_equal(whole, numbers) else None


_APART_OF_CONVOLUTION, _APART_OF_PRODUCT = 1 / 4, 1 / 8
"""So many of the vectors of weights may have elements that are multiplied apart: else 16 bits are as fast."""

_TILE = 16
"""Filters, about, that are multiplied with each input."""


def _form(terms: np.ndarray, dtype: DType, groups: int, apart: float, target: Target) -> Form | None:
    """How a product is taken; None where no form holds it.

    Args:
        terms: The weights as [filters, taps, channels]: neighbouring channels are added up in a lane.
        dtype: The element type of the result: sums of integers are modulo 2**32.
        groups: Groups of filters, each of which sees channels of its own.
        apart: The share of the vectors of weights that may have some whose products are added up apart, since they are
            too large for 16 bits together; 0 where the kernel does not do that.
        target: What the code is for.
    """
    low, high = int(terms.min(initial=0)), int(terms.max(initial=0))
    if dtype != t.INT32 and math.prod(terms.shape[1:]) * _WIDEST * max(-low, high) >= 1 << 31:
        return None
    for form in forms(target):
        bits = form.right.bitwidth - 1
        holds = -(1 << bits) <= low and high < 1 << bits and (groups == 1 or terms.shape[2] % form.dot_width == 0)
        if holds and (bits > 8 or not target.saturates or _fits_pairs(terms, form.dot_width, apart)):
            return form
    return None


def _fits_pairs(terms: np.ndarray, together: int, apart: float) -> bool:
    """Whether pairs of products are numbers of 16 bits, but for few enough to be added up apart."""
    filters, taps, channels = terms.shape
    padded = np.pad(terms, ((0, -filters % _TILE if apart else 0), (0, 0), (0, -channels % together)))
    wrong = overflowing(padded.reshape(-1, 2))
    if not apart or not wrong.any():
        return not wrong.any()
    vectors = wrong.reshape(-1, _TILE, taps * padded.shape[2] // together, together // 2)
    return bool(vectors.any((1, 3)).mean() <= apart)


def _operand(found: Quantized, form: Form) -> tuple[Tensor, Tensor | None]:
    """The first operand in its form, and the zero point that is still in it."""
    codes, zero = found.codes, found.zero
    if form.left == t.INT16:
        wide = _converted(codes, t.INT16)
        return (wide if zero is None else wide - _converted(zero, t.INT16)), None
    if dtype_of(codes) == t.INT8:
        turned = apply("bitcast", codes, dtype=t.UINT8) ^ constant(np.uint8(128), t.UINT8)
        offset = constant(np.int32(128), t.INT32)
        return turned, offset if zero is None else zero + offset
    return codes, None if zero is not None and _is_zero(zero) else zero


def _is_zero(zero: Tensor) -> bool:
    return zero.is_constant and not np.asarray(zero.known).any()


def product(params: Mapping[str, Any], x: Value, y: Value, target: Target) -> Tensor | None:
    """A ``contract`` of such integers, of what its operands have become; None where it is none."""
    if params["dtype"] not in (t.FLOAT, t.INT32) or is_closed(x):
        return None
    left, right = params["left"], params["right"]
    sizes = [shape_of(x)[axis] for axis in left]
    found = quantized(x)
    if found is None or not all(isinstance(size, int) for size in sizes):
        return None
    depth = math.prod(int(size) for size in sizes)
    weights = None if params["batch"] else _weights(y, right)
    form = None
    if weights is not None:
        numbers = weights.numbers
        columns = [axis for axis in range(numbers.ndim) if axis not in right]
        terms = numbers.transpose(*columns, *right).reshape(-1, 1, depth)
        apart = _APART_OF_PRODUCT if _corrects_overflow(x, left, len(terms), depth, target) else 0.0
        form = _form(terms, params["dtype"], 1, apart, target)
    if weights is None or form is None:
        return _as_floats(params, x, y, depth)
    operand, zero = _operand(found, form)
    numbers = weights.numbers
    missing = -depth % form.dot_width
    if missing:
        if len(left) > 1:
            return None
        axes = [((0, missing) if axis == left[0] else (0, 0)) for axis in range(len(shape_of(operand)))]
        operand = _padded(operand, axes, constant(np.zeros((), t.numpy_dtype(form.left)), form.left))
        numbers = np.pad(numbers, [((0, missing) if axis == right[0] else (0, 0)) for axis in range(numbers.ndim)])
    packed = constant(numbers.astype(t.numpy_dtype(form.right)), form.right)
    sums = apply("contract", operand, packed, **{**params, "dtype": t.INT32})
    if zero is not None:
        sums = sums - _times(zero, weights.numbers.sum(right, dtype=np.int32))
    return _scaled(sums, params["dtype"], found.scale, weights.scale)


def _corrects_overflow(x: Value, left: tuple[int, ...], columns: int, depth: int, target: Target) -> bool:
    """Return True if the kernel of a product of bytes multiplies saturating weights again with a correction."""
    rows = math.prod(size for axis, size in enumerate(shape_of(x)) if axis not in left)
    width = target.together(8)
    problem = GemmProblem(rows, columns, -(-depth // width), t.INT32, "packed", t.INT32, width)
    return choose_gemm(problem, target).schedule.form == "tiles"


def _as_floats(params: Mapping[str, Any], x: Value, y: Value, depth: int) -> Tensor | None:
    """A ``contract`` of integers as one of floats, where these are exact."""
    other = quantized(y)
    if params["dtype"] != t.INT32 or other is None or depth > EXACT:
        return None
    wide = [_converted(operand, t.FLOAT) for operand in (x, y)]
    return _converted(apply("contract", *wide, **{**params, "dtype": t.FLOAT}), t.INT32)


def image_operands(
    image: Tensor, weights: Value, params: Mapping[str, Any], target: Target
) -> tuple[Tensor, Tensor, Mapping[str, Any], Finish] | None:
    """The operands of a ``convolve`` of such integers; None where it is none.

    Args:
        image: What is convolved, [N, G * C, spatial].
        weights: [G, M, C, window].
        params: Those of the ``convolve``.
        target: What the code is for.

    Returns:
        An image, weights and parameters, and what makes the wanted image of the one that they give.
    """
    if params["dtype"] not in (t.FLOAT, t.INT32):
        return None
    found = quantized(image)
    summed = tuple(range(2, len(shape_of(weights))))
    known = _weights(weights, summed) if found is not None else None
    if found is None or known is None:
        return None
    groups, filters, channels, *_ = known.numbers.shape
    depth = math.prod(known.numbers.shape[2:])
    apart = _APART_OF_CONVOLUTION if groups == 1 and set(params["base_dilation"]) == {1} else 0.0
    terms = known.numbers.reshape(groups * filters, channels, -1).swapaxes(1, 2)
    form = _form(terms, params["dtype"], groups, apart, target)
    if groups > 1 and channels == filters == 1:
        # Depthwise: a lane is a channel, and all is computed in floats, which are exact.
        if depth * _WIDEST * known.largest >= 1 << 24:
            return None
        shifted = found.zero is not None and not _is_zero(found.zero)
        form = Form(t.INT16, t.INT16, 1) if shifted else Form(dtype_of(found.codes), t.INT16, 1)
    elif form is None:
        return None
    if form.dot_width == 1 and form.left in _CODES:
        operand, zero = found.codes, None
    else:
        operand, zero = _operand(found, form)
    if zero is not None and any(size != 0 for pair in params["padding"] for size in pair):
        if set(params["base_dilation"]) != {1}:
            return None
        operand = _padded(operand, [(0, 0), (0, 0), *params["padding"]], _converted(zero, t.UINT8))
        params = {**params, "padding": ((0, 0),) * len(params["padding"])}
    packed = constant(known.numbers.astype(t.numpy_dtype(form.right)), form.right)
    sums = known.numbers.sum(summed, dtype=np.int32) if zero is not None else None
    finish = Finish(params["dtype"], zero, sums, found.scale, known.scale)
    return operand, packed, {**params, "dtype": t.INT32}, finish


@dataclass(frozen=True)
class Finish:
    """What is done to an image of sums: zero points and scales.

    Attributes:
        dtype: The element type of the result.
        zero: The zero point that is still in the image; None for 0.
        sums: The sum of each filter's weights, [G, M], where there is a zero point.
        scale: The image's; None for 1.
        scales: Those of filters, [G, M]; None for 1.
    """

    dtype: DType
    zero: Tensor | None
    sums: np.ndarray | None
    scale: Tensor | None
    scales: np.ndarray | None

    def __call__(self, image: Tensor) -> Tensor:
        """The result, of an image [N, G * M, spatial] of int32."""
        along = (1, -1, *[1] * (len(shape_of(image)) - 2))
        if self.zero is not None and self.sums is not None:
            image = image - _times(self.zero, self.sums.reshape(along))
        scales = None if self.scales is None else self.scales.reshape(along)
        return _scaled(image, self.dtype, self.scale, scales)


def _times(zero: Tensor, sums: np.ndarray) -> Tensor:
    """What a zero point adds to sums of products, by the sums of weights."""
    if zero.is_constant:
        return constant(np.asarray(zero.known, np.int32) * sums, t.INT32)
    return zero * constant(sums, t.INT32)


def _scaled(sums: Tensor, dtype: DType, scale: Tensor | None, scales: np.ndarray | None) -> Tensor:
    if dtype == t.INT32:
        return sums
    found = _converted(sums, t.FLOAT)
    if scales is not None:
        factor = constant(scales.astype(np.float32), t.FLOAT)
        return found * (factor if scale is None else factor * scale)
    return found if scale is None else found * scale


def _padded(x: Tensor, pairs: list[tuple[Any, Any]], filling: Tensor) -> Tensor:
    low, high = zip(*pairs, strict=True)
    return apply("pad", x, filling, low=low, high=high, interior=(0,) * len(pairs))
