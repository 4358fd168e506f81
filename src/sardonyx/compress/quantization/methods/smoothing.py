"""Smoothing: large channels of activations shrink and the weights that read them grow, where the estimated error falls.

The error of a product is estimated from the range of the activation, the ranges of the weight's rows and the mean
squares of the inputs, so that no model runs for a candidate.
Source: Xiao et al., SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models, 2023;
the choice of the exponent by the estimated error is this project's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.methods.channel_groups import (
    ChannelGroup,
    find_channel_groups,
    input_channels,
    largest_per_channel,
    present_matrix,
    rescale,
)
from sardonyx.compress.quantization.methods.equalization import bounded
from sardonyx.compress.quantization.methods.product_noise import least
from sardonyx.compress.quantization.site_inputs import Needs, SiteInput
from sardonyx.compress.quantization.steps import Preview

NEEDS = Needs(maxima=True, second_moments=True, rows_per_sample=256, most_bytes=0)

_EXPONENTS = np.linspace(0.0, 1.0, 11)
_LEAST_GAIN = 0.9
"""The estimated error, relative to that without factors, from which a group is rescaled."""

_ROUNDS = 2
_LEVELS = 255.0
_WEIGHT_LEVELS = 127.0


def smooth(model: ir.Model, preview: Preview) -> list[str]:
    """Rescale the channels of activations of a model, in place, where that lowers the estimated error of products.

    Args:
        model: The model, with inferred shapes.
        preview: Samples; without samples nothing changes.

    Returns:
        Notes for the user.
    """
    groups = find_channel_groups(model)
    if not groups or not preview.samples:
        return ["No channel can be rescaled." if preview.samples else "Without data no channel was rescaled."]
    inputs = preview.observe(model, NEEDS).inputs
    channels = {group: statistics for group in groups if (statistics := _Channels.of(group, inputs)) is not None}
    changed: set[ChannelGroup] = set()
    for _ in range(_ROUNDS):
        for group, statistics in channels.items():
            factors = best_factors(group, statistics.largest, statistics.squares)
            if factors is not None:
                rescale(model, group, factors)
                statistics.rescale(factors)
                changed.add(group)
    return [f"The channels of {len(changed)} of {len(groups)} groups were rescaled."]


@dataclass
class _Channels:
    """Statistics of the channels of a group, over all sites that read them.

    Attributes:
        largest: The largest magnitude of each channel, of shape [channels].
        squares: The mean square of each channel, of shape [channels].
    """

    largest: np.ndarray
    squares: np.ndarray

    @classmethod
    def of(cls, group: ChannelGroup, inputs: dict[str, SiteInput]) -> _Channels | None:
        largest, squares = np.zeros(group.channels), np.zeros(group.channels)
        for site in group.sites:
            seen = inputs.get(site.label)
            if seen is None or seen.maxima is None or seen.squares is None or len(seen.maxima) != group.channels:
                return None
            largest = np.maximum(largest, seen.maxima)
            index = input_channels(site)
            counts = np.bincount(index.ravel(), minlength=group.channels)
            sums = np.bincount(index.ravel(), seen.squares.ravel(), minlength=group.channels)
            squares = np.maximum(squares, sums / np.maximum(counts, 1))
        return cls(largest, squares)

    def rescale(self, factors: np.ndarray) -> None:
        self.largest = self.largest * factors
        self.squares = self.squares * factors * factors


def best_factors(group: ChannelGroup, largest: np.ndarray, squares: np.ndarray) -> np.ndarray | None:
    """Return the factors of the least estimated error; None if no candidate is clearly better than none.

    Args:
        group: The group, whose sites read the channels.
        largest: The largest magnitude of each channel, of shape [channels].
        squares: The mean square of each channel, of shape [channels].
    """
    readers = [_Reader.of(group, site_number) for site_number in range(len(group.sites))]
    weights = np.max([largest_per_channel(site, group.channels) for site in group.sites], axis=0)

    def error(factors: np.ndarray) -> float:
        return sum(reader.error(factors, largest, squares) for reader in readers)

    return least(candidate_factors(largest, weights), error, error(np.ones(group.channels)) * _LEAST_GAIN)


def candidate_factors(largest: np.ndarray, weights: np.ndarray) -> Iterator[np.ndarray]:
    """Yield factors between those that even out the activations and those that even out the weights."""
    valid = (largest > 0) & (weights > 0)
    safe, other = np.where(valid, largest, 1), np.where(valid, weights, 1)
    for exponent in _EXPONENTS:
        yield bounded(other ** (1 - exponent) / safe**exponent, valid)
        if exponent:
            yield bounded(safe**-exponent, valid)


@dataclass
class _Reader:
    """The weight of one site that reads a group.

    Attributes:
        magnitudes: The largest magnitude of each row's weights per channel, of shape [groups, outputs, channels read].
        energies: The sum of squares of the weights of each channel, of shape [channels].
        index: The channel of each column of `magnitudes`, of shape [groups, channels read].
        taps: Elements of a row per channel.
    """

    magnitudes: np.ndarray
    energies: np.ndarray
    index: np.ndarray
    taps: int

    @classmethod
    def of(cls, group: ChannelGroup, site_number: int) -> _Reader:
        site = group.sites[site_number]
        matrix, columns = present_matrix(site), input_channels(site)
        read = len(np.unique(columns[0]))
        taps = matrix.shape[2] // read if read else 1
        energies = np.bincount(columns.ravel(), np.square(matrix, dtype=np.float64).sum(1).ravel(), group.channels)
        if site.node.op_type == "ConvTranspose":
            return cls(np.abs(matrix), energies, columns, 1)
        split = np.abs(matrix).reshape(*matrix.shape[:2], read, taps).max(3, initial=0)
        return cls(split, energies, columns[:, ::taps] if taps else columns, taps)

    def error(self, factors: np.ndarray, largest: np.ndarray, squares: np.ndarray) -> float:
        """Return the estimated squared error of the products if channels are multiplied by factors."""
        step = float((largest * factors).max(initial=0)) / _LEVELS
        activations = step * step / 12 * float((self.energies / np.square(factors)).sum())
        inverse = (1 / factors)[self.index][:, None].astype(np.float32)
        steps = np.square((self.magnitudes * inverse).max(2, initial=0).astype(np.float64) / _WEIGHT_LEVELS) / 12
        powers = (squares * np.square(factors))[self.index].sum(1) * self.taps
        return activations + float((steps.sum(1) * powers).sum())
