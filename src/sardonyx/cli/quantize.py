"""``sardonyx quantize``: conversion of weights and activations to narrow numbers."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from sardonyx.cli import compression
from sardonyx.cli.option_groups import expand_options
from sardonyx.cli.output import ModelPath, Output, console
from sardonyx.compress.quantization import QuantizationReport, quantize
from sardonyx.compress.quantization.methods.table import METHODS

EXAMPLE = "sardonyx quantize model.onnx --data real.npz -o small.onnx"

OPTIONS_OF_PARAMETERS = compression.OPTIONS_OF_PARAMETERS


@expand_options
def command(
    model: ModelPath,
    output: Output,
    scheme: Annotated[
        str, typer.Option(help="Types: int8, int16, int4, int2, float8, float4, or bits as in w8a16.")
    ] = "int8",
    weights: Annotated[
        str | None, typer.Option(help="Type of weights; int4 and int2 for weights alone.", show_default=False)
    ] = None,
    activations: Annotated[
        str | None, typer.Option(help="Type of activations, in place of the scheme's.", show_default=False)
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(help="static (with data), dynamic (without) or weights; chosen if missing.", show_default=False),
    ] = None,
    granularity: Annotated[
        str | None,
        typer.Option(help="Weights that share a scale: tensor, channel or block.", show_default=False),
    ] = None,
    block: Annotated[int, typer.Option(help="Elements of a block.")] = 32,
    form: Annotated[str, typer.Option(help="qdq, or qoperator for operators on integers.")] = "qdq",
    target: Annotated[
        str, typer.Option(help="Engine of the result: portable, onnxruntime, openvino, tensorrt or native.")
    ] = "portable",
    opset: Annotated[
        int | None, typer.Option(help="Operator set of the result; raised only if needed.", show_default=False)
    ] = None,
    calibration: Annotated[
        str, typer.Option(help="Ranges: auto, minmax, moving-average, percentile, mse or entropy.")
    ] = "auto",
    method: Annotated[str, typer.Option(help=f"auto, or one of {', '.join(METHODS)}.")] = "auto",
    no_bias_correction: Annotated[
        bool, typer.Option("--no-bias-correction", help="Keep biases, without correction by the mean error.")
    ] = False,
    reduce_range: Annotated[
        bool | None,
        typer.Option(
            "--reduce-range/--full-range",
            help="Use 7 bits for all weights, or 8; by default fewer where 16-bit sums would saturate without VNNI.",
            show_default=False,
        ),
    ] = None,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Measure the error, and with --eval the loss, by single nodes.")
    ] = False,
    *,
    shared: compression.Shared,
) -> None:
    """Quantize weights and activations, or weights alone, and measure the error of the outputs.

    Exit code 1 if the loss of the metric exceeds --drop, or if an output has less than 10 dB and there is no metric;
    the file is written.
    """
    choices: dict[str, Any] = {
        "scheme": scheme, "weights": weights, "activations": activations, "mode": mode, "granularity": granularity,
        "form": form, "target": target, "opset": opset, "calibration": calibration, "method": method,
    }  # fmt: skip
    corrections = {"bias_correction": not no_bias_correction, "reduce_range": reduce_range}
    compression.compress_file(
        quantize, "quantizing", _show, model, output, shared, **choices, **corrections, block=block,
        sensitivity=sensitivity,
    )  # fmt: skip


def _show(report: QuantizationReport) -> None:
    before, after = report.weight_bytes
    learned = f", ranges by {report.calibration} from {report.samples} samples" if report.calibration else ""
    console.print(
        f"{report.quantized} nodes with {report.scheme.weights} weights ({report.mode}{learned}).", markup=False
    )
    console.print(f"Weights: {before:,} -> {after:,} bytes.", markup=False)
    for note in report.notes:
        console.print(note, markup=False)
    compression.show_layers(((node.name, node.op_type, node.reason) for node in report.floats), "Left in float32")
    if report.nodes:
        table = Table(title="Error by the integers of a single node", title_justify="left", header_style="bold")
        table.add_column("node", overflow="fold")
        table.add_column("operator")
        for column in ("SQNR", "work", "loss"):
            table.add_column(column, justify="right", no_wrap=True)
        for error in report.nodes[:20]:
            loss = "" if error.metric is None else f"{error.metric:.4g}"
            table.add_row(error.name, error.op_type, f"{error.sqnr:.1f} dB", f"{error.cost:.1%}", loss)
        console.print(table)
    compression.show_evidence(report.evidence)
