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
from sardonyx.compress.quantization.methods.rounding import round_by_columns
from sardonyx.compress.quantization.methods.smoothing import smooth
from sardonyx.compress.quantization.methods.table import METHODS
from sardonyx.compress.quantization.placement import Placement, WeightSite
from sardonyx.compress.quantization.range_choice import Candidates, choose_ranges
from sardonyx.compress.quantization.scheme import Scheme
from sardonyx.compress.quantization.sensitivity import (
    Probe,
    decibels,
    give_back,
    multiplications,
)
from sardonyx.compress.quantization.site_inputs import Needs
from sardonyx.compress.quantization.steps import Method, Preview

_EXCELLENT = 35.0
"""dB of the worst output from which nothing returns to float; below it, cheap weights with much of the noise do."""

GOOD = 28.0
_SUFFICIENT = 23.0
_DOUBTFUL = 21.5
_POOR = 10.0
"""dB of the worst output below which nodes of more work return to float."""

_CHEAP_SHARE = 0.05
"""The least share of the noise for which a node returns although the error is sufficient."""

_STEPS = (
    (_EXCELLENT, 0.02, 0.1), (GOOD, 0.08, _CHEAP_SHARE), (_SUFFICIENT, 0.2, 0.01), (_DOUBTFUL, 0.35, 0.01),
    (_POOR, 1.0, 0.0),
)  # fmt: skip
"""For each measured error in dB: the target, the most work that may be in float, and the least share of noise."""

_FLOAT_STEPS = ((GOOD, 0.2, _CHEAP_SHARE), (25.0, 0.5, 0.01), (_DOUBTFUL, 0.8, 0.0), (_POOR, 1.0, 0.0))
"""The same for activations of 8-bit floats, whose three bits of mantissa have 32 dB in each tensor: noise is spread
evenly. A small MobileNetV3 loses 1.2 points of 93.8 at 21.6 dB on unseen samples.
"""

_MOST_WORK = 2e10
_LIMIT_OF_WORK = 2e12
"""Multiplications of all probing runs, and those above which no node is probed: 2e10 are 1 s on one core."""

MOST_ELEMENTS = 1 << 26
"""Elements of weights above which no model with switches is made: its weights are inputs, in two versions."""

_MOST_SAMPLES = 8
"""Samples on which single nodes are probed."""

_MOST_SAMPLES_OF_RANGES = 32
_MOST_RUNS_OF_RANGES = 384
_MOST_WORK_OF_RANGES = 8e9
"""Samples on which ranges are compared, runs of one sample, and multiplications of these runs."""

_MOMENTS = Needs(maxima=True, second_moments=True, rows_per_depth=3, most_bytes=256 << 20, draws=512)
"""Second moments for GPTQ at 8 bits: rows up to about 4000 elements, and few samples of these are enough."""

_RAISE = 6.0
"""dB by which the error falls from one measured candidate to the next if a budget does not hold."""

MOST_CANDIDATES = 5


def automatic_method(scheme: Scheme, mode: str, elements: int, *, has_data: bool) -> Method:
    """Return the method for the types, the size of the model, and whether data are at hand.

    Weights below 8 bits with data are rounded by GPTQ after AWQ's factors, in the order of execution; those of large
    models to the nearest integer at scales weighted by the inputs. Weights of 8 bits with data are rounded by GPTQ if
    their rows are short enough, other weights to the nearest integer. Activations are smoothed if a normalization
    computes their channels.

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
        if elements > MOST_ELEMENTS:
            return Method("auto", "chosen by measured errors", rescale=_smooth_normalized)
        return Method("auto: gptq", "chosen by measured errors", _MOMENTS, _smooth_normalized, round_by_columns)
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
    """

    floats: tuple[str, ...]
    before: float
    after: float
    cost: float

    @property
    def note(self) -> str:
        """The choice as a sentence."""
        if not self.floats:
            return f"No node returns to float: the worst output has {self.before:.1f} dB on samples of the calibration."
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
        candidates: The maps of activations by name, by method.
        weights: The dequantized weights of sites, by label.
        samples: Samples to measure on.
        exclude: Names of nodes, or operators, that stay in float.
        corrections: The mean errors of sites that their biases correct, by label.
        least: The ratio of the worst output in dB without which the ranges are of no use.

    Attributes:
        ranges: The chosen ranges.

    Raises:
        SardonyxError: The model does not run on a sample.
    """

    def __init__(
        self, model: ir.Model, placement: Placement, candidates: Candidates, weights: Mapping[str, np.ndarray],
        samples: Sequence[Mapping[str, Any]], exclude: Collection[str] = (),
        corrections: Mapping[str, np.ndarray] | None = None, least: float = -math.inf,
    ) -> None:  # fmt: skip
        self._probe = Probe(model, next(iter(candidates.values())), weights, exclude, corrections)
        runs = min(_MOST_WORK_OF_RANGES / max(multiplications(placement.all_sites), 1.0), _MOST_RUNS_OF_RANGES)
        many = samples[: int(min(max(runs / 8, 2), _MOST_SAMPLES_OF_RANGES))]
        self._probe.prepare(many, len(candidates) + 1)
        references = self._probe.references(many)
        self.ranges = choose_ranges(self._probe, many, references, candidates, runs / 2, least, _EXCELLENT)
        count = samples_to_probe(placement.all_sites, len(self._probe.nodes), len(many))
        self._many, self._many_references = many, references
        self._samples, self._references = many[:count], references[:count]
        self._errors: dict[str, np.ndarray] = {}
        has_floats = any(affine.kind.is_float for affine in next(iter(candidates.values())).values())
        self._steps = _FLOAT_STEPS if has_floats else _STEPS

    @property
    def is_excellent(self) -> bool:
        """True if the error is so small that no node is worth a change."""
        return self.ranges.after >= _EXCELLENT

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that can return to float."""
        return self._probe.nodes

    def ratio_without(self, nodes: Collection[str]) -> float:
        """Return the ratio of the worst output in dB if some nodes alone stay in float."""
        quantized = [node for node in self._probe.nodes if node not in nodes]
        return decibels(float(self._probe.noise(self._many, self._many_references, quantized).max(initial=0)))

    def choose(self, least: float | None = None) -> Choice:
        """Return the nodes that return to float.

        Args:
            least: The ratio in dB that the worst output must reach at any cost; None for a balance of error and work.
        """
        whole = decibels(float(self._probe.noise(self._samples, self._references, self.nodes).max(initial=0)))
        if not self._samples or whole >= (_EXCELLENT if least is None else least):
            return Choice((), whole, whole, 0.0)
        steps = self._steps if least is None else ((least, 1.0, 0.0),)
        best = None
        for target, most_cost, least_share in steps:
            if best is not None and best.after >= target:
                break
            best = give_back(
                self._probe, self._samples, self._references, self._noises, target=target, most_cost=most_cost,
                least_share=least_share, between=target < _EXCELLENT or least is not None,
            )  # fmt: skip
        assert best is not None
        return Choice(best.nodes, best.before, best.after, best.cost)

    def _noises(self, nodes: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Return the noise of single nodes; each is measured once."""
        new = [node for node in nodes if node not in self._errors]
        if new:
            self._errors.update(self._probe.errors(self._samples, self._references, new))
        return {node: self._errors[node] for node in nodes}

    def next_level(self, choice: Choice) -> float:
        """Return the ratio in dB that the next candidate must reach after one that does not hold a budget."""
        return choice.after + _RAISE


def is_measurable(sites: Sequence[WeightSite]) -> bool:
    """Return True if a model with switches fits in memory, and a few of its runs in the time of a calibration."""
    elements = sum(math.prod(site.shape) for site in sites)
    return elements <= MOST_ELEMENTS and multiplications(sites) <= _LIMIT_OF_WORK / 4


def samples_to_probe(sites: Sequence[WeightSite], nodes: int, available: int) -> int:
    """Return the number of samples on which each node is probed; 0 if one is too much work."""
    work = multiplications(sites) * max(nodes, 1)
    if work > _LIMIT_OF_WORK:
        return 0
    return min(max(int(_MOST_WORK / max(work, 1.0)), 1), _MOST_SAMPLES, available)
