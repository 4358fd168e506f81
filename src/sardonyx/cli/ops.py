"""``sardonyx ops``: the supported operators."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from sardonyx.cli.output import AsJson, console, print_json
from sardonyx.errors import OptionError
from sardonyx.ops.support import Support, support_table

EXAMPLE = "sardonyx ops --domain ai.onnx.ml"


def command(
    domain: Annotated[
        str | None, typer.Option(help="Only operators of this domain, such as ai.onnx.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the operators that a session runs: versions, element types, definition and tests.

    core: written over the primitives, with shapes, gradients and compiled code. host: Python over numpy.
    """
    table_rows = support_table()
    domains = list(dict.fromkeys(row.domain for row in table_rows))
    if domain is not None and domain not in domains:
        raise OptionError(f"unknown domain '{domain}'.", where="domain", remedy=f"Choose from {', '.join(domains)}.")
    rows = [row for row in table_rows if domain in (None, row.domain)]
    if as_json:
        print_json([row.as_dict() for row in rows])
        return
    table = Table(title=f"{len(rows)} operators", title_justify="left", header_style="bold")
    for column in ("domain", "operator", "versions", "element types"):
        table.add_column(column, overflow="fold")
    table.add_column("definition", overflow="fold")
    table.add_column("tested with", overflow="fold")
    for row in rows:
        definition = f"host: {row.reason}" if row.reason else row.definition
        versions = ", ".join(map(str, row.versions))
        table.add_row(row.domain, row.name, versions, _types(row), definition, row.tested)
    console.print(table)


def _types(row: Support) -> str:
    return ", ".join(row.dtypes)
