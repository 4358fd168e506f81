"""``sardonyx prune``: removal of channels, or zeros in place of small weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sardonyx.cli.output import AsJson, ModelPath, Output, console, names_in, print_json, progress, report_written
from sardonyx.compress.evidence import METRICS, plain, stored_metric
from sardonyx.compress.pruning import PruningReport, prune
from sardonyx.model import load

EXAMPLE = "sardonyx prune digits_classifier.onnx --channels 0.3 --data train.npz -o small.onnx"


def command(
    model: ModelPath,
    output: Output,
    channels: Annotated[
        float | None, typer.Option(help="Share of channels to remove from the shapes.", show_default=False)
    ] = None,
    sparsity: Annotated[
        float | None, typer.Option(help="Share of weights to set to zero, per layer.", show_default=False)
    ] = None,
    pattern: Annotated[
        str | None, typer.Option(help="2:4 for two zeros of four input channels.", show_default=False)
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Samples of real inputs: .npz (axis 0 of each array), or a folder of images, audio or arrays.",
            show_default=False,
        ),
    ] = None,
    criterion: Annotated[str, typer.Option(help="Importance: auto, magnitude, or activation (with --data).")] = "auto",
    preprocess: Annotated[
        Path | None, typer.Option(help="Model that computes inputs from the items of --data.", show_default=False)
    ] = None,
    evaluation: Annotated[
        Path | None, typer.Option("--eval", help="Samples with labels (.npz) for --metric.", show_default=False)
    ] = None,
    metric_name: Annotated[str, typer.Option("--metric", help=f"Metric of --eval: {', '.join(METRICS)}.")] = "top1",
    drop: Annotated[
        float | None, typer.Option(help="Largest permitted loss of the metric, for the verdict.", show_default=False)
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Leave these nodes or operators as they are (A,B; repeatable).", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove channels from shapes, or set weights to zero, and measure the error of the outputs.

    Exit code 1 if the loss of the metric exceeds --drop; the file is written.
    """
    with progress("pruning", quiet=as_json):
        result = prune(
            model,
            data,
            channels=channels,
            sparsity=sparsity,
            pattern=pattern,
            criterion=criterion,
            preprocess=preprocess,
            evaluate=None if evaluation is None else stored_metric(metric_name, evaluation, load(model)),
            drop=drop,
            exclude=names_in(exclude),
        )
        result.save(output)
    if as_json:
        print_json({"written": str(output), **plain(result.report)})
    else:
        _show(result.report)
        report_written(output, as_json=False)
    if result.report.evidence.verdict == "not kept":
        raise typer.Exit(1)


def _show(report: PruningReport) -> None:
    before, after = report.weight_bytes
    subject = "channels removed" if report.kind == "channels" else "weights are zero"
    console.print(f"{report.removed:,} of {report.candidates:,} {subject} (by {report.criterion}).", markup=False)
    console.print(f"Weights: {before:,} -> {after:,} bytes.", markup=False)
    for note in report.notes:
        console.print(note, markup=False)
    fixed = [layer for layer in report.layers if layer.fixed]
    if fixed:
        table = Table(title="Layers that stay, or stay in part", title_justify="left", header_style="bold")
        for column in ("node", "operator", "why"):
            table.add_column(column, overflow="fold")
        for layer in fixed[:20]:
            table.add_row(layer.name, layer.op_type, layer.fixed)
        console.print(table)
    evidence = report.evidence
    if not evidence.outputs:
        console.print(f"Accuracy: {evidence.judged}.", markup=False)
    for error in evidence.outputs:
        console.print(f"{error.name}: SQNR {error.sqnr:.1f} dB ({evidence.judged}).", markup=False)
    change = evidence.metric
    if change is not None:
        console.print(f"Metric: {change.before:.4g} -> {change.after:.4g}; {evidence.verdict}: "
                      f"{evidence.reason}.", markup=False)  # fmt: skip
