"""``sardonyx cluster``: weights as indices into palettes of shared values."""

from __future__ import annotations

from typing import Annotated

import typer

from sardonyx.cli import compression
from sardonyx.cli.option_groups import expand_options
from sardonyx.cli.output import ModelPath, Output, console
from sardonyx.compress.clustering import ClusteringReport, cluster

EXAMPLE = "sardonyx cluster digits_classifier.onnx --data train.npz --bits 4 -o small.onnx"

OPTIONS_OF_PARAMETERS = compression.OPTIONS_OF_PARAMETERS


@expand_options
def command(
    model: ModelPath,
    output: Output,
    bits: Annotated[int, typer.Option(help="Bits of an index: 4 or 8.")] = 4,
    *,
    shared: compression.Shared,
) -> None:
    """Share the weights of layers by palettes, and measure the error of the outputs.

    The file is smaller; time and memory of a run stay. Exit code 1 if the loss of the metric exceeds --drop; the file
    is written.
    """
    compression.compress_file(cluster, "clustering", _show, model, output, shared, bits=bits)


def _show(report: ClusteringReport) -> None:
    before, after = report.file_bytes
    changed = [layer for layer in report.layers if not layer.reason]
    console.print(f"{len(changed)} of {len(report.layers)} weights are indices of {report.bits} bits.", markup=False)
    console.print(f"File: {before:,} -> {after:,} bytes.", markup=False)
    compression.show_layers((layer.name, layer.op_type, layer.reason) for layer in report.layers)
    for note in report.notes:
        console.print(note, markup=False)
    compression.show_evidence(report.evidence)
