"""The problem of a convolution among the values of a function, and the schedule of its kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from sardonyx.compiler.analysis.constant_values import is_closed
from sardonyx.compiler.analysis.patterns import Convolution
from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling import winograd
from sardonyx.compiler.tiling.choice import Choice
from sardonyx.compiler.tiling.convolution import (
    ConvolutionProblem,
    ConvolutionSchedule,
    choose_convolution,
    is_depthwise,
    is_winograd,
    suits_pairs,
)
from sardonyx.compiler.tiling.int8_forms import form_of
from sardonyx.core.dim import Dim, Size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.errors import UnsupportedError

_CODES = (t.UINT8, t.INT8)

NARROW_DTYPES = frozenset({t.UINT8, t.INT8, t.INT16})
"""Integer element types of images that are convolved."""


def choose(match: Convolution, target: Target, threads: int, symbols: Mapping[str, int]) -> Choice[ConvolutionSchedule]:
    """Choose the schedule of a convolution.

    Args:
        match: The convolution.
        target: The processor.
        threads: Threads that share the work.
        symbols: The values of symbols that costs assume.

    Raises:
        UnsupportedError: No kernel computes the convolution.
        OptionError: The user's schedule for the problem is invalid.
    """
    return choose_convolution(_describe(match, target, threads, symbols), target)


def _describe(match: Convolution, target: Target, threads: int, symbols: Mapping[str, int]) -> ConvolutionProblem:
    """Return the problem of a convolution.

    Raises:
        UnsupportedError: No kernel computes the convolution.
    """
    params = match.core.params
    weights = match.weights
    narrow = is_closed(weights) and params["dtype"] == t.INT32 and dtype_of(match.image) in NARROW_DTYPES
    image = dtype_of(match.image)
    floats = params["dtype"] in (t.FLOAT, t.FLOAT16, t.BFLOAT16) and image in (params["dtype"], t.BFLOAT16)
    if not narrow and not floats:
        raise UnsupportedError(f"convolve of {match.image.type} as {params['dtype'].name.lower()} has no kernel.")
    channels, filters = shape_of(match.image)[1], shape_of(match.result)[1]
    if not isinstance(channels, int) or not isinstance(filters, int) or not 1 <= len(params["strides"]) <= 3:
        raise UnsupportedError("convolve of an open number of channels has no kernel.")
    form = form_of(match.image, weights, target)
    batch, _, *out = shape_of(match.result)
    named = {symbol for size in out if isinstance(size, Dim) for symbol in size.symbols()}
    problem = ConvolutionProblem(
        batch, channels, filters, match.groups, fixed(shape_of(weights))[3:], tuple(params["strides"]),
        tuple(params["kernel_dilation"]), tuple(params["base_dilation"]), tuple(out), dtype_of(match.image),
        wide_axes(match)[-1], threads, is_closed(weights), match.ends, form.dot_width if form else 1,
        symbols=tuple((symbol, symbols[symbol]) for symbol in sorted(symbols) if symbol in named),
    )  # fmt: skip
    if image == dtype_of(weights) == t.BFLOAT16 and suits_pairs(problem, target):
        return replace(problem, dot_width=2)
    if narrow and is_depthwise(problem):
        return replace(problem, dot_width=4 if _has_words(match, problem, target) else 1)
    if narrow and form is None:
        raise UnsupportedError(f"convolve of {match.image.type} with {weights.type} has no kernel.")
    if narrow and is_winograd(problem) and match.weights.is_constant and _is_difference(match.image):
        return replace(problem, exact=winograd.most_exact_results(np.asarray(match.weights.known)[0]))
    return problem


def _has_words(match: Convolution, problem: ConvolutionProblem, target: Target) -> bool:
    """Return True if a depthwise convolution multiplies bytes, four taps of a row in an instruction."""
    if target.vector_bits < 512 or target.saturates or dtype_of(match.image) not in _CODES:
        return False
    axis = problem.axis
    if set(problem.base_dilations) != {1} or problem.dilations[axis] != 1 or not match.weights.is_constant:
        return False
    weights = np.asarray(match.weights.known)
    return bool(weights.min(initial=0) >= -128 and weights.max(initial=0) <= 127)


def _is_difference(image: Value) -> bool:
    """Return True for 8-bit integers, or 8-bit integers less another one."""
    if dtype_of(image) in _CODES:
        return True
    if image.op == "convert":
        return dtype_of(image.operands[0]) in _CODES
    if image.op != "sub" or not _is_difference(image.operands[0]) or image.operands[0].op == "sub":
        return False
    zero = image.operands[1]
    while zero.op in ("broadcast", "reshape", "convert") and dtype_of(zero) not in _CODES:
        zero = zero.operands[0]
    if dtype_of(zero) in _CODES:
        return True
    if not zero.is_constant:
        return False
    limits = np.iinfo(t.numpy_dtype(dtype_of(image.operands[0].operands[0])))
    return bool((np.asarray(zero.known) >= limits.min).all() and (np.asarray(zero.known) <= limits.max).all())


def wide_axes(match: Convolution) -> tuple[int, ...]:
    """Return the spatial axes along which a window moves or has several taps; at least one."""
    params = match.core.params
    axes = []
    for axis, (size, out, taps) in enumerate(
        zip(shape_of(match.image)[2:], shape_of(match.result)[2:], shape_of(match.weights)[3:], strict=True)
    ):
        if not (size == out == taps == 1 and params["padding"][axis] == (0, 0)):
            axes.append(axis)
    return tuple(axes) or (len(params["strides"]) - 1,)


def fixed(sizes: Sequence[Size]) -> tuple[int, ...]:
    """Return sizes that are all known.

    Raises:
        UnsupportedError: A size is open.
    """
    if not all(isinstance(size, int) for size in sizes):
        raise UnsupportedError("weights of open sizes have no kernel.")
    return tuple(size for size in sizes if isinstance(size, int))
