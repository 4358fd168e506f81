"""``sardonyx optimize``: rewrite, prove, measure, write."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli.output import (
    AsJson,
    ModelPath,
    console,
    parse_shapes,
    print_json,
    progress,
    read_inputs,
)
from sardonyx.errors import EvaluationError, SardonyxError, VerificationError
from sardonyx.report import html, latency, tables
from sardonyx.report.summary import summary
from sardonyx.rewrite.optimize import Optimized, optimize
from sardonyx.rewrite.rules_file import load_rules

EXAMPLE = "sardonyx optimize model.onnx -o better.onnx"


def command(
    model: ModelPath,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write the result.", show_default=False)
    ] = None,
    target: Annotated[
        str, typer.Option(help="portable, onnxruntime, openvino, tensorrt or native.")
    ] = "portable",
    passes: Annotated[list[str] | None, typer.Option(help="Run only this pass (repeatable).", show_default=False)] = None,
    skip: Annotated[list[str] | None, typer.Option(help="Do not run this pass (repeatable).", show_default=False)] = None,
    skip_fuse_bn: Annotated[bool, typer.Option("--skip-fuse-bn", help="Keep BatchNormalization apart.")] = False,
    input_shape: Annotated[
        list[str] | None, typer.Option(help="New input shape, NAME:1,3,H,W (repeatable).", show_default=False)
    ] = None,
    inputs: Annotated[Path | None, typer.Option(help="Real inputs to verify on (.npz).", show_default=False)] = None,
    opset: Annotated[int | None, typer.Option(help="Raise or lower the operator set first.", show_default=False)] = None,
    rules: Annotated[
        list[Path] | None, typer.Option(help="A Python file with rules of your own (repeatable).", show_default=False)
    ] = None,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Prove that the outputs are equal.")] = True,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 3, writing nothing, unless proved.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say which near matches did not fire, and why.")] = False,
    measure: Annotated[bool, typer.Option("--measure/--no-measure", help="Measure latency before and after.")] = True,
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML page.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Rewrite a model to fewer, cheaper nodes, prove that it computes the same, and write standard ONNX."""
    feeds = read_inputs(inputs)
    with progress("optimizing", quiet=as_json):
        result = optimize(
            model,
            target=target,
            passes=passes or None,
            skip=skip or (),
            skip_fuse_bn=skip_fuse_bn,
            input_shapes=parse_shapes(input_shape),
            inputs=feeds,
            opset=opset,
            verify=verify,
            rules=[rule for path in rules or () for rule in load_rules(path)],
        )
    proved = result.report.verdict.status.startswith("proved")
    if output is not None and (proved or not strict):
        result.save(output)
    with tempfile.TemporaryDirectory(prefix="sardonyx-") as folder:
        written = output if output is not None and output.exists() else Path(folder) / "optimized.onnx"
        if written is not output:
            result.save(written)
        _show(model, written, result, feeds, explain=explain, measure=measure, report=report, as_json=as_json)
    if not as_json and output is not None and (proved or not strict):
        console.print(f"Written: {output}", markup=False)
    if strict and not proved:
        raise VerificationError(
            result.report.verdict.reason, where=str(model), remedy="Give real inputs with --inputs, or drop --strict."
        )


def _show(
    model: Path,
    written: Path,
    result: Optimized,
    feeds: dict[str, object] | None,
    *,
    explain: bool,
    measure: bool,
    report: Path | None,
    as_json: bool,
) -> None:
    record = result.report
    before, after = summary(model), summary(written)
    sizes = (_bytes(model), _bytes(written))
    timing: latency.Latency | str = "switched off"
    if measure:
        with progress("measuring", quiet=as_json):
            try:
                timing = latency.measure([model, written], feeds=feeds)
            except EvaluationError as error:
                timing = str(error)
    if report is not None:
        html.write(report, model.name, record, before, after, sizes, timing)
    if as_json:
        print_json(
            {
                **record.as_dict(),
                "file_bytes": sizes,
                "macs": [before.macs, after.macs],
                "latency": timing if isinstance(timing, str) else vars(timing),
            }
        )
        return
    parts = [
        tables.before_and_after(record, before, after, sizes, timing),
        tables.passes_table(record),
        *([tables.explanation(record)] if explain else []),
        *tables.opset_hints(record),
        tables.verdict_line(record),
    ]
    tables.print_all(console, *parts)


def _bytes(path: Path) -> int:
    """Size of a model's file with its data files beside it."""
    data = path.with_name(path.name + ".data")
    try:
        return path.stat().st_size + (data.stat().st_size if data.exists() else 0)
    except OSError as error:
        raise SardonyxError(str(error), where=str(path)) from error
