"""``sardonyx explain``: what a model is compiled to."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from sardonyx.cli.output import AsJson, ModelPath, Sizes, console, parse_sizes, print_json, progress
from sardonyx.compiler.explain import explain
from sardonyx.report.kernels import explanation_data, explanation_tables, node_names
from sardonyx.report.placement import placement_tables
from sardonyx.report.tables import print_all
from sardonyx.runtime import Session

EXAMPLE = "sardonyx explain model.onnx --sizes N=8"


def command(
    model: ModelPath,
    sizes: Sizes = None,
    provider: Annotated[
        list[str] | None,
        typer.Option(help="Who may run it, in order of preference (repeatable), or auto.", show_default=False),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads to compile for; all that there are by default.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a model is compiled to: the kernels, what is in each, bytes, operations, and why it ends there.

    Also which values the interpreter computes, and why. A model that cannot be compiled as a whole is said to be so.
    With providers: which of them runs which node, in which call, and why.
    """
    assigned = parse_sizes(sizes)
    with progress("compiling", quiet=as_json):
        session = Session(model, providers=provider or None, compile="wait", threads=threads)
    if provider:
        if as_json:
            print_json({"placement": [asdict(each) for each in session.placement]})
        else:
            print_all(console, *placement_tables(session.placement))
        return
    names = node_names(session.model)
    if session.program is None:
        if as_json:
            print_json({"compiled": False, "reason": session.not_compiled})
        else:
            how = "It is compiled when it is called" if session.wait() else "It is not compiled, numpy runs it"
            console.print(f"{how}: {session.not_compiled}", markup=False)
        return
    found = explain(session.program, assigned)
    if as_json:
        print_json({"compiled": True, **explanation_data(found, names)})
    else:
        print_all(console, *explanation_tables(found, names))
