"""``sardonyx info``: what a model is."""

from __future__ import annotations

from typing import Annotated

import typer

from sardonyx.cli.output import AsJson, ModelPath, console, parse_sizes, print_json, progress
from sardonyx.report import tables
from sardonyx.report.summary import summary

EXAMPLE = "sardonyx info model.onnx --size batch=8"


def command(
    model: ModelPath,
    size: Annotated[
        list[str] | None,
        typer.Option(help="What to take an open size as for the memory peak, NAME=8 (repeatable).", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a model is: interface, operators, weights, arithmetic, memory."""
    with progress("reading", quiet=as_json):
        found = summary(model, sizes=parse_sizes(size or []))
    if as_json:
        print_json(found.as_dict())
    else:
        tables.print_all(console, *tables.summary_tables(model.name, found))
