"""Movements of dequantized values are movements of their 8-bit codes.

A quantizer writes a pair of ``QuantizeLinear`` and ``DequantizeLinear`` around every operator: paddings, slices,
concatenations and maxima work on floats between two pairs. Dequantization maps each element alone, and preserves order:
these operators give the same floats if the codes are moved and dequantized afterwards. Values of several scales that
are joined and quantized are quantized before, each as a function of its codes. A quantization that undoes the
dequantization before it is then the identity on codes, and one that follows a normalization is a product and a sum
(:mod:`sardonyx.compiler.passes.affine_codes`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from sardonyx.compiler.analysis.constant_values import is_closed
from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.codegen.requantize import Codes, quantization
from sardonyx.compiler.passes.affine_codes import affine_source
from sardonyx.compiler.passes.int8_matmul import Quantized, match_quantized, scalar_of
from sardonyx.core.dim import Size, at_least
from sardonyx.core.eval.tensor import Tensor, apply, constant
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.transform.rewriting import Match, RuleSet

CODE_MOVEMENTS = RuleSet("move codes")

_LIMITS = {t.UINT8: (0, 255), t.INT8: (-128, 127)}


def move_codes(inner: Function) -> Function:
    """Return the function with movements of codes in place of movements of dequantized values."""
    return CODE_MOVEMENTS.apply(inner)


@CODE_MOVEMENTS.rule("slice", "reverse")
def moved_codes(m: Match, x: Tensor, **params: Any) -> Value | None:
    """A part of dequantized values is the dequantized part of the codes."""
    source = _dequantized(x)
    return None if source is None else _dequantize(source, apply(m.op, source.codes, **params))


@CODE_MOVEMENTS.rule("gather")
def picked_codes(m: Match, x: Tensor, indices: Tensor, **params: Any) -> Value | None:
    """Picked dequantized values, as those of a resized image, are dequantized picked codes."""
    source = None if is_closed(x) else _dequantized(x)
    return None if source is None else _dequantize(source, apply("gather", source.codes, indices, **params))


@CODE_MOVEMENTS.rule("pad")
def padded_codes(m: Match, x: Tensor, filling: Tensor, **params: Any) -> Value | None:
    """Padded dequantized values are dequantized padded codes, if the filling has a code."""
    source = _dequantized(x)
    code = None if source is None else _code_of(source, filling)
    if source is None or code is None:
        return None
    return _dequantize(source, apply("pad", source.codes, code, **params))


@CODE_MOVEMENTS.rule("div", "add", "max", "min")
def padded_function(m: Match, x: Tensor, y: Tensor, **params: Any) -> Value | None:
    """A function of padded values and a number, as in a dynamic quantization, is padded after."""
    inner, number = _padded(x), scalar_of(y)
    if inner is None or number is None:
        return None
    wide = apply("broadcast", apply("reshape", number, shape=(1,) * inner.rank), shape=inner.shape)
    filling = apply(m.op, x.operands[1], number, **params)
    return apply("pad", apply(m.op, inner, wide, **params), filling, **x.params)


@CODE_MOVEMENTS.rule("round", "convert")
def padded_rounding(m: Match, x: Tensor, **params: Any) -> Value | None:
    """Padded values are rounded, and converted to 8 bits, before."""
    inner = _padded(x)
    if inner is None or (m.op == "convert" and params["dtype"] not in _LIMITS):
        return None
    return apply("pad", apply(m.op, inner, **params), apply(m.op, x.operands[1], **params), **x.params)


@CODE_MOVEMENTS.rule("reduce")
def padded_extreme(m: Match, x: Tensor, **params: Any) -> Value | None:
    """The extreme of padded values is that of the values and the filling."""
    inner = _padded(x)
    if inner is None or params["kind"] not in ("max", "min"):
        return None
    widths = [low + high for low, high in zip(x.params["low"], x.params["high"], strict=True)]
    if not any(widths) or any(width for axis, width in enumerate(widths) if axis not in params["axes"]):
        return None
    extreme = apply("reduce", inner, **params)
    filling = apply("reshape", x.operands[1], shape=(1,) * extreme.rank)
    return apply(params["kind"], extreme, apply("broadcast", filling, shape=extreme.shape))


def _padded(x: Tensor) -> Tensor | None:
    """Return the floats around which known numbers of a filling were put; None for other values."""
    if x.op != "pad" or dtype_of(x) != t.FLOAT or any(x.params["interior"]):
        return None
    known = all(isinstance(size, int) and size >= 0 for size in (*x.params["low"], *x.params["high"]))
    return x.operands[0] if known else None  # type: ignore[return-value]


@CODE_MOVEMENTS.rule("reduce")
def extreme_of_codes(m: Match, x: Tensor, *, kind: str, axes: tuple[int, ...]) -> Value | None:
    """The extreme of dequantized values along axes is the dequantized extreme code, and at the same position."""
    source = _dequantized(x) if kind in ("max", "min", "argmax", "argmin") else None
    if source is None or not _is_ordered(source) or not all(_has_elements(shape_of(x)[axis]) for axis in axes):
        return None
    extreme = apply("reduce", source.codes, kind=kind, axes=axes)
    return extreme if kind in ("argmax", "argmin") else _dequantize(source, extreme)


@CODE_MOVEMENTS.rule("sort", "top_k")
def sorted_codes(m: Match, x: Tensor, **params: Any) -> Value | None:
    """The order of dequantized values is that of their codes: different codes are different finite numbers."""
    source = _dequantized(x)
    return None if source is None or not _is_ordered(source) else apply(m.op, source.codes, **params)


@CODE_MOVEMENTS.rule("concat")
def joined_codes(m: Match, *parts: Tensor, axis: int) -> Value | None:
    """Joined dequantized values of one scale and zero point are the dequantized joined codes."""
    sources = [_dequantized_part(part) for part in parts]
    first = sources[0] if sources else None
    if first is None or any(other is None or not _has_same_scale(first, other) for other in sources):
        return None
    return _dequantize(first, apply("concat", *[source.codes for source in sources if source is not None], axis=axis))


def _dequantized_part(value: Tensor) -> Quantized | None:
    """Return dequantized values, which may be repeated, as those of an edge."""
    if value.op != "broadcast" or is_closed(value):
        return _dequantized(value)
    source = _dequantized(value.operands[0])
    return None if source is None else replace(source, codes=apply("broadcast", source.codes, **value.params))


@CODE_MOVEMENTS.rule("reduce_window")
def extreme_codes(m: Match, x: Tensor, **params: Any) -> Value | None:
    """The extreme of dequantized values is the dequantized extreme code: every window has an element."""
    source = _dequantized(x)
    if source is None or params["kind"] not in ("max", "min") or set(params["dilation"]) != {1}:
        return None
    if any(size >= taps for taps, pair in zip(params["window"], params["padding"], strict=True) for size in pair):
        return None
    return _dequantize(source, apply("reduce_window", source.codes, **params))


@CODE_MOVEMENTS.rule("convert")
def same_codes(m: Match, x: Tensor, *, dtype: t.DType, **params: Any) -> Value | None:
    """Codes that are dequantized and quantized again with the same scale and zero point are unchanged."""
    goal = quantization(x, dtype)
    return None if goal is None else _unchanged(goal)


@CODE_MOVEMENTS.rule("convert")
def moved_quantization(m: Match, x: Tensor, *, dtype: t.DType, **params: Any) -> Value | None:
    """Codes of moved or repeated dequantized values are moved codes, each a function of 8 bits.

    These functions are then tables of codes in memory, and the movements, as those of a resized image, copy bytes.
    """
    goal = quantization(x, dtype)
    if goal is None or goal.source.op not in ("mul", "div"):
        return None
    inner, factor = goal.source.operands
    number, movements = _number(factor), []
    while inner.op in ("broadcast", "reshape", "permute", "stop_gradient") and not is_closed(inner):
        movements.append(inner)
        inner = inner.operands[0]
    if number is None or all(movement.op == "stop_gradient" for movement in movements):
        return None
    source = _dequantized(inner)
    if source is None or (source.codes.op == "gather" and all(movement.op != "broadcast" for movement in movements)):
        return None  # A gather and the movements after it are one kernel.
    of_inner = replace(goal, source=apply(goal.source.op, inner, _repeated(number, shape_of(inner))))
    codes = _unchanged(of_inner) or _quantize(of_inner, of_inner.source)
    for movement in reversed(movements):
        codes = codes if movement.op == "stop_gradient" else apply(movement.op, codes, **movement.params)
    return codes


@CODE_MOVEMENTS.rule("convert")
def affine_codes(m: Match, x: Tensor, **params: Any) -> Value | None:
    """Codes of normalized codes are a product and a sum, if these round to the same codes for every channel."""
    goal = quantization(x, params["dtype"])
    floats = None if goal is None else affine_source(goal)
    return None if goal is None or floats is None else _quantize(goal, floats)


@CODE_MOVEMENTS.rule("convert")
def joined_quantizations(m: Match, x: Tensor, **params: Any) -> Value | None:
    """The codes of joined dequantized values are the joined codes of each, which are functions of 8 bits."""
    goal = quantization(x, params["dtype"])
    if goal is None or goal.source.op not in ("mul", "div") or goal.source.operands[0].op != "concat":
        return None
    joined, factor = goal.source.operands
    number = _number(factor)
    if number is None or any(_dequantized(part) is None for part in joined.operands):
        return None
    parts = []
    for part in joined.operands:
        of_part = replace(goal, source=apply(goal.source.op, part, _repeated(number, shape_of(part))))
        parts.append(_unchanged(of_part) or _quantize(of_part, of_part.source))
    return apply("concat", *parts, **joined.params)


@CODE_MOVEMENTS.rule("convert")
def codes_without_zeros(m: Match, x: Tensor, **params: Any) -> Value | None:
    """Codes are those without an added zero, such as a bias of zeros: only the sign of zeros differs before."""
    goal = quantization(x, params["dtype"])
    if goal is None or goal.source.op not in ("mul", "div"):
        return None
    values, factor = goal.source.operands
    if values.op != "add" or not _number(factor) or _number(values.operands[1]) != 0:
        return None
    return _quantize(goal, apply(goal.source.op, values.operands[0], factor))


def _unchanged(goal: Codes) -> Tensor | None:
    """Return the codes whose dequantized values a quantization maps to the same codes; None for others."""
    if (goal.low, goal.high) != _LIMITS[goal.dtype] or goal.source.op not in ("mul", "div"):
        return None
    values, factor = goal.source.operands
    source = match_quantized(values)
    if source is None or source.scale is None or source.codes.dtype != goal.dtype:
        return None
    number, scale = _number(factor), _number(source.scale)
    zero = 0 if source.zero is None else _number(source.zero)
    if number is None or scale is None or not scale or zero != goal.zero:
        return None
    # The quotient of a difference of codes is off by less than 1e-4, and rounds to the difference.
    units = scale / number if goal.source.op == "div" else scale * number
    return source.codes if abs(units - 1) < 1e-7 * 4 else None


def _quantize(goal: Codes, floats: Value) -> Tensor:
    """Return the codes of other floats by the zero point and limits of a quantization."""
    shape = shape_of(floats)
    rounded = apply("round", floats)
    if goal.zero:
        rounded = rounded + _repeated(goal.zero, shape)
    for op, limit in (("max", goal.low), ("min", goal.high)):
        rounded = apply(op, rounded, _repeated(limit, shape))
    return apply("convert", rounded, dtype=goal.dtype, saturate=True, rounding="up")


def _repeated(number: float, shape: tuple[Size, ...]) -> Tensor:
    return apply("broadcast", constant(np.full((1,) * len(shape), number, np.float32), t.FLOAT), shape=shape)


def _dequantized(value: Value) -> Quantized | None:
    """Return dequantized values with a known scale and zero point; None for other values."""
    source = match_quantized(value)
    if source is None or source.scale is None or (_number(source.scale) or 0) <= 0:
        return None
    return source if source.zero is None or _number(source.zero) is not None else None


def _is_ordered(source: Quantized) -> bool:
    """Return True if different codes are dequantized to different finite numbers."""
    assert source.scale is not None
    return (_number(source.scale) or math.inf) <= float(np.finfo(np.float32).max) / 256


def _has_elements(size: Size) -> bool:
    """Return True if a size is known to be positive: an extreme of no floats is infinite, one of no codes is finite."""
    return at_least(size, 1) is True


def _number(value: Value) -> float | None:
    """Return the number in all elements of a constant; None for other values."""
    while value.op in ("broadcast", "reshape"):
        value = value.operands[0]
    if not value.is_constant:
        return None
    numbers = np.unique(np.asarray(value.known))
    return float(numbers[0]) if len(numbers) == 1 and np.isfinite(numbers[0]) else None


def _has_same_scale(first: Quantized, second: Quantized) -> bool:
    same_zero = (0 if first.zero is None else _number(first.zero)) == (
        0 if second.zero is None else _number(second.zero)
    )
    assert first.scale is not None
    assert second.scale is not None
    return first.codes.dtype == second.codes.dtype and same_zero and _number(first.scale) == _number(second.scale)


def _code_of(source: Quantized, filling: Value) -> Tensor | None:
    """Return the code that is dequantized to a number, or None."""
    number = _number(filling)
    if number is None or source.scale is None:
        return None
    scale = np.float32(_number(source.scale) or 0.0)
    zero = 0 if source.zero is None else int(_number(source.zero) or 0)
    code = round(number / float(scale)) + zero
    low, high = _LIMITS[source.codes.dtype]
    if not low <= code <= high or np.float32(code - zero) * scale != np.float32(number):
        return None
    return constant(np.array(code, t.numpy_dtype(source.codes.dtype)), source.codes.dtype)


def _dequantize(source: Quantized, codes: Tensor) -> Tensor:
    """Return codes as numbers, by the scale and zero point of others."""
    floats = apply("convert", codes, dtype=t.FLOAT, saturate=True, rounding="up")
    if source.zero is not None:
        floats = floats - constant(np.float32(_number(source.zero)), t.FLOAT)
    assert source.scale is not None
    return floats * source.scale
