"""Models whose nodes read integers or floats by a switch: compiled once, or interpreted.

Weights, scales and switches are arguments, so that no candidate is compiled. The interpreter runs several samples at
once, and computes again only what a change reaches.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.bias_correction import is_per_channel
from sardonyx.compress.quantization.interpretation import (
    Change,
    Evaluation,
    InterpretedGraph,
    are_independent,
    compilation_work,
    form_of,
    stack_size,
    stacked,
    stacks,
)
from sardonyx.compress.quantization.measured_values import measure_values
from sardonyx.compress.quantization.placement import Placement
from sardonyx.compress.quantization.scheme import TYPES, Affine, NarrowType
from sardonyx.compress.quantization.writer import Writer
from sardonyx.errors import UnsupportedError
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import node_label
from sardonyx.runtime.session import Session

_MOST_STORED = 48 << 20
"""Bytes of all values of the last run over all samples, of which the next run computes only what differs."""

Feeds = Mapping[str, Any]


@dataclass
class SwitchState:
    """The numbers of a model with switches.

    Attributes:
        maps: The maps of activations to integers, by name.
        weights: The weights of sites as floats, and as integers mean them, by label.
        biases: The biases of sites, and corrected for integers, by label.
    """

    maps: dict[str, Affine]
    weights: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    biases: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    @property
    def kind(self) -> NarrowType:
        """The type of activations."""
        return next((affine.kind for affine in self.maps.values()), TYPES["uint8"])

    @classmethod
    def of(
        cls, placement: Placement, maps: Mapping[str, Affine], weights: Mapping[str, np.ndarray],
        corrections: Mapping[str, np.ndarray],
    ) -> SwitchState:  # fmt: skip
        """Return the numbers of a placement: biases are corrected where they are one number per channel.

        Large means, such as those of images from 0 to 255, would else count as errors that the written model corrects.
        """
        state = cls(dict(maps))
        for site in placement.all_sites:
            if site.label in weights:
                floats = np.ascontiguousarray(site.weight, np.float32)
                state.weights[site.label] = floats, np.ascontiguousarray(weights[site.label], np.float32)
        for site in placement.sites:
            correction = corrections.get(site.label)
            value = site.node.inputs[2] if len(site.node.inputs) > 2 else None
            old = np.zeros(1, np.float32) if value is None else facts.constant(value)
            is_vector = old is not None and is_per_channel(old.shape, site.channels)
            if correction is None or old is None or not is_vector or site.node.op_type not in ("Conv", "Gemm"):
                continue
            own = np.array(np.broadcast_to(old.reshape(-1), (site.channels,)), np.float32)
            state.biases[site.label] = own, (own + correction).astype(np.float32)
        return state


class CompiledSwitches:
    """A compiled program with a switch per node.

    Args:
        model: The float model, which is changed.
        placement: The places of integers in the model.
        state: The numbers.

    Attributes:
        kinds: The kinds of the outputs by which noise is measured.

    Raises:
        SardonyxError: The model does not compile.
    """

    def __init__(self, model: ir.Model, placement: Placement, state: SwitchState) -> None:
        self._state = state
        self._writer = _SwitchWriter(model, placement, state.kind)
        self._writer.write(state)
        self._biases = self._writer.write_biases(state.biases)
        self.kinds = measure_values(model)
        self._read = {site.label: str(site.node.inputs[0].name) for site in placement.sites if site.node.inputs[0]}
        self._session = Session(model, compile="wait")

    def outputs(self, feeds: Feeds, quantized: Collection[str]) -> list[Any]:
        """Return the outputs for a sample, with integers in some nodes alone."""
        return list(self._session.run(None, self._fed(feeds, quantized)))

    def site_inputs(self, feeds: Feeds, quantized: Collection[str]) -> dict[str, np.ndarray]:
        """Return the inputs of all sites for a sample, by label, with integers in some nodes alone."""
        names = list(dict.fromkeys(self._read.values()))
        arrays = dict(zip(names, self._session.run(names, self._fed(feeds, quantized)), strict=True))
        return {label: np.asarray(arrays[name]) for label, name in self._read.items()}

    def _fed(self, feeds: Feeds, quantized: Collection[str]) -> dict[str, Any]:
        state, writer = self._state, self._writer
        fed = {**feeds}
        for name, keys in writer.map_inputs.items():
            numbers = _numbers(state.maps[name])
            fed.update({key: np.array(number, np.float32) for key, number in zip(keys, numbers, strict=True)})
        fed.update({name: np.array(label in quantized) for label, name in writer.switches.items()})
        for names, arrays in ((writer.weights, state.weights), (self._biases, state.biases)):
            fed.update({name: arrays[label][label in quantized] for label, name in names.items()})
        return fed


class InterpretedSwitches:
    """A model whose nodes read integers or floats by a switch, run by the interpreter.

    Args:
        model: The float model, which is changed.
        placement: The places of integers in the model.
        state: The numbers.

    Attributes:
        kinds: The kinds of the outputs by which noise is measured.

    Raises:
        UnsupportedError: The interpreter is slow on the model.
    """

    def __init__(self, model: ir.Model, placement: Placement, state: SwitchState) -> None:
        self._state = state
        self._left = compilation_work(model)
        writer = Writer(model)
        for site in placement.sites:
            if site.label in state.biases and (len(site.node.inputs) < 3 or site.node.inputs[2] is None):
                site.node.resize_inputs(3)
                site.node.replace_input_with(2, writer.initializer(f"{site.label}_bias", state.biases[site.label][0]))
        self.kinds = measure_values(model)
        if any(value in placement.reads for value in model.graph.outputs):
            raise UnsupportedError("integers of a join would not count in its parts.", where=str(model.graph.name))
        self._graph = InterpretedGraph(model)
        self._maps: dict[str, tuple[ir.Node, dict[int, str]]] = {}
        for value, readers in placement.reads.items():
            source = str(placement.source(value, state.maps).name)
            if source in state.maps:
                for node, index in readers:
                    self._maps.setdefault(node_label(node), (node, {}))[1][index] = source
        self._sites = {site.label: site for site in placement.all_sites}
        self._stack, self._sample_work = 0, 0.0
        self._form: object = None
        self._last_runs: dict[Hashable, Evaluation] = {}
        self._stored_bytes = 0

    @property
    def is_exhausted(self) -> bool:
        """True if the runs were as much work as a compilation."""
        return self._graph.work > self._left

    def outputs(self, feeds: Feeds, quantized: Collection[str]) -> list[Any]:
        """Return the outputs for a sample, with integers in some nodes alone."""
        evaluation = self._graph.run(feeds, self._graph.outputs, self._changes(quantized))
        assert evaluation is not None
        return [evaluation.array(value) for value in self._graph.outputs]

    def site_inputs(self, feeds: Feeds, quantized: Collection[str]) -> dict[str, np.ndarray]:
        """Return the inputs of all sites for a sample, by label, with integers in some nodes alone."""
        changes = self._changes(quantized)
        read = {label: site.input for label, site in self._sites.items() if site.input is not None}
        evaluation = self._graph.run(feeds, read.values(), changes)
        assert evaluation is not None
        result = {}
        for label, value in read.items():
            array, change = evaluation.array(value), changes.get(self._sites[label].node)
            if change is not None and 0 in change.rounded:
                array = change.rounded[0][1](array)
            result[label] = array
        return result

    def all_outputs(
        self, samples: Sequence[Feeds], settings: Sequence[Collection[str]]
    ) -> Iterator[tuple[int, int, list[Any]]]:
        """Yield the number of a sample, that of a setting of integers in some nodes, and the outputs.

        The first setting of a group of samples is the base of the others.
        """
        self._decide(samples)
        position = 0
        for part in stacks(samples, self._stack, self._form):
            token = tuple(map(id, part))
            feeds = stacked(part)
            first: Evaluation | None = None
            for number, quantized in enumerate(settings):
                bases = [base for base in (first, self._last_runs.get(token)) if base is not None]
                keeps = number == 0 and (len(settings) > 1 or self._may_keep(token))
                evaluation = self._graph.run(
                    feeds, self._graph.outputs, self._changes(quantized), bases=bases, token=token, keeps=keeps,
                    stacked=len(part) > 1,
                )  # fmt: skip
                assert evaluation is not None
                if number == 0 and len(settings) > 1:
                    first = evaluation
                elif keeps:
                    self._keep(token, evaluation)
                arrays = [evaluation.array(value) for value in self._graph.outputs]
                for index in range(len(part)):
                    yield position + index, number, [_rows(array, index, len(part)) for array in arrays]
            position += len(part)

    def is_suited(self, samples: Sequence[Feeds], runs: int) -> bool:
        """Return True if a number of runs of the samples is less work than a compilation."""
        self._decide(samples)
        return self._sample_work * len(samples) * runs <= self._left

    def _may_keep(self, token: Hashable) -> bool:
        return token in self._last_runs or self._stored_bytes < _MOST_STORED

    def _keep(self, token: Hashable, evaluation: Evaluation) -> None:
        if token not in self._last_runs:
            self._stored_bytes += sum(np.asarray(value.known).nbytes for value in evaluation.values.values())
        self._last_runs[token] = evaluation

    def _decide(self, samples: Sequence[Feeds]) -> None:
        if self._stack:
            return
        graph = self._graph
        before = graph.work
        single = graph.run(samples[0], graph.outputs)
        assert single is not None
        self._sample_work = graph.work - before
        most = stack_size(graph.bytes)
        self._stack = 1
        if most > 1 and len(samples) > 1 and are_independent(graph, samples, single):
            self._stack, self._form = most, form_of(samples[0])

    def _changes(self, quantized: Collection[str]) -> dict[ir.Node, Change]:
        """Return what nodes read if some of them read integers."""
        state, result = self._state, {}
        for label in quantized:
            site = self._sites.get(label)
            node, sources = self._maps.get(label, (None if site is None else site.node, {}))
            if node is None:
                continue
            rounded: dict[int, tuple[Hashable, Any]] = {}
            for index, name in sources.items():
                numbers, kind = _numbers(state.maps[name]), state.maps[name].kind
                rounded[index] = numbers, functools.partial(_round, numbers, kind)
            arrays: dict[int, np.ndarray] = {}
            if site is not None and label in state.weights:
                arrays[site.index] = state.weights[label][1]
            if label in state.biases:
                arrays[2] = state.biases[label][1]
            key = (
                tuple((index, numbers) for index, (numbers, _) in rounded.items()),
                tuple((index, id(array)) for index, array in arrays.items()),
            )
            result[node] = Change(key, rounded, arrays)
        return result


def _rows(array: np.ndarray, index: int, count: int) -> np.ndarray:
    """Return the rows of one of several samples."""
    if count == 1:
        return array
    rows = len(array) // count
    return array[index * rows : (index + 1) * rows]


def _round(numbers: tuple[float, float, float], kind: NarrowType, array: np.ndarray) -> np.ndarray:
    """Return the values that narrow numbers mean, from a scale and the least and greatest number."""
    scale, low, high = (np.float32(number) for number in numbers)
    result = array / scale
    if kind.is_float:
        return np.asarray(kind.nearest(result) * scale)
    np.rint(result, out=result)
    np.clip(result, low, high, out=result)
    result *= scale
    return np.asarray(result)


def _numbers(affine: Affine) -> tuple[float, float, float]:
    """Return the scale, and the least and greatest integer relative to the zero point."""
    return affine.scale, float(affine.kind.low) - affine.zero_point, float(affine.kind.high) - affine.zero_point


class _SwitchWriter:
    """Writes switches into a float model, which is changed.

    Integers are computed in float arithmetic with scales and limits as inputs, so that all their types have one form;
    narrow floats are cast to their type and back.

    Args:
        model: The float model.
        placement: The places of narrow numbers in the model.
        kind: The type of activations.

    Attributes:
        map_inputs: The names of the inputs for scale, least and greatest integer, by activation.
        switches: The names of the inputs that switch nodes, by label.
        weights: The names of the inputs for weights, by label.
    """

    def __init__(self, model: ir.Model, placement: Placement, kind: NarrowType) -> None:
        self._graph, self._placement, self._kind = model.graph, placement, kind
        self.map_inputs: dict[str, tuple[str, ...]] = {}
        self.switches: dict[str, str] = {}
        self.weights: dict[str, str] = {}
        self._numbers: dict[ir.Value, list[ir.Value]] = {}
        self._writer = Writer(model)

    def write(self, state: SwitchState) -> None:
        """Write switches for all readers of maps and all weights; map and weight inputs hold no numbers yet."""
        booleans: dict[str, ir.Value] = {}
        for value, readers in self._placement.reads.items():
            source = self._placement.source(value, state.maps)
            if str(source.name) not in state.maps:
                continue
            rounded, nodes = self._rounded(value, self._numbers_of(source))
            for node, index in readers:
                label = node_label(node)
                if label not in booleans:
                    booleans[label] = self._writer.input(f"{label}_is_quantized", (), ir.DataType.BOOL)
                    self.switches[label] = str(booleans[label].name)
                chosen = self._writer.node("Where", [booleans[label], rounded, value], "switch", ir.DataType.FLOAT)
                nodes.append(chosen)
                node.replace_input_with(index, chosen.outputs[0])
            self._writer.insert_after(value, nodes)
        for site in self._placement.all_sites:
            if site.label in state.weights:
                weight = self._writer.input(f"{site.label}_weight", site.shape, ir.DataType.FLOAT)
                site.node.replace_input_with(site.index, weight)
                self.weights[site.label] = str(weight.name)
        self._graph.sort()

    def write_biases(self, biases: Iterable[str]) -> dict[str, str]:
        """Let the biases of some sites be inputs; return their names by label."""
        names: dict[str, str] = {}
        own = set(biases)
        for site in self._placement.sites:
            if site.label not in own:
                continue
            bias = self._writer.input(f"{site.label}_bias", (site.channels,), ir.DataType.FLOAT)
            if len(site.node.inputs) < 3:
                site.node.resize_inputs(3)
            site.node.replace_input_with(2, bias)
            names[site.label] = str(bias.name)
        return names

    def _numbers_of(self, value: ir.Value) -> list[ir.Value]:
        """Return the inputs for scale, least and greatest integer of an activation."""
        if value not in self._numbers:
            numbers = self._numbers[value] = []
            for kind in ("scale", "low", "high"):
                numbers.append(self._writer.input(f"{value.name}_{kind}", (), ir.DataType.FLOAT))
            self.map_inputs[str(value.name)] = tuple(str(number.name) for number in numbers)
        return self._numbers[value]

    def _rounded(self, value: ir.Value, numbers: Sequence[ir.Value]) -> tuple[ir.Value, list[ir.Node]]:
        scale, low, high = numbers
        nodes: list[ir.Node] = []
        result = value

        def add(op_type: str, *operands: ir.Value, to: ir.DataType | None = None) -> None:
            nonlocal result
            attributes: dict[str, Any] = {} if to is None else {"to": int(to)}
            kind = to or ir.DataType.FLOAT
            nodes.append(self._writer.node(op_type, [result, *operands], "switch", kind, **attributes))
            result = nodes[-1].outputs[0]

        add("Div", scale)
        if not self._kind.is_float:
            add("Round")
        add("Max", low)
        add("Min", high)
        if self._kind.is_float:
            add("Cast", to=self._kind.dtype)
            add("Cast", to=ir.DataType.FLOAT)
        add("Mul", scale)
        return result, nodes
