"""The original model in verification: its executable form, samples, and answers."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.errors import EvaluationError, ShapeError
from sardonyx.rewrite import evaluate
from sardonyx.rewrite.analysis import facts, inference
from sardonyx.rewrite.analysis.names import node_label
from sardonyx.rewrite.verify import parts, random_nodes
from sardonyx.rewrite.verify.search import Feeds, Sample, Search

SAMPLES = 3
"""Number of samples on which models are compared."""

MOST_REFUSED = 16
"""Maximum number of nodes refused by all evaluators before verification is given up."""

BRANCH = "branch:"
"""Name prefix of the conditions observed while drawing."""


class Reference:
    """The original, the samples on which it runs, and its answers.

    Args:
        path: The original's file.
        folder: A writable folder for variants of the original.
        inputs_file: A file of pickled inputs by name, or None to draw inputs.
        seed: Seed of the drawn inputs.
        prepare: Called with the original, its shapes inferred, before its first run.
        is_random: The model has nodes that draw random numbers, with seeds.

    Attributes:
        opaque: The opaque nodes; the comparison covers the remaining model.
        reasons: Reasons for repeated draws or for missing samples.
        notes: Remarks for a reader of the proof.
    """

    def __init__(
        self,
        path: Path,
        folder: Path,
        inputs_file: str | None,
        seed: int,
        prepare: Callable[[ir.Model], None],
        *,
        is_random: bool = False,
    ) -> None:
        self.path = path
        self.folder = folder
        self.samples: list[Sample] = []
        self.opaque: list[parts.Opaque] = []
        self.reasons: list[str] = []
        self.notes: list[str] = []
        self.seconds = 0.0
        self.is_random = is_random
        if is_random:
            self.notes.append("random nodes have equal seeds in both models")
        self._compared: tuple[Sequence[str], list[Mapping[str, Any]]] | None = None
        model = self._annotated()
        prepare(model)
        try:
            if inputs_file is not None:
                self._run_supplied(Path(inputs_file))
            else:
                self._draw(path, model, seed)
        except EvaluationError as error:
            self.reasons.append(str(error)[:600])
            if inputs_file is None:
                self._by_parts(str(error), seed)

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for the parent process."""
        return {"samples": len(self.samples), "reasons": self.reasons, "seconds": self.seconds}

    def runner(self, path: Path) -> evaluate.Runner:
        """Return a runner of a variant of the original or of a candidate."""
        return random_nodes.runner_of(path, is_random=self.is_random)

    def _annotated(self) -> ir.Model:
        model = model_io.load(self.path)
        inference.infer_shapes(model, strict=False)
        return model

    def _run_supplied(self, file: Path) -> None:
        # Safe to unpickle: the parent wrote the file into its folder. Sequences and maps exclude an array archive.
        feeds = pickle.loads(file.read_bytes())
        self.samples.append(Sample({}, feeds, self._timed(self.runner(self.path))(feeds)))

    def _timed(self, runner: evaluate.Runner) -> Any:
        def run(feeds: Feeds) -> Mapping[str, Any]:
            began = time.monotonic()
            answers = runner.run(feeds)
            self.seconds = max(self.seconds, time.monotonic() - began)
            return answers

        return run

    # -- drawing -------------------------------------------------------------------------------

    def _draw(self, path: Path, model: ir.Model, seed: int) -> None:
        conditions = _conditions(model)
        if conditions:
            path = self.folder / "watched.onnx"
            probed = model_io.load(self.path)
            for node, name in zip(_choices(probed), conditions, strict=True):
                condition = node.inputs[0]
                assert condition is not None
                parts.expose_value(probed.graph, condition, name)
            model_io.save(probed, path)
        seen: set[tuple[str, bool]] = set()

        def unseen(sample: Sample) -> bool:
            seen.update((name, bool(np.all(sample.answers[name]))) for name in conditions)
            return len(seen) < 2 * len(conditions)

        search = Search(model, self._timed(self.runner(path)), seed, SAMPLES, conditions)
        samples = search.samples(unseen)
        self.reasons += search.reasons
        self.samples = [
            Sample(s.sizes, s.feeds, {k: v for k, v in s.answers.items() if k not in conditions}) for s in samples
        ]
        if not samples:
            return
        for node, name in zip(_choices(model), conditions, strict=True):
            for side, branch in ((True, "then"), (False, "else")):
                if (name, side) not in seen:
                    self.notes.append(f"no sample takes the {branch} branch of '{node.name or node.outputs[0].name}'")

    # -- by parts ------------------------------------------------------------------------------

    def _by_parts(self, reason: str, seed: int) -> None:
        refused: list[str] = []
        for _ in range(MOST_REFUSED):
            model = self._annotated()
            nodes = parts.find_opaque(model, refused)
            if not nodes:
                more = [n for n in parts.refused_nodes(reason) if n not in refused]
                if not more:
                    return
                refused += more
                continue
            try:
                self.opaque = parts.describe_opaque(model, nodes)
                parts.cut_opaque(model, self.opaque)
                path = self.folder / "original_parts.onnx"
                model_io.save(model, path)
                self._draw(path, model, seed)
            except EvaluationError as error:
                self.reasons.append(str(error)[:600])
                more = [n for n in parts.refused_nodes(str(error)) if n not in refused]
                if not more:
                    return
                refused += more
                reason = str(error)
                continue
            if self.samples:
                self.path = path
                self.notes.append(
                    f"excluded, because no evaluator runs these nodes: {', '.join(o.label for o in self.opaque)}"
                )
            return

    def refusal(self, sample: Sample) -> str:
        """Return the node that the sizes of a sample do not fit, with the reason; empty if they fit all nodes.

        Engines answer some of these: ONNX Runtime joins tensors without elements to tensors of other sizes, and what it
        does not write differs from run to run.
        """
        model = model_io.load(self.path)
        shapes = {name: value.shape for name, value in sample.feeds.items() if isinstance(value, np.ndarray)}
        for node, error in inference.infer_shapes(model, input_shapes=shapes, strict=False).items():
            if node.graph is model.graph and isinstance(error, ShapeError):
                return f"{node_label(node)}: {error.problem}"
        return ""

    def whole(self, candidate: Path) -> tuple[Path, str]:
        """Return the candidate, cut like the original, and the problem if cutting fails."""
        if not self.opaque:
            return candidate, ""
        model = model_io.load(candidate)
        inference.infer_shapes(model, strict=False)
        problem = parts.cut_opaque(model, self.opaque)
        path = self.folder / "candidate_parts.onnx"
        if not problem:
            model_io.save(model, path)
        return path, problem

    # -- comparisons ---------------------------------------------------------------------------

    def compared(self) -> tuple[Sequence[str], list[Mapping[str, Any]]]:
        """Return the names of the operands of decisions in the original, and their values in each sample."""
        if self._compared is None:
            model = model_io.load(self.path)
            inference.infer_shapes(model, strict=False)
            names = [str(v.name) for v in parts.compared_values(model) if v.name]
            parts.expose(model, names)
            path = self.folder / "compared.onnx"
            model_io.save(model, path)
            runner = self.runner(path)
            self._compared = names, [runner.run(sample.feeds) for sample in self.samples]
        return self._compared


def _choices(model: ir.Model) -> list[ir.Node]:
    """Return the Ifs of the main graph with a condition that is not constant."""
    return [
        n
        for n in model.graph
        if facts.is_op(n, "If") and n.inputs and n.inputs[0] is not None and not facts.is_constant(n.inputs[0])
    ]


def _conditions(model: ir.Model) -> list[str]:
    return [f"{BRANCH}{i}" for i, _ in enumerate(_choices(model))]
