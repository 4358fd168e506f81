"""``sardonyx compare``: how far two models or providers are apart, and where they part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sardonyx.cli.output import AsJson, console, names_in, print_json, progress, read_inputs
from sardonyx.report.accuracy import BUDGET, TOLERANCE, Comparison, TensorError, compare

EXAMPLE = "sardonyx compare model.onnx half.onnx --tolerance 0.01"

MOST_ROWS = 30


def command(
    first: Annotated[Path, typer.Argument(help="The model that is taken to be right.", show_default=False)],
    second: Annotated[
        Path | None, typer.Argument(help="The other; the first again without it.", show_default=False)
    ] = None,
    providers: Annotated[
        list[str] | None,
        typer.Option(
            help="What runs the first, and the second: native, reference, onnxruntime, openvino. Repeat, or commas.",
            show_default="native",
        ),
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(help="Real inputs (.npz); drawn ones otherwise.", show_default=False)
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="Largest difference, relative to a tensor's largest element.")
    ] = TOLERANCE,
    every: Annotated[bool, typer.Option("--all", help="Compare all layers, also where outputs agree.")] = False,
    budget: Annotated[int, typer.Option(help="MiB of tensors that are kept of each side at a time.")] = BUDGET >> 20,
    as_json: AsJson = False,
) -> None:
    """Compare two models, or two providers on one, tensor by tensor, and name the first layer where they part.

    Exit code 1 says that an output is beyond the tolerance.
    """
    with progress("comparing", quiet=as_json):
        found = compare(
            first, second, providers=names_in(providers) or ["native"], inputs=read_inputs(inputs),
            tolerance=tolerance, budget=budget << 20, all_layers=every,
        )  # fmt: skip
    if as_json:
        print_json(found.as_dict())
    else:
        console.print(_table("Outputs", found.outputs, tolerance))
        if every or found.first is not None:
            console.print(_table("Layers", _worst(found), tolerance))
        for line in _lines(found):
            console.print(line, markup=False, soft_wrap=True)
    if not found.equal:
        raise typer.Exit(1)


def _worst(found: Comparison) -> list[TensorError]:
    """The layers with the largest errors, in the model's order."""
    kept = sorted(found.layers, key=lambda each: each.error, reverse=True)[:MOST_ROWS]
    return [each for each in found.layers if each in kept]


def _table(title: str, rows: list[TensorError] | tuple[TensorError, ...], tolerance: float) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("tensor", "operator"):
        table.add_column(name, overflow="fold")
    for name in ("largest error", "mean error"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for row in rows:
        mean = "" if row.mean is None else f"{row.mean:.1e}"
        mark = "beyond" if row.error > tolerance else ""
        table.add_row(row.tensor, row.operator, f"{row.error:.1e}", mean, row.detail or mark)
    return table


def _lines(found: Comparison) -> Iterator[str]:
    if found.first is not None:
        yield (
            f"The first layer beyond {found.tolerance:g}: {found.first.operator} {found.first.node} "
            f"makes {found.first.tensor}, {found.first.error:.1e} off."
        )
    elif found.equal:
        layers = f", and {len(found.layers)} layers" if found.layers else ""
        yield f"Equal within {found.tolerance:g}: {len(found.outputs)} outputs{layers}."
    if found.unpaired:
        yield f"{found.unpaired} tensors of the first model have no counterpart in the second."
