"""``convert_to``: simplify a model, export it to a target, prove the result against the model, and report."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.convert.imported import Imported, Size
from sardonyx.convert.proof import Proof, Sample, Witness, perturbed
from sardonyx.core.dim import require_symbols
from sardonyx.errors import EvaluationError, ModelFileError, OptionError, SardonyxError, VerificationError
from sardonyx.export.artifact import Artifact, Feeds, Options
from sardonyx.export.located import first_wrong_layer
from sardonyx.export.targets import Target, exporter_of, target_of
from sardonyx.model.copying import copy_model
from sardonyx.model.load import Loadable, require_plain
from sardonyx.ops.inference import require_runnable
from sardonyx.rewrite import evaluate
from sardonyx.rewrite.analysis import facts, inference
from sardonyx.rewrite.optimize import optimize
from sardonyx.rewrite.reshape_inputs import set_input_shapes
from sardonyx.rewrite.verify import Verdict
from sardonyx.rewrite.verify.first_difference import first_difference
from sardonyx.rewrite.verify.inputs import open_sizes, require_fit, required_inputs

UNPROVED = Verdict("not proved", reason="verification was switched off")


@dataclass(frozen=True)
class ExportReport:
    """The record of an export.

    Attributes:
        target: The target.
        verdict: The comparison of artifact and model.
        sizes: The open sizes, each with the values at which both agreed.
        forms: The forms of the operators in the target, with numbers of nodes.
        guilty: The first layer that differs; empty if all agree or none is known.
        simplified: Remarks of the simplification.
        notes: Remarks of the exporter.
        seconds: Time of simplification, export and proof.
    """

    target: str
    verdict: Verdict
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    forms: Mapping[str, int] = field(default_factory=dict)
    guilty: str = ""
    simplified: str = ""
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Exported:
    """Result of ``convert_to``.

    Attributes:
        artifact: The framework's object: an ``nn.Module``, a text, the bytes of a file.
        report: The forms of the operators, the sizes, and the proof.
    """

    artifact: Any
    report: ExportReport
    _whole: Artifact

    def save(self, path: str | os.PathLike[str], *, unproved: bool = False) -> list[Path]:
        """Write the artifact; all of its files appear complete, the main one last.

        Args:
            path: The main file, or folder; companions are written beside it with the same stem.
            unproved: Write an artifact that is not proved equal to the model.

        Returns:
            The files and folders written, the main one last.

        Raises:
            VerificationError: The artifact is not proved; nothing is written.
            ModelFileError: The folder does not exist or is not writable.
        """
        verdict = self.report.verdict
        if verdict.status != "proved" and not unproved:
            raise VerificationError(
                f"the {self.report.target} artifact is not proved equal to the model "
                f"({verdict.status}: {verdict.reason})",
                where=self.report.guilty,
                remedy="Write it nevertheless with `unproved=True` (`--unproved`).",
            )
        return _written(self._whole, Path(path))


def _written(artifact: Artifact, target: Path) -> list[Path]:
    if not target.is_dir():
        model_io.require_writable(target)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as folder:
            artifact.write(Path(folder) / target.name)
            entries = sorted(Path(folder).iterdir(), key=lambda entry: (entry.name == target.name, entry.name))
            written = [target.parent / entry.name for entry in entries]
            for entry, final in zip(entries, written, strict=True):
                if final.is_dir() and not final.is_symlink():
                    shutil.move(final, Path(folder) / f"{final.name}.replaced")
                entry.replace(final)
    except OSError as error:
        raise ModelFileError(f"cannot be written: {error}", where=str(target)) from error
    return written


def convert_to(
    model: Loadable,
    target: str,
    *,
    inputs: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
    name: str | None = None,
    simplify: bool = True,
    verify: bool = True,
    seed: int = 0,
) -> Exported:
    """Return a model in the form of another framework or engine, proved equal to the model.

    Args:
        model: A model, or anything that ``sardonyx.load`` accepts; it is not changed.
        target: A name of :data:`sardonyx.export.targets.TARGETS`: ``"torch"``, ``"stablehlo"``, ….
        inputs: Real inputs by name; drawn numbers keep their range.
        sizes: Numbers for open sizes, by name; a target without open sizes takes others from `inputs`.
        name: Name of the program in the target; by default derived from the model's.
        simplify: Simplify the model by rewrite rules first.
        verify: Compare artifact and model on drawn inputs, at several sizes.
        seed: Seed of the drawn inputs.

    Returns:
        The artifact and the report. ``Exported.save`` refuses an artifact that is not proved.

    Raises:
        UnsupportedError: Nodes of the model have no form in the target: lists nodes, operators and rules.
        OptionError: The target, a size, or an input is unknown.
        MissingDependencyError: A package of the target is not installed.
    """
    row = target_of(target)
    exporter = exporter_of(row)
    source, fixed = loaded(model, row, sizes or {}, inputs)
    require_plain(source)
    if inputs is not None:
        require_fit(source, inputs)
    began = time.perf_counter()
    simplified, remark = simplified_model(source) if simplify else (source, "not requested")
    seconds = {"simplify": time.perf_counter() - began}
    options = Options(name or _identifier(source.graph.name or ""), fixed)
    began = time.perf_counter()
    artifact: Artifact = exporter.export(simplified, options)
    seconds["export"] = time.perf_counter() - began
    began = time.perf_counter()
    proof = Proof(UNPROVED)
    if verify:
        parts = (lambda feeds: first_wrong_layer(simplified, exporter, options, feeds)) if row.is_foreign else None
        proof = proof_of(source, artifact, inputs, seed, parts)
    seconds["proof"] = time.perf_counter() - began
    report = ExportReport(
        target,
        proof.verdict,
        proof.confirmed,
        dict(artifact.forms),
        proof.guilty,
        remark,
        (*_notes_on_sizes(fixed, sizes or {}), *artifact.notes),
        {step: round(time_, 3) for step, time_ in seconds.items()},
    )
    return Exported(artifact.value, report, artifact)


def loaded(
    model: Loadable, target: Target, sizes: Mapping[str, int], inputs: Feeds | None = None
) -> tuple[ir.Model, dict[str, int]]:
    """Return a copy of the model with inferred types and fixed sizes, and these sizes by name.

    Fixed are the sizes that the caller gives, and for a target without open sizes the other ones, as `inputs` have
    them.

    Raises:
        OptionError: A size is unknown, or the target needs a number for an open size.
        SardonyxError: A node does not accept its inputs.
    """
    source = copy_model(model if isinstance(model, ir.Model) else model_io.load(model))
    require_runnable(inference.infer_shapes(source, strict=False), source.graph)
    opened = open_sizes(source)
    require_symbols(sizes, opened)
    sizes = dict(sizes)
    if inputs is not None and not target.opens_sizes:
        require_fit(source, inputs)
        others = {name: _size_of(source, inputs, name) for name in opened if name not in sizes}
        sizes |= {name: size for name, size in others.items() if size}
    if sizes:
        set_input_shapes(source, _fixed_shapes(source, sizes))
        inference.infer_shapes(source, strict=False)
        opened = open_sizes(source)
    if opened and not target.opens_sizes:
        raise OptionError(
            f"{target.name} has no open sizes, and the model has {', '.join(opened)}.",
            where="sizes",
            remedy=f"Give inputs, or `sizes`: {', '.join(f'{size}=1' for size in opened)}.",
        )
    return source, sizes


def _notes_on_sizes(fixed: Mapping[str, int], requested: Mapping[str, int]) -> list[str]:
    """Return a note about sizes that inputs decided."""
    others = [f"{name}={size}" for name, size in fixed.items() if name not in requested]
    return [f"sizes are fixed as the inputs have them: {', '.join(others)}"] if others else []


def _fixed_shapes(model: ir.Model, sizes: Mapping[str, int]) -> dict[str, list[int | str | None]]:
    shapes: dict[str, list[int | str | None]] = {}
    for value in required_inputs(model):
        dims = [size if isinstance(size, int) else size.value for size in value.shape or ()]
        if any(dim in sizes for dim in dims if isinstance(dim, str)):
            shapes[str(value.name)] = [sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in dims]
    return shapes


def simplified_model(model: ir.Model) -> tuple[ir.Model, str]:
    """Return a model simplified by rewrite rules, with remarks; the proof of the export covers the rewrites."""
    try:
        return optimize(model, verify=False).model, ""
    except SardonyxError as error:
        return model, f"left out: {error}"


def _identifier(name: str) -> str:
    """Return a class name derived from a graph's name."""
    words = [word for word in re.split(r"\W+|_", name) if word and word.isascii()]
    text = "".join(word[0].upper() + word[1:] for word in words)
    return text if text.isidentifier() and len(text) <= 60 else "Model"


class _ArtifactRunner:
    """The artifact as a runner of the proof."""

    def __init__(self, artifact: Artifact, target: str) -> None:
        self.name = target
        self._artifact = artifact

    def run(self, feeds: Feeds, outputs: Any = None) -> dict[str, Any]:
        assert self._artifact.run is not None
        return dict(self._artifact.run(feeds))


def proof_of(
    model: ir.Model,
    artifact: Artifact,
    inputs: Feeds | None,
    seed: int,
    locate_by_parts: Callable[[Feeds], str] | None = None,
) -> Proof:
    """Compare an artifact with the model: ONNX Runtime's answers, and those of the definitions where they differ.

    Args:
        model: The model.
        artifact: The artifact.
        inputs: Real inputs.
        seed: Seed of drawn inputs.
        locate_by_parts: Locates a difference of an artifact without inner values.
    """
    if artifact.run is None:
        return Proof(Verdict("not proved", reason=artifact.reason or "no engine runs the artifact here"))
    with tempfile.TemporaryDirectory(prefix="sardonyx-export-") as folder:
        path = Path(folder) / "model.onnx"
        model_io.save(model, path)
        try:
            source = evaluate.runner(path)
        except EvaluationError as error:
            return Proof(Verdict("not proved", reason=f"the model cannot be run: {error}"))
        sizes = {name: Size(0 if inputs is None else _size_of(model, inputs, name)) for name in open_sizes(model)}
        first = Imported(
            model,
            source.run,
            sizes=sizes,
            examples=[] if inputs is None else [inputs],
            code_bits=artifact.code_bits or _code_bits(model),
            shaken=lambda feeds, seed: _with_other_weights(model, feeds, seed),
        )
        witness = Witness(first, seed)
        runner = _ArtifactRunner(artifact, "artifact")
        differing: list[Sample] = []

        def locate(sample: Sample) -> str:
            differing.append(sample)
            return _guilty(model, artifact, sample)

        proof = witness.judge_runner(runner, locate=locate)
        if proof.verdict.status == "proved":
            return proof
        if source.name == "reference":
            return _located(proof, differing, locate_by_parts)
        definitions = Witness(Imported(model, _reference(path), sizes=sizes, examples=first.examples), seed)
        second = definitions.judge_runner(runner)
        if second.verdict.status != "proved":
            return _located(proof, differing, locate_by_parts)
        note = f"{source.name} differs from the operators' definitions: {proof.verdict.reason}"
        verdict = Verdict(**{**second.verdict.__dict__, "notes": (*second.verdict.notes, note)})
        return Proof(verdict, second.confirmed)


def _with_other_weights(model: ir.Model, feeds: Feeds, seed: int) -> Any:
    """Return the answers of a model whose weights are changed in the last bits.

    Vectors and scalars stay: some are scales and limits, from which sizes are computed.
    """
    changed = copy_model(model)
    for name, value in changed.graph.initializers.items():
        is_matrix = value.const_value is not None and len(value.const_value.shape) > 1
        if is_matrix and value.const_value is not None and value.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
            value.const_value = ir.tensor(perturbed({name: value.const_value.numpy()}, seed)[name], name=name)
    with tempfile.TemporaryDirectory(prefix="sardonyx-export-") as folder:
        path = Path(folder) / "model.onnx"
        model_io.save(changed, path)
        return evaluate.runner(path).run(feeds)


def _located(proof: Proof, differing: list[Sample], locate: Callable[[Feeds], str] | None) -> Proof:
    """Return a proof with the first wrong layer, found by artifacts of parts of the model."""
    if proof.guilty or locate is None or not differing:
        return proof
    return replace(proof, guilty=locate(differing[-1].feeds))


def _reference(path: Path) -> Any:
    return evaluate.ReferenceRunner(path).run


_ROUNDING = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul")
"""Operators that round numbers to codes of 8 bits."""


def _code_bits(model: ir.Model) -> int:
    """Return 8 if activations are quantized, else 0: an engine rounds a tie of the model to the neighbouring code."""
    nodes = ir.traversal.RecursiveGraphIterator(model.graph)
    return 8 if any(facts.is_op(n, *_ROUNDING) and not facts.is_constant(n.inputs[0]) for n in nodes) else 0


def _size_of(model: ir.Model, inputs: Feeds, name: str) -> int:
    for value in required_inputs(model):
        array = inputs.get(str(value.name))
        for axis, size in enumerate(value.shape or ()):
            if not isinstance(size, int) and size.value == name and array is not None:
                return int(array.shape[axis])
    return 0


def _guilty(model: ir.Model, artifact: Artifact, sample: Sample) -> str:
    """Return the first layer of the artifact whose result differs from the model's."""
    return "" if artifact.inner is None else first_difference(model, artifact.inner, sample.feeds, is_expected=True)
