"""``sardonyx info``: what a model is."""

from __future__ import annotations

from typing import Annotated

import typer

from sardonyx.cli.output import AsJson, ModelPath, console, print_json, progress
from sardonyx.errors import OptionError
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
        found = summary(model, sizes=_sizes(size or []))
    if as_json:
        print_json(found.as_dict())
    else:
        tables.print_all(console, *tables.summary_tables(model.name, found))


def _sizes(texts: list[str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for text in texts:
        name, equals, number = text.partition("=")
        if not equals or not number.isdigit():
            raise OptionError(f"'{text}' is no size", where="--size", remedy="Write NAME=8.")
        sizes[name] = int(number)
    return sizes
