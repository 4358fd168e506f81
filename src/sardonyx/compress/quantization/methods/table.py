"""The methods of quantization by name."""

from __future__ import annotations

from collections.abc import Mapping

from sardonyx.compress.quantization.methods import rounding
from sardonyx.compress.quantization.methods.awq import scale_by_activation
from sardonyx.compress.quantization.methods.equalization import equalize
from sardonyx.compress.quantization.methods.outlier_splitting import split_outliers
from sardonyx.compress.quantization.methods.smoothing import smooth
from sardonyx.compress.quantization.site_inputs import Needs
from sardonyx.compress.quantization.steps import Method

_SQUARES = Needs(second_moments=True, most_bytes=0)
_MOMENTS = Needs(second_moments=True)

METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("nearest", "the nearest integer at the scale of the least squared error"),
        Method("least-squares", "scales of the least error weighted by squared inputs", _SQUARES,
               round=rounding.round_by_importance),
        Method("hqq", "scales of the least error in a norm below 1, without data",
               round=rounding.round_half_quadratically),
        Method("equalization", "weights of neighbours get equal ranges per channel, without data", rescale=equalize),
        Method("smoothquant", "large channels of activations move into the weights that read them", rescale=smooth,
               reads_activations=True),
        Method("outlier-split", "large channels of activations become several smaller ones", rescale=split_outliers,
               reads_activations=True),
        Method("gptq", "errors of a column of weights are compensated by the other columns", _MOMENTS,
               round=rounding.round_by_second_order),
        Method("adaround", "integers below or above, learned by gradients", _MOMENTS,
               round=rounding.round_by_gradient),
        Method("adaquant", "weights trained through their rounding, then refitted scales", _MOMENTS,
               round=rounding.round_straight_through),
        Method("awq", "weights with large inputs grow ahead of rounding", _SQUARES, scale_by_activation,
               rounding.round_by_importance),
        Method("awq-gptq", "AWQ's factors, then GPTQ's integers", _MOMENTS, scale_by_activation,
               rounding.round_by_second_order),
        Method("smooth-gptq", "SmoothQuant's factors, then GPTQ's integers", _MOMENTS, smooth,
               rounding.round_by_second_order),
        Method("sequential", "AWQ's factors, GPTQ, then integers that correct the errors of earlier nodes", _MOMENTS,
               scale_by_activation, rounding.round_by_second_order, is_sequential=True),
    )
}  # fmt: skip
"""The methods of ``quantize(method=…)``, by name."""
