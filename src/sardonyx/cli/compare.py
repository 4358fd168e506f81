"""``sardonyx compare``: differences between two models or providers, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sardonyx.cli.byte_counts import parse_bytes
from sardonyx.cli.output import AsJson, Sizes, console, names_in, parse_sizes, print_json, progress, read_inputs
from sardonyx.report.accuracy import TOLERANCE, Comparison, TensorError, compare

EXAMPLE = "sardonyx compare model.onnx half.onnx --tolerance 0.01"

MOST_ROWS = 30


def command(
    first: Annotated[Path, typer.Argument(help="The reference model.", show_default=False)],
    second: Annotated[
        Path | None, typer.Argument(help="The other model; the first again by default.", show_default=False)
    ] = None,
    providers: Annotated[
        list[str] | None,
        typer.Option(
            help="Providers of the first and the second: native, reference, onnxruntime, openvino (A,B; repeatable).",
            show_default="native",
        ),
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(help="Real inputs (.npz); random by default.", show_default=False)
    ] = None,
    sizes: Sizes = None,
    tolerance: Annotated[
        float, typer.Option(help="Largest difference, relative to a tensor's largest element.")
    ] = TOLERANCE,
    every: Annotated[bool, typer.Option("--all", help="Compare all layers, even if the outputs agree.")] = False,
    budget: Annotated[str, typer.Option(help="Most bytes of tensors of a side at a time, e.g. 512MiB.")] = "256MiB",
    as_json: AsJson = False,
) -> None:
    """Compare two models, or two providers on one, tensor by tensor: errors, and the first wrong layer.

    Exit code 1 if an output is beyond the tolerance.
    """
    with progress("comparing", quiet=as_json):
        comparison = compare(
            first, second, providers=names_in(providers) or ["native"], inputs=read_inputs(inputs),
            sizes=parse_sizes(sizes) or None, tolerance=tolerance, budget=parse_bytes(budget, "--budget"),
            all_layers=every,
        )  # fmt: skip
    if as_json:
        print_json(comparison.as_dict())
    else:
        console.print(_table("Outputs", comparison.outputs, tolerance))
        if every or comparison.first is not None:
            console.print(_table("Layers", _worst(comparison), tolerance))
        for line in _lines(comparison):
            console.print(line, markup=False, soft_wrap=True)
    if not comparison.equal:
        raise typer.Exit(1)


def _worst(comparison: Comparison) -> list[TensorError]:
    """Return the layers with the largest errors, in the model's order."""
    worst = sorted(comparison.layers, key=lambda layer: layer.error, reverse=True)[:MOST_ROWS]
    return [layer for layer in comparison.layers if layer in worst]


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


def _lines(comparison: Comparison) -> Iterator[str]:
    if comparison.first is not None:
        yield (
            f"The first layer beyond {comparison.tolerance:g}: {comparison.first.operator} {comparison.first.node} "
            f"computes {comparison.first.tensor} with error {comparison.first.error:.1e}."
        )
    elif comparison.equal:
        layers = f", and {len(comparison.layers)} layers" if comparison.layers else ""
        yield f"Equal within {comparison.tolerance:g}: {len(comparison.outputs)} outputs{layers}."
    if comparison.unpaired:
        yield f"{comparison.unpaired} tensors of the first model have no counterpart in the second."
