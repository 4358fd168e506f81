"""``sardonyx profile``: where a run's time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli.output import AsJson, ModelPath, console, print_json, progress, read_inputs
from sardonyx.report.kernels import node_names, profile_data, profile_tables
from sardonyx.report.tables import print_all
from sardonyx.runtime import Session
from sardonyx.runtime.profile import drawn_feeds

EXAMPLE = "sardonyx profile model.onnx --inputs real.npz --runs 50"

MOST_ROWS = 30


def command(
    model: ModelPath,
    inputs: Annotated[
        Path | None, typer.Option(help="Real inputs (.npz); drawn ones otherwise.", show_default=False)
    ] = None,
    runs: Annotated[int, typer.Option(help="Runs of which medians are taken.")] = 20,
    threads: Annotated[
        int | None, typer.Option(help="Threads that compute; all that there are by default.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a compiled model kernel by kernel, against what the machine can do.

    Time, operations, bytes, and their share of the machine's peak, which is measured just before on as many threads.
    """
    with progress("compiling", quiet=as_json):
        session = Session(model, compile="wait", threads=threads)
    with progress("running", quiet=as_json):
        feeds = read_inputs(inputs)
        if feeds is None:
            feeds, _ = drawn_feeds(model, session)
        found = session.profile(feeds, runs)
    names = node_names(session.model)
    if as_json:
        print_json(profile_data(found, names))
    else:
        print_all(console, *profile_tables(found, names, MOST_ROWS))
