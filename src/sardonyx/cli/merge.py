"""``sardonyx merge``: models end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli.output import AsJson, Output, parse_pairs, progress, report_written
from sardonyx.model import load, save
from sardonyx.rewrite.surgery import merge

EXAMPLE = "sardonyx merge backbone.onnx head.onnx --link features=x -o whole.onnx"

OPTIONS_OF_PARAMETERS = {"links": "--link"}


def command(
    models: Annotated[list[Path], typer.Argument(help="Two models or more, in order.", show_default=False)],
    output: Output,
    link: Annotated[
        list[str] | None,
        typer.Option(
            help="An output and the input to feed, OUT=IN (repeatable); by default by name, else by order.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Join models end to end: outputs of each feed inputs of the next."""
    links = parse_pairs(link, "--link") if link else None
    with progress("merging", quiet=as_json):
        merged = merge([load(path) for path in models], links)
        save(merged, output)
    report_written(
        output,
        as_json=as_json,
        inputs=[value.name for value in merged.graph.inputs],
        outputs=[value.name for value in merged.graph.outputs],
    )
