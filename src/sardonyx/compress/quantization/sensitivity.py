"""Sensitivity: the error that the integers of a single node cause at the outputs, and the nodes that return to float.

One compiled program has a switch per node: weights, scales and switches are inputs, so that no candidate is compiled.
The errors of single nodes are nearly independent: their powers add up, which ranks the nodes; the choice is measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compress.evidence.outputs import is_float
from sardonyx.compress.quantization.bias_correction import is_per_channel
from sardonyx.compress.quantization.placement import Placement, WeightSite, find_placement
from sardonyx.compress.quantization.scheme import Affine
from sardonyx.compress.quantization.writer import Writer
from sardonyx.model.copying import copy_model
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import node_label
from sardonyx.runtime.session import Session

_LEAST_COST = 2e-3
"""The share of the work below which nodes count as equally cheap."""

_BETWEEN = 2.0
"""The multiple of the least share of the noise for which a sum, pool or concatenation returns: its neighbours lose
integers too."""

_MARGIN = 0.8
"""The share of the permitted noise that a prediction may reach before it is measured."""


_MOVING = frozenset(("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"))
_MOST_PARTS = 64
"""Operators that keep the elements of a value, and the most outputs of a model whose outputs are measured in parts."""


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
    """A float model with a switch per quantized node, compiled once.

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
        switched = copy_model(model)
        placement = _unambiguous(find_placement(switched, exclude), switched)
        self._costs, self._types = _costs(placement)
        self.nodes = tuple(self._costs)
        self._fixed: dict[str, np.ndarray] = {}
        self._map_inputs: dict[str, tuple[str, ...]] = {}
        self._switches: dict[str, str] = {}
        self._weights: dict[str, tuple[str, np.ndarray, np.ndarray]] = {}
        writer = _Switches(switched, placement)
        writer.write(maps, weights, self._fixed, self._switches, self._weights)
        self._map_inputs, self.followers = writer.map_inputs, writer.followers
        self._biases = writer.write_biases(corrections or {})
        _measure_sources(switched)
        _measure_logits(switched)
        self._parts = measure_parts(switched)
        self._kinds = list(self._parts)
        self._read = {site.label: str(site.node.inputs[0].name) for site in placement.sites if site.node.inputs[0]}
        self._session = Session(switched, compile="wait")

    def run(self, feeds: Mapping[str, Any], quantized: Collection[str]) -> list[np.ndarray]:
        """Return the float outputs for a sample, or their parts, with integers in some nodes alone."""
        results = self._session.run(None, self._fed(feeds, quantized))
        self._kinds = [kind for kind, result in zip(self._parts, results, strict=True) if is_float(result)]
        return [result for result in results if is_float(result)]

    def site_inputs(self, feeds: Mapping[str, Any], quantized: Collection[str]) -> dict[str, np.ndarray]:
        """Return the inputs of all sites for a sample, by label, with integers in some nodes alone."""
        names = list(dict.fromkeys(self._read.values()))
        arrays = dict(zip(names, self._session.run(names, self._fed(feeds, quantized)), strict=True))
        return {label: np.asarray(arrays[name]) for label, name in self._read.items()}

    def replace_weight(self, label: str, weight: np.ndarray) -> None:
        """Replace the dequantized weight of a site."""
        name, floats, _ = self._weights[label]
        self._weights[label] = name, floats, np.ascontiguousarray(weight, np.float32)

    def replace_maps(self, maps: Mapping[str, Affine]) -> None:
        """Replace the maps of some activations, by name."""
        for name, affine in maps.items():
            for key, number in zip(self._map_inputs.get(name, ()), _numbers(affine), strict=False):
                self._fixed[key] = np.array(number, np.float32)

    def _fed(self, feeds: Mapping[str, Any], quantized: Collection[str]) -> dict[str, Any]:
        switches = {name: np.array(label in quantized) for label, name in self._switches.items()}
        weights = {
            name: integers if label in quantized else floats
            for label, (name, floats, integers) in [*self._weights.items(), *self._biases.items()]
        }
        return {**feeds, **self._fixed, **switches, **weights}

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
        powers = np.zeros((2, len(samples), max(self._kinds, default=-1) + 1))
        for row, (sample, expected) in enumerate(zip(samples, references, strict=True)):
            results = self.run(sample, quantized)
            for kind, x, y in zip(self._kinds, expected, results, strict=True):
                powers[:, row, kind] += _powers(x, y)
        signal, noise = powers
        return np.asarray(np.where(noise == 0, 0.0, noise / np.maximum(signal.sum(0), 1e-300)))

    def references(self, samples: Sequence[Mapping[str, Any]]) -> list[list[np.ndarray]]:
        """Return the outputs of the float model."""
        return [self.run(sample, ()) for sample in samples]

    def errors(
        self, samples: Sequence[Mapping[str, Any]], references: Sequence[Sequence[np.ndarray]]
    ) -> dict[str, np.ndarray]:
        """Return the relative noise of the outputs if one node alone is quantized, by node."""
        return {node: self.noise(samples, references, {node}) for node in self.nodes}

    def cost(self, node: str) -> float:
        """Return a node's share of the work of all nodes with switches."""
        return self._costs[node]

    def has_weight(self, node: str) -> bool:
        """Return True if a node has a weight of integers."""
        return node in self._weights

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
    errors: Mapping[str, np.ndarray], *, target: float, most_cost: float, least_share: float = 0.0,
    between: bool = True,
) -> GivenBack:  # fmt: skip
    """Return the nodes whose return to float brings the worst output to a signal-to-noise ratio.

    Nodes are chosen by noise over work. The choice ends when the measured ratio reaches the target, when no node
    remains that fits in the permitted work, or when the noise of every remaining node is a small share of all noise.

    Args:
        probe: The switched model.
        samples: Samples to measure on.
        references: The float outputs of the samples.
        errors: The noise of single nodes, from :meth:`Probe.errors`.
        target: The signal-to-noise ratio in dB.
        most_cost: The most share of the work that may return to float.
        least_share: The least share of all noise for which a node returns, unless all work may return.
        between: If False, only nodes with weights return: sums, pools and concatenations stay integers.
    """
    quantized = set(probe.nodes)
    whole = probe.noise(samples, references, quantized)
    current, chosen, cost = whole, [], 0.0
    permitted = 10 ** (-target / 10)
    # Measured noise differs from the sum of single noises: later sums are corrected by the ratio.
    while current.max(initial=0) > permitted:
        output = int(current.argmax())
        total = sum(float(errors[node][output]) for node in quantized)
        ratio = float(current[output]) / total if total > 0 else 1.0
        order = sorted(quantized, key=lambda node: (-errors[node][output] / (probe.cost(node) + _LEAST_COST), node))
        step = []
        left = total
        for node in order:
            noise = float(errors[node][output])
            least = least_share * (1.0 if probe.has_weight(node) else _BETWEEN)
            if not (between or probe.has_weight(node)):
                continue
            if noise <= (least * total if most_cost < 1 else 0) or cost + probe.cost(node) > most_cost + 1e-9:
                continue
            step.append(node)
            cost += probe.cost(node)
            left -= noise
            if left * ratio <= permitted * _MARGIN:
                break
        if not step:
            break
        quantized.difference_update(step)
        chosen += step
        current = probe.noise(samples, references, quantized)
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


def _unambiguous(placement: Placement, model: ir.Model) -> Placement:
    """Return the placement without nodes that share a name."""
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


def _numbers(affine: Affine) -> tuple[float, float, float]:
    """Return the scale, and the least and greatest integer relative to the zero point."""
    return affine.scale, float(affine.kind.low) - affine.zero_point, float(affine.kind.high) - affine.zero_point


def _measure_sources(model: ir.Model) -> None:
    """Let outputs that are no tensors of floats be the floats that decide on these: labels hide most of the noise."""
    outputs: list[ir.Value] = []
    for value in model.graph.outputs:
        outputs += [source for source in _float_sources(value) if source not in outputs]
    model.graph.outputs[:] = outputs


def _float_sources(value: ir.Value) -> list[ir.Value]:
    """Return the value if it is a tensor of floats, else the nearest ones that it is computed from, or itself."""
    pending, seen, sources = [value], {value}, []
    while pending:
        current = pending.pop(0)
        node = current.producer()
        if isinstance(current.type, ir.TensorType) and current.dtype == ir.DataType.FLOAT:
            if current is value or not (node is None or facts.is_constant(current)):
                sources.append(current)
            continue
        for source in node.inputs if node is not None else ():
            if source is not None and source not in seen and not facts.is_constant(source):
                seen.add(source)
                pending.append(source)
    return sources or [value]


def _measure_logits(model: ir.Model) -> None:
    """Let outputs of Softmax be its inputs: few samples near a decision have nearly all noise of the probabilities."""
    outputs = model.graph.outputs
    for index, value in enumerate(list(outputs)):
        producer = value.producer()
        if producer is None or producer.domain or producer.op_type not in ("Softmax", "LogSoftmax"):
            continue
        logits = producer.inputs[0]
        if logits is not None and logits.dtype == ir.DataType.FLOAT and not logits.is_graph_output():
            outputs[index] = logits


def measure_parts(model: ir.Model) -> list[int]:
    """Let outputs that join values of several kinds be these values, and return the kind of each output.

    A detector joins boxes of hundreds of pixels and scores below 1: the error of the boxes hides that of the scores.
    Parts that are computed alike, as those of several sizes of a picture, are of one kind.
    """
    parts = [part for index, output in enumerate(model.graph.outputs) for part in _parts(output, (index,))]
    if len(parts) > _MOST_PARTS:
        return list(range(len(model.graph.outputs)))
    numbers = {path: number for number, path in enumerate(dict.fromkeys(path for _, path in parts))}
    model.graph.outputs[:] = [value for value, _ in parts]
    return [numbers[path] for _, path in parts]


def _parts(value: ir.Value, path: tuple[int, ...]) -> list[tuple[ir.Value, tuple[int, ...]]]:
    """Return the values that an output joins, with the places in joins of different kinds."""
    joined = _moved(value)
    node = joined.producer()
    if node is None or node.domain or node.op_type != "Concat":
        return [(value, path)]
    sources = [source for source in node.inputs if source is not None]
    if not all(source.dtype == ir.DataType.FLOAT and not facts.is_constant(source) for source in sources):
        return [(value, path)]
    producers = [_moved(source).producer() for source in sources]
    are_alike = len({None if one is None else one.op_type for one in producers}) == 1
    parts = []
    for index, source in enumerate(sources):
        parts += _parts(source, path if are_alike else (*path, index))
    return parts


def _moved(value: ir.Value) -> ir.Value:
    """Return the value whose elements an output holds in another order or shape."""
    while True:
        node = value.producer()
        if node is None or node.domain or node.op_type not in _MOVING or node.inputs[0] is None:
            return value
        value = node.inputs[0]


class _Switches:
    """Writes switches into a float model, which is changed.

    Integers are computed in float arithmetic with scales and limits as inputs, so that all types have one form.

    Attributes:
        map_inputs: The names of the inputs for scale, least and greatest integer, by activation.
        followers: The names of activations that are moved from others, whose inputs they read.
    """

    def __init__(self, model: ir.Model, placement: Placement) -> None:
        self._graph, self._placement = model.graph, placement
        self.map_inputs: dict[str, tuple[str, ...]] = {}
        self.followers: set[str] = set()
        self._numbers: dict[ir.Value, list[ir.Value]] = {}
        self._writer = Writer(model)

    def write(
        self, maps: Mapping[str, Affine], weights: Mapping[str, np.ndarray], fixed: dict[str, np.ndarray],
        switches: dict[str, str], weight_inputs: dict[str, tuple[str, np.ndarray, np.ndarray]],
    ) -> None:  # fmt: skip
        booleans: dict[str, ir.Value] = {}
        for value, readers in self._placement.reads.items():
            source = self._placement.source(value, maps)
            affine = maps.get(str(source.name))
            if affine is None:
                continue
            if source is not value:
                self.followers.add(str(value.name))
            rounded, nodes = self._rounded(value, self._numbers_of(source, affine, fixed))
            for node, index in readers:
                label = node_label(node)
                if label not in booleans:
                    booleans[label] = self._writer.input(f"{label}_is_quantized", (), ir.DataType.BOOL)
                    switches[label] = str(booleans[label].name)
                chosen = self._writer.node("Where", [booleans[label], rounded, value], "switch", ir.DataType.FLOAT)
                nodes.append(chosen)
                node.replace_input_with(index, chosen.outputs[0])
            self._writer.insert_after(value, nodes)
        for site in self._placement.all_sites:
            if site.label in weights:
                weight = self._writer.input(f"{site.label}_weight", site.shape, ir.DataType.FLOAT)
                site.node.replace_input_with(site.index, weight)
                floats = np.ascontiguousarray(site.weight, np.float32)
                integers = np.ascontiguousarray(weights[site.label], np.float32)
                weight_inputs[site.label] = str(weight.name), floats, integers
        self._graph.sort()

    def write_biases(self, corrections: Mapping[str, np.ndarray]) -> dict[str, tuple[str, np.ndarray, np.ndarray]]:
        """Let biases be inputs; return the name, the bias and the corrected bias by label.

        Large means, such as those of images from 0 to 255, would else count as errors that the written model corrects.
        """
        biases: dict[str, tuple[str, np.ndarray, np.ndarray]] = {}
        for site in self._placement.sites:
            correction = corrections.get(site.label)
            value = site.node.inputs[2] if len(site.node.inputs) > 2 else None
            old = np.zeros(1, np.float32) if value is None else facts.constant(value)
            is_vector = old is not None and is_per_channel(old.shape, site.channels)
            if correction is None or old is None or not is_vector or site.node.op_type not in ("Conv", "Gemm"):
                continue
            floats = np.array(np.broadcast_to(old.reshape(-1), (site.channels,)), np.float32)
            bias = self._writer.input(f"{site.label}_bias", (site.channels,), ir.DataType.FLOAT)
            if value is None:
                site.node.resize_inputs(3)
            site.node.replace_input_with(2, bias)
            biases[site.label] = str(bias.name), floats, (floats + correction).astype(np.float32)
        return biases

    def _numbers_of(self, value: ir.Value, affine: Affine, fixed: dict[str, np.ndarray]) -> list[ir.Value]:
        """Return the inputs for scale, least and greatest integer of an activation."""
        if value not in self._numbers:
            numbers = self._numbers[value] = []
            for kind, number in zip(("scale", "low", "high"), _numbers(affine), strict=True):
                numbers.append(self._writer.input(f"{value.name}_{kind}", (), ir.DataType.FLOAT))
                fixed[str(numbers[-1].name)] = np.array(number, np.float32)
            self.map_inputs[str(value.name)] = tuple(str(number.name) for number in numbers)
        return self._numbers[value]

    def _rounded(self, value: ir.Value, numbers: Sequence[ir.Value]) -> tuple[ir.Value, list[ir.Node]]:
        scale, low, high = numbers
        nodes: list[ir.Node] = []
        result = value
        for op_type, number in (("Div", scale), ("Round", None), ("Max", low), ("Min", high), ("Mul", scale)):
            operands = [result] if number is None else [result, number]
            nodes.append(self._writer.node(op_type, operands, "switch", ir.DataType.FLOAT))
            result = nodes[-1].outputs[0]
        return result, nodes
