"""``sardonyx passes``: the passes of the optimizer."""

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
    """List the passes of the optimizer: effect and exactness of each.

    exact: equal bits. reassociates: another order of sums. approximates: within a stated tolerance.
    """
    passes = describe_passes()
    if target is not None:
        name = targets.profile(target).name
        passes = [info for info in passes if info.default and (not info.targets or name in info.targets)]
    if as_json:
        print_json([info.as_dict() for info in passes])
        return
    table = Table(title=f"{len(passes)} passes", title_justify="left", header_style="bold")
    table.add_column("pass", no_wrap=True)
    for column in ("exactness", "runs", "opset"):
        table.add_column(column)
    table.add_column("what it does", overflow="fold")
    for info in passes:
        opset = f"{info.opset}+" if info.opset > 1 else ""
        table.add_row(info.name, info.exactness, _runs(info), opset, info.description)
    console.print(table)


def _runs(info: PassInfo) -> str:
    if not info.default:
        return "when named"
    return f"for {', '.join(info.targets)}" if info.targets else "always"
