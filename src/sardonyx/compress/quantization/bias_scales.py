"""Scales of weights with which biases fit in 32-bit integers, and one set of integers for nodes with a common weight.

A bias has the scale of the products. Engines compute with that scale whether the bias is stored as integers or not, so
a channel of zeros, or of weights near 0, must not have a scale near 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.bias_correction import is_per_channel
from sardonyx.compress.quantization.placement import Placement, WeightSite
from sardonyx.compress.quantization.scheme import Affine
from sardonyx.compress.quantization.weights import QuantizedWeight

_MOST_BIAS = float(1 << 30)
"""The largest integer of a bias, which leaves the other half of 32 bits to the sum of products."""

_LEAST_SHARE = 2.0**-30
"""The least scale of a channel relative to the largest of the weight."""

_LEAST_PRODUCT = 2.0**-100
"""The least scale of products: far from the denormal numbers of float32."""


def unite_scales(
    placement: Placement, maps: Mapping[ir.Value, Affine], weights: Mapping[WeightSite, QuantizedWeight]
) -> dict[WeightSite, QuantizedWeight]:
    """Return weights with scales that the biases of all their readers permit; readers of one weight have one.

    Args:
        placement: The places of integers in the model.
        maps: The maps of activations.
        weights: The weights of sites.
    """
    readers: dict[object, list[WeightSite]] = {}
    for site in placement.all_sites:
        key = site.node.inputs[site.index], site.channel_axis, site.sum_axis
        readers.setdefault(key, []).append(site)
    result: dict[WeightSite, QuantizedWeight] = {}
    for sites in readers.values():
        weight = weights[sites[0]]
        for site in sites:
            x = site.input
            affine = None if x is None or (site.node, 0) not in placement.reads.get(x, ()) else maps.get(x)
            if affine is not None:
                weight = _with_room(site, affine, weight)
        result |= dict.fromkeys(sites, weight)
    return result


def _with_room(site: WeightSite, affine: Affine, weight: QuantizedWeight) -> QuantizedWeight:
    """Return a weight whose scales are not less than the bias of the site needs."""
    if weight.block or weight.values.dtype.kind != "i" or weight.zeros.any() or affine.kind.is_float:
        return weight
    x_scale = float(affine.scale)
    least = np.maximum(weight.scales.max(initial=0) * _LEAST_SHARE, _LEAST_PRODUCT / x_scale)
    bias = _bias(site)
    if bias is not None:
        needed = np.abs(bias) / (x_scale * _MOST_BIAS)
        least = np.maximum(least, needed if weight.scales.ndim else needed.max(initial=0))
    scales = np.maximum(weight.scales, least).astype(np.float32)
    if np.array_equal(scales, weight.scales):
        return weight
    factors, _ = replace(weight, scales=weight.scales / scales).expanded()
    values = np.rint(weight.values.astype(np.float32) * factors).astype(weight.values.dtype)
    return replace(weight, values=values, scales=scales)


def _bias(site: WeightSite) -> np.ndarray | None:
    """Return the constant bias of a site by channel; None if there is none."""
    node = site.node
    value = node.inputs[2] if node.op_type != "MatMul" and len(node.inputs) > 2 else None
    if value is None or value.const_value is None:
        return None
    bias = value.const_value.numpy()
    if not is_per_channel(bias.shape, site.channels):
        return None
    return np.broadcast_to(bias.reshape(-1).astype(np.float64), (site.channels,))
