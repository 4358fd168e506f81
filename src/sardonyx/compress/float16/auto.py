"""Finds, by measured output error, the nodes that must stay in float32 for a given tolerance.

Every trial takes the model as it would be with some nodes kept, runs it with exactly the roundings that 16 bits would
bring (see ``rounding``), and compares its outputs with the float32 model's. First the nodes, in graph order, are cut
into segments, and each segment is tried as the only one in 16 bits: that ranks them. Then bisection finds how many
of the worst segments must be kept. Last, the kept segments are halved again and again, and each half that can go to 16
bits without breaking the tolerance goes.
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
from sardonyx.errors import EvaluationError, OptionError
from sardonyx.model import Loadable
from sardonyx.rewrite import facts
from sardonyx.rewrite.inference import infer_shapes
from sardonyx.rewrite.verify.child import Apart, uses_own_operators
from sardonyx.rewrite.verify.inputs import require_fit
from sardonyx.rewrite.verify.search import Sample, Search

_SEGMENTS = 16

Feeds = Mapping[str, Any]
Nodes = frozenset[int]


@dataclass(frozen=True)
class Trial:
    """One measurement: how many nodes were kept in float32, and the output error that resulted."""

    kept: int
    error: float


@dataclass(frozen=True)
class MixedPrecision:
    """A model converted as far as the tolerance allows.

    Attributes:
        model: The model.
        error: Its measured output error.
        chosen: The nodes kept for accuracy, in a form that ``node_block_list`` takes.
        clipped: Every tensor in which the clamp changed elements.
        kept: Every node that has float32 inputs or outputs left, and why.
        trials: All measurements, in the order made.
    """

    model: ir.Model
    error: float
    chosen: tuple[str, ...]
    clipped: tuple[ClippedTensor, ...]
    kept: tuple[KeptNode, ...]
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
    """Converts a model to 16 bits except for the nodes that a tolerance on the output error forbids.

    Args:
        model: A path, the bytes of a file, a message or a Model. It is not changed.
        inputs: Values for the model's inputs by name, as the float32 model takes them; or several such samples. None
            draws samples in the range that the graph allows, until each output holds something to compare; real
            inputs tell more.
        tolerance: The largest error allowed, as ``output_error`` measures it.
        dtype: The 16-bit type.
        min_positive_val: As for ``convert_float_to_float16``; None means the default for the type.
        max_finite_val: As for ``convert_float_to_float16``; None means the default for the type.
        keep_io_types: As for ``convert_float_to_float16``.
        op_block_list: As for ``convert_float_to_float16``.
        node_block_list: As for ``convert_float_to_float16``.
        max_trials: How many times the model may be converted and run; when they are used up, the best so far is given.

    Returns:
        The model, whose error is measured to be within the tolerance, with the nodes kept and all measurements.

    Raises:
        OptionError: An option is impossible, or the tolerance is not met even with every node in float32 (because the
            inputs and outputs alone are rounded too much).
        EvaluationError: The model does not run on the inputs, or its outputs on them hold nothing to compare.
        UnsupportedError: bfloat16 for a model that imports a standard operator set older than 13.
    """
    if inputs is not None and not inputs:
        raise OptionError("is empty", where="inputs", remedy="Give at least one sample, or None to draw some.")
    if not tolerance > 0:
        raise OptionError(f"{tolerance} is not above 0", where="tolerance")
    if max_trials < 2:
        raise OptionError(f"{max_trials} is too few", where="max_trials", remedy="The search needs at least 2.")
    if dtype not in ("float16", "bfloat16"):
        raise OptionError(f"{dtype!r} is neither 'float16' nor 'bfloat16'", where="dtype")
    clamp = default_clamp(ir.DataType[dtype.upper()], min_positive_val, max_finite_val)
    options = make_options(clamp, keep_io_types, False, op_block_list, node_block_list)
    source = model_io.load(model)
    # Over a model that is run so often an engine may crash: in a process of its own it takes nothing with it.
    with Apart(here=uses_own_operators(source)) as apart:
        if inputs is None:
            samples = _draw(source, apart)
        else:
            samples = [inputs] if isinstance(inputs, Mapping) else list(inputs)
            for sample in samples:
                require_fit(source, sample)
        search = _Search(source, samples, tolerance, options, max_trials, apart)
        return search.result(search.run())


def output_error(reference: Mapping[str, Any], answers: Mapping[str, Any]) -> float:
    """How far a model's outputs are from the reference's; the worst output counts.

    For floats, the largest difference divided by the largest finite magnitude of the reference; for other elements, the
    share that differs. Infinite where shapes differ, or where an output is not finite and the reference is.
    """
    return max((_difference(reference[name], answers[name]) for name in reference), default=0.0)


def _difference(reference: Any, answer: Any) -> float:
    if isinstance(reference, (list, tuple)):
        if len(reference) != len(answer):
            return np.inf
        return max((_difference(r, a) for r, a in zip(reference, answer, strict=True)), default=0.0)
    if isinstance(reference, Mapping):
        return output_error(reference, answer) if reference.keys() == answer.keys() else np.inf
    expected, found = np.asarray(reference), np.asarray(answer)
    if expected.shape != found.shape:
        return np.inf
    if not expected.size:
        return 0.0
    if expected.dtype.kind != "f":
        return float(np.mean(expected != found))
    expected, found = expected.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(expected)
    if not np.array_equal(expected[~finite], found[~finite], equal_nan=True) or not np.isfinite(found[finite]).all():
        return np.inf
    largest = np.abs(expected[finite]).max(initial=0.0)
    distance = np.abs(expected[finite] - found[finite]).max(initial=0.0)
    return float(distance / largest) if largest else float(distance)


class _Search:
    """Nodes are known by their place among all nodes, which every private copy of the model shares."""

    def __init__(
        self,
        model: ir.Model,
        samples: Sequence[Feeds],
        tolerance: float,
        options: Options,
        max_trials: int,
        apart: Apart,
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
                "every output is empty, or nothing in it is finite: there is nothing to compare",
                where="inputs",
                remedy="Give inputs on which the model's outputs hold numbers.",
            )

    def run(self) -> Nodes:
        """The nodes to keep."""
        nothing: Nodes = frozenset()
        if self._error(nothing) <= self._tolerance:
            return nothing
        candidates = self._candidates()
        everything = frozenset(candidates)
        if (floor := self._error(everything)) > self._tolerance:
            raise OptionError(
                f"{self._tolerance:g} cannot be met: with every node in float32 the error is {floor:.3g}",
                where="tolerance",
                remedy="Keep inputs and outputs in float32 (keep_io_types), or allow more.",
            )
        segments = _cut(candidates, _SEGMENTS)
        if len(self._trials) + len(segments) < self._max_trials:
            segments.sort(key=lambda segment: self._error(everything - frozenset(segment)), reverse=True)
        return self._release(self._worst(segments))

    def _worst(self, segments: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """The fewest of the first segments that suffice, by bisection; all of them are known to."""
        fails, passes = 0, len(segments)
        while passes - fails > 1 and len(self._trials) < self._max_trials:
            middle = (fails + passes) // 2
            if self._error(frozenset().union(*segments[:middle])) <= self._tolerance:
                passes = middle
            else:
                fails = middle
        return list(segments[:passes])

    def _release(self, segments: Sequence[Sequence[int]]) -> Nodes:
        """Gives halves of kept segments back to 16 bits, the largest first, as long as the tolerance holds."""
        kept = frozenset[int]().union(*segments)
        waiting = [(-len(segment), list(segment)) for segment in segments]
        heapq.heapify(waiting)
        while waiting:
            _, segment = heapq.heappop(waiting)
            for half in _cut(segment, 2):
                if len(self._trials) >= self._max_trials:
                    return kept
                if self._error(kept - frozenset(half)) <= self._tolerance:
                    kept -= frozenset(half)
                elif len(half) > 1:
                    heapq.heappush(waiting, (-len(half), half))
        return kept

    def result(self, kept: Nodes) -> MixedPrecision:
        """The model with ``kept`` in float32, and the record of the search."""
        conversion, labels = self._convert(kept)
        return MixedPrecision(
            conversion.model, self._error(kept), labels, conversion.clipped, conversion.kept, tuple(self._trials)
        )

    def _error(self, kept: Nodes) -> float:
        if kept not in self._errors:
            converted = self._convert(kept, only_round=True)[0].model
            pairs = zip(self._references, self._answers(converted), strict=True)
            self._errors[kept] = max(output_error(reference, answers) for reference, answers in pairs)
            self._trials.append(Trial(len(kept), self._errors[kept]))
        return self._errors[kept]

    def _answers(self, model: ir.Model) -> list[dict[str, Any]]:
        with self._apart.file_of(model) as path:
            return [self._apart.run(path, feeds) for feeds in self._samples]

    def _convert(self, kept: Nodes, *, only_round: bool = False) -> tuple[Conversion, tuple[str, ...]]:
        labels: list[str] = []

        def choose(typed: TypedModel) -> Collection[ir.Node]:
            nodes = [node for place, node in enumerate(_nodes(typed)) if place in kept]
            labels.extend(node_label(node) for node in nodes)
            return nodes

        conversion = convert(private_copy(self._model), self._options, choose, only_round=only_round)
        return conversion, tuple(labels)

    def _candidates(self) -> list[int]:
        """The nodes that compute with float32; containers of other nodes are left to those."""
        found: list[int] = []

        def look(typed: TypedModel) -> Collection[ir.Node]:
            for place, node in enumerate(_nodes(typed)):
                own = node.op_type not in CONTROL_FLOW and node.op_type != "Constant" and node not in typed.calls
                if own and any(typed.float32(value) for value in (*node.inputs, *node.outputs)):
                    found.append(place)
            return ()

        convert(private_copy(self._model), self._options, look)
        return found


def _nodes(typed: TypedModel) -> Iterable[ir.Node]:
    yield from typed.model.graph.all_nodes()
    for function in dict.fromkeys(typed.calls.values()):
        yield from function.all_nodes()


def _cut(nodes: Sequence[int], parts: int) -> list[list[int]]:
    """The nodes in order in at most ``parts`` runs of about the same length, none empty."""
    count = min(parts, len(nodes))
    bounds = [len(nodes) * part // count for part in range(count + 1)] if count else []
    return [list(nodes[start:stop]) for start, stop in itertools.pairwise(bounds)]


def _draw(model: ir.Model, apart: Apart) -> list[Feeds]:
    """Samples on which the model runs, and which between them have something to compare in every output."""
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
        search = Search(annotated, lambda feeds: apart.run(path, feeds), seed=0, wanted=2)
        found = search.samples(fill)
    if not found:
        raise EvaluationError(
            f"no inputs drawn for the model tell anything of it: {'; '.join(search.reasons)[:400]}",
            remedy="Give inputs.",
        )
    for sample in found:
        fill(sample)
    if len(seen) < len(outputs):
        raise EvaluationError(
            "an output is empty, or nothing in it is finite, on all inputs drawn: there is nothing to compare",
            where=", ".join(name for name in outputs if name not in seen),
            remedy="Give inputs on which every output holds numbers.",
        )
    wanted = [*seen.values(), *(sample.feeds for sample in found[:2])]
    return list({id(feeds): feeds for feeds in wanted}.values())


def _comparable(answer: Any) -> bool:
    """Whether an output has an element that can be compared: one that is there and, of floats, finite."""
    if isinstance(answer, Mapping):
        return any(_comparable(value) for value in answer.values())
    if isinstance(answer, (list, tuple)):
        return any(_comparable(value) for value in answer)
    array = np.asarray(answer)
    return bool(np.isfinite(array).any()) if array.dtype.kind == "f" else array.size > 0 and answer is not None
