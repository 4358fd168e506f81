"""``sardonyx cluster``: weights as indices into palettes of shared values."""

from __future__ import annotations

from typing import Annotated

import typer

from sardonyx.cli import compression
from sardonyx.cli.output import AsJson, ModelPath, Output, console, names_in, progress
from sardonyx.compress.clustering import ClusteringReport, cluster

EXAMPLE = "sardonyx cluster digits_classifier.onnx --data train.npz --bits 4 -o small.onnx"

OPTIONS_OF_PARAMETERS = compression.OPTIONS_OF_PARAMETERS


def command(
    model: ModelPath,
    output: Output,
    bits: Annotated[int, typer.Option(help="Bits of an index: 4 or 8.")] = 4,
    data: compression.Samples = None,
    preprocess: compression.Preprocess = None,
    evaluation: compression.Evaluation = None,
    metric_name: compression.MetricName = "top1",
    drop: compression.Drop = None,
    exclude: compression.Exclude = None,
    as_json: AsJson = False,
) -> None:
    """Share the weights of layers by palettes, and measure the error of the outputs.

    The file is smaller; time and memory of a run stay. Exit code 1 if the loss of the metric exceeds --drop; the file
    is written.
    """
    with progress("clustering", quiet=as_json):
        result = cluster(
            model,
            data,
            bits=bits,
            preprocess=preprocess,
            evaluate=compression.evaluate_of(evaluation, metric_name, model, preprocess),
            drop=drop,
            exclude=names_in(exclude),
        )
        result.save(output)
    compression.finish(result.report, output, _show, as_json=as_json)


def _show(report: ClusteringReport) -> None:
    before, after = report.file_bytes
    changed = [layer for layer in report.layers if not layer.reason]
    console.print(f"{len(changed)} of {len(report.layers)} weights are indices of {report.bits} bits.", markup=False)
    console.print(f"File: {before:,} -> {after:,} bytes.", markup=False)
    compression.show_layers((layer.name, layer.op_type, layer.reason) for layer in report.layers)
    for note in report.notes:
        console.print(note, markup=False)
    compression.show_evidence(report.evidence)
