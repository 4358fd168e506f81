"""``sardonyx rename``: new names."""

from __future__ import annotations

from typing import Annotated

import typer

from sardonyx.cli.output import AsJson, ModelPath, Output, parse_pairs, progress, report_written
from sardonyx.errors import OptionError
from sardonyx.model import load, save
from sardonyx.rewrite.surgery import rename

EXAMPLE = "sardonyx rename model.onnx image=pixels --dim N=batch -o named.onnx"


def command(
    model: ModelPath,
    output: Output,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Inputs, outputs, weights and other tensors, OLD=NEW.", show_default=False),
    ] = None,
    node: Annotated[list[str] | None, typer.Option(help="A node, OLD=NEW (repeatable).", show_default=False)] = None,
    dim: Annotated[
        list[str] | None, typer.Option(help="A dimension, OLD=NEW (repeatable).", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rename inputs, outputs, tensors, nodes or dimensions; names may be swapped."""
    values = parse_pairs(names or [], "NAMES")
    nodes, dims = parse_pairs(node or [], "--node"), parse_pairs(dim or [], "--dim")
    if not (values or nodes or dims):
        raise OptionError("nothing to rename", where="rename", remedy="Give OLD=NEW, --node or --dim.")
    with progress("renaming", quiet=as_json):
        save(rename(load(model), values, nodes=nodes, dims=dims), output)
    report_written(output, as_json=as_json, tensors=values, nodes=nodes, dims=dims)
