"""``sardonyx check``: problems of a model, with locations and repairs."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer
from rich.markup import escape

from sardonyx.cli.output import AsJson, ModelPath, console, print_json, progress
from sardonyx.model.check import Finding, Severity, check, known_targets

EXAMPLE = "sardonyx check model.onnx --target tensorrt --lint"

_STYLES: dict[Severity, str] = {"error": "bold red", "warning": "yellow", "lint": "cyan"}


def command(
    model: ModelPath,
    target: Annotated[
        str | None,
        typer.Option(
            help=f"Also report nodes that this target cannot run: {', '.join(known_targets())}.", show_default=False
        ),
    ] = None,
    version: Annotated[
        str | None, typer.Option(help="Version of the target; the newest known by default.", show_default=False)
    ] = None,
    lint: Annotated[bool, typer.Option("--lint", help="Also report legal but suboptimal constructs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check a model: print each problem, its location, and the command for its repair.

    Exit code 1 if there are errors.
    """
    with progress("checking", quiet=as_json):
        findings = check(model, target=target, version=version, lint=lint)
    counts = Counter(finding.severity for finding in findings)
    if as_json:
        print_json({"counts": counts, "findings": [finding.as_dict() for finding in findings]})
    else:
        for finding in findings:
            _show(finding)
        console.print(_verdict(counts, target), soft_wrap=True)
    if counts["error"]:
        raise typer.Exit(1)


def _show(finding: Finding) -> None:
    style = _STYLES[finding.severity]
    console.print(f"[{style}]{finding.severity}[/] {finding.code}: {escape(str(finding.where))}", soft_wrap=True)
    console.print(f"  {finding.reason} {finding.remedy}", markup=False, soft_wrap=True)
    if finding.command:
        console.print(f"  [dim]$ {escape(finding.command)}[/]", soft_wrap=True)


def _verdict(counts: Counter[Severity], target: str | None) -> str:
    listed = ", ".join(f"{counts[s]} {s}{'s' if counts[s] != 1 and s != 'lint' else ''}" for s in _STYLES if counts[s])
    if counts["error"]:
        return f"[bold red]✗[/] {listed}"
    sound = "the model is sound" + (f", and {escape(target)} can run it" if target else "")
    return f"[bold green]✓[/] {sound}" + (f" ({listed})" if listed else "")
