"""``sardonyx factorize``: layers as two of low rank."""

from __future__ import annotations

from typing import Annotated

import typer

from sardonyx.cli import compression
from sardonyx.cli.option_groups import expand_options
from sardonyx.cli.output import ModelPath, Output, console
from sardonyx.compress.factorization import FactorizationReport, factorize

EXAMPLE = "sardonyx factorize model.onnx --data real.npz --energy 0.95 -o small.onnx"

OPTIONS_OF_PARAMETERS = compression.OPTIONS_OF_PARAMETERS


@expand_options
def command(
    model: ModelPath,
    output: Output,
    rank: Annotated[
        float | None, typer.Option(help="Rank over the full rank, between 0 and 1.", show_default=False)
    ] = None,
    energy: Annotated[
        float | None,
        typer.Option(help="Share of the energy of the products that remains; 0.99 without --rank.", show_default=False),
    ] = None,
    seed: compression.Seed = 0,
    *,
    shared: compression.Shared,
) -> None:
    """Replace layers by two of low rank where that is smaller, and measure the error of the outputs.

    Exit code 1 if the loss of the metric exceeds --drop; the file is written.
    """
    options = {"rank": rank, "energy": energy, "seed": seed}
    compression.compress_file(factorize, "factorizing", _show, model, output, shared, **options)


def _show(report: FactorizationReport) -> None:
    before, after = report.weight_bytes
    changed = [layer for layer in report.layers if not layer.reason]
    console.print(f"{len(changed)} of {len(report.layers)} layers are two of low rank.", markup=False)
    console.print(f"Weights: {before:,} -> {after:,} bytes.", markup=False)
    compression.show_layers((layer.name, layer.op_type, layer.reason) for layer in report.layers)
    for note in report.notes:
        console.print(note, markup=False)
    compression.show_evidence(report.evidence)
