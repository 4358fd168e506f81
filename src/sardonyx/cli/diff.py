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

EXAMPLE = "sardonyx diff model.onnx better.onnx"

MOST_NODES = 6
"""Nodes of one group that are listed before the rest is counted."""

MOST_WEIGHTS = 12
"""Weights that are listed before the rest is counted."""


def command(
    first: Annotated[Path, typer.Argument(help="The model as it was.", show_default=False)],
    second: Annotated[Path, typer.Argument(help="The model as it is.", show_default=False)],
    report: Annotated[
        Path | None,
        typer.Option(help="What `sardonyx optimize --json` printed: old names → new ones.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two models node by node: what came, what went, what changed, and which nodes stand for which."""
    with progress("comparing", quiet=as_json):
        found = diff(first, second, names=_names(report))
    if as_json:
        print_json(found.as_dict())
        return
    for line in _lines(found):
        console.print(line, markup=False, soft_wrap=True)


def _names(report: Path | None) -> Mapping[str, Sequence[str]] | None:
    if report is None:
        return None
    try:
        names: Mapping[str, Sequence[str]] = json.loads(report.read_text(encoding="utf-8"))["names"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OptionError(
            f"is no report: {error}", where=str(report), remedy="Give what `sardonyx optimize --json` printed."
        ) from error
    return names


def _lines(found: Diff) -> Iterator[str]:
    yield from (f"~ {line}" for line in (*found.model, *found.interface))
    for change in found.changed:
        yield f"~ {change.operator} {change.node}: {'; '.join(change.changes)}"
    for group in found.replaced:
        yield from _group(group)
    yield from (f"~ weight {line}" for line in found.weights[:MOST_WEIGHTS])
    if len(found.weights) > MOST_WEIGHTS:
        yield f"~ … and {len(found.weights) - MOST_WEIGHTS} more weights; --json lists all"
    if not found:
        yield f"The models are equal: {found.same} nodes."
    else:
        gone, come = (sum(len(getattr(g, side)) for g in found.replaced) for side in ("removed", "added"))
        yield f"{found.same} nodes equal, {len(found.changed)} changed, {gone} removed, {come} added."


def _group(group: Replacement) -> Iterator[str]:
    for sign, nodes in (("-", group.removed), ("+", group.added)):
        for node in nodes[:MOST_NODES]:
            yield f"{sign} {node}"
        if len(nodes) > MOST_NODES:
            yield f"{sign} … and {len(nodes) - MOST_NODES} more"
    if group.removed and group.added:
        yield f"    ({len(group.added)} for {len(group.removed)})"
