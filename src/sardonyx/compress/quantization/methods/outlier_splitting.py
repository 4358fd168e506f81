"""Outlier channels split: an activation holds a large channel several times, each a share of it.

One scale serves all channels of an activation, and a few large ones take the bits of all others. Factors would move
the range into the weights, which may need their bits too. Here the channel is divided by the number of its copies, and
the weights that read it are repeated: the sum is the same product, and the range of the activation is that of a share.

Source: Zhao et al., Improving Neural Network Quantization without Retraining using Outlier Channel Splitting, 2019.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.methods.channel_groups import repeat_input_channels
from sardonyx.compress.quantization.methods.product_noise import (
    ActivationNoise,
    common_channel_axis,
    per_channel,
    readers_of,
)
from sardonyx.compress.quantization.placement import Placement, WeightSite, find_placement
from sardonyx.compress.quantization.site_inputs import Needs, SiteInput
from sardonyx.compress.quantization.steps import Preview
from sardonyx.compress.quantization.writer import Writer

NEEDS = Needs(means=True, maxima=True, second_moments=True, rows_per_sample=256, most_bytes=0)

_LEAST_GAIN = 0.6
"""The noise that remains, at most, for copies to be worth their products."""

_MOST_COPIES = 0.25
"""Copies over channels, at most: products grow by this share."""

_DIVISORS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Ranges that are tried, as divisors of the range of the activation."""


@dataclass(frozen=True)
class Split:
    """Channels of an activation that are split.

    Attributes:
        value: The activation.
        axis: The axis of channels.
        sites: The sites that read the activation.
        copies: The copies of each channel, 1 or more, of shape [channels].
    """

    value: ir.Value
    axis: int
    sites: list[WeightSite]
    copies: np.ndarray

    @property
    def index(self) -> np.ndarray:
        """The channel of each channel of the result: all of them, then the copies."""
        return np.concatenate([np.arange(len(self.copies)), np.repeat(np.arange(len(self.copies)), self.copies - 1)])


def split_outliers(model: ir.Model, preview: Preview) -> list[str]:
    """Split the large channels of activations of a model, in place, where that lowers the noise of products.

    Args:
        model: The model, with inferred shapes.
        preview: Samples; without samples nothing changes.

    Returns:
        Notes for the user.
    """
    if not preview.samples:
        return ["Without data no channel was split."]
    splits = find_splits(find_placement(model), preview.observe(model, NEEDS).inputs)
    for split in splits:
        insert(model, split)
    copies = sum(int((split.copies - 1).sum()) for split in splits)
    channels = sum(int((split.copies > 1).sum()) for split in splits)
    if not splits:
        return ["No channel is so much larger than the others that splitting it lowers the estimated error."]
    return [f"{channels} large channels of {len(splits)} activations were split, by {copies} copies."]


def find_splits(placement: Placement, inputs: Mapping[str, SiteInput]) -> list[Split]:
    """Return the activations of which a few channels take the bits of the others, with the copies of channels.

    Args:
        placement: The places of integers in a model.
        inputs: Statistics of the inputs of sites, by label: extremes, means and squares.
    """
    splits = []
    for value, sites in readers_of(placement).items():
        axis = common_channel_axis(value, sites)
        if axis is None or any(site.groups != 1 or site.is_batched for site in sites):
            continue
        noise = ActivationNoise.of(sites, inputs)
        if noise is None:
            continue
        copies = noise.least(_candidates(noise.largest), _LEAST_GAIN, factors=lambda copies: 1 / copies)
        if copies is not None:
            splits.append(Split(value, axis, sites, copies))
    return splits


def insert(model: ir.Model, split: Split) -> None:
    """Write the shares of the channels, and let the sites read these; the function of the model stays."""
    value, writer = split.value, Writer(model)
    shares = per_channel(1 / split.copies, value, split.axis)
    factors = writer.initializer(f"{value.name}_shares", shares)
    index = writer.initializer(f"{value.name}_channels", split.index.astype(np.int64))
    divided = writer.node("Mul", [value, factors], f"{value.name}_divided", ir.DataType.FLOAT)
    divided.outputs[0].shape = value.shape
    operands = [divided.outputs[0], index]
    repeated = writer.node("Gather", operands, f"{value.name}_split", ir.DataType.FLOAT, axis=split.axis)
    sizes = list(value.shape or ())
    sizes[split.axis] = len(split.index)
    repeated.outputs[0].shape = ir.Shape(sizes)
    writer.insert_after(value, [divided, repeated])
    for site in split.sites:
        site.node.replace_input_with(0, repeated.outputs[0])
        repeat_input_channels(model, site, split.index)


def _candidates(largest: np.ndarray) -> Iterator[np.ndarray]:
    for divisor in _DIVISORS:
        copies = np.maximum(np.ceil(largest * divisor / largest.max(initial=0) - 1e-6), 1).astype(np.int64)
        if (copies - 1).sum() > _MOST_COPIES * len(copies):
            return
        yield copies
