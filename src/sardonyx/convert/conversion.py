"""``convert``: import a source, simplify, prove against the source, and report."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.convert.imported import NOT_NEEDED, Call, Imported, Options, Way, summarized
from sardonyx.convert.importers import importer_of, ways_of
from sardonyx.convert.proof import Proof, Witness
from sardonyx.errors import ConversionError, ModelFileError, OptionError, SardonyxError, VerificationError
from sardonyx.model.named_arrays import read_named_arrays
from sardonyx.rewrite.analysis.structure import require_valid
from sardonyx.rewrite.opset import convert_opset
from sardonyx.rewrite.optimize import optimize
from sardonyx.rewrite.record import Count
from sardonyx.rewrite.verify import Verdict

UNPROVED = Verdict("not proved", reason="verification was switched off")


@dataclass(frozen=True)
class Attempt:
    """One way that was tried.

    Attributes:
        way: Name of the way.
        outcome: ``"proved"``, ``"different"``, ``"not proved"``, or ``"refused"`` if no model resulted.
        reason: The reason unless proved.
        where: The first layer that differs, or the source line of the refused call.
    """

    way: str
    outcome: str
    reason: str = ""
    where: str = ""


@dataclass(frozen=True)
class ConversionReport:
    """The record of a conversion.

    Attributes:
        framework: The source's framework.
        way: The way that made the model.
        verdict: The comparison of model and source.
        sizes: The open sizes, each with the values at which model and source agreed.
        calls: The calls of the source with their results, calls of one operator as one.
        attempts: Every way tried, in order.
        nodes: Number of nodes of the model.
        simplified: Remarks of the simplification: dropped patches, or the reason why it was left out.
        notes: Remarks of the importer.
        seconds: Time of import, simplification and proof, of all attempts together.
    """

    framework: str
    way: str
    verdict: Verdict
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    calls: tuple[Call, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    nodes: int = 0
    simplified: str = ""
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Converted:
    """Result of ``convert``.

    Attributes:
        model: The model.
        report: The result of every call, the open sizes, and the proof.
        beside: Files that `save` copies to the model's folder, e.g. a tokenizer.
    """

    model: ir.Model
    report: ConversionReport
    beside: tuple[Path, ...] = ()

    @property
    def proto(self) -> onnx.ModelProto:
        """The model as a protobuf message.

        Raises:
            ModelTooLargeError: the message would exceed 2 GB; ``save`` has no such bound.
        """
        return model_io.to_proto(self.model)

    def save(self, path: str | os.PathLike[str], *, unproved: bool = False, **options: Any) -> None:
        """Write the model to a file; see ``sardonyx.save``.

        Args:
            path: The file.
            unproved: Write a model that is not proved equal to its source.
            **options: Options of ``sardonyx.save``.

        Raises:
            VerificationError: The model is not proved; nothing is written.
            InvalidModelError: The full check of the model finds errors; nothing is written.
        """
        verdict = self.report.verdict
        if verdict.status != "proved" and not unproved:
            first = self.report.attempts[-1].where if self.report.attempts else ""
            raise VerificationError(
                f"the model is not proved equal to its source ({verdict.status}: {verdict.reason})",
                where=first,
                remedy="Write it nevertheless with `unproved=True` (`--unproved`).",
            )
        require_valid(self.model)
        model_io.save(self.model, path, **options)
        folder = Path(path).parent
        for file in self.beside:
            if file.parent.resolve() != folder.resolve():
                shutil.copyfile(file, folder / file.name)


def convert(
    source: Any,
    example_inputs: Any = None,
    *,
    sample: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    dynamic: Literal["auto"] | bool | Mapping[str, Mapping[int, str]] = "auto",
    exporter: str = "auto",
    framework: str | None = None,
    simplify: bool = True,
    verify: bool = True,
    trust: bool = False,
    opset: int | None = None,
    opaque: Sequence[str] = (),
    seed: int = 0,
) -> Converted:
    """Return the model of a program of another framework, proved against the program.

    Args:
        source: An object of a framework (``torch.nn.Module``, ``torch.export.ExportedProgram``, …), a function of
            PyTorch or JAX, the path of a file, or ``"file.py:function"``, whose result is converted.
        example_inputs: Inputs of the program: one value, a sequence of positional values, or a mapping of named ones.
            Programs that declare their inputs need none.
        sample: The same as a ``.npz`` file or a mapping of arrays, by input name.
        dynamic: ``"auto"``: the sizes that may vary follow from the program, and the proof confirms them at other
            values. False: all sizes are those of the examples. ``{"x": {0: "batch"}}``: exactly these are open.
        exporter: ``"auto"``: the first way that proves, the own importer first. A name selects one way.
        framework: The framework, where the source does not tell.
        simplify: Simplify the model by rewrite rules.
        verify: Compare with the source on drawn inputs, at several sizes.
        trust: Load files that may execute code (pickles).
        opset: Version of ``ai.onnx``, to which the importer's model is converted; that of the importer when None.
        opaque: A user's operators of torch that become nodes without a definition (``"my_ops::scale"``, or ``"my_ops"``
            for all of a library): the model is not proved.
        seed: Seed of the drawn inputs.

    Returns:
        The model and the report. ``Converted.save`` refuses a model that is not proved. The model has copies of the
        weights: the source may be trained on.

    Raises:
        ConversionError: No way makes a model; names the operators and the user's source lines.
        OptionError: The source, an option, or the example inputs are not accepted.
        MissingDependencyError: A package is not installed.
    """
    source = called_source(source)
    examples = _examples(example_inputs, sample)
    importer = importer_of(source, framework, examples)
    options = Options(examples, _open_sizes(dynamic), exporter, trust, opset, _names(opaque))
    attempts: list[Attempt] = []
    seconds = dict.fromkeys(("import", "simplify", "proof"), 0.0)
    best: Converted | None = None
    refusals: list[SardonyxError] = []
    for way in ways_of(importer, source, options):
        try:
            converted = _tried(
                way, importer.name, attempts, seconds, opset, simplify=simplify, verify=verify, seed=seed
            )
        except (OptionError, ModelFileError):
            raise
        except SardonyxError as error:
            attempts.append(Attempt(way.name, "refused", error.problem, error.where))
            refusals.append(error)
            continue
        if best is None or _rank(converted) < _rank(best):
            best = converted
        if converted.report.verdict.status == "proved" or not verify:
            break
    if best is None:
        raise _no_way(importer.name, attempts, refusals)
    if not isinstance(source, (str, os.PathLike)):
        _own_weights(best.model)
    spent = {name: round(value, 3) for name, value in seconds.items()}
    return replace(best, report=replace(best.report, seconds=spent))


def _own_weights(model: ir.Model) -> None:
    """Copy weights that are in memory of the source, which may go on to train them."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.Tensor) and tensor.dtype != ir.DataType.STRING:
                array = np.array(tensor.numpy())
                value.const_value = ir.Tensor(array, dtype=tensor.dtype, shape=tensor.shape, name=tensor.name)


def _names(opaque: Sequence[str]) -> tuple[str, ...]:
    """Return the names of opaque operators, with ``::`` between library and operator."""
    if isinstance(opaque, str):
        raise OptionError(f"expected a list of names, got '{opaque}'", where="opaque", remedy=f"Pass ['{opaque}'].")
    return tuple(name if "::" in name else name.replace(".", "::", 1) for name in opaque)


_RANKS = {"proved": 0, "not proved": 1}


def _rank(converted: Converted) -> int:
    return _RANKS.get(converted.report.verdict.status, 2)


def _tried(
    way: Way,
    framework: str,
    attempts: list[Attempt],
    seconds: dict[str, float],
    opset: int | None,
    simplify: bool,
    verify: bool,
    seed: int,
) -> Converted:
    with _timed(seconds, "import"):
        imported = way.read()
        if opset is not None and imported.model.opset_imports.get("", opset) != opset:
            imported = replace(imported, model=convert_opset(imported.model, opset))
    model, simplified = imported.model, "not requested"
    if simplify:
        with _timed(seconds, "simplify"):
            model, simplified = _simplified(imported.model, verify=False)
    proof = Proof(UNPROVED)
    with _timed(seconds, "proof"):
        if verify:
            model, proof, simplified = _judged(imported, model, simplified, seed)
    attempts.append(Attempt(way.name, proof.verdict.status, proof.verdict.reason, proof.guilty))
    report = ConversionReport(
        framework,
        way.name,
        proof.verdict,
        proof.confirmed,
        summarized(imported.calls),
        tuple(attempts),
        Count.of(model).nodes,
        simplified,
        tuple(imported.notes),
    )
    return Converted(model, report, tuple(imported.beside))


@contextlib.contextmanager
def _timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    """Add the time of the block to that of a part."""
    began = time.perf_counter()
    try:
        yield
    finally:
        seconds[part] += time.perf_counter() - began


def _judged(imported: Imported, model: ir.Model, simplified: str, seed: int) -> tuple[ir.Model, Proof, str]:
    """Return the model that agrees with the source best, simplified if that is proved, with its proof and remarks."""
    witness = Witness(imported, seed)
    proof = witness.judge(model)
    if proof.verdict.status == "different" and model is not imported.model:
        plain = witness.judge(imported.model)
        if plain.verdict.status == "proved":
            # The simplification changed a result: its own proof finds the patch.
            model, simplified = _simplified(imported.model, verify=True)
            proof = witness.judge(model)
            if proof.verdict.status != "proved":
                model, proof, simplified = imported.model, plain, "left out: it changes an output"
    if proof.verdict.status != "proved" and imported.differs is not None:
        is_different = proof.verdict.status == "different"
        samples = witness.disagreements(imported.model) if is_different else witness.unsteady()
        if samples:
            imported.differs([sample.feeds for sample in samples])
    return model, proof, simplified


def _simplified(model: ir.Model, *, verify: bool) -> tuple[ir.Model, str]:
    """Return a model simplified by rewrite rules, with remarks."""
    try:
        result = optimize(model, verify=verify)
    except SardonyxError as error:
        return model, f"left out: {error}"
    dropped = result.report.dropped
    return result.model, f"{len(dropped)} patches dropped" if dropped else ""


def _no_way(framework: str, attempts: Sequence[Attempt], refusals: Sequence[SardonyxError]) -> SardonyxError:
    refusals = [error for error in refusals if not error.problem.startswith(NOT_NEEDED)]
    if len(refusals) == 1:
        return refusals[0]
    reasons = (f"{one.way}: {one.reason}" for one in attempts if not one.reason.startswith(NOT_NEEDED))
    listed = "; ".join(dict.fromkeys(reasons)) or "no way exists"
    first = refusals[0] if refusals else None
    return ConversionError(
        f"no way converts this {framework} program ({listed})",
        where=first.where if first else "",
        remedy=first.remedy if first else "",
    )


def called_source(source: Any) -> Any:
    """Return the result of the function that ``file.py:function`` names; any other source as it is.

    Raises:
        ModelFileError: The file does not exist or fails.
        OptionError: The file has no such function.
    """
    if not isinstance(source, str):
        return source
    file, colon, name = source.rpartition(":")
    if not (colon and file.endswith(".py") and name.isidentifier()):
        return source
    path = Path(file)
    if not path.is_file():
        raise ModelFileError("no such file.", where=file, remedy="Check the path.")
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    try:
        specification.loader.exec_module(module)
        function = getattr(module, name, None)
        if callable(function):
            return function()
    except SardonyxError:
        raise
    except Exception as error:
        line = _line_of(error, path)
        raise ModelFileError(f"{type(error).__name__}: {error}", where=line or source, remedy="Mend it.") from error
    functions = ", ".join(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
    raise OptionError(f"the file has no function '{name}'", where=file, remedy=f"It has: {functions or 'none'}.")


def _line_of(error: Exception, path: Path) -> str:
    """Return the innermost line of a file in an error's traceback, ``file.py:12 (x = f(y))``; empty without any."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}:{error.lineno} ({(error.text or '').strip()[:80]})"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename) == path:
            return f"{path}:{frame.lineno} ({(frame.line or '').strip()[:80]})"
    return ""


def _open_sizes(dynamic: Any) -> Any:
    """Return the request for open sizes.

    Raises:
        OptionError: The request has another form than those of ``convert``.
    """
    if isinstance(dynamic, bool) or dynamic == "auto":
        return dynamic
    if not isinstance(dynamic, Mapping) or not all(isinstance(axes, Mapping) for axes in dynamic.values()):
        problem = f"expected 'auto', True, False, or names of sizes by input and axis, got {dynamic!r}"
        raise OptionError(problem, where="dynamic", remedy='Pass for example `{"x": {0: "batch"}}`.')
    return dynamic


def _examples(example_inputs: Any, sample: Any) -> Sequence[Any] | Mapping[str, Any]:
    if example_inputs is not None and sample is not None:
        raise OptionError("expected example inputs or a sample, got both", where="sample", remedy="Give one of them.")
    if isinstance(sample, (str, os.PathLike)):
        return read_named_arrays(Path(sample))
    chosen = example_inputs if sample is None else sample
    if chosen is None:
        return ()
    return chosen if isinstance(chosen, (tuple, list, Mapping)) else (chosen,)
