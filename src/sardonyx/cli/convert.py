"""``sardonyx convert``: the same model in another form."""

from __future__ import annotations

from typing import Annotated

import typer

from sardonyx.cli.output import AsJson, ModelPath, Output, progress, written
from sardonyx.model import load, save

EXAMPLE = "sardonyx convert model.onnx -o model.onnxtxt"


def command(
    model: ModelPath,
    output: Output,
    form: Annotated[
        str | None,
        typer.Option("--format", help="onnx, onnxtxt or textproto; by the suffix when left out.", show_default=False),
    ] = None,
    external_data: Annotated[
        bool | None,
        typer.Option(
            "--external-data/--no-external-data",
            help="Weights in a file of their own beside the model; only at 2 GB and more when left out.",
            show_default=False,
        ),
    ] = None,
    external_threshold: Annotated[int, typer.Option(help="Bytes from which a weight goes there.")] = 1024,
    as_json: AsJson = False,
) -> None:
    """Write a model in another form: binary, ONNX text, protobuf text, with or without external data."""
    with progress("converting", quiet=as_json):
        save(load(model), output, external_data=external_data, external_threshold=external_threshold, format=form)
    written(output, as_json=as_json)
