"""Hooks of methods: the steps of a quantization that a method may replace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from sardonyx.compress.quantization.calibration import Observation
from sardonyx.compress.quantization.placement import WeightSite, find_placement
from sardonyx.compress.quantization.scheme import Scheme
from sardonyx.compress.quantization.site_inputs import NOTHING, Needs, SiteInput
from sardonyx.compress.quantization.weights import QuantizedWeight, quantize_weight

MOST_PREVIEWED = 32
MOST_PREVIEWED_BYTES = 64 << 20
"""Limits of the samples that are in memory for steps ahead of the pass over all samples."""


class Preview:
    """The first samples of the data, in memory, for steps that need statistics before the pass over all samples.

    Args:
        stream: The samples to learn from; read as far as the limits permit, at least one.

    Attributes:
        samples: The samples.
    """

    def __init__(self, stream: Iterator[Mapping[str, Any]]) -> None:
        self.samples: list[Mapping[str, Any]] = []
        size = 0
        for sample in stream:
            self.samples.append(sample)
            size += sum(getattr(array, "nbytes", 0) for array in sample.values())
            if len(self.samples) >= MOST_PREVIEWED or size >= MOST_PREVIEWED_BYTES:
                break

    def observe(self, model: ir.Model, needs: Needs, exclude: Collection[str] = ()) -> Observation:
        """Return statistics of the inputs of the sites of a float model over these samples."""
        placement = find_placement(model, exclude)
        return Observation(model, (), self.samples, placement.sites, needs, len(self.samples))


Rescale = Callable[[ir.Model, Preview], Iterable[str]]
"""Changes float weights and scales of neighbours, in place, so that the function of the model stays; returns notes.

Runs on the prepared float model, before the pass over the samples. Without data the preview has no samples.
"""

Round = Callable[[WeightSite, Scheme, SiteInput | None], QuantizedWeight]
"""Returns the weight of a site as narrow numbers, from the scheme of the site and the statistics of its input.

The statistics are those that the method needs; None without data, and for sites whose input was never observed.
"""

Reconstruct = Callable[[ir.Model, ir.Model, Sequence[Mapping[str, Any]]], Iterable[str]]
"""Changes a written model, in place, from the float model and samples; returns notes."""


def round_to_nearest(site: WeightSite, scheme: Scheme, inputs: SiteInput | None) -> QuantizedWeight:
    """Return the nearest numbers at the scales of the least squared error."""
    del inputs
    return quantize_weight(site.weight, site.channel_axis, site.sum_axis, scheme)


@dataclass(frozen=True)
class Method:
    """A method of quantization.

    Attributes:
        name: The name, as in ``quantize(method=…)``.
        description: One line for users.
        needs: The statistics of inputs of sites that ``round`` reads.
        rescale: The step before observation; None for none.
        reads_activations: True if ``rescale`` reads ranges of activations.
        round: The numbers of weights.
        reconstruct: The step after writing; None for none.
        is_sequential: If True, weights are then rounded again in the order of execution; see ``methods.sequential``.
    """

    name: str
    description: str
    needs: Needs = NOTHING
    rescale: Rescale | None = None
    round: Round = round_to_nearest
    reconstruct: Reconstruct | None = None
    is_sequential: bool = False
    reads_activations: bool = False

    @property
    def requires_data(self) -> bool:
        """True if the method learns from samples; without, its integers would be the nearest ones."""
        return self.reads_activations or self.needs != NOTHING
