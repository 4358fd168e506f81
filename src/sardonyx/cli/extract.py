"""``sardonyx extract``: a part of a model."""

from __future__ import annotations

from typing import Annotated

import typer

from sardonyx.cli.output import AsJson, ModelPath, Output, names_in, progress, report_written
from sardonyx.model import load, save
from sardonyx.rewrite.surgery import extract

EXAMPLE = "sardonyx extract model.onnx --inputs image --outputs features -o backbone.onnx"


def command(
    model: ModelPath,
    output: Output,
    outputs: Annotated[list[str], typer.Option(help="Outputs of the part (A,B; repeatable).")],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            help="Inputs of the part (A,B; repeatable); the required graph inputs by default.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Cut out the part of a model between named tensors."""
    with progress("extracting", quiet=as_json):
        part = extract(load(model), names_in(outputs), names_in(inputs) if inputs is not None else None)
        save(part, output)
    nodes = sum(1 for _ in part.graph.all_nodes())
    report_written(output, as_json=as_json, nodes=nodes, inputs=[v.name for v in part.graph.inputs])
