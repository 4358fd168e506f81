"""``sardonyx passes``: what the optimizer can do."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from sardonyx.cli.output import AsJson, console, print_json
from sardonyx.report.passes import PassInfo, describe_passes
from sardonyx.rewrite import targets

EXAMPLE = "sardonyx passes --target onnxruntime"


def command(
    target: Annotated[
        str | None, typer.Option(help="Only the passes that run by default for this target.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the passes of the optimizer: what each does, and how exact it is.

    exact: equal bits. reassociates: another order of sums. approximates: within a stated tolerance.
    """
    found = describe_passes()
    if target is not None:
        name = targets.profile(target).name
        found = [each for each in found if each.default and (not each.targets or name in each.targets)]
    if as_json:
        print_json([each.as_dict() for each in found])
        return
    table = Table(title=f"{len(found)} passes", title_justify="left", header_style="bold")
    table.add_column("pass", no_wrap=True)
    for column in ("exactness", "runs", "opset"):
        table.add_column(column)
    table.add_column("what it does", overflow="fold")
    for each in found:
        opset = f"{each.opset}+" if each.opset > 1 else ""
        table.add_row(each.name, each.exactness, _runs(each), opset, each.description)
    console.print(table)


def _runs(each: PassInfo) -> str:
    if not each.default:
        return "when named"
    return f"for {', '.join(each.targets)}" if each.targets else "always"
