"""``sardonyx info``: summary of a model."""

from __future__ import annotations

from sardonyx.cli.output import AsJson, ModelPath, Sizes, console, parse_sizes, print_json, progress
from sardonyx.report import tables
from sardonyx.report.summary import summary

EXAMPLE = "sardonyx info model.onnx --sizes batch=8"


def command(
    model: ModelPath,
    sizes: Sizes = None,
    as_json: AsJson = False,
) -> None:
    """Summarize a model: interface, operators, weights, arithmetic, memory."""
    with progress("reading", quiet=as_json):
        info = summary(model, sizes=parse_sizes(sizes))
    if as_json:
        print_json(info.as_dict())
    else:
        tables.print_all(console, *tables.summary_tables(model.name, info))
