"""Operators that are quantized, by ONNX Runtime's names; the values name the kinds of placement."""

from __future__ import annotations

from sardonyx.compress.quantization.placement import CONVOLUTIONS, INTEGER, PRODUCTS, RECURRENT

IntegerOpsRegistry = {
    **dict.fromkeys(PRODUCTS, "quantized in each call"),
    **dict.fromkeys((*CONVOLUTIONS, *RECURRENT), "integer weights"),
}
"""Operators of dynamic quantization."""

QLinearOpsRegistry = dict.fromkeys(("Conv", *PRODUCTS, *INTEGER), "operators on integers")
"""Operators of static quantization with operators on integers."""

QDQRegistry = dict.fromkeys((*CONVOLUTIONS, *PRODUCTS, *RECURRENT, *INTEGER), "between pairs")
"""Operators of static quantization between QuantizeLinear and DequantizeLinear."""
