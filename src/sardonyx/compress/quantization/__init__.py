"""Quantization to integers: weights and activations with learned or dynamic ranges, or weights alone."""

from sardonyx.compress.quantization.placement import FloatNode
from sardonyx.compress.quantization.quantize import quantize
from sardonyx.compress.quantization.result import QuantizationReport, Quantized
from sardonyx.compress.quantization.scheme import Scheme

__all__ = ["FloatNode", "QuantizationReport", "Quantized", "Scheme", "quantize"]
