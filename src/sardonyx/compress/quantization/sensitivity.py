"""Sensitivity: the error that the integers of a single node cause at the outputs, and the nodes that return to float.

Models with a switch per node (``switches.py``) measure candidates, so that none is compiled by itself. The errors of
single nodes are nearly independent: their powers add up, which ranks the nodes; the choice is measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.compress.evidence.outputs import is_float
from sardonyx.compress.quantization.placement import Placement, WeightSite, find_placement
from sardonyx.compress.quantization.scheme import Affine
from sardonyx.compress.quantization.switches import CompiledSwitches, InterpretedSwitches, SwitchState
from sardonyx.errors import UnsupportedError
from sardonyx.model.copying import copy_model
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import node_label

_LEAST_COST = 2e-3
"""The share of the work below which nodes count as equally cheap."""

_BETWEEN = 2.0
"""The multiple of the least share of the noise for which a sum, pool or concatenation returns: its neighbours lose
integers too."""

_MARGIN = 0.8
"""The share of the permitted noise that a prediction may reach before it is measured."""


@dataclass(frozen=True)
class NodeError:
    """The error of a single node's integers.

    Attributes:
        name: The node.
        op_type: The operator.
        sqnr: The signal-to-noise ratio of the worst output in dB if this node alone is quantized.
        cost: The node's share of the work of all quantized nodes, in multiplications or elements.
        metric: The loss of the metric if this node alone is quantized; None if not measured.
    """

    name: str
    op_type: str
    sqnr: float
    cost: float
    metric: float | None = None


class Probe:
    """A float model with a switch per quantized node: interpreted until a compilation would have been less work.

    Args:
        model: The prepared float model.
        maps: The maps of activations to integers, by name.
        weights: The dequantized weights of sites, by label.
        exclude: Names of nodes, or operators, that stay in float.
        corrections: The mean errors of sites that their biases correct, by label.

    Attributes:
        nodes: The names of nodes with switches, in the order of the graph.
        followers: The names of activations that are moved from others, whose maps they have.

    Raises:
        SardonyxError: The model does not compile or run.
    """

    def __init__(
        self, model: ir.Model, maps: Mapping[str, Affine], weights: Mapping[str, np.ndarray],
        exclude: Collection[str] = (), corrections: Mapping[str, np.ndarray] | None = None,
    ) -> None:  # fmt: skip
        self._model, self._exclude = copy_model(model), exclude
        placement = _placement(self._model, exclude)
        self._costs, self._types = _costs(placement)
        self.nodes = tuple(self._costs)
        sources = {value: placement.source(value, maps) for value in placement.reads}
        self.followers = {str(value.name) for value, source in sources.items() if source is not value}
        self._state = SwitchState.of(placement, maps, weights, corrections or {})
        self._interpreted: InterpretedSwitches | None = None
        self._compiled: CompiledSwitches | None = None
        try:
            self._interpreted = InterpretedSwitches(*self._copy(), self._state)
            self._parts = self._interpreted.kinds
        except UnsupportedError:
            self._compile()
        self._kinds = list(self._parts)

    def _copy(self) -> tuple[ir.Model, Placement]:
        model = copy_model(self._model)
        return model, _placement(model, self._exclude)

    def _compile(self) -> CompiledSwitches:
        """Return the compiled program, in place of the interpreter."""
        if self._compiled is None:
            self._compiled = CompiledSwitches(*self._copy(), self._state)
            self._interpreted, self._parts = None, self._compiled.kinds
        return self._compiled

    def _engine(self) -> CompiledSwitches | InterpretedSwitches:
        if self._interpreted is None or self._interpreted.is_exhausted:
            return self._compile()
        return self._interpreted

    def run(self, feeds: Mapping[str, Any], quantized: Collection[str]) -> list[np.ndarray]:
        """Return the float outputs for a sample, or their parts, with integers in some nodes alone."""
        return self._floats(self._engine().outputs(feeds, quantized))

    def _floats(self, results: Sequence[Any]) -> list[np.ndarray]:
        self._kinds = [kind for kind, result in zip(self._parts, results, strict=True) if is_float(result)]
        return [result for result in results if is_float(result)]

    def _runs(
        self, samples: Sequence[Mapping[str, Any]], settings: Sequence[Collection[str]]
    ) -> Iterator[tuple[int, int, list[np.ndarray]]]:
        """Yield the number of a sample, that of a set of nodes with integers, and the float outputs."""
        engine = self._engine()
        if isinstance(engine, InterpretedSwitches):
            for row, number, results in engine.all_outputs(samples, settings):
                raise_if_cancelled()
                yield row, number, self._floats(results)
            return
        for number, quantized in enumerate(settings):
            for row, sample in enumerate(samples):
                raise_if_cancelled()
                yield row, number, self._floats(engine.outputs(sample, quantized))

    def site_inputs(self, feeds: Mapping[str, Any], quantized: Collection[str]) -> dict[str, np.ndarray]:
        """Return the inputs of all sites for a sample, by label, with integers in some nodes alone."""
        return self._engine().site_inputs(feeds, quantized)

    def replace_weight(self, label: str, weight: np.ndarray) -> None:
        """Replace the dequantized weight of a site."""
        floats, _ = self._state.weights[label]
        self._state.weights[label] = floats, np.ascontiguousarray(weight, np.float32)

    def replace_maps(self, maps: Mapping[str, Affine]) -> None:
        """Replace the maps of some activations, by name."""
        self._state.maps.update((name, affine) for name, affine in maps.items() if name in self._state.maps)

    def noise(
        self, samples: Sequence[Mapping[str, Any]], references: Sequence[Sequence[np.ndarray]],
        quantized: Collection[str],
    ) -> np.ndarray:  # fmt: skip
        """Return the noise of each output relative to its signal, over all samples, of shape [outputs]."""
        return np.asarray(self.sample_noise(samples, references, quantized).sum(0))

    def sample_noise(
        self, samples: Sequence[Mapping[str, Any]], references: Sequence[Sequence[np.ndarray]],
        quantized: Collection[str],
    ) -> np.ndarray:  # fmt: skip
        """Return the noise of each sample and output relative to the signal of all, of shape [samples, outputs]."""
        return np.asarray(self._sample_noises(samples, references, [quantized])[0])

    def _sample_noises(
        self, samples: Sequence[Mapping[str, Any]], references: Sequence[Sequence[np.ndarray]],
        settings: Sequence[Collection[str]],
    ) -> np.ndarray:  # fmt: skip
        """Return the relative noise by setting, sample and output."""
        powers: np.ndarray | None = None
        for row, number, results in self._runs(samples, settings):
            if powers is None:
                powers = np.zeros((2, len(settings), len(samples), max(self._kinds, default=-1) + 1))
            for kind, x, y in zip(self._kinds, references[row], results, strict=True):
                powers[:, number, row, kind] += _powers(x, y)
        if powers is None:
            return np.zeros((len(settings), 0, max(self._kinds, default=-1) + 1))
        signal, noise = powers
        total = np.maximum(signal.sum(1, keepdims=True), 1e-300)
        return np.asarray(np.where(noise == 0, 0.0, noise / total))

    def prepare(self, samples: Sequence[Mapping[str, Any]], runs: int) -> None:
        """Compile the model if a number of runs of the samples is more work on the interpreter."""
        if self._interpreted is not None and samples and not self._interpreted.is_suited(samples, runs):
            self._compile()

    def references(self, samples: Sequence[Mapping[str, Any]]) -> list[list[np.ndarray]]:
        """Return the outputs of the float model."""
        return [results for _, _, results in self._runs(samples, [()])]

    def errors(
        self, samples: Sequence[Mapping[str, Any]], references: Sequence[Sequence[np.ndarray]],
        nodes: Sequence[str] | None = None,
    ) -> dict[str, np.ndarray]:  # fmt: skip
        """Return the relative noise of the outputs if one node alone is quantized, by node; of all nodes by default."""
        nodes = self.nodes if nodes is None else nodes
        noises = self._sample_noises(samples, references, [(), *((node,) for node in nodes)])
        return {node: noise.sum(0) for node, noise in zip(nodes, noises[1:], strict=True)}

    def cost(self, node: str) -> float:
        """Return a node's share of the work of all nodes with switches."""
        return self._costs[node]

    def has_weight(self, node: str) -> bool:
        """Return True if a node has a weight of integers."""
        return node in self._state.weights

    def ranking(self, errors: Mapping[str, np.ndarray]) -> tuple[NodeError, ...]:
        """Return the errors of single nodes, the worst first."""
        worst = {node: float(noise.max(initial=0)) for node, noise in errors.items()}
        ordered = sorted(worst, key=lambda node: -worst[node])
        return tuple(NodeError(node, self._types[node], decibels(worst[node]), self._costs[node]) for node in ordered)


@dataclass(frozen=True)
class GivenBack:
    """The nodes that return to float.

    Attributes:
        nodes: The nodes, in the order of the choice.
        before: The signal-to-noise ratio of the worst output in dB with all nodes quantized.
        after: The ratio without these nodes.
        cost: The share of the work of these nodes.
    """

    nodes: tuple[str, ...]
    before: float
    after: float
    cost: float


def give_back(
    probe: Probe, samples: Sequence[Mapping[str, Any]], references: Sequence[Sequence[np.ndarray]],
    errors: Callable[[Sequence[str]], Mapping[str, np.ndarray]], *, target: float, most_cost: float,
    least_share: float = 0.0, between: bool = True,
) -> GivenBack:  # fmt: skip
    """Return the nodes whose return to float brings the worst output to a signal-to-noise ratio.

    Nodes are chosen by noise over work. The choice ends when the measured ratio reaches the target, when no node
    remains that fits in the permitted work, when the noise of every remaining node is a small share of all noise,
    or when the error does not fall.

    Args:
        probe: The switched model.
        samples: Samples to measure on.
        references: The float outputs of the samples.
        errors: Returns the noise of single nodes, as :meth:`Probe.errors`; of those that can return alone.
        target: The signal-to-noise ratio in dB.
        most_cost: The most share of the work that may return to float.
        least_share: The least share of all noise for which a node returns, unless all work may return.
        between: If False, only nodes with weights return: sums, pools and concatenations stay integers.
    """
    quantized = set(probe.nodes)
    able = [
        node for node in probe.nodes
        if probe.cost(node) <= most_cost + 1e-9 and (between or probe.has_weight(node))
    ]  # fmt: skip
    noises = errors(able)
    is_complete = len(able) == len(probe.nodes)
    whole = probe.noise(samples, references, quantized)
    current, chosen, cost = whole, [], 0.0
    permitted = 10 ** (-target / 10)
    # Measured noise differs from the sum of single noises: later sums are corrected by the ratio.
    while current.max(initial=0) > permitted:
        output = int(current.argmax())
        total = float(current[output])
        if is_complete:
            total = sum(float(noises[node][output]) for node in quantized)
        ratio = float(current[output]) / total if total > 0 else 1.0
        order = sorted(
            quantized & noises.keys(),
            key=lambda node: (-noises[node][output] / (probe.cost(node) + _LEAST_COST), node),
        )
        step = []
        left = total
        for node in order:
            noise = float(noises[node][output])
            least = least_share * (1.0 if probe.has_weight(node) else _BETWEEN)
            if noise <= (least * total if most_cost < 1 else 0) or cost + probe.cost(node) > most_cost + 1e-9:
                continue
            step.append(node)
            cost += probe.cost(node)
            left -= noise
            if left * ratio <= permitted * _MARGIN:
                break
        if not step:
            break
        trial = probe.noise(samples, references, quantized.difference(step))
        if most_cost < 1 and not trial.max(initial=0) < current.max(initial=0):
            cost -= sum(probe.cost(node) for node in step)
            break  # The noise of these nodes cancels that of others.
        quantized.difference_update(step)
        chosen += step
        current = trial
    return GivenBack(
        tuple(chosen), decibels(float(whole.max(initial=0))), decibels(float(current.max(initial=0))), cost
    )


def decibels(noise: float) -> float:
    """Return the signal-to-noise ratio in dB of a relative noise."""
    if noise <= 0:
        return math.inf
    return -10 * math.log10(noise) if math.isfinite(noise) else -math.inf


def _powers(expected: np.ndarray, actual: np.ndarray) -> tuple[float, float]:
    if expected.shape != actual.shape:
        return 0.0, math.inf
    if expected.dtype == actual.dtype == np.float32:
        with np.errstate(over="ignore", invalid="ignore"):  # Infinite elements are left out below.
            signal, difference = expected.reshape(-1), (expected - actual).reshape(-1)
            powers = float(np.dot(signal, signal)), float(np.dot(difference, difference))
        if math.isfinite(powers[0]) and math.isfinite(powers[1]):
            return powers
    wide, finite = expected.astype(np.float64), np.isfinite(expected)
    noise = np.square(wide[finite] - actual[finite]).sum()
    return float(np.square(wide[finite]).sum()), float(noise) if np.isfinite(noise) else math.inf


def _costs(placement: Placement) -> tuple[dict[str, float], dict[str, str]]:
    """Return each node's share of the work, and its operator; unknown sizes count as 1."""
    work: dict[str, float] = {}
    types: dict[str, str] = {}
    for site in placement.all_sites:
        work[site.label] = multiplications([site])
        types[site.label] = site.node.op_type
    for readers in placement.reads.values():
        for node, _ in readers:
            label = node_label(node)
            if label not in work:
                work[label] = _elements(node.outputs[0])
                types[label] = node.op_type
    total = sum(work.values()) or 1.0
    return {label: amount / total for label, amount in work.items()}, types


def multiplications(sites: Sequence[WeightSite]) -> float:
    """Return the multiplications of one run of some sites; unknown sizes count as 1."""
    return sum(_elements(site.node.outputs[0]) * site.depth for site in sites)


def _placement(model: ir.Model, exclude: Collection[str]) -> Placement:
    """Return the places of integers in a model, without nodes that share a name."""
    placement = find_placement(model, exclude)
    labels = Counter(node_label(node) for node in facts.nodes_of(model.graph))
    sites = [site for site in placement.sites if site.node.graph is model.graph and labels[site.label] == 1]
    inner = [site for site in placement.inner if labels[node_label(site.node)] == 1]
    reads = {
        value: own
        for value, readers in placement.reads.items()
        if (own := [(node, index) for node, index in readers if labels[node_label(node)] == 1])
    }
    moved = {value: source for value, source in placement.moved.items() if value in reads and source in reads}
    return Placement(sites=sites, inner=inner, reads=reads, moved=moved)


def _elements(value: ir.Value) -> float:
    shape = value.shape or ()
    return float(math.prod(size for size in shape if isinstance(size, int)))
