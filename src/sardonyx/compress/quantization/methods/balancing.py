"""Balancing: a product ahead of a quantization brings the channels of an activation to like ranges.

One scale serves all channels of an activation, and erases channels that are small beside the largest. Where nothing
ahead can absorb factors (gates as SiLU and GELU do not commute with these), a product by a constant per channel does,
and the weights that read the channels are divided. Factors are powers of two, so that the float function stays equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.methods.channel_groups import (
    ChannelGroup,
    find_channel_groups,
    input_channels,
    present_matrix,
    rescale,
)
from sardonyx.compress.quantization.methods.smoothing import candidate_factors
from sardonyx.compress.quantization.placement import CONVOLUTIONS, INTEGER, Placement, WeightSite
from sardonyx.compress.quantization.site_inputs import SiteInput
from sardonyx.compress.quantization.writer import Writer
from sardonyx.rewrite import facts
from sardonyx.rewrite.names import node_label

_LEAST_NOISE = 3e-4
"""The mean relative noise of the products' outputs, 35 dB, from which an activation is balanced."""

_LEAST_GAIN, _LEAST_FREE_GAIN = 0.6, 0.8
"""The noise that remains, at most, for a product per element to be worth its time; and for factors in constants."""

_LEVELS, _WEIGHT_LEVELS = 255.0, 127.0
_LARGEST_POWER = 10


@dataclass(frozen=True)
class Balance:
    """Factors of the channels of an activation.

    Attributes:
        value: The activation.
        axis: The axis of channels.
        group: The sites that read the activation.
        factors: Powers of two, of shape [channels].
        folded: The group whose constants absorb the factors; None if a product is written.
    """

    value: ir.Value
    axis: int
    group: ChannelGroup
    factors: np.ndarray
    folded: ChannelGroup | None = None

    @property
    def shaped(self) -> np.ndarray:
        """The factors in a shape that broadcasts to the activation."""
        rank = len(self.value.shape or ())
        return self.factors.astype(np.float32).reshape(-1, *[1] * (rank - 1 - self.axis))

    @property
    def changed_weights(self) -> set[str]:
        """The labels of the nodes whose weights the factors change, at the end and at the beginning of the group."""
        starts = () if self.folded is None else self.folded.parameters
        return {site.label for site in self.group.sites} | {node_label(parameter.node) for parameter in starts}


def find_balances(model: ir.Model, placement: Placement, inputs: Mapping[str, SiteInput]) -> list[Balance]:
    """Return the activations whose channels lose much of their products to a common scale, with factors.

    Args:
        model: The model, with inferred shapes.
        placement: The places of integers in the model.
        inputs: Statistics of the inputs of sites, by label: extremes, means and squares.
    """
    readers: dict[ir.Value, list[WeightSite]] = {}
    for site in placement.sites:
        if site.input is not None and not site.is_batched:
            readers.setdefault(site.input, []).append(site)
    balances = []
    groups = find_channel_groups(model)
    for value, sites in readers.items():
        axis = common_channel_axis(value, sites)
        seen = [inputs.get(site.label) for site in sites]
        if axis is None or _is_sum_of_integers(value) or any(one is None for one in seen):
            continue
        folded = _foldable(groups, value, sites)
        gain = _LEAST_GAIN if folded is None else _LEAST_FREE_GAIN
        factors = _best_factors(sites, [one for one in seen if one is not None], gain)
        if factors is not None:
            balances.append(Balance(value, axis, ChannelGroup(len(factors), [], sites), factors, folded))
    return balances


def insert(model: ir.Model, balance: Balance) -> str:
    """Multiply the channels of an activation, in place, and return the name of the value with even channels.

    The constants that compute the activation are multiplied if they can be; else a product is written.
    """
    value = balance.value
    if balance.folded is not None:
        rescale(model, balance.folded, balance.factors)
        return str(value.name)
    writer = Writer(model)
    constant = writer.initializer(f"{value.name}_factors", balance.shaped)
    node = writer.node("Mul", [value, constant], f"{value.name}_balanced", ir.DataType.FLOAT)
    result = node.outputs[0]
    result.shape = value.shape
    writer.insert_after(value, [node])
    for site in balance.group.sites:
        site.node.replace_input_with(0, result)
    rescale(model, balance.group, balance.factors)
    return str(result.name)


def _foldable(groups: Sequence[ChannelGroup], value: ir.Value, sites: list[WeightSite]) -> ChannelGroup | None:
    """Return the group whose constants compute the activation and no other activation; None if there is none."""
    producer = value.producer()
    while producer is not None and producer.op_type in ("Relu", "LeakyRelu", "Add") and not producer.domain:
        source = next((one for one in producer.inputs if one is not None and not facts.is_constant(one)), None)
        if source is None or len(list(source.uses())) != 1:
            return None
        producer = source.producer()
    own = {site.node for site in sites}
    for group in groups:
        if group.parameters[0].node is producer and {site.node for site in group.sites} == own:
            return group
    return None


def common_channel_axis(value: ir.Value, sites: list[WeightSite]) -> int | None:
    """Return the axis of channels that all readers have; None if they differ, or a weight has other readers."""
    if value.shape is None or value.type is None or value.dtype != ir.DataType.FLOAT:
        return None
    rank = len(value.shape)
    axes = {1 if site.node.op_type in CONVOLUTIONS else rank - 1 for site in sites}
    own = {site.node for site in sites}
    for site in sites:
        weight = site.node.inputs[site.index]
        if weight is None or any(use.node not in own for use in weight.uses()):
            return None
    return axes.pop() if len(axes) == 1 else None


def _is_sum_of_integers(value: ir.Value) -> bool:
    """Return True if an operator computes the activation on integers, which a product would return to float.

    A join computes nothing: in float it moves more bytes alone.
    """
    producer = value.producer()
    if producer is None or producer.domain:
        return False
    return producer.op_type in INTEGER and producer.op_type != "Concat"


def _best_factors(sites: list[WeightSite], inputs: list[SiteInput], gain: float) -> np.ndarray | None:
    """Return the factors of the least noise; None if the noise without factors is low, or above a share of that."""
    readers, maxima = [], []
    for site, seen in zip(sites, inputs, strict=True):
        if seen.maxima is None or seen.means is None or seen.squares is None:
            return None
        maxima.append(seen.maxima)
        readers.append(ProductNoise.of(site, seen.squares, seen.means, seen.second_moment))
    largest = np.max(maxima, axis=0)
    before = max(reader.noise(np.ones(len(largest)), largest) for reader in readers)
    if not before > _LEAST_NOISE:
        return None
    best, least = None, before * gain
    for factors in _powers_of_two(largest, np.max([reader.norms for reader in readers], axis=0)):
        noise = max(reader.noise(factors, largest) for reader in readers)
        if noise < least:
            best, least = factors, noise
    return best


def _powers_of_two(largest: np.ndarray, weights: np.ndarray) -> Iterator[np.ndarray]:
    for factors in candidate_factors(largest, weights):
        yield np.exp2(np.clip(np.rint(np.log2(factors)), -_LARGEST_POWER, _LARGEST_POWER))


@dataclass
class ProductNoise:
    """The estimated noise of the outputs of one site whose input and weight have 8 bits.

    Attributes:
        magnitudes: The largest magnitude of each output's weights per channel, of shape [groups, outputs, channels].
        energies: The sum of squares of each output's weights per channel, of shape [groups, outputs, channels].
        squares: The sum of the mean squares of each channel's taps, of shape [groups, channels].
        index: The channel of each column, of shape [groups, channels].
        power: The variance of each output, of shape [groups, outputs].
    """

    magnitudes: np.ndarray
    energies: np.ndarray
    squares: np.ndarray
    index: np.ndarray
    power: np.ndarray

    @classmethod
    def of(cls, site: WeightSite, squares: np.ndarray, means: np.ndarray, moments: np.ndarray | None) -> ProductNoise:
        """Return the estimate for a site, from the statistics of its input."""
        matrix, index = present_matrix(site).astype(np.float64), input_channels(site)
        taps = index.shape[1] // max(len(np.unique(index[0])), 1)
        split = matrix.reshape(*matrix.shape[:2], -1, taps)
        expected = means[index]
        if moments is None:
            power = np.square(matrix) @ np.maximum(squares - np.square(expected), 0)[..., None]
        else:
            seconds = np.matmul(matrix, moments)
            power = ((seconds * matrix).sum(2) - np.square((matrix @ expected[..., None])[..., 0]))[..., None]
        return cls(
            np.abs(split).max(3, initial=0), np.square(split).sum(3),
            squares.reshape(len(squares), -1, taps).sum(2), index[:, ::taps], power[..., 0],
        )  # fmt: skip

    @property
    def norms(self) -> np.ndarray:
        """The largest magnitude of the weights of each channel, in the order of columns."""
        return np.asarray(self.magnitudes.max(1, initial=0).reshape(-1))

    def noise(self, factors: np.ndarray, largest: np.ndarray, *, are_copies: bool = False) -> float:
        """Return the mean noise of outputs over their variance, at most 1 for each output.

        Args:
            factors: The factors of the channels of the input.
            largest: The largest magnitude of each channel.
            are_copies: If True, weights stay: channels are read as often as makes up for their factors.
        """
        own = factors[self.index][:, None]
        step = float((largest * factors).max(initial=0)) / _LEVELS
        activations = step * step / 12 * (self.energies / np.square(own)).sum(2)
        if are_copies:
            own = np.ones_like(own)
        steps = np.square((self.magnitudes / own).max(2, initial=0) / _WEIGHT_LEVELS) / 12
        noise = activations + steps * (self.squares[:, None] * np.square(own)).sum(2)
        varies = self.power > 1e-12 * noise
        ratios = np.minimum(noise[varies] / self.power[varies], 1.0)
        return float(ratios.mean()) if len(ratios) else 0.0
