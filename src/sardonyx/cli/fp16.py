"""``sardonyx fp16``: conversion to 16-bit floats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from sardonyx.cli.output import (
    AsJson,
    ModelPath,
    Output,
    console,
    names_in,
    print_json,
    progress,
    read_inputs,
    report_written,
)
from sardonyx.compress import float16
from sardonyx.errors import OptionError
from sardonyx.model import save

EXAMPLE = "sardonyx fp16 model.onnx --auto --tolerance 0.01 --inputs real.npz -o half.onnx"

OPTIONS_OF_PARAMETERS = {
    "op_block_list": "--block-op",
    "node_block_list": "--block-node",
    "min_positive_val": "--min-positive",
    "max_finite_val": "--max-finite",
}

MOST_ROWS = 20

_TOLERANCE = 1e-3
"""Tolerance of ``--auto``."""


def command(
    model: ModelPath,
    output: Output,
    bfloat16: Annotated[bool, typer.Option("--bf16", help="Convert to bfloat16 instead of float16.")] = False,
    auto: Annotated[
        bool, typer.Option("--auto", help="Measure which nodes must stay in float32 for the tolerance.")
    ] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Largest relative error of an output, with --auto; 0.001 by default.", show_default=False),
    ] = None,
    inputs: Annotated[Path | None, typer.Option(help="Real inputs for --auto (.npz).", show_default=False)] = None,
    keep_io_types: Annotated[
        bool, typer.Option("--keep-io", help="Keep the types of float32 inputs and outputs.")
    ] = False,
    block_op: Annotated[
        list[str] | None,
        typer.Option(help="Leave these operators in float32 (A,B; repeatable).", show_default=False),
    ] = None,
    block_node: Annotated[
        list[str] | None, typer.Option(help="Leave these nodes in float32 (A,B; repeatable).", show_default=False)
    ] = None,
    min_positive: Annotated[
        float | None,
        typer.Option(help="Raise smaller weights to this magnitude (1e-7; bfloat16: 0).", show_default=False),
    ] = None,
    max_finite: Annotated[
        float | None,
        typer.Option(
            help="Clip larger weights to this magnitude (1e4; bfloat16: the largest finite).", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Convert float32 to float16 or bfloat16, keeping float32 where operators or accuracy need it."""
    needless = {"--inputs": inputs, "--tolerance": tolerance}
    if not auto and (options_of_auto := [option for option, value in needless.items() if value is not None]):
        raise OptionError("requires --auto.", where=", ".join(options_of_auto), remedy="Add --auto.")
    operators = [*float16.DEFAULT_OP_BLOCK_LIST, *names_in(block_op)] if block_op else None
    options: dict[str, Any] = {
        "keep_io_types": keep_io_types,
        "op_block_list": operators,
        "node_block_list": names_in(block_node) or None,
    }
    limits = {"min_positive_val": min_positive, "max_finite_val": max_finite}
    options |= {name: value for name, value in limits.items() if value is not None}
    with progress("converting", quiet=as_json):
        if not auto:
            convert = float16.convert_bfloat16 if bfloat16 else float16.convert_float16
            result: float16.Conversion | float16.MixedPrecision = convert(model, **options)
        else:
            kind: Literal["float16", "bfloat16"] = "bfloat16" if bfloat16 else "float16"
            result = float16.auto_mixed_precision(
                model, read_inputs(inputs), _TOLERANCE if tolerance is None else tolerance, dtype=kind, **options
            )
        save(result.model, output)
    if as_json:
        print_json({"written": str(output), **_plain(result)})
        return
    _show(result)
    report_written(output, as_json=False)


def _plain(result: float16.Conversion | float16.MixedPrecision) -> dict[str, Any]:
    data: dict[str, Any] = {
        "clipped": [asdict(clip) for clip in result.clipped],
        "kept": [asdict(node) for node in result.float32_nodes],
    }
    if isinstance(result, float16.MixedPrecision):
        trials = [{"kept": trial.float32_nodes, "error": trial.error} for trial in result.trials]
        data |= {"error": result.error, "chosen": result.chosen, "trials": trials}
    return data


def _show(result: float16.Conversion | float16.MixedPrecision) -> None:
    if result.float32_nodes:
        reasons = Counter((node.reason, node.op_type) for node in result.float32_nodes)
        _table(
            "Left in float32", ("nodes", "operator", "why"), [(n, op, why) for (why, op), n in reasons.most_common()]
        )
    if result.clipped:
        columns = tuple(asdict(result.clipped[0]))
        _table("Clipped weights", columns, [tuple(asdict(clip).values()) for clip in result.clipped])
    if isinstance(result, float16.MixedPrecision):
        console.print(
            f"Output error {result.error:.2e}, measured; {len(result.chosen)} nodes left in float32 for accuracy, "
            f"after {len(result.trials)} trials.",
            markup=False,
        )


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in rows[:MOST_ROWS]:
        table.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row))
    if len(rows) > MOST_ROWS:
        table.caption = f"{len(rows) - MOST_ROWS} more; --json holds all."
    console.print(table)
