"""``sardonyx reduce``: the smallest part of a failing model that still fails."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from sardonyx import model as model_io
from sardonyx.cli.output import AsJson, ModelPath, Output, console, names_in, print_json, progress, read_inputs
from sardonyx.errors import OptionError
from sardonyx.report.accuracy import TOLERANCE, Side, drawn
from sardonyx.report.reduction import differing, reduce, refused_by

EXAMPLE = "sardonyx reduce model.onnx -o small.onnx --command 'python check.py {model} {inputs}'"


def command(
    model: ModelPath,
    output: Output,
    providers: Annotated[
        list[str] | None,
        typer.Option(help="It fails where the second differs from the first. Repeat, or commas.", show_default=False),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--command",
            help="It fails where this ends with another exit code than 0; {model} and {inputs} stand for files.",
            show_default=False,
        ),
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(help="Inputs on which it fails (.npz); drawn ones otherwise.", show_default=False)
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="Largest difference, relative to an output's largest element.")
    ] = TOLERANCE,
    timeout: Annotated[float, typer.Option(help="Most seconds of one run of the command.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Shrink a failing model to the smallest part that fails in the same way, and write that with its inputs (.npz)."""
    chosen = names_in(providers)
    if (run is None) == (not chosen) or (chosen and len(chosen) != 2):
        raise OptionError("says not what a failure is", where="reduce", remedy="Give two --providers, or a --command.")
    loaded = model_io.load(model)
    fails = refused_by(run, timeout) if run is not None else differing(chosen[0], chosen[1], tolerance)
    with progress("reducing", quiet=as_json):
        feeds = read_inputs(inputs) or drawn(Side(loaded, "reference"))
        found = reduce(loaded, feeds, fails)
    stored = output.with_suffix(".npz")
    model_io.save(found.model, output)
    np.savez(stored, **found.feeds)
    if as_json:
        print_json({
            "written": str(output), "inputs": str(stored), "failure": found.failure, "nodes_before": found.before,
            "nodes": found.after, "trials": found.trials,
        })  # fmt: skip
        return
    console.print(
        f"{found.before} nodes → {found.after}, which fail as the model does ({found.failure}); {found.trials} parts "
        f"tried. Written: {output}, {stored}",
        markup=False, soft_wrap=True,
    )  # fmt: skip
