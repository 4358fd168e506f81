"""``sardonyx optimize``: rewrite, prove, measure, write."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sardonyx import model as model_io
from sardonyx.cli.input_shapes import parse_shapes, require_inputs
from sardonyx.cli.output import (
    AsJson,
    ModelPath,
    OptionalOutput,
    console,
    names_in,
    print_json,
    progress,
    read_inputs,
    report_written,
    require_distinct,
    require_unread,
)
from sardonyx.errors import EvaluationError, VerificationError
from sardonyx.ops.operators_file import load_operators
from sardonyx.report import latency, optimization_page, optimization_tables
from sardonyx.report.quantities import print_all
from sardonyx.report.summary import Summary, summary
from sardonyx.rewrite.optimize import optimize
from sardonyx.rewrite.regression_gate import NOTHING_CHANGED
from sardonyx.rewrite.rules_file import load_rules

EXAMPLE = "sardonyx optimize model.onnx -o better.onnx"


def command(
    model: ModelPath,
    output: OptionalOutput = None,
    target: Annotated[str, typer.Option(help="portable, onnxruntime, openvino, tensorrt or native.")] = "portable",
    passes: Annotated[
        list[str] | None, typer.Option(help="Run only these passes (A,B; repeatable).", show_default=False)
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(help="Passes to skip (A,B; repeatable).", show_default=False)
    ] = None,
    skip_fuse_bn: Annotated[bool, typer.Option("--skip-fuse-bn", help="Do not fuse BatchNormalization.")] = False,
    input_shape: Annotated[
        list[str] | None, typer.Option(help="New input shape, NAME:1,3,H,W (repeatable).", show_default=False)
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(help="Real inputs for verification (.npz).", show_default=False)
    ] = None,
    opset: Annotated[
        int | None, typer.Option(help="Raise or lower the operator set first.", show_default=False)
    ] = None,
    rules: Annotated[
        list[Path] | None, typer.Option(help="A Python file with your own rules (repeatable).", show_default=False)
    ] = None,
    operators: Annotated[
        list[Path] | None, typer.Option(help="A Python file that defines operators (repeatable).", show_default=False)
    ] = None,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Prove that the outputs are equal.")] = True,
    gate: Annotated[
        str, typer.Option(help="counts: the engine's fusions decide; latency: measured latency decides.")
    ] = "counts",
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 3 and write nothing unless proved.")] = False,
    freeze_defaults: Annotated[
        bool,
        typer.Option("--freeze-defaults", help="Make inputs with a default value constants: callers cannot feed them."),
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="List near matches that did not fire, with reasons.")
    ] = False,
    measure: Annotated[bool, typer.Option("--measure/--no-measure", help="Measure latency before and after.")] = True,
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML page.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Rewrite a model to fewer, cheaper nodes, prove the result equal, and write standard ONNX."""
    if report is not None:
        model_io.require_writable(report)
        require_distinct({"output": output, "report": report})
        require_unread((model, inputs, *(operators or ())), {"report": report})
    shapes = parse_shapes(input_shape, "--input-shape")
    feeds = read_inputs(inputs)
    for file in operators or ():
        load_operators(file)
    with progress("optimizing", quiet=as_json):
        if shapes is not None:
            require_inputs(model_io.load(model), shapes, "--input-shape")
        result = optimize(
            model,
            target=target,
            passes=None if passes is None else names_in(passes),
            skip=names_in(skip),
            skip_fuse_bn=skip_fuse_bn,
            input_shapes=shapes,
            inputs=feeds,
            opset=opset,
            verify=verify,
            gate=gate,
            freeze_defaults=freeze_defaults,
            rules=[rule for path in rules or () for rule in load_rules(path)],
        )
    proved = result.report.verdict.status.startswith("proved")
    if strict and not proved:
        remedy = f"{'Give other inputs with --inputs' if verify else 'Drop --no-verify'}, or drop --strict."
        raise VerificationError(result.report.verdict.reason, where=str(model), remedy=remedy)
    if output is not None:
        result.save(output)
    with tempfile.TemporaryDirectory(prefix="sardonyx-") as folder:
        before = _binary(model, lambda path: model_io.save(model_io.load(model), path), Path(folder) / "before.onnx")
        after = _binary(output, result.save, Path(folder) / "after.onnx")
        changed = result.report.gate != NOTHING_CHANGED
        timing = _latency(before, after, feeds, as_json) if measure and changed else _reason(measure)
        sizes = timing.sizes if isinstance(timing, latency.Latency) else None
        figures = _Figures(summary(model, sizes=sizes), summary(output or after, sizes=sizes), timing)
    if report is not None:
        optimization_page.write(report, model.name, result.report, figures.before, figures.after, figures.latency)
    if as_json:
        print_json({**result.report.as_dict(), **figures.as_dict(), "written": None if output is None else str(output)})
        return
    print_all(
        console,
        optimization_tables.before_and_after(figures.before, figures.after, figures.latency),
        optimization_tables.passes_table(result.report),
        *([optimization_tables.explanation(result.report)] if explain else []),
        *optimization_tables.opset_hints(result.report),
        *optimization_tables.ir_version_line(figures.before, figures.after),
        optimization_tables.verdict_line(result.report),
    )
    for path in (output, report):
        if path is not None:
            report_written(path, as_json=False)


@dataclass(frozen=True)
class _Figures:
    before: Summary
    after: Summary
    latency: latency.Latency | str

    def as_dict(self) -> dict[str, Any]:
        timing = self.latency if isinstance(self.latency, str) else self.latency.as_dict()
        return {
            "file_bytes": [self.before.file_bytes, self.after.file_bytes],
            "macs": [self.before.macs, self.after.macs],
            "latency": timing,
        }


def _binary(path: Path | None, save: Callable[[Path], None], fallback: Path) -> Path:
    """Return the file itself if an engine can load it, else write a binary file to ``fallback``."""
    if path is not None and path.suffix == ".onnx":
        return path
    save(fallback)
    return fallback


def _reason(measure: bool) -> str:
    """Return the reason why no latency is measured; two sessions of one model differ by their memory alone."""
    return NOTHING_CHANGED if measure else "switched off"


def _latency(before: Path, after: Path, feeds: dict[str, Any] | None, quiet: bool) -> latency.Latency | str:
    with progress("measuring", quiet=quiet):
        try:
            return latency.measure_in_child([before, after], feeds=feeds)
        except EvaluationError as error:
            return str(error)
