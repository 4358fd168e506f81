"""``sardonyx quantize``: conversion of weights and activations to integers."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from sardonyx.cli.output import AsJson, ModelPath, Output, console, names_in, print_json, progress, report_written
from sardonyx.compress.quantization import QuantizationReport, quantize

EXAMPLE = "sardonyx quantize model.onnx --data real.npz -o small.onnx"


def command(
    model: ModelPath,
    output: Output,
    data: Annotated[
        Path | None, typer.Option(help="Samples of real inputs (.npz; axis 0 of each array).", show_default=False)
    ] = None,
    weights: Annotated[str, typer.Option(help="Type of weights: int8, or int4 for weights alone.")] = "int8",
    mode: Annotated[
        str | None,
        typer.Option(help="static (with data), dynamic (without) or weights; chosen if missing.", show_default=False),
    ] = None,
    granularity: Annotated[
        str | None,
        typer.Option(help="Weights that share a scale: tensor, channel or block.", show_default=False),
    ] = None,
    block: Annotated[int, typer.Option(help="Elements of a block.")] = 32,
    calibration: Annotated[
        str, typer.Option(help="Ranges: auto, minmax, moving-average, percentile, mse or entropy.")
    ] = "auto",
    no_bias_correction: Annotated[
        bool, typer.Option("--no-bias-correction", help="Keep biases, without correction by the mean error.")
    ] = False,
    reduce_range: Annotated[
        bool, typer.Option("--reduce-range", help="Use 7 bits for weights, for processors without VNNI.")
    ] = False,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Leave these nodes or operators in float (A,B; repeatable).", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Quantize to int8, or weights alone to int8 or int4, and measure the error of the outputs."""
    choices: dict[str, Any] = {"weights": weights, "mode": mode, "granularity": granularity}
    with progress("quantizing", quiet=as_json):
        result = quantize(
            model,
            data,
            **choices,
            block=block,
            calibration=calibration,
            bias_correction=not no_bias_correction,
            reduce_range=reduce_range,
            exclude=names_in(exclude),
        )
        result.save(output)
    if as_json:
        print_json({"written": str(output), **_plain(result.report)})
        return
    _show(result.report)
    report_written(output, as_json=False)


def _plain(report: QuantizationReport) -> dict[str, Any]:
    outputs = [
        {"name": error.name, "sqnr": error.sqnr if math.isfinite(error.sqnr) else None} for error in report.outputs
    ]
    return {**asdict(report), "outputs": outputs}


def _show(report: QuantizationReport) -> None:
    before, after = report.weight_bytes
    learned = f", ranges by {report.calibration} from {report.samples} samples" if report.calibration else ""
    console.print(
        f"{report.quantized} nodes with {report.scheme.weights} weights ({report.mode}{learned}).", markup=False
    )
    console.print(f"Weights: {before:,} -> {after:,} bytes.", markup=False)
    for note in report.notes:
        console.print(note, markup=False)
    if report.floats:
        table = Table(title="Left in float32", title_justify="left", header_style="bold")
        for column in ("node", "operator", "why"):
            table.add_column(column, overflow="fold")
        for node in report.floats[:20]:
            table.add_row(node.name, node.op_type, node.reason)
        console.print(table)
    if not report.outputs:
        console.print(f"Accuracy: {report.judged}.", markup=False)
    for error in report.outputs:
        console.print(f"{error.name}: SQNR {error.sqnr:.1f} dB ({report.judged}).", markup=False)
