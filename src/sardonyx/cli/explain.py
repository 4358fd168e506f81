"""``sardonyx explain``: the compiled form of a model."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from sardonyx.cli.output import AsJson, ModelPath, Sizes, TimePasses, console, parse_sizes, print_json, progress
from sardonyx.compiler.explain import explain
from sardonyx.compiler.pass_runner import recorded_pass_times
from sardonyx.report.kernels import explanation_data, explanation_tables, node_names
from sardonyx.report.pass_times import pass_time_data, pass_time_table
from sardonyx.report.placement import answerer_table, placement_tables
from sardonyx.report.quantities import print_all
from sardonyx.runtime import Session

EXAMPLE = "sardonyx explain model.onnx --sizes N=8"

OPTIONS_OF_PARAMETERS = {"providers": "--provider"}


def command(
    model: ModelPath,
    sizes: Sizes = None,
    provider: Annotated[
        list[str] | None,
        typer.Option(help="Providers in order of preference (repeatable), or auto.", show_default=False),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads to compile for; all by default.", show_default=False)
    ] = None,
    time_passes: TimePasses = False,
    as_json: AsJson = False,
) -> None:
    """Show the compiled form of a model: kernels with nodes, bytes, operations and boundaries.

    Interpreted values are listed with reasons, also if the model cannot be compiled as a whole. With providers: the
    provider, call and reason of each node. An arrow marks the answerer to which a call for all outputs goes.
    """
    assigned = parse_sizes(sizes)
    with progress("compiling", quiet=as_json), recorded_pass_times(time_passes) as times:
        session = Session(model, providers=provider or None, compile="wait", threads=threads)
        program = session.program
    answerers = {"answerers": [asdict(note) for note in session.answerers]}
    if provider:
        if as_json:
            print_json({"placement": [asdict(node) for node in session.placement], **answerers})
        else:
            print_all(console, answerer_table(session.answerers), *placement_tables(session.placement))
        return
    names = node_names(session.model)
    if program is None:
        if as_json:
            print_json({"compiled": False, "reason": session.not_compiled, **answerers})
        else:
            when = "Compiled at the first call" if session.wait() else "Not compiled, interpreted with numpy"
            console.print(f"{when}: {session.not_compiled}", markup=False)
            print_all(console, answerer_table(session.answerers))
        return
    explanation = explain(program, assigned)
    if as_json:
        passes = {"passes": pass_time_data(times)} if time_passes else {}
        print_json({"compiled": True, **explanation_data(explanation, names), **answerers, **passes})
    else:
        print_all(console, answerer_table(session.answerers), *explanation_tables(explanation, names))
        if time_passes:
            print_all(console, pass_time_table(times))
