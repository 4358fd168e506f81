"""Products of int8 codes, for instructions that multiply and add several 8-bit integers in one lane.

Models write such products in two ways: integers less a zero point are multiplied (``MatMulInteger``,
``QLinearConv``), or dequantized floats are multiplied (``DequantizeLinear`` before ``Conv``). This pass multiplies the
codes in both cases, and applies scales to the sums, where the scales are fused. The contribution of a zero point is
``sum((x - z) * w) = sum(x * w) - z * sum(w)`` for constant weights; operands of 16 bits have the zero point subtracted
first.

One operand must be constant weights; :mod:`.computed_codes` has products of two computed operands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sardonyx.compiler.analysis.constant_values import evaluate_closed, is_closed
from sardonyx.compiler.analysis.dynamic_scales import is_zero_code
from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.shape_guards import WIDEST
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.codegen.integer_dot import overflowing
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling import costs
from sardonyx.compiler.tiling.gemm import choose_gemm
from sardonyx.compiler.tiling.gemm_schedule import GemmProblem
from sardonyx.compiler.tiling.int8_forms import Form, forms, suits_planes
from sardonyx.core.eval.tensor import FOLDED_ELEMENTS, Tensor, apply, constant
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import DType

_CODES = (t.UINT8, t.INT8)
_MOVEMENTS = ("reshape", "permute", "stop_gradient")


@dataclass(frozen=True)
class Quantized:
    """A value of the form ``(codes - zero) * scale``.

    Attributes:
        codes: 8-bit integers.
        zero: A scalar of int32; None for 0.
        scale: A scalar of float32; None for 1.
    """

    codes: Tensor
    zero: Tensor | None = None
    scale: Tensor | None = None


def match_quantized(value: Value) -> Quantized | None:
    """Return a value as 8-bit integers, or None for other values."""
    if dtype_of(value) in _CODES:
        return Quantized(value) if isinstance(value, Tensor) else None
    if value.op == "convert":
        codes = value.operands[0]
        exact = dtype_of(value) in (t.INT32, t.FLOAT)
        return Quantized(codes) if exact and dtype_of(codes) in _CODES and isinstance(codes, Tensor) else None
    if value.op in _MOVEMENTS:
        source = match_quantized(value.operands[0])
        if source is None or value.op == "stop_gradient":
            return source
        return replace(source, codes=apply(value.op, source.codes, **value.params))
    if value.op == "sub":
        source, zero = match_quantized(value.operands[0]), _zero_point(value.operands[1])
        if source is None or zero is None or source.zero is not None or source.scale is not None:
            return None
        return replace(source, zero=zero)
    if value.op == "mul" and dtype_of(value) == t.FLOAT:
        for operand, other in (value.operands, reversed(value.operands)):
            scale = scalar_of(other)
            source = match_quantized(operand) if scale is not None else None
            if source is not None and source.scale is None:
                return replace(source, scale=scale)
    return None


def scalar_of(value: Value) -> Tensor | None:
    """Return the only number in a value as a scalar; None for several numbers."""
    while value.op in ("broadcast", "reshape") and math.prod(shape_of(value)) != 1:
        value = value.operands[0]
    if math.prod(shape_of(value)) != 1:
        return _repeated_number(value)
    while value.op in ("broadcast", "reshape") and shape_of(value):
        value = value.operands[0]
    return apply("reshape", value, shape=()) if shape_of(value) else value  # type: ignore[return-value]


def _repeated_number(value: Value) -> Tensor | None:
    """Return the number of a small constant whose elements are equal, as tracing makes of a repeated number."""
    elements = np.asarray(value.known).reshape(-1) if value.is_constant else np.zeros(0)
    if not 0 < elements.size <= FOLDED_ELEMENTS or not (elements == elements[0]).all():
        return None
    return constant(elements[0], dtype_of(value))


def _zero_point(value: Value) -> Tensor | None:
    """Return a zero point as an int32 scalar; None for other values."""
    scalar = scalar_of(value)
    if scalar is None:
        return None
    if scalar.is_constant:
        (number,) = np.asarray(scalar.known).reshape(-1)
        integer = int(number) if np.isfinite(number) else None
        return constant(np.int32(integer), t.INT32) if integer is not None and integer == number else None
    if scalar.op == "convert" and dtype_of(scalar.operands[0]) in _CODES:
        return convert(scalar.operands[0], t.INT32)
    return None


def convert(value: Value, dtype: DType) -> Tensor:
    """Return the elements of a value as another type."""
    return apply("convert", value, dtype=dtype, saturate=True, rounding="up")


@dataclass(frozen=True)
class _Weights:
    """Constant weights as integers and scales.

    Attributes:
        numbers: The integers.
        scale: Factors along the axes that are not summed; None for 1.
    """

    numbers: np.ndarray
    scale: np.ndarray | None

    @property
    def largest(self) -> int:
        """Largest magnitude."""
        return int(np.abs(self.numbers.astype(np.int64)).max(initial=0))


def _constant_weights(value: Value, summed: tuple[int, ...]) -> _Weights | None:
    """Return a closed value as integers times a scale along the axes that are not summed; None for others."""
    if not is_closed(value):
        return None
    movements = []
    inner = value
    while inner.op in (*_MOVEMENTS, "reverse"):
        movements.append(inner)
        inner = inner.operands[0]

    def replay(part: Value) -> np.ndarray:
        for movement in reversed(movements):
            part = part if movement.op == "stop_gradient" else apply(movement.op, part, **movement.params)
        return evaluate_closed(part)

    scale = None
    if inner.op == "mul" and dtype_of(value) == t.FLOAT:
        first, second = inner.operands
        numbers, factors = (
            (replay(first), replay(second)) if second.op == "broadcast" else (replay(second), replay(first))
        )
        scale = factors[tuple(slice(1) if axis in summed else slice(None) for axis in range(factors.ndim))]
        if not np.array_equal(np.broadcast_to(scale, factors.shape), factors):
            return None
        scale = scale.reshape([size for axis, size in enumerate(factors.shape) if axis not in summed])
    elif dtype_of(value) in (*_CODES, t.INT32):
        numbers = replay(inner)
    else:
        return None
    integers = numbers.astype(np.int32)
    return _Weights(integers, scale) if np.array_equal(integers, numbers) else None


def _stays_finite(source: Quantized, weights: _Weights, depth: int) -> bool:
    """Return True unless known scales permit an operand, a weight or a sum that is infinite or NaN.

    Sums of codes are finite: times an infinite scale, they are not the reference's sums of infinities.
    """
    known = None if source.scale is None or not source.scale.is_constant else source.scale.known
    bound, limit = float(depth), float(np.finfo(np.float32).max)
    for scale in (known, weights.scale):
        largest = 1.0 if scale is None else float(np.abs(scale).max(initial=0)) * WIDEST
        bound *= largest
        if not largest <= limit:
            return False
    return bound <= limit


_CORRECTED_CONVOLUTION, _CORRECTED_MATMUL = 1 / 4, 1 / 8
"""Largest share of weight vectors with an overflow correction; with more, 16-bit products are as fast."""

_TILE = 16
"""Approximate number of filters of a register tile."""


def _choose_form(
    terms: np.ndarray, dtype: DType, groups: int, corrected: float, target: Target, wide: bool = False
) -> Form | None:
    """Return the first form of the target in which a product is exact, or None.

    Args:
        terms: The weights as [filters, taps, channels]; adjacent channels are added in one lane.
        dtype: Element type of the result: sums of integers are modulo 2**32.
        groups: Groups of filters; each group reads its own channels.
        corrected: Largest share of weight vectors with overflow corrections, for pairs of products beyond 16 bits; 0 if
            the kernel has no corrections.
        target: The processor.
        wide: True for operands of 16 bits, from which zero points are subtracted.
    """
    low, high = int(terms.min(initial=0)), int(terms.max(initial=0))
    if dtype != t.INT32 and math.prod(terms.shape[1:]) * WIDEST * max(-low, high) >= 1 << 31:
        return None
    for form in forms(target):
        bits = form.right.bitwidth - 1
        if wide and form.left in _CODES:
            continue
        holds = -(1 << bits) <= low and high < 1 << bits and (groups == 1 or terms.shape[2] % form.dot_width == 0)
        if holds and (bits > 8 or not target.saturates or _few_pairs_overflow(terms, form.dot_width, corrected)):
            return form
    return None


def _few_pairs_overflow(terms: np.ndarray, dot_width: int, corrected: float) -> bool:
    """Return True if at most a share ``corrected`` of weight vectors has pairs of products beyond 16 bits."""
    filters, taps, channels = terms.shape
    padded = np.pad(terms, ((0, -filters % _TILE if corrected else 0), (0, 0), (0, -channels % dot_width)))
    overflows = overflowing(padded.reshape(-1, 2))
    if not corrected or not overflows.any():
        return not overflows.any()
    vectors = overflows.reshape(-1, _TILE, taps * padded.shape[2] // dot_width, dot_width // 2)
    return bool(vectors.any((1, 3)).mean() <= corrected)


def _first_operand(source: Quantized, form: Form) -> tuple[Tensor, Tensor | None]:
    """Return the first operand in the element type of a form, with the zero point still to be subtracted."""
    codes, zero = source.codes, source.zero
    if form.left == t.INT16:
        return _differences(codes, zero, t.INT16), None
    if dtype_of(codes) == t.INT8:
        unsigned = apply("bitcast", codes, dtype=t.UINT8) ^ constant(np.uint8(128), t.UINT8)
        offset = constant(np.int32(128), t.INT32)
        return unsigned, offset if zero is None else zero + offset
    return codes, None if zero is not None and _is_zero(zero) else zero


def _differences(codes: Tensor, zero: Tensor | None, dtype: DType) -> Tensor:
    """Return codes less their zero point in another element type; padded codes are padded after."""
    if codes.op == "pad":
        inner, filling = (_differences(part, zero, dtype) for part in codes.operands)  # type: ignore[arg-type]
        return apply("pad", inner, filling, **codes.params)
    wide = convert(codes, dtype)
    return wide if zero is None else wide - convert(zero, dtype)


def _is_zero(zero: Tensor) -> bool:
    return zero.is_constant and not np.asarray(zero.known).any()


def multiply_codes(params: Mapping[str, Any], x: Value, y: Value, target: Target) -> Tensor | None:
    """Return a ``contract`` of quantized operands as a product of codes; None for other operands.

    Args:
        params: Parameters of the ``contract``.
        x: The first operand.
        y: The second operand.
        target: The processor.
    """
    if params["dtype"] not in (t.FLOAT, t.INT32) or is_closed(x):
        return None
    left, right = params["left"], params["right"]
    sizes = [shape_of(x)[axis] for axis in left]
    source = match_quantized(x)
    if source is None or not all(isinstance(size, int) for size in sizes):
        return None
    depth = math.prod(int(size) for size in sizes)
    if not depth:
        return None  # Sums without terms.
    weights = None if params["batch"] else _constant_weights(y, right)
    form = None
    if weights is not None and not _stays_finite(source, weights, depth):
        return None
    if weights is not None:
        numbers = weights.numbers
        columns = [axis for axis in range(numbers.ndim) if axis not in right]
        terms = numbers.transpose(*columns, *right).reshape(-1, 1, depth)
        corrected = _CORRECTED_MATMUL if _corrects_overflow(x, left, len(terms), depth, target) else 0.0
        form = _choose_form(terms, params["dtype"], 1, corrected, target)
    if weights is None or form is None:
        return None
    codes, zero = _first_operand(source, form)
    numbers = weights.numbers
    padding = -depth % form.dot_width
    if padding:
        if len(left) > 1:
            return None
        axes = [((0, padding) if axis == left[0] else (0, 0)) for axis in range(len(shape_of(codes)))]
        codes = _pad(codes, axes, constant(np.zeros((), t.numpy_dtype(form.left)), form.left))
        numbers = np.pad(numbers, [((0, padding) if axis == right[0] else (0, 0)) for axis in range(numbers.ndim)])
    packed = constant(numbers.astype(t.numpy_dtype(form.right)), form.right)
    sums = apply("contract", codes, packed, **{**params, "dtype": t.INT32})
    if zero is not None:
        sums = sums - _zero_point_term(zero, weights.numbers.sum(right, dtype=np.int32))
    return apply_scale(sums, params["dtype"], source.scale, weights.scale)


def _corrects_overflow(x: Value, left: tuple[int, ...], columns: int, depth: int, target: Target) -> bool:
    """Return True if the kernel of an int8 product supports overflow corrections."""
    rows = math.prod(size for axis, size in enumerate(shape_of(x)) if axis not in left)
    width = target.together(8)
    problem = GemmProblem(rows, columns, -(-depth // width), t.INT32, "packed", t.INT32, width)
    return choose_gemm(problem, target).schedule.form == "tiles"


def image_operands(
    image: Tensor, weights: Value, params: Mapping[str, Any], target: Target
) -> tuple[Tensor, Tensor, Mapping[str, Any], Finish] | None:
    """Return the operands of a ``convolve`` of quantized operands; None for other operands.

    Args:
        image: The image, [N, G * C, spatial].
        weights: [G, M, C, window].
        params: Parameters of the ``convolve``.
        target: The processor.

    Returns:
        The image, weights and parameters of an integer ``convolve``, and the function from its result to the image
        of the original ``convolve``.
    """
    if params["dtype"] not in (t.FLOAT, t.INT32):
        return None
    source = match_quantized(image)
    summed = tuple(range(2, len(shape_of(weights))))
    constant_weights = _constant_weights(weights, summed) if source is not None else None
    if source is None or constant_weights is None:
        return None
    source, params = _without_pad(source, params)
    groups, filters, channels, *_ = constant_weights.numbers.shape
    depth = math.prod(constant_weights.numbers.shape[2:])
    if not depth or not _stays_finite(source, constant_weights, depth):
        return None
    # The zeros between the elements of a dilated image are no codes: windows see other sums of weights in each phase.
    is_dilated = set(params["base_dilation"]) != {1}
    is_shifted = dtype_of(source.codes) == t.INT8 or (source.zero is not None and not _is_zero(source.zero))
    corrected = _CORRECTED_CONVOLUTION if groups == 1 and not is_dilated else 0.0
    terms = constant_weights.numbers.reshape(groups * filters, channels, -1).swapaxes(1, 2)
    form = _choose_form(terms, params["dtype"], groups, corrected, target, is_dilated and is_shifted)
    if _suits_floats(source, constant_weights, params, target):
        floats = _differences(source.codes, source.zero, t.FLOAT)
        wide = constant(constant_weights.numbers.astype(np.float32), t.FLOAT)
        finish = Finish(params["dtype"], None, None, source.scale, constant_weights.scale)
        return floats, wide, {**params, "dtype": t.FLOAT}, finish
    if groups > 1 and channels == filters == 1:
        # Depthwise: lanes are channels, and the kernel computes in float32, exact below 2**24.
        if depth * WIDEST * constant_weights.largest >= 1 << 24:
            return None
        has_zero = source.zero is not None and not _is_zero(source.zero)
        form = Form(t.INT16, t.INT16, 1) if has_zero else Form(dtype_of(source.codes), t.INT16, 1)
    elif form is None:
        return None
    if form.dot_width == 1 and form.left in _CODES:
        codes, zero = source.codes, None
    else:
        codes, zero = _first_operand(source, form)
    if zero is not None and any(size != 0 for pair in params["padding"] for size in pair):
        codes = _pad(codes, [(0, 0), (0, 0), *params["padding"]], convert(zero, t.UINT8))
        params = {**params, "padding": ((0, 0),) * len(params["padding"])}
    packed = constant(constant_weights.numbers.astype(t.numpy_dtype(form.right)), form.right)
    sums = constant_weights.numbers.sum(summed, dtype=np.int32) if zero is not None else None
    finish = Finish(params["dtype"], zero, sums, source.scale, constant_weights.scale)
    return codes, packed, {**params, "dtype": t.INT32}, finish


def _suits_floats(source: Quantized, weights: _Weights, params: Mapping[str, Any], target: Target) -> bool:
    """Return True for a convolution whose integers are multiplied as floats, exactly.

    Float32 holds all sums, and these images have no algorithm but products and sums:

    - few channels or filters: lanes of bytes would have more zeros than channels;
    - of a depthwise kernel, which multiplies floats, codes less a zero point that the call computes: integers would be
      converted again for each row of the window.
    """
    groups, filters, channels, *window = map(int, weights.numbers.shape)
    magnitudes = np.abs(weights.numbers.astype(np.int64)).sum(tuple(range(2, weights.numbers.ndim)))
    if set(params["base_dilation"]) != {1} or int(magnitudes.max(initial=0)) * WIDEST >= 1 << 24:
        return False
    if groups > 1:
        return channels == filters == 1 and source.zero is not None and not source.zero.is_constant
    if target.saturates:
        return bool(channels <= min(costs.MOST_PLANES, target.lanes(32) - 1))
    width = shape_of(source.codes)[-1]
    return suits_planes(channels, filters, math.prod(window), width if isinstance(width, int) else None, target)


def _without_pad(source: Quantized, params: Mapping[str, Any]) -> tuple[Quantized, Mapping[str, Any]]:
    """Return the image before a ``pad`` of spatial axes with the zero point, and a convolution that pads."""
    pad = source.codes
    if pad.op != "pad" or set(params["base_dilation"]) != {1}:
        return source, params
    low, high, filling = pad.params["low"], pad.params["high"], pad.operands[1]
    known = all(isinstance(size, int) and size >= 0 for size in (*low, *high))
    if not known or any((*low[:2], *high[:2], *pad.params["interior"])) or not _is_zero_point(filling, source.zero):
        return source, params
    pairs = zip(params["padding"], low[2:], high[2:], strict=True)
    padding = tuple((first + before, last + after) for (first, last), before, after in pairs)
    inner: Tensor = pad.operands[0]  # type: ignore[assignment]
    return replace(source, codes=inner), {**params, "padding": padding}


def _is_zero_point(filling: Value, zero: Tensor | None) -> bool:
    """Return True if a filling of codes is known to equal the zero point."""
    if zero is None or zero.is_constant:
        return filling.is_constant and not np.any(np.asarray(filling.known) != (0 if zero is None else zero.known))
    return zero.op == "convert" and is_zero_code(filling, zero.operands[0])


@dataclass(frozen=True)
class Finish:
    """Zero points and scales of an image of integer sums.

    Attributes:
        dtype: Element type of the result.
        zero: Zero point still contained in the image; None for 0.
        sums: Sum of the weights of each filter, [G, M]; None without a zero point.
        scale: Scale of the image; None for 1.
        scales: Scales of the filters, [G, M]; None for 1.
    """

    dtype: DType
    zero: Tensor | None
    sums: np.ndarray | None
    scale: Tensor | None
    scales: np.ndarray | None

    def __call__(self, image: Tensor) -> Tensor:
        """Return the result for an image [N, G * M, spatial] of int32."""
        along = (1, -1, *[1] * (len(shape_of(image)) - 2))
        if self.zero is not None and self.sums is not None:
            image = image - _zero_point_term(self.zero, self.sums.reshape(along))
        scales = None if self.scales is None else self.scales.reshape(along)
        return apply_scale(image, self.dtype, self.scale, scales)


def _zero_point_term(zero: Tensor, sums: np.ndarray) -> Tensor:
    """Return the contribution of a zero point to sums of products, from the sums of weights."""
    if zero.is_constant:
        return constant(np.asarray(zero.known, np.int32) * sums, t.INT32)
    return zero * constant(sums, t.INT32)


def apply_scale(sums: Tensor, dtype: DType, scale: Tensor | None, scales: np.ndarray | None) -> Tensor:
    """Return sums of products of codes as the result of a product, by scalar scales and those along the last axes."""
    if dtype == t.INT32:
        return sums if dtype_of(sums) == t.INT32 else convert(sums, t.INT32)
    floats = sums if dtype_of(sums) == t.FLOAT else convert(sums, t.FLOAT)
    if scales is not None:
        factor = constant(scales.astype(np.float32), t.FLOAT)
        return floats * (factor if scale is None else factor * scale)
    return floats if scale is None else floats * scale


def _pad(x: Tensor, pairs: list[tuple[Any, Any]], filling: Tensor) -> Tensor:
    low, high = zip(*pairs, strict=True)
    return apply("pad", x, filling, low=low, high=high, interior=(0,) * len(pairs))
