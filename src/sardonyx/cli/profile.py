"""``sardonyx profile``: time of a run by kernel, and memory of the session."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli.output import (
    AsJson,
    ModelPath,
    Sizes,
    console,
    parse_sizes,
    print_json,
    progress,
    read_inputs,
    require_unread,
)
from sardonyx.errors import OptionError
from sardonyx.model import require_writable
from sardonyx.report.flame import flame, flame_table
from sardonyx.report.kernels import node_names, operators, profile_data, profile_tables
from sardonyx.report.memory import memory_tables, write_plot
from sardonyx.report.profile_page import write_page
from sardonyx.report.quantities import print_all
from sardonyx.report.scopes import Scopes
from sardonyx.report.trace import write_trace
from sardonyx.rewrite.verify.inputs import require_fit
from sardonyx.runtime import Session
from sardonyx.runtime.profiling.profile import drawn_feeds

EXAMPLE = "sardonyx profile model.onnx --inputs real.npz --runs 50 --html profile.html --trace trace.json"

OPTIONS_OF_PARAMETERS = {"providers": "--provider"}

MOST_ROWS = 30


def command(
    model: ModelPath,
    inputs: Annotated[
        Path | None, typer.Option(help="Real inputs (.npz); random by default.", show_default=False)
    ] = None,
    sizes: Sizes = None,
    runs: Annotated[int, typer.Option(help="Number of runs, for medians.")] = 20,
    threads: Annotated[int | None, typer.Option(help="Number of threads; all by default.", show_default=False)] = None,
    provider: Annotated[
        list[str] | None,
        typer.Option(help="Providers in order of preference (repeatable), or auto.", show_default=False),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a Chrome trace of one run, for Perfetto.", show_default=False)
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with plots.", show_default=False)] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Report memory instead: offset and lifetime of each value.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="With --memory: a picture, .svg (the largest arena) or .html (all).", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a model kernel by kernel, against the peak of the machine.

    Time, operations, bytes, and their share of the machine's peak, which is measured immediately before with the same
    number of threads; also by module of the model, as far as names of nodes or weights identify modules. With --memory:
    arenas, weights, the peak of a call, and memory shared between values.
    """
    assigned = parse_sizes(sizes)
    if inputs is not None and assigned:
        raise OptionError("the inputs determine the sizes", where="--sizes", remedy="Omit --sizes or --inputs.")
    _check(memory, plot, trace, html)
    require_unread((model, inputs), {"plot": plot, "trace": trace, "html": html})
    with progress("compiling", quiet=as_json):
        session = Session(model, providers=provider or None, compile="wait", threads=threads)
    with progress("running", quiet=as_json):
        feeds = read_inputs(inputs)
        if feeds is not None:
            require_fit(session.model, feeds)
        else:
            feeds, _ = drawn_feeds(model, session, assigned or None)
    names = node_names(session.model)
    if memory:
        session.run(None, feeds)
        usage = session.memory()
        if plot is not None:
            write_plot(plot, usage, names, model.name)
        if as_json:
            print_json(usage.as_dict())
        else:
            print_all(console, *memory_tables(usage, names, MOST_ROWS))
            _report_written(plot)
        return
    with progress("measuring", quiet=as_json):
        profile = session.profile(feeds, runs)
    scopes = Scopes(session.model)
    root = flame(profile, scopes, operators(session.model), model.stem)
    if trace is not None:
        write_trace(trace, profile, names, scopes)
    if html is not None:
        write_page(html, model.name, profile, names, scopes, root, session.memory())
    if as_json:
        print_json({**profile_data(profile, names), "modules": root.as_dict()})
    else:
        print_all(console, flame_table(root, MOST_ROWS), *profile_tables(profile, names, MOST_ROWS))
        _report_written(trace, html)


def _check(memory: bool, plot: Path | None, *files: Path | None) -> None:
    """Refuse contradictory options and unwritable files before computing.

    Raises:
        OptionError: An option lacks the option to which it belongs.
        ModelFileError: A file cannot be written.
    """
    if plot is not None and not memory:
        raise OptionError("requires --memory", where="--plot", remedy="Add --memory, or use --html.")
    if memory and any(files):
        raise OptionError(
            "excludes --trace and --html, which report time", where="--memory", remedy="Omit one of them."
        )
    for path in (plot, *files):
        if path is not None:
            require_writable(path)


def _report_written(*paths: Path | None) -> None:
    for path in paths:
        if path is not None:
            console.print(f"Written: {path}", markup=False, soft_wrap=True)
