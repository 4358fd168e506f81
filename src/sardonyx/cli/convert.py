"""``sardonyx convert``: the same model in another format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli.output import AsJson, ModelPath, progress, report_written, require_output
from sardonyx.model import load, save

EXAMPLE = "sardonyx convert model.onnx -o model.onnxtxt"

OPTIONS_OF_PARAMETERS = {"format": "--format"}


def command(
    model: ModelPath,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.", show_default=False)],
    form: Annotated[
        str | None,
        typer.Option("--format", help="onnx, onnxtxt or textproto; by the suffix by default.", show_default=False),
    ] = None,
    external_data: Annotated[
        bool | None,
        typer.Option(
            "--external-data/--no-external-data",
            help="Write weights to a separate file next to the model; by default only from 2 GB.",
            show_default=False,
        ),
    ] = None,
    external_threshold: Annotated[int, typer.Option(help="Size in bytes from which a weight is written there.")] = 1024,
    as_json: AsJson = False,
) -> None:
    """Write a model in another format: binary, ONNX text, protobuf text; with or without external data."""
    if form is None:
        require_output(output)
    with progress("converting", quiet=as_json):
        save(load(model), output, external_data=external_data, external_threshold=external_threshold, format=form)
    report_written(output, as_json=as_json)
