"""Cross-layer equalization: channels are rescaled so that both weights have equal largest magnitudes, without data.

Source: Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction, 2019.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.methods.channel_groups import (
    ChannelGroup,
    find_channel_groups,
    largest_per_channel,
    largest_per_parameter,
    rescale,
)
from sardonyx.compress.quantization.steps import Preview

_ROUNDS = 3
"""Passes over all groups: a weight between two groups changes in both."""

MOST = 1e3
"""The largest factor, and the inverse of the least."""


def equalize(model: ir.Model, preview: Preview | None = None) -> list[str]:
    """Rescale channels between weights of a model, in place, so that both weights have the same range per channel.

    Args:
        model: The model, with inferred shapes.
        preview: Not read: the ranges are those of weights.

    Returns:
        Notes for the user.
    """
    del preview
    groups = [group for group in find_channel_groups(model) if group.parameters[0].node.op_type != "Mul"]
    groups = [group for group in groups if not group.parameters[0].node.op_type.endswith("Normalization")]
    if not groups:
        return ["No pair of weights can be equalized."]
    for _ in range(_ROUNDS):
        for group in groups:
            rescale(model, group, equalizing_factors(group))
    return [f"The channels between {len(groups)} groups of weights were equalized."]


def equalizing_factors(group: ChannelGroup) -> np.ndarray:
    """Return the factors after which both ends of a group have the same largest magnitude per channel."""
    first = largest_per_parameter(group)
    second = np.max([largest_per_channel(site, group.channels) for site in group.sites], axis=0)
    return bounded(np.sqrt(second / np.where(first > 0, first, 1)), (first > 0) & (second > 0))


def bounded(factors: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Return factors of a geometric mean of 1, within limits; 1 where they are not valid."""
    valid = valid & np.isfinite(factors) & (factors > 0)
    if not valid.any():
        return np.ones_like(factors)
    logs = np.log(np.where(valid, factors, 1).astype(np.float64))
    logs = np.where(valid, logs - logs[valid].mean(), 0.0)
    return np.asarray(np.exp(np.clip(logs, -np.log(MOST), np.log(MOST))), np.float64)
