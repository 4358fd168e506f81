"""``sardonyx simplify``: bit-exact rewrites."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli import optimize
from sardonyx.cli.output import AsJson, ModelPath, Output
from sardonyx.rewrite.pipeline import exact_passes

EXAMPLE = "sardonyx simplify model.onnx -o simpler.onnx"


def command(
    model: ModelPath,
    output: Output,
    skip: Annotated[
        list[str] | None, typer.Option(help="Passes to skip (A,B; repeatable).", show_default=False)
    ] = None,
    input_shape: Annotated[
        list[str] | None, typer.Option(help="New input shape, NAME:1,3,H,W (repeatable).", show_default=False)
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(help="Real inputs for verification (.npz).", show_default=False)
    ] = None,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Prove that the outputs are equal.")] = True,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 3 and write nothing unless proved.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fold constants and remove redundant nodes: `optimize` with bit-exact rewrites only."""
    optimize.command(
        model,
        output=output,
        passes=exact_passes(),
        skip=skip,
        input_shape=input_shape,
        inputs=inputs,
        verify=verify,
        strict=strict,
        measure=False,
        as_json=as_json,
    )
