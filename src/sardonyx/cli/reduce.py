"""``sardonyx reduce``: the smallest part of a failing model that still fails."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from sardonyx import model as model_io
from sardonyx.cli.output import (
    AsJson,
    ModelPath,
    Output,
    Sizes,
    console,
    names_in,
    parse_sizes,
    print_json,
    progress,
    read_inputs,
)
from sardonyx.errors import OptionError
from sardonyx.report.accuracy import TOLERANCE, Side, draw_feeds
from sardonyx.report.reduction import differs_between, fails_command, reduce

EXAMPLE = "sardonyx reduce model.onnx -o small.onnx --command 'python check.py {model} {inputs}'"

OPTIONS_OF_PARAMETERS = {"command": "--command"}


def command(
    model: ModelPath,
    output: Output,
    providers: Annotated[
        list[str] | None,
        typer.Option(
            help="Two providers; the model fails if their outputs differ (A,B; repeatable).", show_default=False
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--command",
            help="The model fails if this command's exit code is not 0; {model} and {inputs} become file names.",
            show_default=False,
        ),
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(help="Inputs on which the model fails (.npz); random by default.", show_default=False)
    ] = None,
    sizes: Sizes = None,
    tolerance: Annotated[
        float, typer.Option(help="Largest difference, relative to an output's largest element.")
    ] = TOLERANCE,
    timeout: Annotated[float, typer.Option(help="Time limit of one run of the command, in seconds.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Shrink a failing model to the smallest part that fails in the same way.

    The part's inputs are written next to the result (.npz).
    """
    chosen = names_in(providers)
    if (run is None) == (not chosen) or (chosen and len(chosen) != 2):
        raise OptionError(
            "expected a definition of failure", where="reduce", remedy="Give two --providers, or a --command."
        )
    loaded = model_io.load(model)
    fails = fails_command(run, timeout) if run is not None else differs_between(chosen[0], chosen[1], tolerance)
    with progress("reducing", quiet=as_json):
        feeds = read_inputs(inputs) or draw_feeds(Side(loaded, "reference"), parse_sizes(sizes) or None)
        reduced = reduce(loaded, feeds, fails)
    stored = output.with_suffix(".npz")
    model_io.save(reduced.model, output)
    np.savez(stored, **reduced.feeds)
    if as_json:
        print_json({
            "written": str(output), "inputs": str(stored), "failure": reduced.failure, "nodes_before": reduced.before,
            "nodes": reduced.after, "trials": reduced.trials,
        })  # fmt: skip
        return
    console.print(
        f"{reduced.before} nodes → {reduced.after} with the same failure ({reduced.failure}) after {reduced.trials} "
        f"trials. Written: {output}, {stored}",
        markup=False, soft_wrap=True,
    )  # fmt: skip
