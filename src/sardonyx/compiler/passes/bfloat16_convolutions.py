"""Convolutions of numbers that are bfloat16, written in float32, as convolutions of bfloat16.

Products of bfloat16 are exact in float32, so that the conversion of both operands changes nothing but the order of a
sum. A model writes such a convolution in float32, between a Cast of the image to bfloat16 and back: operator sets
before 22 have no Conv of bfloat16, and the result would be rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling.convolution import ConvolutionProblem, suits_pairs
from sardonyx.core.eval.tensor import Tensor, apply, constant
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

_LOWER_HALF = 0xFFFF
"""The bits of a float32 that bfloat16 does not have."""


def narrow_operands(
    core: Value, image: Value, weights: Value, params: Mapping[str, Any], target: Target
) -> tuple[Tensor, Tensor] | None:
    """Return the image and the weights of a ``convolve`` as bfloat16; None if one has other numbers, or it is slower.

    Args:
        core: The ``convolve``.
        image: The image, [N, G * C, spatial].
        weights: [G, M, C, window].
        params: Parameters of the ``convolve``.
        target: The processor.
    """
    is_narrow = image.op == "convert" and dtype_of(image.operands[0]) == t.BFLOAT16
    known = weights.operands[0] if weights.op == "reshape" else weights
    if not is_narrow or params["dtype"] != t.FLOAT or not known.is_constant:
        return None
    problem = _describe(core, image, weights, params)
    if problem is None or not suits_pairs(problem, target):
        return None
    array = np.ascontiguousarray(known.known)
    if (array.view(np.uint32) & _LOWER_HALF).any():
        return None
    narrow = constant(array.astype(t.numpy_dtype(t.BFLOAT16)), t.BFLOAT16)
    source = image.operands[0]
    assert isinstance(source, Tensor)
    return source, apply("reshape", narrow, shape=shape_of(weights))


def _describe(core: Value, image: Value, weights: Value, params: Mapping[str, Any]) -> ConvolutionProblem | None:
    """Return the problem of a ``convolve`` on one thread; None if channels or the window are open."""
    groups, filters, _, *window = shape_of(weights)
    batch, channels = shape_of(image)[:2]
    known = [size for size in (groups, filters, channels, *window) if isinstance(size, int)]
    if len(known) != 3 + len(window):
        return None
    return ConvolutionProblem(
        batch, known[2], known[0] * known[1], known[0], tuple(known[3:]), params["strides"],
        params["kernel_dilation"], params["base_dilation"], shape_of(core)[3:], t.FLOAT, len(window) - 1, 1,
    )  # fmt: skip
