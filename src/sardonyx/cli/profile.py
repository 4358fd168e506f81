"""``sardonyx profile``: where a run's time goes, and what memory holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli.output import AsJson, ModelPath, Sizes, console, parse_sizes, print_json, progress, read_inputs
from sardonyx.errors import OptionError
from sardonyx.model import require_writable
from sardonyx.report.flame import flame, flame_table
from sardonyx.report.kernels import node_names, operators, profile_data, profile_tables
from sardonyx.report.memory import memory_tables, write_plot
from sardonyx.report.profile_page import write_page
from sardonyx.report.scopes import Scopes
from sardonyx.report.tables import print_all
from sardonyx.report.trace import write_trace
from sardonyx.runtime import Session
from sardonyx.runtime.profiling.profile import drawn_feeds

EXAMPLE = "sardonyx profile model.onnx --inputs real.npz --runs 50 --html profile.html --trace trace.json"

MOST_ROWS = 30


def command(
    model: ModelPath,
    inputs: Annotated[
        Path | None, typer.Option(help="Real inputs (.npz); drawn ones otherwise.", show_default=False)
    ] = None,
    sizes: Sizes = None,
    runs: Annotated[int, typer.Option(help="Runs of which medians are taken.")] = 20,
    threads: Annotated[
        int | None, typer.Option(help="Threads that compute; all that there are by default.", show_default=False)
    ] = None,
    provider: Annotated[
        list[str] | None,
        typer.Option(help="Who may run it, in order of preference (repeatable), or auto.", show_default=False),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a Chrome trace of one run, for Perfetto.", show_default=False)
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with plots.", show_default=False)] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Tell of memory instead: which value lies where, and when.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="With --memory: draw it, as .svg (the largest arena) or .html (all).", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a model kernel by kernel, against what the machine can do.

    Time, operations, bytes, and their share of the machine's peak, which is measured just before on as many threads;
    by module of the model too, as far as names of nodes or weights tell. With --memory: arenas, weights, the peak of a
    call, and who shares memory with whom.
    """
    assigned = parse_sizes(sizes)
    if inputs is not None and assigned:
        raise OptionError("are told by the inputs that are given.", where="--sizes", remedy="Leave out one of them.")
    _check(memory, plot, trace, html)
    with progress("compiling", quiet=as_json):
        session = Session(model, providers=provider or None, compile="wait", threads=threads)
    with progress("running", quiet=as_json):
        feeds = read_inputs(inputs)
        if feeds is None:
            feeds, _ = drawn_feeds(model, session, assigned or None)
    names = node_names(session.model)
    if memory:
        session.run(None, feeds)
        held = session.memory()
        if plot is not None:
            write_plot(plot, held, names, model.name)
        if as_json:
            print_json(held.as_dict())
        else:
            print_all(console, *memory_tables(held, names, MOST_ROWS))
            _say_written(plot)
        return
    with progress("measuring", quiet=as_json):
        found = session.profile(feeds, runs)
    scopes = Scopes(session.model)
    root = flame(found, scopes, operators(session.model), model.stem)
    if trace is not None:
        write_trace(trace, found, names, scopes)
    if html is not None:
        write_page(html, model.name, found, names, scopes, root, session.memory())
    if as_json:
        print_json({**profile_data(found, names), "modules": root.as_dict()})
    else:
        print_all(console, flame_table(root, MOST_ROWS), *profile_tables(found, names, MOST_ROWS))
        _say_written(trace, html)


def _check(memory: bool, plot: Path | None, *files: Path | None) -> None:
    """Say what cannot be done before anything is computed.

    Raises:
        OptionError: An option stands without the one that it belongs to.
        ModelFileError: A file cannot be written.
    """
    if plot is not None and not memory:
        raise OptionError("it is memory that is drawn.", where="--plot", remedy="Give --memory too, or --html.")
    if memory and any(files):
        raise OptionError("--trace and --html tell of time.", where="--memory", remedy="Leave out one of them.")
    for path in (plot, *files):
        if path is not None:
            require_writable(path)


def _say_written(*paths: Path | None) -> None:
    for path in paths:
        if path is not None:
            console.print(f"Written: {path}", markup=False, soft_wrap=True)
