"""``sardonyx prune``: removal of channels, or zeros in place of small weights."""

from __future__ import annotations

from typing import Annotated

import typer

from sardonyx.cli import compression
from sardonyx.cli.option_groups import expand_options
from sardonyx.cli.output import ModelPath, Output, console
from sardonyx.compress.pruning import PruningReport, prune
from sardonyx.compress.pruning.prune import STEPS

EXAMPLE = "sardonyx prune digits_classifier.onnx --channels 0.3 --data train.npz -o small.onnx"

OPTIONS_OF_PARAMETERS = compression.OPTIONS_OF_PARAMETERS


@expand_options
def command(
    model: ModelPath,
    output: Output,
    channels: Annotated[
        float | None, typer.Option(help="Share of channels to remove from the shapes.", show_default=False)
    ] = None,
    heads: Annotated[float | None, typer.Option(help="Share of attention heads to remove.", show_default=False)] = None,
    layers: Annotated[
        float | None, typer.Option(help="Share of residual branches to remove; needs --data.", show_default=False)
    ] = None,
    sparsity: Annotated[
        float | None, typer.Option(help="Share of weights to set to zero, per layer.", show_default=False)
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            help="N:M for N nonzero of M input channels (2:4), RxC for blocks of outputs and inputs.",
            show_default=False,
        ),
    ] = None,
    criterion: Annotated[
        str, typer.Option(help="Importance: auto, magnitude, activation, taylor, wanda or sparsegpt.")
    ] = "auto",
    recover: Annotated[
        str, typer.Option(help="Recovery: auto, none, bias, reconstruct (least squares) or finetune.")
    ] = "auto",
    steps: Annotated[int, typer.Option(help="Steps of fine-tuning on the answers of the original.")] = STEPS,
    align: Annotated[
        bool | None,
        typer.Option(
            "--align/--no-align",
            help="Leave whole vectors of channels; by default where that is no more work.",
            show_default=False,
        ),
    ] = None,
    seed: compression.Seed = 0,
    *,
    shared: compression.Shared,
) -> None:
    """Remove channels, heads or layers, or set weights to zero, and measure the error of the outputs.

    Exit code 1 if the loss of the metric exceeds --drop; the file is written.
    """
    shares = {"channels": channels, "heads": heads, "layers": layers, "sparsity": sparsity}
    options = {"pattern": pattern, "criterion": criterion, "recover": recover, "steps": steps, "align": align}
    compression.compress_file(prune, "pruning", _show, model, output, shared, **shares, **options, seed=seed)


def _show(report: PruningReport) -> None:
    before, after = report.weight_bytes
    subject = "weights are zero" if report.kind == "sparsity" else f"{report.kind} removed"
    console.print(f"{report.removed:,} of {report.candidates:,} {subject} (by {report.criterion}).", markup=False)
    console.print(f"Weights: {before:,} -> {after:,} bytes.", markup=False)
    for note in report.notes:
        console.print(note, markup=False)
    fixed = ((layer.name, layer.op_type, layer.fixed) for layer in report.layers)
    compression.show_layers(fixed, "Layers that stay, or stay in part")
    compression.show_evidence(report.evidence)
