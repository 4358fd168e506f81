"""The form of a model that a session runs: compressed if the error that is measured stays within a tolerance.

A form is a rewritten model. Each form is compiled as the session will compile it, runs on samples, and is compared with
the model as given. Products by weights become bfloat16, and so do the operands of convolutions that are then faster;
everything around them stays in float32, where the engine computes as fast. A fixed precision whose error exceeds the
tolerance is an error, so that no session answers with less accuracy than requested.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from sardonyx.base.cpu_count import thread_count
from sardonyx.compiler.target.description import host
from sardonyx.compress.at_load.rounded_convolutions import faster_convolutions, round_operands
from sardonyx.compress.float16.auto import auto_mixed_precision, draw_samples, output_error
from sardonyx.compress.float16.convert import convert_bfloat16, node_label
from sardonyx.compress.quantization import quantize
from sardonyx.compress.samples import read_samples
from sardonyx.errors import EvaluationError, OptionError, SardonyxError
from sardonyx.model import Loadable, load
from sardonyx.model.copying import copy_model
from sardonyx.rewrite.analysis.inference import infer_shapes
from sardonyx.rewrite.opset import convert_opset
from sardonyx.rewrite.optimize import optimize
from sardonyx.runtime.options import SessionOptions
from sardonyx.runtime.precision import PrecisionForm, PrecisionReport
from sardonyx.runtime.session import Session

Feeds = Mapping[str, Any]

_MOST_SAMPLES = 8
"""Most given samples that errors are measured on."""

_SECONDS = 0.3
"""Time of the runs of a comparison."""

_MARGIN = 0.97
"""A compressed form is chosen if a run takes less than this share of the time of the model as given."""

_Candidate = tuple[ir.Model, float, Session]
"""A model with its error and session."""

_FIRST_OPSET = 13
"""The first standard operator set with bfloat16."""

_TRIALS = 12
"""Most trials of the search for products that stay in float32."""


def compress_at_load(model: Loadable, options: SessionOptions) -> tuple[ir.Model, PrecisionReport]:
    """Return the form of a model for a session, and the report.

    Args:
        model: The model.
        options: The options of the session.

    Raises:
        EvaluationError: The requested precision has an error above the tolerance.
        SardonyxError: The model cannot be read or run, or has no form of the requested precision.
    """
    source = load(model)
    if isinstance(options.precision_data, Iterator):
        options = replace(options, precision_data=list(options.precision_data))
    samples, origin = _samples(source, options.precision_data)
    trial = _Trial(source, samples, options)
    requested, tolerance = options.precision, options.precision_tolerance
    makers = {"auto": ("bf16", "int8", "int8 weights")}.get(requested, (requested,))
    for name in makers:
        trial.add(name, must_succeed=requested != "auto")
    allowed = [form for form in trial.forms if form.error is not None and form.error <= tolerance]
    if requested == "auto":
        chosen = min(allowed, key=lambda form: (form.seconds or 0.0) * (1.0 if form.name != "float32" else _MARGIN))
    else:
        chosen = trial.forms[-1]
        if chosen not in allowed:
            raise EvaluationError(
                f"{requested} has an error of {chosen.error:.3g} on {len(samples)} {origin} samples, above the "
                f"tolerance of {tolerance:g}.",
                where="precision",
                remedy='Raise precision_tolerance, give precision_data, or use precision="auto".',
            )
    report = PrecisionReport(requested, chosen.name, tolerance, f"{len(samples)} {origin}", tuple(trial.forms))
    return trial.models[chosen.name], report


def _samples(model: ir.Model, data: Any) -> tuple[list[Feeds], str]:
    """Return samples and their origin: given, or drawn in the range that the graph allows."""
    if data is None:
        return draw_samples(model), "drawn"
    samples = list(itertools.islice(read_samples(data, model), _MOST_SAMPLES))
    if not samples:
        raise OptionError("expected at least one sample, got none.", where="precision_data", remedy="Give samples.")
    return samples, "given"


class _Trial:
    """The forms of a model, measured against the model as given.

    Args:
        source: The model as given.
        samples: Inputs.
        options: The options of the session.
    """

    def __init__(self, source: ir.Model, samples: Sequence[Feeds], options: SessionOptions) -> None:
        self.source, self.samples, self.options = source, samples, options
        self.plain = replace(options, precision="float32", precision_data=None, compile="wait", profiling=False)
        self.session = Session(source, self.plain)
        self.names = [str(value.name) for value in source.graph.outputs]
        self.expected = [self._answers(self.session, feeds) for feeds in samples]
        self.models = {"float32": source}
        self.forms = [PrecisionForm("float32", 0.0, self._seconds({"": self.session})[""])]

    def _answers(self, session: Session, feeds: Feeds) -> Mapping[str, Any]:
        return dict(zip(self.names, session.run(None, feeds), strict=True))

    def _seconds(self, sessions: Mapping[str, Session]) -> dict[str, float]:
        """Return the least time of a run of each session, in alternation."""
        feeds, least = self.samples[0], dict.fromkeys(sessions, float("inf"))
        end = time.perf_counter() + _SECONDS
        while time.perf_counter() < end or float("inf") in least.values():
            for name, session in sessions.items():
                begin = time.perf_counter()
                session.run(None, feeds)
                least[name] = min(least[name], time.perf_counter() - begin)
        return least

    def add(self, name: str, *, must_succeed: bool) -> None:
        """Measure a form; an impossible form has the reason unless it must succeed."""
        try:
            form, model = self._measure(name)
        except SardonyxError as error:
            if must_succeed:
                raise
            self.forms.append(PrecisionForm(name, reason=error.problem))
            return
        self.models[name] = model
        self.forms.append(form)

    def _measure(self, name: str) -> tuple[PrecisionForm, ir.Model]:
        makers: Mapping[str, Callable[[], ir.Model]] = {
            "bf16": self._bfloat16,
            "int8": lambda: quantize(self.source, self.options.precision_data, target="native").model,
            "int8 weights": lambda: quantize(self.source, mode="weights", target="native").model,
        }
        model = makers[name]()
        error, session = self._error(model)
        if name == "bf16" and error > self.options.precision_tolerance:
            model, error, session = self._mixed()
            if not _has_bfloat16(model):
                raise EvaluationError(
                    "every product in bfloat16 has an error above the tolerance.",
                    where="precision",
                    remedy='Raise precision_tolerance, or use precision="auto".',
                )
        seconds = self._seconds({"float32": self.session, name: session})
        self.forms[0] = replace(self.forms[0], seconds=min(self.forms[0].seconds or 0.0, seconds["float32"]))
        return PrecisionForm(name, error, seconds[name]), model

    def _error(self, model: ir.Model) -> tuple[float, Session]:
        session = Session(model, self.plain)
        answers = [self._answers(session, feeds) for feeds in self.samples]
        return max(output_error(*pair) for pair in zip(self.expected, answers, strict=True)), session

    def _bfloat16(self, convolutions: slice = slice(None)) -> ir.Model:
        """Return the model in bfloat16: products by weights, and all or some of the convolutions that are faster."""
        converted = convert_bfloat16(self._optimized, keep_io_types=True, node_block_list=_others(self._optimized))
        model = converted.model
        round_operands(model, self._faster_convolutions(model)[convolutions])
        return model

    def _faster_convolutions(self, model: ir.Model) -> list[ir.Node]:
        infer_shapes(model, strict=False)
        return faster_convolutions(model, host(), thread_count(self.options.threads))

    def _mixed(self) -> _Candidate:
        """Return a model in bfloat16 whose error is within the tolerance, if there is one, with error and session.

        All products and as many of the first or of the last convolutions as the tolerance permits; else some of the
        products.
        """
        tolerance, total = self.options.precision_tolerance, len(self._faster_convolutions(self._optimized))
        if total and (none := self._trial(slice(0)))[1] <= tolerance:
            count, best = self._most_convolutions(total, lambda count: slice(count), (0, none))
            if 2 * count < total:
                _, best = self._most_convolutions(total, lambda count: slice(total - count, None), (count, best))
            return best
        optimized = self._optimized
        mixed = auto_mixed_precision(
            optimized, list(self.samples), tolerance, dtype="bfloat16", keep_io_types=True,
            node_block_list=_others(optimized), max_trials=_TRIALS,
        )  # fmt: skip
        return mixed.model, *self._error(mixed.model)

    def _most_convolutions(
        self, total: int, part: Callable[[int], slice], best: tuple[int, _Candidate]
    ) -> tuple[int, _Candidate]:
        """Return the largest part of the convolutions within the tolerance, by bisection, that is larger than the best.

        Args:
            total: The number of convolutions, of which all are above the tolerance.
            part: Returns the part of a number of convolutions.
            best: The largest number so far, and its candidate.
        """
        most = total
        while most - best[0] > 1:
            count = (best[0] + most) // 2
            trial = self._trial(part(count))
            if trial[1] <= self.options.precision_tolerance:
                best = count, trial
            else:
                most = count
        return best

    def _trial(self, convolutions: slice) -> _Candidate:
        model = self._bfloat16(convolutions)
        return model, *self._error(model)

    @functools.cached_property
    def _optimized(self) -> ir.Model:
        """The model as given after rewrites, which compute weights ahead: those of transposed weights, for example."""
        model = optimize(copy_model(self.source), verify=False).model
        opset = model.graph.opset_imports.get("", _FIRST_OPSET)
        return convert_opset(model, _FIRST_OPSET) if opset < _FIRST_OPSET else model


def _has_bfloat16(model: ir.Model) -> bool:
    return any(output.dtype == ir.DataType.BFLOAT16 for node in model.graph.all_nodes() for output in node.outputs)


def _others(model: ir.Model) -> list[str]:
    """Return the labels of the nodes that stay in float32: all but products by weights."""
    roots = (model.graph, *(function.graph for function in model.functions.values()))
    return [node_label(node) for root in roots for node in root.all_nodes() if not _is_product(node)]


def _is_product(node: ir.Node) -> bool:
    """Return True for a product by constant weights."""
    weights = node.inputs[1] if node.op_type in ("MatMul", "Gemm") and len(node.inputs) > 1 else None
    if weights is None or node.domain not in ("", "ai.onnx"):
        return False
    producer = weights.producer()
    return weights.const_value is not None or (producer is not None and producer.op_type == "Constant")
