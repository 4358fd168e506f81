"""Search, by measured output error, for the nodes that must stay in float32 for a tolerance.

Every trial runs the model with some nodes in float32 and exactly the roundings of 16 bits elsewhere (see ``rounding``),
and compares the outputs with the float32 model's. First the nodes, in graph order, are divided into segments, and a
trial of each segment alone in 16 bits ranks the segments. Then bisection determines the number of worst segments to
leave in float32. Finally these segments are halved repeatedly, and each half moves to 16 bits if the tolerance
permits.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.compress.float16.clamp import ClippedTensor, default_clamp
from sardonyx.compress.float16.convert import (
    Conversion,
    KeptNode,
    Options,
    convert,
    make_options,
    node_label,
    private_copy,
)
from sardonyx.compress.float16.inference import CONTROL_FLOW, TypedModel
from sardonyx.compress.samples import items_of, require_numbers
from sardonyx.errors import EvaluationError, OptionError
from sardonyx.model import Loadable
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.inference import infer_shapes
from sardonyx.rewrite.verify.child import IsolatedRunner, uses_own_operators
from sardonyx.rewrite.verify.inputs import require_fit
from sardonyx.rewrite.verify.search import Sample, Search

_SEGMENTS = 16

Feeds = Mapping[str, Any]
Nodes = frozenset[int]


@dataclass(frozen=True)
class Trial:
    """One measurement: number of nodes left in float32, and the resulting output error."""

    float32_nodes: int
    error: float


@dataclass(frozen=True)
class MixedPrecision:
    """A model converted as far as the tolerance allows.

    Attributes:
        model: The model.
        error: Measured output error of the model.
        chosen: Nodes left in float32 for accuracy, in the form of ``node_block_list``.
        clipped: Tensors in which the clamp changed elements.
        float32_nodes: Nodes with float32 inputs or outputs, and the reasons.
        trials: All measurements, in order.
    """

    model: ir.Model
    error: float
    chosen: tuple[str, ...]
    clipped: tuple[ClippedTensor, ...]
    float32_nodes: tuple[KeptNode, ...]
    trials: tuple[Trial, ...]


def auto_mixed_precision(
    model: Loadable,
    inputs: Feeds | Sequence[Feeds] | None,
    tolerance: float,
    *,
    dtype: Literal["float16", "bfloat16"] = "float16",
    min_positive_val: float | None = None,
    max_finite_val: float | None = None,
    keep_io_types: bool | Iterable[str] = False,
    op_block_list: Iterable[str] | None = None,
    node_block_list: Iterable[str] | None = None,
    max_trials: int = 120,
) -> MixedPrecision:
    """Convert a model to 16 bits except for the nodes that a tolerance on the output error forbids.

    Args:
        model: A path, the bytes of a file, a message or a Model, which is not changed.
        inputs: Inputs of the float32 model by name, or several such samples. None draws samples in the range that the
            graph allows, until each output holds comparable values; real inputs are more representative.
        tolerance: The largest error allowed, as measured by ``output_error``.
        dtype: The 16-bit type.
        min_positive_val: As for ``convert_float16``; None means the default of the type.
        max_finite_val: As for ``convert_float16``; None means the default of the type.
        keep_io_types: As for ``convert_float16``.
        op_block_list: As for ``convert_float16``.
        node_block_list: As for ``convert_float16``.
        max_trials: Maximum number of conversions and runs of the model; the best result up to then is returned.

    Returns:
        The model, whose measured error is within the tolerance, with the float32 nodes and all measurements.

    Raises:
        OptionError: An option is impossible, or even a model with every node in float32 misses the tolerance (rounded
            inputs and outputs alone exceed it).
        EvaluationError: The model does not run on the inputs, its outputs hold nothing to compare, or an input holds
            NaN where the model expects numbers.
        UnsupportedError: bfloat16 for a model that imports a standard operator set older than 13.
    """
    if inputs is not None and isinstance(inputs, (Mapping, Sequence)) and not inputs:
        raise OptionError(
            "expected at least one sample", where="inputs", remedy="Give a sample, or None for random samples."
        )
    if not tolerance > 0:
        raise OptionError(f"expected a number above 0, got {tolerance}", where="tolerance")
    if max_trials < 2:
        raise OptionError(f"expected at least 2, got {max_trials}", where="max_trials")
    if dtype not in ("float16", "bfloat16"):
        raise OptionError(f"expected 'float16' or 'bfloat16', got {dtype!r}", where="dtype")
    clamp = default_clamp(ir.DataType[dtype.upper()], min_positive_val, max_finite_val)
    options = make_options(clamp, keep_io_types, False, op_block_list, node_block_list)
    source = model_io.load(model)
    # The model runs in a child process, so that a crash of the engine is an error and not the end of the caller.
    with IsolatedRunner(here=uses_own_operators(source)) as apart:
        if inputs is None:
            samples = _draw(source, apart)
        else:
            samples = [inputs] if isinstance(inputs, Mapping) else list(items_of(inputs, "inputs"))
            for number, sample in enumerate(samples):
                if not isinstance(sample, Mapping):
                    raise OptionError(
                        f"expected feeds by the name of the input, got {type(sample).__name__}",
                        where=f"inputs, sample {number}",
                    )
                require_fit(source, sample)
                is_sole = isinstance(inputs, Mapping)
                require_numbers(sample, source.graph.inputs, "inputs" if is_sole else f"inputs, sample {number}")
        search = _Search(source, samples, tolerance, options, max_trials, apart)
        return search.result(search.run())


def draw_samples(model: ir.Model) -> list[Feeds]:
    """Return random samples, in the range that the graph allows, on which every output holds comparable values.

    Raises:
        EvaluationError: The model fails on all random inputs, or an output holds nothing to compare.
    """
    with IsolatedRunner(here=uses_own_operators(model)) as apart:
        return _draw(model, apart)


def output_error(reference: Mapping[str, Any], answers: Mapping[str, Any]) -> float:
    """Return the distance between a model's outputs and the reference's; the worst output counts.

    For floats: the largest difference divided by the largest finite magnitude of the reference; for other elements, the
    share of different elements. Infinite if shapes differ, or if an output is not finite and the reference is.
    """
    return max((_difference(reference[name], answers[name]) for name in reference), default=0.0)


def _difference(reference: Any, answer: Any) -> float:
    if isinstance(reference, (list, tuple)):
        if len(reference) != len(answer):
            return np.inf
        return max((_difference(r, a) for r, a in zip(reference, answer, strict=True)), default=0.0)
    if isinstance(reference, Mapping):
        return output_error(reference, answer) if reference.keys() == answer.keys() else np.inf
    expected, actual = np.asarray(reference), np.asarray(answer)
    if expected.shape != actual.shape:
        return np.inf
    if not expected.size:
        return 0.0
    if expected.dtype.kind != "f":
        return float(np.mean(expected != actual))
    expected, actual = expected.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(expected)
    if not np.array_equal(expected[~finite], actual[~finite], equal_nan=True) or not np.isfinite(actual[finite]).all():
        return np.inf
    largest = np.abs(expected[finite]).max(initial=0.0)
    distance = np.abs(expected[finite] - actual[finite]).max(initial=0.0)
    return float(distance / largest) if largest else float(distance)


class _Search:
    """The search over sets of float32 nodes.

    A node is identified by its index among all nodes, which every private copy of the model shares.
    """

    def __init__(
        self,
        model: ir.Model,
        samples: Sequence[Feeds],
        tolerance: float,
        options: Options,
        max_trials: int,
        apart: IsolatedRunner,
    ) -> None:
        self._model = model
        self._samples = samples
        self._tolerance = tolerance
        self._options = options
        self._max_trials = max_trials
        self._errors: dict[Nodes, float] = {}
        self._trials: list[Trial] = []
        self._apart = apart
        self._references = self._answers(model)
        if not any(_comparable(answers) for answers in self._references):
            raise EvaluationError(
                "nothing to compare: every output is empty or without finite elements",
                where="inputs",
                remedy="Give inputs for which the outputs hold finite numbers.",
            )

    def run(self) -> Nodes:
        """Return the nodes to leave in float32."""
        nothing: Nodes = frozenset()
        if self._error(nothing) <= self._tolerance:
            return nothing
        candidates = self._candidates()
        everything = frozenset(candidates)
        if (floor := self._error(everything)) > self._tolerance:
            raise OptionError(
                f"{self._tolerance:g} cannot be met: with every node in float32 the error is {floor:.3g}",
                where="tolerance",
                remedy="Keep inputs and outputs in float32 (`keep_io_types`), or raise the tolerance.",
            )
        segments = _split(candidates, _SEGMENTS)
        if len(self._trials) + len(segments) < self._max_trials:
            segments.sort(key=lambda segment: self._error(everything - frozenset(segment)), reverse=True)
        return self._release(self._worst(segments))

    def _worst(self, segments: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """Return the shortest sufficient prefix of the segments, by bisection; all segments together suffice."""
        fails, passes = 0, len(segments)
        while passes - fails > 1 and len(self._trials) < self._max_trials:
            middle = (fails + passes) // 2
            if self._error(frozenset().union(*segments[:middle])) <= self._tolerance:
                passes = middle
            else:
                fails = middle
        return list(segments[:passes])

    def _release(self, segments: Sequence[Sequence[int]]) -> Nodes:
        """Move halves of float32 segments to 16 bits, the largest first, while the tolerance holds."""
        float32 = frozenset[int]().union(*segments)
        pending = [(-len(segment), list(segment)) for segment in segments]
        heapq.heapify(pending)
        while pending:
            _, segment = heapq.heappop(pending)
            for half in _split(segment, 2):
                if len(self._trials) >= self._max_trials:
                    return float32
                if self._error(float32 - frozenset(half)) <= self._tolerance:
                    float32 -= frozenset(half)
                elif len(half) > 1:
                    heapq.heappush(pending, (-len(half), half))
        return float32

    def result(self, float32: Nodes) -> MixedPrecision:
        """Return the model with the ``float32`` nodes, and the record of the search."""
        conversion, labels = self._convert(float32)
        return MixedPrecision(
            conversion.model,
            self._error(float32),
            labels,
            conversion.clipped,
            conversion.float32_nodes,
            tuple(self._trials),
        )

    def _error(self, float32: Nodes) -> float:
        if float32 not in self._errors:
            converted = self._convert(float32, only_round=True)[0].model
            pairs = zip(self._references, self._answers(converted), strict=True)
            self._errors[float32] = max(output_error(reference, answers) for reference, answers in pairs)
            self._trials.append(Trial(len(float32), self._errors[float32]))
        return self._errors[float32]

    def _answers(self, model: ir.Model) -> list[dict[str, Any]]:
        with self._apart.file_of(model) as path:
            return [self._apart.run(path, feeds) for feeds in self._samples]

    def _convert(self, float32: Nodes, *, only_round: bool = False) -> tuple[Conversion, tuple[str, ...]]:
        labels: list[str] = []

        def choose(typed: TypedModel) -> Collection[ir.Node]:
            nodes = [node for index, node in enumerate(_nodes(typed)) if index in float32]
            labels.extend(node_label(node) for node in nodes)
            return nodes

        conversion = convert(private_copy(self._model), self._options, choose, only_round=only_round)
        return conversion, tuple(labels)

    def _candidates(self) -> list[int]:
        """Return the nodes that compute with float32, except containers of other nodes."""
        candidates: list[int] = []

        def look(typed: TypedModel) -> Collection[ir.Node]:
            for index, node in enumerate(_nodes(typed)):
                own = node.op_type not in CONTROL_FLOW and node.op_type != "Constant" and node not in typed.calls
                if own and any(typed.float32(value) for value in (*node.inputs, *node.outputs)):
                    candidates.append(index)
            return ()

        convert(private_copy(self._model), self._options, look)
        return candidates


def _nodes(typed: TypedModel) -> Iterable[ir.Node]:
    yield from typed.model.graph.all_nodes()
    for function in dict.fromkeys(typed.calls.values()):
        yield from function.all_nodes()


def _split(nodes: Sequence[int], parts: int) -> list[list[int]]:
    """Return at most ``parts`` contiguous runs of the nodes, of about the same length, none empty."""
    count = min(parts, len(nodes))
    bounds = [len(nodes) * part // count for part in range(count + 1)] if count else []
    return [list(nodes[start:stop]) for start, stop in itertools.pairwise(bounds)]


def _draw(model: ir.Model, apart: IsolatedRunner) -> list[Feeds]:
    """Return random samples on which the model runs, with comparable values in every output."""
    annotated = model.clone()
    infer_shapes(annotated, strict=False)
    outputs = [str(value.name) for value in annotated.graph.outputs if 0 not in (facts.static_shape(value) or ())]
    seen: dict[str, Feeds] = {}

    def fill(sample: Sample) -> bool:
        for name in outputs:
            if name not in seen and _comparable(sample.answers[name]):
                seen[name] = sample.feeds
        return len(seen) < len(outputs)

    with apart.file_of(model) as path:
        search = Search(annotated, lambda feeds: apart.run(path, feeds), seed=0, count=2)
        samples = search.samples(fill)
    if not samples:
        raise EvaluationError(
            f"the model fails on all random inputs: {'; '.join(search.reasons)[:400]}",
            remedy="Give inputs.",
        )
    for sample in samples:
        fill(sample)
    if len(seen) < len(outputs):
        raise EvaluationError(
            "nothing to compare: an output is empty or without finite elements on all random inputs",
            where=", ".join(name for name in outputs if name not in seen),
            remedy="Give inputs for which every output holds finite numbers.",
        )
    selected = [*seen.values(), *(sample.feeds for sample in samples[:2])]
    return list({id(feeds): feeds for feeds in selected}.values())


def _comparable(answer: Any) -> bool:
    """Return True if an output has a comparable element: present and, for floats, finite."""
    if isinstance(answer, Mapping):
        return any(_comparable(value) for value in answer.values())
    if isinstance(answer, (list, tuple)):
        return any(_comparable(value) for value in answer)
    array = np.asarray(answer)
    return bool(np.isfinite(array).any()) if array.dtype.kind == "f" else array.size > 0 and answer is not None
