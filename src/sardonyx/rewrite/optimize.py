"""``optimize``: rewrite to the fixed point, prove the result, drop what cannot be proved, and say all of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.rewrite import pipeline, targets
from sardonyx.rewrite.engine import Applied, Engine, Settings
from sardonyx.rewrite.language import Rule
from sardonyx.rewrite.record import Dropped, Report
from sardonyx.rewrite.structure import require_structure
from sardonyx.rewrite.verify import Verdict, Verifier

Source = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model

MOST_DROPPED = 32
"""Patches dropped one by one before the result is given up and the original returned."""


@dataclass(frozen=True)
class Optimized:
    """What ``optimize`` returns.

    Attributes:
        model: The optimized model.
        report: What was done, what was proved, and what was refused.
    """

    model: ir.Model
    report: Report

    @property
    def proto(self) -> onnx.ModelProto:
        """The model as a protobuf message.

        Raises:
            ModelTooLargeError: it would exceed 2 GB; ``save`` has no such bound.
        """
        return model_io.to_proto(self.model)

    def save(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write the model to a file; see ``sardonyx.save``."""
        model_io.save(self.model, path, **options)


def optimize(
    model: Source,
    *,
    target: str = "portable",
    passes: Sequence[str] | None = None,
    skip: Iterable[str] = (),
    skip_fuse_bn: bool = False,
    input_shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    inputs: Mapping[str, Any] | None = None,
    opset: int | None = None,
    verify: bool = True,
    rules: Iterable[Rule] = (),
) -> Optimized:
    """Rewrite a model to fewer, cheaper nodes, and prove that it computes the same.

    Args:
        model: A path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model`` (left as it is).
        target: ``portable``, ``onnxruntime``, ``openvino``, ``tensorrt`` or ``native``.
        passes: Names of the passes to run; those of the target when None.
        skip: Names of passes not to run.
        skip_fuse_bn: Keep BatchNormalization apart from convolutions (for training or quantization to come).
        input_shapes: New shapes of graph inputs, by name; constants baked from the old ones are repaired.
        inputs: Real inputs to verify on, by name; drawn from what the graph allows when None.
        opset: Raise or lower the default operator set first; never changed otherwise.
        verify: Whether to prove the result (in a child process). Without it nothing is promised.
        rules: Further rules, made with ``sardonyx.rule``.

    Returns:
        The model and the report. A rewrite that changes an output is found, dropped and reported.

    Raises:
        OptionError: an unknown target or pass.
        SardonyxError: the model cannot be read, or its shapes contradict ``input_shapes``.
    """
    started = time.perf_counter()
    profile = targets.profile(target)
    skipped = {*skip, *(("fuse_bn_into_conv",) if skip_fuse_bn else ())}
    selection = pipeline.select(profile.name, passes, skipped, rules)
    original = _Original(model, input_shapes, opset)
    settings = Settings(target=profile.name)
    report = Report.begin(original.model, original.bytes, profile.name)
    work, engine = _transform(original, selection, settings)
    transformed = time.perf_counter()
    verdict = Verdict("not proved", reason="verification was switched off")
    dropped: list[Dropped] = []
    if verify:
        with Verifier(original.witness(), inputs=inputs) as verifier:
            verdict = verifier.judge(work, exact=_exact(engine.applied))
            while verdict.status == "different" and len(dropped) < MOST_DROPPED and engine.applied:
                guilty = _bisect(original, selection, settings, engine.applied, verifier)
                dropped.append(Dropped(guilty.rule, guilty.site, verdict.reason))
                banned = settings.banned | {(guilty.rule, guilty.site)}
                settings = replace(settings, banned=banned)
                work, engine = _transform(original, selection, settings)
                verdict = verifier.judge(work, exact=_exact(engine.applied))
        if verdict.status == "different":
            work, engine = original.fresh(), Engine(original.fresh(), settings)
            verdict = Verdict("not proved", reason=f"every attempt changed an output; returned as it was: {verdict.reason}")
    report.finish(
        work,
        engine,
        verdict,
        dropped,
        seconds=transformed - started,
        verify_seconds=time.perf_counter() - transformed if verify else 0.0,
    )
    return Optimized(work, report)


class _Original:
    """The model before any rewrite, from which a fresh copy can be had as often as needed."""

    def __init__(
        self, source: Source, input_shapes: Mapping[str, Sequence[int | str | None]] | None, opset: int | None
    ) -> None:
        self._source = source
        self._path = Path(source) if isinstance(source, (str, os.PathLike)) else None
        self._changed = bool(input_shapes) or opset is not None
        self._input_shapes = input_shapes
        self._opset = opset
        self._untouched = True
        self.model = self._prepare()
        self.bytes = self._path.stat().st_size if self._path is not None else _size(self.model)

    def _prepare(self) -> ir.Model:
        if isinstance(self._source, onnx.ModelProto):
            # A message in memory may be nested deeper than any file, and than what reads it can follow.
            require_structure(self._source)
        model = model_io.load(self._source)
        if model is self._source:
            model = model.clone()
        if self._opset is not None:
            from sardonyx.rewrite.opset import convert_opset

            model = convert_opset(model, self._opset)
        if self._input_shapes:
            from sardonyx.rewrite.reshape_inputs import set_input_shapes

            set_input_shapes(model, self._input_shapes)
        return model

    def fresh(self) -> ir.Model:
        """A model to rewrite: the one at hand the first time, and then another, read again (which is faster than a clone)."""
        if self._untouched:
            self._untouched = False
            return self.model
        self.model = self._prepare()
        return self.model

    def witness(self) -> ir.Model | Path:
        """What verification runs: the file itself where it is what was asked for."""
        binary = self._path is not None and not self._changed and self._path.suffix == ".onnx"
        return self._path if binary and self._path is not None else self._prepare()


def _size(model: ir.Model) -> int:
    weights = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    return weights + 100 * sum(1 for _ in model.graph.all_nodes())


def _transform(original: _Original, selection: pipeline.Selection, settings: Settings) -> tuple[ir.Model, Engine]:
    work = original.fresh()
    return work, pipeline.transform(work, selection, settings)


def _exact(applied: Sequence[Applied]) -> bool:
    return all(patch.exactness == "exact" for patch in applied)


def _bisect(
    original: _Original,
    selection: pipeline.Selection,
    settings: Settings,
    applied: Sequence[Applied],
    verifier: Verifier,
) -> Applied:
    """The first patch after which an output differs: ``good`` patches do no harm, ``bad`` patches do."""
    good, bad = 0, len(applied)
    while bad - good > 1:
        middle = (good + bad) // 2
        limited = replace(settings, limit=middle)
        work, engine = _transform(original, selection, limited)
        if verifier.judge(work, exact=_exact(engine.applied)).status == "different":
            bad = middle
        else:
            good = middle
    return applied[bad - 1]


