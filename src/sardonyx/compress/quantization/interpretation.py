"""Runs of a model over samples: on the interpreter, several samples at once, until compiled code would be less work.

A program of a small network takes longer to compile than a calibration takes to interpret. Work is counted in
multiplications, never by a clock, so that results repeat.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.compress.evidence.outputs import are_equal
from sardonyx.compress.quantization.placement import RECURRENT
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.ir.types import TensorType
from sardonyx.errors import SardonyxError, UnsupportedError
from sardonyx.model.copying import copy_model
from sardonyx.ops.feeds import as_value
from sardonyx.ops.graph import Frame, Step, call_step
from sardonyx.ops.reference import ReferenceModel
from sardonyx.rewrite.analysis import facts
from sardonyx.runtime.session import Session

Feeds = Mapping[str, Any]

_NODE_WORK = 5e5
_ELEMENT_WORK = 20.0
_CHANNEL_WORK = 5.0
"""Multiplications that take as long, on the interpreter, as a call of a node, an element of its result, and a
multiplication of a convolution by channel; Zen 5, ``benchmarks/compress.py``."""

_PROGRAM_WORK, _LAYER_WORK, _OTHER_WORK = 2.5e9, 7e8, 5e7
"""Multiplications that take as long as a compilation: of a program, of each convolution or product in it, and of each
other node; the interpreter does 5e9 a second in small networks, and 2e10 in large ones."""

_MOST_MEASURED = 0.1
"""The share of the work of a compilation up to which one sample is interpreted to measure its work."""

_MOST_STACKED = 32
_MOST_BYTES = 24 << 20
"""Limits of the samples that run at once, and of all their values."""

_ROUNDING = 1e-4
"""Share of the largest element by which rows of one run and of several differ by rounding."""

_PRODUCTS = ("Conv", "ConvTranspose", "MatMul", "Gemm")
_BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def compilation_work(model: ir.Model) -> float:
    """Return the multiplications that the interpreter does in the time of a compilation, about."""
    operators = [node.op_type for node in model.graph]
    layers = sum(operator in _PRODUCTS for operator in operators)
    return _PROGRAM_WORK + _LAYER_WORK * layers + _OTHER_WORK * (len(operators) - layers)


@dataclass(frozen=True)
class Change:
    """The values that a node reads in place of its own inputs.

    Attributes:
        key: Equal keys of a node mean equal changes.
        rounded: The key of a map, and a function that rounds an array, by the index of the input.
        arrays: Arrays in place of constants, by the index of the input.
    """

    key: Hashable
    rounded: Mapping[int, tuple[Hashable, Callable[[np.ndarray], np.ndarray]]]
    arrays: Mapping[int, np.ndarray]


@dataclass
class Evaluation:
    """The values of one run.

    Attributes:
        versions: Equal numbers mean equal values, of all runs of a graph.
        values: The values that are kept.
    """

    versions: dict[ir.Value, Hashable] = field(default_factory=dict)
    values: dict[ir.Value, Any] = field(default_factory=dict)

    def array(self, value: ir.Value) -> Any:
        """Return a kept value as an array."""
        return np.asarray(self.values[value].known)


class InterpretedGraph:
    """The main graph of a model, run node by node; what a change does not reach can be that of another run.

    Args:
        model: The model, which must not change.

    Attributes:
        work: The multiplications of all runs.

    Raises:
        UnsupportedError: The model has nodes that are slow on the interpreter, or states of their own.
    """

    def __init__(self, model: ir.Model) -> None:
        if not _is_plain(model):
            raise UnsupportedError(
                "expected operators on tensors without bodies, states and narrow floats.", where=str(model.graph.name)
            )
        self._reference = ReferenceModel(model)
        steps = self._reference.graph.steps
        if any(step.operator is None or step.operator.is_random for step in steps):
            raise UnsupportedError(
                "expected operators on tensors without bodies, states and narrow floats.", where=str(model.graph.name)
            )
        self._steps: list[Step] = list(steps)
        self.outputs = list(model.graph.outputs)
        self.work = 0.0
        self.bytes = 0
        self._numbers: dict[Hashable, int] = {}
        self._last: dict[ir.Value, int] = {}
        for number, step in enumerate(self._steps):
            for value in (*step.node.inputs, *step.node.outputs):
                if value is not None:
                    self._last[value] = number

    def run(
        self, feeds: Feeds, names: Iterable[ir.Value], changes: Mapping[ir.Node, Change] | None = None, *,
        bases: Sequence[Evaluation] = (), token: Hashable = None, keeps: bool = False, stacked: bool = False,
        limit: float = math.inf,
    ) -> Evaluation | None:  # fmt: skip
        """Return the values of a run; None if it is more work than the limit.

        Args:
            feeds: Arrays by input name.
            names: The values to keep.
            changes: What nodes read in place of their inputs.
            bases: Runs of the same feeds, whose kept values are not computed again.
            token: Equal tokens mean equal feeds.
            keeps: If True, all values are kept.
            stacked: If True, the feeds are several samples, which declared sizes do not hold for.
            limit: Multiplications.

        Raises:
            SardonyxError: The model does not run on the feeds.
        """
        graph = self._reference.graph
        result, frame = Evaluation(), Frame(None)
        requested = set(names)
        frame.values.update(graph.constants)
        if stacked:
            own = {str(value.name): value for value in graph.inputs}
            types = self._reference.input_types
            frame.values.update({own[name]: as_value(array, types[name], name) for name, array in feeds.items()})
        else:
            frame.values.update(zip(graph.inputs, self._reference.arguments(feeds), strict=True))
        result.versions.update(dict.fromkeys(graph.inputs, token))
        result.values.update((value, frame.values[value]) for value in frame.values if value in requested)
        start, self.bytes = self.work, 0
        rounded: dict[Hashable, Any] = {}
        with running(RunContext()):
            for number, step in enumerate(self._steps):
                raise_if_cancelled()
                change = None if changes is None else changes.get(step.node)
                if token is None or not self._reuse(step, change, number, result, bases, frame):
                    self.work += _least_work(step, frame)
                    if self.work - start > limit:
                        return None
                    self._call(step, change, frame, result.versions, rounded)
                for value in step.node.outputs:
                    if value in frame.values and (keeps or value in requested):
                        result.values[value] = frame.values[value]
                for name in {*step.node.inputs, *step.node.outputs}:
                    if name is not None and self._last[name] <= number:
                        frame.values.pop(name, None)
        return result

    def _reuse(
        self, step: Step, change: Change | None, number: int, result: Evaluation, bases: Sequence[Evaluation],
        frame: Frame,
    ) -> bool:  # fmt: skip
        """Number the results of a node, and return True if these are those of another run."""
        inputs = tuple(None if value is None else result.versions.get(value, -1) for value in step.node.inputs)
        key = number, None if change is None else change.key, inputs
        version = self._numbers.setdefault(key, len(self._numbers))
        result.versions.update((value, (version, index)) for index, value in enumerate(step.node.outputs))
        for base in bases:
            if all(
                base.versions.get(value) == result.versions[value] and value in base.values
                for value in step.node.outputs
                if value.name
            ):
                frame.values.update((value, base.values[value]) for value in step.node.outputs if value.name)
                return True
        return False

    def _call(
        self, step: Step, change: Change | None, frame: Frame, versions: Mapping[ir.Value, Hashable],
        rounded: dict[Hashable, Any],
    ) -> None:  # fmt: skip
        own: dict[ir.Value, Any] = {}
        if change is not None:
            for index, (key, round_array) in change.rounded.items():
                value = step.node.inputs[index]
                assert value is not None
                if (value, key) not in rounded:
                    array = np.asarray(frame.values[value].known)  # type: ignore[union-attr]
                    rounded[value, key] = as_value(round_array(array), None, str(value.name))
                own[value] = rounded[value, key]
            for index, array in change.arrays.items():
                value = step.node.inputs[index]
                assert value is not None
                own[value] = as_value(array, None, str(value.name))
        saved = {value: frame.values[value] for value in own}
        frame.values.update(own)
        call_step(step, frame)
        frame.values.update(saved)
        for value in step.node.outputs:
            result = frame.values.get(value)
            if result is not None and isinstance(result.type, TensorType):
                self.work += _ELEMENT_WORK * np.size(result.known)
                self.bytes += np.asarray(result.known).nbytes
        self.work += _NODE_WORK


def _is_plain(model: ir.Model) -> bool:
    """Return True if all nodes of a model are tensors' own operators, without bodies, states and narrow floats."""
    if model.functions:
        return False
    for node in model.graph:
        if node.op_type in RECURRENT or any(attribute.type in _BODIES for attribute in node.attributes.values()):
            return False
        if any(value.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) for value in node.outputs):
            return False
    return True


def _least_work(step: Step, frame: Frame) -> float:
    """Return the multiplications of a product, from the sizes of its operands; 0 for other operators."""
    node = step.node
    if node.domain or node.op_type not in _PRODUCTS:
        return 0.0
    shapes: list[tuple[int, ...]] = []
    for value in list(node.inputs)[:2]:
        known = None if value is None else frame.values.get(value)
        shapes.append(tuple(np.shape(known.known)) if known is not None else ())
    x, w = shapes[0], shapes[1]
    if not x or not w or 0 in (*x, *w):
        return 0.0
    if node.op_type == "Conv":
        strides = facts.attribute(node, "strides", 11, ())
        products = float(math.prod(x) / x[1] * math.prod(w) / math.prod(strides or (1,)))
        return products * (_CHANNEL_WORK if w[1] == 1 else 1.0)
    if node.op_type == "ConvTranspose":
        return math.prod(x) * math.prod(w) / w[0]
    return math.prod(x) * float(w[-1] if node.op_type == "MatMul" or w[0] in x else w[0])


class SampleRuns:
    """Runs of a model over samples: interpreted, in stacks where rows are independent, then compiled.

    Args:
        model: The model, which must not change while it runs.
        names: The names of the values that are read, of the main graph.
        expected: The least number of samples to run.
        most_work: Multiplications on the interpreter; by default as many as take the time of a compilation.

    Attributes:
        sample_work: The multiplications of one sample on the interpreter; infinite if these are many, or unknown.
    """

    def __init__(
        self, model: ir.Model, names: Sequence[str], expected: int = 1, most_work: float | None = None
    ) -> None:
        self._model, self._names, self._expected = model, list(names), expected
        self._left = compilation_work(model) if most_work is None else most_work
        values = {value.name: value for node in model.graph for value in node.outputs}
        self._values = [values[name] for name in self._names]
        self._graph: InterpretedGraph | None = None
        self._session: Session | None = None
        self.sample_work = math.inf
        self._stack = 0
        self._form: object = None
        try:
            self._graph = InterpretedGraph(model) if self._names else None
        except SardonyxError:
            self._graph = None  # Compiled code runs the model, or states the error.

    def run(self, samples: Iterable[Feeds]) -> Iterator[tuple[list[Feeds], dict[str, np.ndarray]]]:
        """Yield samples that ran at once, and the values by name: of several samples along the first axis.

        Raises:
            SardonyxError: The model does not run on a sample.
        """
        stream = iter(samples)
        for first in stream:
            raise_if_cancelled()
            if self._graph is None:
                yield [first], self._compiled(first)
                continue
            group = [first, *itertools.islice(stream, max(self._stack, 1) - 1)]
            if self._stack == 0:
                group += list(itertools.islice(stream, 1))
                self._decide(group)
            yield from self._interpreted(group)

    def _decide(self, group: Sequence[Feeds]) -> None:
        """Choose the number of samples that run at once; compile if even the first ones are too much work."""
        graph = self._graph
        assert graph is not None
        single = graph.run(group[0], graph.outputs, limit=self._left * _MOST_MEASURED)
        if single is not None:
            self.sample_work = graph.work
        if single is None or graph.work * self._expected > self._left:
            self._graph = None
            return
        self._stack = 1
        if len(group) > 1 and stack_size(graph.bytes) > 1 and are_independent(graph, group, single):
            self._stack, self._form = stack_size(graph.bytes), form_of(group[0])

    def _interpreted(self, group: Sequence[Feeds]) -> Iterator[tuple[list[Feeds], dict[str, np.ndarray]]]:
        for part in stacks(group, self._stack, self._form):
            graph = self._graph
            if graph is not None and graph.work > self._left:
                graph = self._graph = None
            if graph is None:
                for feeds in part:
                    yield [feeds], self._compiled(feeds)
                continue
            if len(part) > 1:
                try:
                    evaluation = graph.run(stacked(part), self._values, stacked=True)
                except SardonyxError:
                    self._stack = 1  # Sizes depend on the number of rows.
                    yield from self._interpreted(part)
                    continue
                assert evaluation is not None
                yield list(part), self._read(evaluation)
                continue
            evaluation = graph.run(part[0], self._values)
            assert evaluation is not None
            yield list(part), self._read(evaluation)

    def _read(self, evaluation: Evaluation) -> dict[str, np.ndarray]:
        return {name: evaluation.array(value) for name, value in zip(self._names, self._values, strict=True)}

    def _compiled(self, feeds: Feeds) -> dict[str, np.ndarray]:
        if not self._names:
            return {}
        if self._session is None:
            self._session = Session(with_outputs(self._model, self._names), compile="wait")
        return {
            name: np.asarray(array) for name, array in zip(self._names, self._session.run(None, feeds), strict=True)
        }


def stack_size(size: int) -> int:
    """Return the most samples that run at once, from the bytes of all values of one."""
    return int(min(max(_MOST_BYTES // max(size, 1), 1), _MOST_STACKED))


def stacks(samples: Sequence[Feeds], most: int, form: object) -> list[list[Feeds]]:
    """Return consecutive samples of a form in groups of at most some samples; others, which no run checked, singly."""
    result: list[list[Feeds]] = []
    previous: object = None
    for feeds in samples:
        current = form_of(feeds)
        if result and len(result[-1]) < most and previous == current == form is not None:
            result[-1].append(feeds)
        else:
            result.append([feeds])
        previous = current
    return result


def form_of(feeds: Feeds) -> object:
    """Return the names, types and shapes of a sample; None if its arrays have no common first axis."""
    arrays = {name: np.asarray(array) for name, array in feeds.items()}
    if len({array.shape[:1] for array in arrays.values()}) != 1 or any(array.ndim == 0 for array in arrays.values()):
        return None
    return tuple(sorted((name, array.dtype.str, array.shape) for name, array in arrays.items()))


def stacked(samples: Sequence[Feeds]) -> Feeds:
    """Return samples of one form as one sample of more rows; a single sample, which may hold scalars, as it is."""
    if len(samples) == 1:
        return samples[0]
    return {name: np.concatenate([np.asarray(feeds[name]) for feeds in samples]) for name in samples[0]}


def are_independent(graph: InterpretedGraph, samples: Sequence[Feeds], first: Evaluation) -> bool:
    """Return True if the rows of all outputs are those of the samples by themselves, up to rounding.

    Args:
        graph: The graph.
        samples: At least two samples.
        first: The outputs of the first sample.
    """
    pair = samples[:2]
    if len(stacks(pair, 2, form_of(pair[0]))) > 1:
        return False
    try:
        both = graph.run(stacked(pair), graph.outputs, stacked=True)
        second = graph.run(pair[1], graph.outputs)
    except SardonyxError:
        return False
    assert both is not None and second is not None
    for value in graph.outputs:
        whole, parts = both.array(value), [one.array(value) for one in (first, second)]
        if whole.dtype == object or parts[0].ndim == 0 or parts[0].shape != parts[1].shape:
            return False
        count = len(parts[0])
        if whole.shape != (2 * count, *parts[0].shape[1:]):
            return False
        for number, part in enumerate(parts):
            if not are_equal(whole[number * count : (number + 1) * count], part, _ROUNDING):
                return False
    return True


def with_outputs(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """Return a copy of a model whose outputs are the values of some names, so that one program computes these alone."""
    observed = copy_model(model)
    values = {value.name: value for node in observed.graph for value in node.outputs}
    observed.graph.outputs[:] = [values[name] for name in names]
    return observed
