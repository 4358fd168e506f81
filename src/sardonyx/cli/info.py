"""``sardonyx info``: summary of a model."""

from __future__ import annotations

from sardonyx.cli.output import AsJson, ModelPath, Sizes, console, parse_sizes, print_json, progress
from sardonyx.report.quantities import print_all
from sardonyx.report.summary import summary
from sardonyx.report.summary_tables import summary_tables

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
        print_all(console, *summary_tables(model.name, info))
