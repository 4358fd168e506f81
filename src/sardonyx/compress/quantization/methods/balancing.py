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
    rescale,
)
from sardonyx.compress.quantization.methods.product_noise import (
    ActivationNoise,
    common_channel_axis,
    per_channel,
    readers_of,
)
from sardonyx.compress.quantization.methods.smoothing import candidate_factors
from sardonyx.compress.quantization.placement import INTEGER, Placement, WeightSite
from sardonyx.compress.quantization.scheme import Granularity
from sardonyx.compress.quantization.site_inputs import SiteInput
from sardonyx.compress.quantization.writer import Writer
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import node_label

_LEAST_GAIN, _LEAST_FREE_GAIN = 0.6, 0.8
"""The noise that remains, at most, for a product per element to be worth its time; and for factors in constants."""

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
        return per_channel(self.factors, self.value, self.axis)

    @property
    def changed_weights(self) -> set[str]:
        """The labels of the nodes whose weights the factors change, at the end and at the beginning of the group."""
        starts = () if self.folded is None else self.folded.parameters
        return {site.label for site in self.group.sites} | {node_label(parameter.node) for parameter in starts}

    def requantized(self, granularity: Granularity) -> set[str]:
        """Return the labels of the nodes whose integers the factors change: at a scale per channel, readers alone.

        A power of two leaves the integers of a weight with a scale for each of its output channels.
        """
        return self.changed_weights if granularity == "tensor" else {site.label for site in self.group.sites}


def find_balances(model: ir.Model, placement: Placement, inputs: Mapping[str, SiteInput]) -> list[Balance]:
    """Return the activations whose channels lose much of their products to a common scale, with factors.

    Args:
        model: The model, with inferred shapes.
        placement: The places of integers in the model.
        inputs: Statistics of the inputs of sites, by label: extremes, means and squares.
    """
    balances = []
    groups = find_channel_groups(model)
    for value, readers in readers_of(placement).items():
        sites = [site for site in readers if not site.is_batched]
        axis = common_channel_axis(value, sites) if sites else None
        if axis is None or value in placement.moved or _is_sum_of_integers(value):
            continue
        noise = ActivationNoise.of(sites, inputs)
        if noise is None:
            continue
        folded = _foldable(groups, value, sites)
        weights = np.max([reader.norms for reader in noise.readers], axis=0)
        candidates = _powers_of_two(noise.largest, weights)
        factors = noise.least(candidates, _LEAST_GAIN if folded is None else _LEAST_FREE_GAIN)
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


def _is_sum_of_integers(value: ir.Value) -> bool:
    """Return True if an operator computes the activation on integers, which a product would return to float.

    A join computes nothing: in float it moves more bytes alone.
    """
    producer = value.producer()
    if producer is None or producer.domain:
        return False
    return producer.op_type in INTEGER and producer.op_type != "Concat"


def _powers_of_two(largest: np.ndarray, weights: np.ndarray) -> Iterator[np.ndarray]:
    for factors in candidate_factors(largest, weights):
        yield np.exp2(np.clip(np.rint(np.log2(factors)), -_LARGEST_POWER, _LARGEST_POWER))
