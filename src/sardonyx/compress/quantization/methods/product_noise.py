"""The estimated noise of products whose inputs and weights have 8 bits, and the choice of changes by it.

One scale serves all channels of an activation. The estimate follows from the ranges of channels, the weights and the
second moments of the inputs, so that no model runs for a candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.methods.channel_groups import input_channels, present_matrix
from sardonyx.compress.quantization.placement import CONVOLUTIONS, Placement, WeightSite
from sardonyx.compress.quantization.site_inputs import SiteInput

_LEAST_NOISE = 3e-4
"""The mean relative noise of the products' outputs, 35 dB, from which an activation is changed."""

_LEVELS, _WEIGHT_LEVELS = 255.0, 127.0


def least(
    candidates: Iterable[np.ndarray], error: Callable[[np.ndarray], float], limit: float = np.inf
) -> np.ndarray | None:
    """Return the first candidate of the least error; None if no error is below the limit."""
    best = None
    for candidate in candidates:
        own = error(candidate)
        if own < limit:
            best, limit = candidate, own
    return best


def readers_of(placement: Placement) -> dict[ir.Value, list[WeightSite]]:
    """Return the sites that read each activation, in the order of the graph."""
    readers: dict[ir.Value, list[WeightSite]] = {}
    for site in placement.sites:
        if site.input is not None:
            readers.setdefault(site.input, []).append(site)
    return readers


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


def per_channel(array: np.ndarray, value: ir.Value, axis: int) -> np.ndarray:
    """Return numbers of channels, of shape [channels], as float32 in a shape that broadcasts to an activation."""
    return array.astype(np.float32).reshape(-1, *[1] * (len(value.shape or ()) - 1 - axis))


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


@dataclass
class ActivationNoise:
    """The estimated noise of all products that read one activation.

    Attributes:
        readers: The noise of each site that reads the activation.
        largest: The largest magnitude of each channel, of shape [channels].
    """

    readers: list[ProductNoise]
    largest: np.ndarray

    @classmethod
    def of(cls, sites: Sequence[WeightSite], inputs: Mapping[str, SiteInput]) -> ActivationNoise | None:
        """Return the noise of sites; None if the statistics of an input are missing."""
        readers, maxima = [], []
        for site in sites:
            seen = inputs.get(site.label)
            if seen is None or seen.maxima is None or seen.means is None or seen.squares is None:
                return None
            maxima.append(seen.maxima)
            readers.append(ProductNoise.of(site, seen.squares, seen.means, seen.second_moment))
        return cls(readers, np.max(maxima, axis=0))

    def noise(self, factors: np.ndarray, *, are_copies: bool = False) -> float:
        """Return the noise of the worst reader; see :meth:`ProductNoise.noise`."""
        return max(reader.noise(factors, self.largest, are_copies=are_copies) for reader in self.readers)

    def least(
        self, candidates: Iterable[np.ndarray], share: float, factors: Callable[[np.ndarray], np.ndarray] | None = None
    ) -> np.ndarray | None:
        """Return the candidate of the least noise; None if the noise is low, or every candidate leaves too much.

        Args:
            candidates: Factors of the channels; or copies, if their factors are given.
            share: The noise that remains, at most.
            factors: The factors of copies.
        """
        before = self.noise(np.ones(len(self.largest)))
        if not before > _LEAST_NOISE:
            return None

        def error(candidate: np.ndarray) -> float:
            return self.noise(candidate) if factors is None else self.noise(factors(candidate), are_copies=True)

        return least(candidates, error, before * share)
