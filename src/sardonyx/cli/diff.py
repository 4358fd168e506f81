"""``sardonyx diff``: two models, node by node."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli.output import AsJson, console, print_json, progress
from sardonyx.errors import OptionError
from sardonyx.report.diff import Diff, Replacement, diff
from sardonyx.report.node_matching import named_operator

EXAMPLE = "sardonyx diff model.onnx better.onnx"

MOST_NODES = 6
"""Number of nodes of a group that are listed; the rest is counted."""

MOST_WEIGHTS = 12
"""Number of weights that are listed; the rest is counted."""


def command(
    first: Annotated[Path, typer.Argument(help="The model before.", show_default=False)],
    second: Annotated[Path, typer.Argument(help="The model after.", show_default=False)],
    report: Annotated[
        Path | None,
        typer.Option(
            "--names",
            "--report",
            help="Output of `sardonyx optimize --json`: old names → new names.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two models node by node: added, removed, changed and replaced nodes, weights, interface."""
    with progress("comparing", quiet=as_json):
        difference = diff(first, second, names=_names(report))
    if as_json:
        print_json(difference.as_dict())
        return
    for line in _lines(difference):
        console.print(line, markup=False, soft_wrap=True)


def _names(report: Path | None) -> Mapping[str, Sequence[str]] | None:
    if report is None:
        return None
    try:
        names: Mapping[str, Sequence[str]] = json.loads(report.read_text(encoding="utf-8"))["names"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OptionError(
            f"expected a report of optimize: {error}",
            where=str(report),
            remedy="Give the output of `sardonyx optimize --json`.",
        ) from error
    return names


def _lines(difference: Diff) -> Iterator[str]:
    yield from (f"~ {line}" for line in (*difference.model, *difference.interface))
    for change in difference.changed:
        yield f"~ {named_operator(change.operator, change.node)}: {'; '.join(change.changes)}"
    for group in difference.replaced:
        yield from _group(group)
    yield from (f"~ weight {line}" for line in difference.weights[:MOST_WEIGHTS])
    if len(difference.weights) > MOST_WEIGHTS:
        yield f"~ … and {len(difference.weights) - MOST_WEIGHTS} more weights; --json lists all"
    if not difference:
        yield f"The models are equal: {difference.same} nodes."
    else:
        removed, added = (sum(len(getattr(g, side)) for g in difference.replaced) for side in ("removed", "added"))
        yield f"{difference.same} nodes equal, {len(difference.changed)} changed, {removed} removed, {added} added."


def _group(group: Replacement) -> Iterator[str]:
    for sign, nodes in (("-", group.removed), ("+", group.added)):
        for node in nodes[:MOST_NODES]:
            yield f"{sign} {node}"
        if len(nodes) > MOST_NODES:
            yield f"{sign} … and {len(nodes) - MOST_NODES} more"
    if group.removed and group.added:
        yield f"    ({len(group.added)} for {len(group.removed)})"
