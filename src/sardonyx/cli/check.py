"""``sardonyx check``: problems of a model, with locations and repairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Annotated

import typer
from rich.markup import escape

from sardonyx.cli.output import AsJson, ModelPath, console, print_json, progress
from sardonyx.export.targets import target_names
from sardonyx.model.check import Finding, Severity, check, known_targets


def _targets() -> list[str]:
    """Return the names of runtimes with tables of limits, and of the targets of ``convert-to``."""
    return sorted({*known_targets(), *target_names()})


EXAMPLE = "sardonyx check model.onnx --target tensorrt --lint"

MOST_FINDINGS = 6
"""Number of findings of one code and repair that are listed; the rest is counted."""

_STYLES: dict[Severity, str] = {"error": "bold red", "warning": "yellow", "lint": "cyan"}


def command(
    model: ModelPath,
    target: Annotated[
        str | None,
        typer.Option(
            help=f"Also report nodes that this target cannot run: {', '.join(_targets())}.", show_default=False
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
        for group in _groups(findings):
            _show(group)
        console.print(_verdict(counts, target), soft_wrap=True)
    if counts["error"]:
        raise typer.Exit(1)


def _groups(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Return the findings by code and repair, in the order of the first of each group."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.severity, finding.code, finding.remedy, finding.command), []).append(finding)
    return list(groups.values())


def _show(group: list[Finding]) -> None:
    first = group[0]
    head = f"[{_STYLES[first.severity]}]{first.severity}[/] {first.code}:"
    if len(group) == 1:
        console.print(f"{head} {escape(str(first.where))}", soft_wrap=True)
        console.print(f"  {first.reason} {first.remedy}", markup=False, soft_wrap=True)
    else:
        console.print(f"{head} {len(group)} findings. {escape(first.remedy)}", soft_wrap=True)
        for finding in group[:MOST_FINDINGS]:
            console.print(f"  {finding.where}: {finding.reason}", markup=False, soft_wrap=True)
        if len(group) > MOST_FINDINGS:
            console.print(f"  … and {len(group) - MOST_FINDINGS} more; --json lists all")
    if first.command:
        console.print(f"  [dim]$ {escape(first.command)}[/]", soft_wrap=True)


def _verdict(counts: Counter[Severity], target: str | None) -> str:
    listed = ", ".join(f"{counts[s]} {s}{'s' if counts[s] != 1 and s != 'lint' else ''}" for s in _STYLES if counts[s])
    if counts["error"]:
        return f"[bold red]✗[/] {listed}"
    sound = "the model is sound" + (f", and {escape(target)} can run it" if target else "")
    return f"[bold green]✓[/] {sound}" + (f" ({listed})" if listed else "")
