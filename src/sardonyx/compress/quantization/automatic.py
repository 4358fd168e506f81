"""The choices of ``method="auto"``: a method for the types, the nodes that return to float, and the end of the search.

Measurements are of samples that ranges are learned from; the judged samples take no part. The number of runs follows
from the work of the model, not from a clock, so that results repeat.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.methods.channel_groups import find_channel_groups
from sardonyx.compress.quantization.methods.smoothing import smooth
from sardonyx.compress.quantization.methods.table import METHODS
from sardonyx.compress.quantization.placement import Placement, WeightSite
from sardonyx.compress.quantization.scheme import Affine, Scheme
from sardonyx.compress.quantization.sensitivity import (
    NodeError,
    Probe,
    give_back,
    multiplications,
)
from sardonyx.compress.quantization.steps import Method, Preview

GOOD = 25.0
"""dB of the worst output from which nothing returns to float."""

_SUFFICIENT = 20.0
_POOR = 10.0
"""dB of the worst output below which nodes of more work return to float."""

_CHEAP_SHARE = 0.05
"""The least share of the noise for which a node returns although the error is sufficient."""

_STEPS = ((GOOD, 0.02, _CHEAP_SHARE), (_SUFFICIENT, 0.1, 0.01), (_POOR, 1.0, 0.0))
"""For each measured error in dB: the target, the most work that may be in float, and the least share of noise."""

_MOST_WORK = 5e10
_LIMIT_OF_WORK = 2e12
"""Multiplications of all probing runs, and those above which no node is probed: 5e10 are 2 s on one core."""

MOST_ELEMENTS = 1 << 26
"""Elements of weights above which no model with switches is made: its weights are inputs, in two versions."""

_MOST_SAMPLES = 8
_RAISE = 6.0
"""dB by which the error falls from one measured candidate to the next if a budget does not hold."""

MOST_CANDIDATES = 5


def automatic_method(scheme: Scheme, mode: str, elements: int, *, has_data: bool) -> Method:
    """Return the method for the types, the size of the model, and whether data are at hand.

    Weights below 8 bits with data are rounded by GPTQ after AWQ's factors, in the order of execution; those of large
    models to the nearest integer at scales weighted by the inputs; other weights to the nearest integer. Activations
    are smoothed if a normalization computes their channels.

    Args:
        scheme: The types.
        mode: ``"static"``, ``"dynamic"`` or ``"weights"``.
        elements: The number of elements of all weights.
        has_data: True if there are samples.
    """
    is_integer = not scheme.weight_type.is_float
    if mode == "weights" and has_data and is_integer and scheme.weight_type.bits < 8:
        if elements > MOST_ELEMENTS:
            return replace(METHODS["least-squares"], name="auto: least-squares")
        return replace(METHODS["sequential"], name="auto: awq, gptq, sequential")
    if mode == "static" and is_integer and not scheme.activation_type.is_float:
        return Method("auto", "chosen by measured errors", rescale=_smooth_normalized)
    return replace(METHODS["nearest"], name="auto: nearest")


def _smooth_normalized(model: ir.Model, preview: Preview) -> list[str]:
    """Smooth a model whose norms compute channels that products read; other models have even channels."""
    starts = {group.parameters[0].node.op_type for group in find_channel_groups(model)}
    if any(start.endswith("Normalization") or start == "Mul" for start in starts):
        return smooth(model, preview)
    return []


@dataclass(frozen=True)
class Choice:
    """Nodes that return to float.

    Attributes:
        floats: The nodes.
        before: The signal-to-noise ratio of the worst output in dB, all nodes quantized.
        after: The ratio without these nodes.
        cost: The share of the work of these nodes.
        ranking: The nodes whose integers hurt most, the worst first.
    """

    floats: tuple[str, ...]
    before: float
    after: float
    cost: float
    ranking: tuple[NodeError, ...]

    @property
    def note(self) -> str:
        """The choice as a sentence."""
        if not self.floats:
            return f"All nodes are quantized: the worst output has {self.before:.1f} dB on samples of the calibration."
        shown = ", ".join(self.floats[:5]) + (", …" if len(self.floats) > 5 else "")
        return (
            f"{len(self.floats)} nodes with {self.cost:.1%} of the work stay in float ({shown}): the worst output "
            f"rises from {self.before:.1f} to {self.after:.1f} dB on samples of the calibration."
        )


class Selection:
    """The search for nodes that return to float, over one compiled model with switches.

    Args:
        model: The prepared float model.
        placement: The places of integers in the model.
        maps: The maps of activations, by name.
        weights: The dequantized weights of sites, by label.
        samples: Samples to measure on.
        exclude: Names of nodes, or operators, that stay in float.

    Raises:
        SardonyxError: The model does not run on a sample.
    """

    def __init__(
        self, model: ir.Model, placement: Placement, maps: Mapping[str, Affine], weights: Mapping[str, np.ndarray],
        samples: Sequence[Mapping[str, Any]], exclude: Collection[str] = (),
    ) -> None:  # fmt: skip
        self._probe = Probe(model, maps, weights, exclude)
        self._samples = samples[: samples_to_probe(placement.sites, len(self._probe.nodes), len(samples))]
        self._references = self._probe.references(self._samples)
        self._errors = self._probe.errors(self._samples, self._references)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that can return to float."""
        return self._probe.nodes

    def choose(self, least: float | None = None) -> Choice:
        """Return the nodes that return to float.

        Args:
            least: The ratio in dB that the worst output must reach at any cost; None for a balance of error and work.
        """
        steps = _STEPS if least is None else ((least, 1.0, 0.0),)
        best = None
        for target, most_cost, least_share in steps:
            if best is not None and best.after >= target:
                break
            best = give_back(
                self._probe, self._samples, self._references, self._errors, target=target, most_cost=most_cost,
                least_share=least_share,
            )  # fmt: skip
        assert best is not None
        ranking = self._probe.ranking(self._errors)[:10]
        return Choice(best.nodes, best.before, best.after, best.cost, ranking)

    def next_level(self, choice: Choice) -> float:
        """Return the ratio in dB that the next candidate must reach after one that does not hold a budget."""
        return choice.after + _RAISE


def samples_to_probe(sites: Sequence[WeightSite], nodes: int, available: int) -> int:
    """Return the number of samples on which each node is probed; 0 if one is too much work, or memory."""
    work = multiplications(sites) * max(nodes, 1)
    if work > _LIMIT_OF_WORK or sum(math.prod(site.shape) for site in sites) > MOST_ELEMENTS:
        return 0
    return min(max(int(_MOST_WORK / max(work, 1.0)), 1), _MOST_SAMPLES, available)
