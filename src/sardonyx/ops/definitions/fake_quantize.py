"""Quantization in floating point with a straight-through gradient, for training of quantized models.

The result equals that of ``QuantizeLinear`` and ``DequantizeLinear`` in float32: codes of at most 16 bits are exact.
The gradient is that of the identity where the code is not saturated, else zero (Bengio et al., 2013).
"""

from __future__ import annotations

from sardonyx.core import language as L
from sardonyx.core.ir import types as t
from sardonyx.core.language import Tensor
from sardonyx.ops.definitions.counted_dropout import DOMAIN
from sardonyx.ops.definitions.quantization import broadcast_parameter
from sardonyx.ops.registry import operator


@operator("FakeQuantize", since=1, domain=DOMAIN)
def fake_quantize(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    *,
    low: float,
    high: float,
    axis: int = 1,
    block_size: int = 0,
) -> Tensor:
    """Return ``x`` rounded to multiples of the scale whose codes are from ``low`` to ``high``.

    Args:
        x: The tensor.
        scale: The scale: of the tensor, of each index of ``axis``, or of each block.
        zero_point: The code of 0, of the scale's shape.
        low: The least code.
        high: The greatest code.
        axis: The axis of scales.
        block_size: Elements of a block.
    """
    step = L.cast(broadcast_parameter(x, L.stop_gradient(scale), axis, block_size), t.FLOAT)
    units = L.cast(x, t.FLOAT) / step
    codes = L.round_(units)
    if zero_point is not None:
        offset = L.cast(broadcast_parameter(x, zero_point, axis, block_size), t.FLOAT)
        codes = codes + offset
    inside = (codes >= low) & (codes <= high)
    codes = L.clip(codes, low, high)
    value = L.cast((codes if zero_point is None else codes - offset) * step, x.dtype)
    passed = L.where(inside, x, 0)
    return L.stop_gradient(value) + (passed - L.stop_gradient(passed))
