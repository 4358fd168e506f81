"""``sardonyx convert-from``: a program of another framework as a proved model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from sardonyx.cli.output import AsJson, Output, console, print_json, progress, report_written
from sardonyx.convert.conversion import ConversionReport, convert
from sardonyx.errors import OptionError
from sardonyx.model import require_writable

EXAMPLE = "sardonyx convert-from program.pt2 -o program.onnx"


def command(
    source: Annotated[
        str, typer.Argument(help="A file of a framework, a folder, or file.py:function.", show_default=False)
    ],
    output: Output,
    sample: Annotated[
        Path | None, typer.Option(help="Example inputs (.npz), by input name.", show_default=False)
    ] = None,
    framework: Annotated[
        str | None, typer.Option("--from", help="The framework, where the source does not tell.", show_default=False)
    ] = None,
    dynamic: Annotated[
        list[str] | None,
        typer.Option(help="Open sizes, NAME:0=batch,2=time (repeatable); by default all.", show_default=False),
    ] = None,
    fixed: Annotated[bool, typer.Option("--fixed", help="Fix all sizes to those of the sample.")] = False,
    exporter: Annotated[str, typer.Option(help="auto, sardonyx, recorded, or another program: torch.onnx.")] = "auto",
    opset: Annotated[int | None, typer.Option(help="The operator set to write.", show_default=False)] = None,
    opaque: Annotated[
        list[str] | None,
        typer.Option(help="An operator of torch that becomes an opaque node (repeatable).", show_default=False),
    ] = None,
    unproved: Annotated[bool, typer.Option("--unproved", help="Write a model that is not proved.")] = False,
    trust: Annotated[bool, typer.Option("--trust", help="Load files that may execute code (pickles, joblib).")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the drawn inputs.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Convert a program of another framework, and prove the model equal to the program.

    The model is written if proved. Exit code 3: not proved, and nothing is written without --unproved.
    """
    require_writable(output)
    if fixed and dynamic:
        raise OptionError(
            "expected one of --fixed and --dynamic, got both", where="--fixed", remedy="Give one of them."
        )
    with progress("converting", quiet=as_json):
        result = convert(
            source,
            sample=sample,
            dynamic=False if fixed else parsed_sizes(dynamic) or "auto",
            exporter=exporter,
            framework=framework,
            trust=trust,
            opset=opset,
            opaque=opaque or (),
            seed=seed,
        )
    if not as_json:
        _show(result.report)
    result.save(output, unproved=unproved)
    if as_json:
        print_json({"written": str(output), **result.report.as_dict()})
    else:
        report_written(output, as_json=False)


def parsed_sizes(texts: list[str] | None) -> dict[str, dict[int, str]]:
    """Return the open sizes that options name, ``NAME:0=batch,2=time``, by input and axis.

    Raises:
        OptionError: A text has another form.
    """
    sizes: dict[str, dict[int, str]] = {}
    for text in texts or []:
        name, _, axes = text.partition(":")
        pairs: list[tuple[str, str, str]] = [pair.partition("=") for pair in axes.split(",")]
        if not name or not all(axis.strip().isdigit() and size.strip().isidentifier() for axis, _, size in pairs):
            raise OptionError(f"expected NAME:0=batch,2=time, got '{text}'", where="--dynamic", remedy="Use this form.")
        sizes.setdefault(name, {}).update((int(axis), size.strip()) for axis, _, size in pairs)
    return sizes


def _show(report: ConversionReport) -> None:
    verdict = report.verdict
    rows: list[tuple[str, Any]] = [
        ("framework", report.framework),
        ("way", report.way),
        ("verdict", f"{verdict.status}{': ' + verdict.reason if verdict.reason else ''}"),
        ("samples", f"{verdict.samples}, largest difference {verdict.worst:.1e}"),
        ("open sizes", "; ".join(f"{name} ({', '.join(map(str, at))})" for name, at in report.sizes.items()) or "none"),
        ("nodes", report.nodes),
    ]
    rows += [("note", note) for note in (*report.notes, *verdict.notes)]
    rows += [(f"tried {one.way}", f"{one.outcome}: {one.reason} {one.where}") for one in report.attempts[:-1]]
    table = Table(show_header=False, box=None)
    for name, text in rows:
        table.add_row(name, str(text))
    console.print(table)
