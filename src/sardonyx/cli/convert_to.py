"""``sardonyx convert-to``: a model as a proved program of another framework or engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from sardonyx.cli.output import (
    AsJson,
    ModelPath,
    Sizes,
    console,
    parse_sizes,
    print_json,
    progress,
    read_inputs,
    report_written,
)
from sardonyx.export.exporting import ExportReport, convert_to
from sardonyx.export.targets import target_names, target_of
from sardonyx.model import require_writable

EXAMPLE = "sardonyx convert-to model.onnx --to torch -o model.py"


def command(
    model: ModelPath,
    target: Annotated[str, typer.Option("--to", help=f"The target: {', '.join(target_names())}.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file; by default the model's name with the target's suffix."),
    ] = None,
    sample: Annotated[Path | None, typer.Option(help="Real inputs (.npz), by input name.", show_default=False)] = None,
    sizes: Sizes = None,
    name: Annotated[str | None, typer.Option(help="Name of the program in the target.", show_default=False)] = None,
    unproved: Annotated[bool, typer.Option("--unproved", help="Write an artifact that is not proved.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the drawn inputs.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Convert a model to another framework or engine, and prove the result equal to the model.

    The result is written if proved. Exit code 3: not proved, and nothing is written without --unproved.
    """
    row = target_of(target)
    path = output or Path(model).with_suffix(row.suffix)
    if not path.is_dir():
        require_writable(path)
    with progress(f"converting to {target}", quiet=as_json):
        result = convert_to(model, target, inputs=read_inputs(sample), sizes=parse_sizes(sizes), name=name, seed=seed)
    if not as_json:
        _show(result.report)
    written = result.save(path, unproved=unproved)
    if as_json:
        print_json({"written": [str(file) for file in written], **result.report.as_dict()})
    else:
        for file in written:
            report_written(file, as_json=False)


def _show(report: ExportReport) -> None:
    verdict = report.verdict
    rows: list[tuple[str, Any]] = [
        ("target", report.target),
        ("verdict", f"{verdict.status}{': ' + verdict.reason if verdict.reason else ''}"),
        ("samples", f"{verdict.samples}, largest difference {verdict.worst:.1e}"),
        ("open sizes", "; ".join(f"{name} ({', '.join(map(str, at))})" for name, at in report.sizes.items()) or "none"),
        ("forms", ", ".join(f"{count} × {form}" for form, count in report.forms.items()) or "none"),
    ]
    if report.guilty:
        rows.append(("first difference", report.guilty))
    rows += [("note", note) for note in (*report.notes, *verdict.notes)]
    table = Table(show_header=False, box=None)
    for label, text in rows:
        table.add_row(label, str(text))
    console.print(table, markup=False)
