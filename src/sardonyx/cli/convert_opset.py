"""``sardonyx convert-opset``: another operator set, or another IR version."""

from __future__ import annotations

from typing import Annotated

import typer

from sardonyx.cli.output import AsJson, ModelPath, Output, progress, report_written
from sardonyx.errors import OptionError
from sardonyx.model import load, save
from sardonyx.rewrite.opset import convert_opset

EXAMPLE = "sardonyx convert-opset model.onnx --opset 13 -o model-13.onnx"

OPTIONS_OF_PARAMETERS = {"ir_version": "--ir"}


def command(
    model: ModelPath,
    output: Output,
    opset: Annotated[
        int | None, typer.Option(help="The operator set to convert to, newer or older.", show_default=False)
    ] = None,
    ir: Annotated[int | None, typer.Option("--ir", help="The IR version to write.", show_default=False)] = None,
    domain: Annotated[str, typer.Option(help="The domain of the operator set.")] = "ai.onnx",
    as_json: AsJson = False,
) -> None:
    """Convert to another operator set, newer or older, or to another IR version.

    A node that cannot be converted is refused by name.
    """
    if opset is None and ir is None:
        raise OptionError("nothing to convert to", where="convert-opset", remedy="Give --opset N, --ir N, or both.")
    with progress("converting", quiet=as_json):
        source = load(model)
        before = dict(source.graph.opset_imports)
        converted = convert_opset(source, opset, ir_version=ir, domain="" if domain == "ai.onnx" else domain)
        save(converted, output)
    after = dict(converted.graph.opset_imports)
    report_written(output, as_json=as_json, opsets={"before": before, "after": after}, ir_version=converted.ir_version)
