"""``sardonyx info``: summary of a model, or of several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sardonyx.cli.output import (
    AsJson,
    Sizes,
    console,
    parse_sizes,
    print_json,
    progress,
    report_written,
    require_unread,
    write_csv,
)
from sardonyx.core.dim import require_symbols
from sardonyx.errors import OptionError
from sardonyx.model import load, require_writable
from sardonyx.report.listing import NodeRow, list_nodes, list_weights
from sardonyx.report.quantities import print_all
from sardonyx.report.summary import Summary, summary
from sardonyx.report.summary_tables import nodes_table, side_by_side, sparsity_table, summary_tables, weights_table
from sardonyx.rewrite.verify.inputs import open_sizes

EXAMPLE = "sardonyx info model.onnx --sizes N=8 --nodes --weights --csv nodes.csv"

_COLUMNS = (
    "graph", "name", "operator", "inputs", "outputs", "types", "attributes", "macs", "parameters", "weight_bytes",
    "output_bytes",
)  # fmt: skip


def command(
    models: Annotated[
        list[Path],
        typer.Argument(help="The model: .onnx, .onnxtxt, .textproto, .prototxt; or several.", show_default=False),
    ],
    sizes: Sizes = None,
    nodes: Annotated[bool, typer.Option("--nodes", help="List the nodes: outputs, attributes, MACs.")] = False,
    weights: Annotated[bool, typer.Option("--weights", help="List the weights: type, shape, bytes, range.")] = False,
    sparsity: Annotated[
        bool, typer.Option("--sparsity", help="List the weights by share of zeros, with channels and groups in 2:4.")
    ] = False,
    csv: Annotated[
        Path | None, typer.Option(help="Write the nodes, with sizes and cost of each (.csv).", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Summarize a model: interface, operators, weights, arithmetic, memory. Several models are shown side by side.

    Counts cover bodies and functions. With --sizes, the values of open sizes are inserted into all figures.
    """
    if len(models) > 1 and (nodes or weights or sparsity or csv is not None):
        raise OptionError(
            "expected one model",
            where="--nodes, --weights, --sparsity, --csv",
            remedy="Give one model, or omit the option.",
        )
    if csv is not None:
        require_writable(csv)
        require_unread(models, {"csv": csv})
    with progress("reading", quiet=as_json):
        of_models = zip(models, _assigned(models, sizes), strict=True)
        infos = [summary(model, sizes=assigned) for model, assigned in of_models]
        listed = list_nodes(models[0], sizes=parse_sizes(sizes)) if nodes or csv is not None else []
        constants = list_weights(models[0]) if weights or sparsity else []
    if csv is not None:
        write_csv(csv, _COLUMNS, map(_cells, listed))
    if as_json:
        print_json(_plain(models, infos, listed if nodes else None, constants if weights or sparsity else None))
        return
    if len(models) > 1:
        print_all(console, side_by_side([(model.name, info) for model, info in zip(models, infos, strict=True)]))
        return
    print_all(
        console,
        *summary_tables(models[0].name, infos[0]),
        *([nodes_table(listed)] if nodes else []),
        *([weights_table(constants)] if weights else []),
        *([sparsity_table(constants)] if sparsity else []),
    )
    if csv is not None:
        report_written(csv, as_json=False)


def _assigned(models: list[Path], sizes: list[str] | None) -> list[dict[str, int]]:
    """Return the values of the open sizes of each model; an option is in force for the models that have the size.

    Raises:
        OptionError: No model has the size.
    """
    assigned = parse_sizes(sizes)
    if len(models) == 1 or not assigned:
        return [assigned] * len(models)
    opened = [open_sizes(load(model)) for model in models]
    require_symbols(assigned, dict.fromkeys(name for names in opened for name in names))
    return [{name: size for name, size in assigned.items() if name in names} for names in opened]


def _cells(row: NodeRow) -> list[Any]:
    """Return a row of the table of nodes; lists are separated by spaces."""
    data = row.as_dict()
    for name in ("inputs", "outputs"):
        data[name] = " ".join(data[name])
    data["types"] = " ".join(text.replace(" ", "") for text in data["types"])
    data["attributes"] = "; ".join(f"{name}={text}" for name, text in data["attributes"].items())
    return ["" if data[name] is None else data[name] for name in _COLUMNS]


def _plain(
    models: list[Path], infos: list[Summary], nodes: list[NodeRow] | None, weights: list[Any] | None
) -> dict[str, Any] | list[dict[str, Any]]:
    if len(infos) > 1:
        return [{"model": str(model), **info.as_dict()} for model, info in zip(models, infos, strict=True)]
    lists = {"node_list": nodes, "weight_list": weights}
    return infos[0].as_dict() | {
        name: [row.as_dict() for row in rows] for name, rows in lists.items() if rows is not None
    }
