"""Activation-aware weights: channels with large inputs grow ahead of rounding, and shrink where they are computed.

Source: Lin et al., AWQ: Activation-aware Weight Quantization for On-Device LLM Compression and Acceleration, 2024.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.methods.channel_groups import (
    ChannelGroup,
    find_channel_groups,
    input_channels,
    present_matrix,
    rescale,
)
from sardonyx.compress.quantization.methods.equalization import bounded
from sardonyx.compress.quantization.methods.product_noise import least
from sardonyx.compress.quantization.methods.scale_fitting import fit_scales
from sardonyx.compress.quantization.site_inputs import Needs, SiteInput
from sardonyx.compress.quantization.steps import Preview

_EXPONENTS = np.linspace(0.1, 1.0, 10)
_ROWS = 512
"""Rows of a weight, drawn evenly, on which an exponent is judged."""

_WIDTH = 32
_LEVELS = (0, 15)
"""Block and integers for which the exponents are chosen; other schemes of 4 bits rank the exponents alike."""

_NEEDS = Needs(maxima=True, second_moments=True, rows_per_sample=512, most_bytes=0)


def scale_by_activation(model: ir.Model, preview: Preview) -> list[str]:
    """Rescale the channels that weights read, in place, by a power of the inputs' magnitudes.

    Args:
        model: The model, with inferred shapes.
        preview: Samples; without samples nothing changes.

    Returns:
        Notes for the user.
    """
    if not preview.samples:
        return ["Without data no channel was rescaled."]
    groups = find_channel_groups(model)
    if not groups:
        return []
    inputs = preview.observe(model, _NEEDS).inputs
    changed = 0
    for group in groups:
        factors = _best_factors(group, inputs)
        if factors is not None:
            rescale(model, group, factors)
            changed += 1
    return [f"The channels of {changed} of {len(groups)} groups were rescaled by the magnitudes of activations."]


def _best_factors(group: ChannelGroup, inputs: Mapping[str, SiteInput]) -> np.ndarray | None:
    """Return the factors with the least weighted error of rounded weights; None if no factors are best."""
    readers = []
    squares = np.zeros(group.channels)
    for site in group.sites:
        seen = inputs.get(site.label)
        if seen is None or seen.squares is None or site.sum_axis is None or seen.squares.size != group.channels:
            return None  # Convolutions have 8 bits, which need no factors.
        matrix = present_matrix(site)[0]
        rows = matrix[np.linspace(0, len(matrix) - 1, min(len(matrix), _ROWS)).astype(int)]
        readers.append((rows, seen.squares[0][input_channels(site)[0]]))
        squares = np.maximum(squares, seen.squares[0])
    magnitude = np.sqrt(squares)
    # A factor below 1 of an activation is a factor above 1 of its weights, whose relative error shrinks.
    candidates = (bounded(np.where(magnitude > 0, magnitude, 1) ** -power, magnitude > 0) for power in _EXPONENTS)

    def error(factors: np.ndarray) -> float:
        return sum(_error(rows, energy, factors) for rows, energy in readers)

    return least(candidates, error, error(np.ones(group.channels)))


def _error(rows: np.ndarray, energy: np.ndarray, factors: np.ndarray) -> float:
    """Return the error of products of rounded rows, whose inputs have mean squares `energy` before the factors."""
    grown = (rows / factors.astype(np.float32)).astype(np.float32)
    weights = energy * np.square(factors)
    total = 0.0
    for first in range(0, grown.shape[1], _WIDTH):
        part = slice(first, first + _WIDTH)
        own = np.broadcast_to(weights[part], grown[:, part].shape)
        grid = fit_scales(grown[:, part], _LEVELS, symmetric=False, importance=own, refinements=0)
        difference = grown[:, part] - grid.values(grid.nearest(grown[:, part]))
        total += float((own * np.square(difference, dtype=np.float64)).sum())
    return total
