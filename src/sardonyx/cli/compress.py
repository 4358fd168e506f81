"""``sardonyx compress``: the smallest and fastest model that keeps a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from sardonyx.cli import compression
from sardonyx.cli.output import (
    AsJson,
    ModelPath,
    Output,
    console,
    errors,
    print_json,
    report_written,
    require_distinct,
    require_unread,
)
from sardonyx.compress.evidence import plain
from sardonyx.compress.search import Budget, CompressionReport, compress
from sardonyx.compress.search.page import write_page
from sardonyx.model import load, require_writable

EXAMPLE = "sardonyx compress digits_classifier.onnx --data train.npz --eval eval.npz --drop 2 --trials 6 -o small.onnx"

OPTIONS_OF_PARAMETERS = compression.OPTIONS_OF_PARAMETERS

BROKEN = 3
"""Exit code of a budget that is not kept."""


def command(
    model: ModelPath,
    output: Output,
    data: compression.Samples = None,
    evaluation: compression.Evaluation = None,
    metric: compression.MetricName = "top1",
    drop: compression.Drop = None,
    sqnr: Annotated[
        float | None, typer.Option(help="Smallest SQNR of an output in dB; 20 without --eval.", show_default=False)
    ] = None,
    latency: Annotated[str | None, typer.Option(help="Longest run: 10ms.", show_default=False)] = None,
    size: Annotated[str | None, typer.Option(help="Largest file: 4MB, 4MiB.", show_default=False)] = None,
    memory: Annotated[str | None, typer.Option(help="Most memory of a run: 64MB.", show_default=False)] = None,
    energy: Annotated[str | None, typer.Option(help="Most energy of a run: 5mJ.", show_default=False)] = None,
    target: Annotated[str, typer.Option(help="The engine that judges: native or onnxruntime.")] = "native",
    measure: Annotated[
        bool | None,
        typer.Option(
            "--measure/--no-measure",
            help="Measure every time, or none; by default those that --latency limits, and the result's.",
            show_default=False,
        ),
    ] = None,
    allow_slower: Annotated[
        bool, typer.Option("--allow-slower", help="Accept a result that is slower than the original.")
    ] = False,
    preprocess: compression.Preprocess = None,
    seed: compression.Seed = 0,
    trials: Annotated[int, typer.Option(help="Most plans to try.")] = 60,
    time: Annotated[str | None, typer.Option(help="Time of the search: 10m.", show_default=False)] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of outcomes, from which a search resumes.", show_default=False),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write the report here (.html).", show_default=False)] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 3 if the budget is not proved kept.")] = False,
    as_json: AsJson = False,
) -> None:
    """Search for the smallest and fastest model that keeps a budget of accuracy, size and time.

    Exit code 3: no model keeps the budget, and nothing is written.
    """
    if report is not None:
        require_writable(report)
        require_distinct({"output": output, "report": report})
        require_unread((model, data, evaluation, preprocess), {"report": report})
    source = load(model)
    budget = Budget(drop=drop, sqnr=sqnr, latency=latency, size=size, memory=memory, energy=energy)
    options: dict[str, Any] = {"target": target, "measured": measure, "allow_slower": allow_slower}
    with _Progress(quiet=as_json) as progress:
        result = compress(
            source,
            data,
            evaluate=compression.evaluate_of(evaluation, metric, model, preprocess),
            budget=budget,
            preprocess=preprocess,
            seed=seed,
            trials=trials,
            time=time,
            state=state,
            progress=progress,
            **options,
        )
    is_broken = result.report.verdict == "not kept"
    if not is_broken:
        result.save(output)
    if report is not None:
        write_page(report, model.name, result.report, None if evaluation is None else metric)
    if as_json:
        written = {} if is_broken else {"written": str(output)}
        print_json({**written, **plain(result.report)})
    else:
        _show(result.report, None if evaluation is None else metric)
        if not is_broken:
            report_written(output, as_json=False)
    if is_broken or (strict and result.report.verdict != "kept"):
        raise typer.Exit(BROKEN)


class _Progress:
    """The plan that is being tried, on a terminal only."""

    def __init__(self, quiet: bool) -> None:
        self._bar: Any = None
        self._count = 0
        if not quiet and errors.is_terminal:
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            self._bar = Progress(*columns, console=errors, transient=True)

    def __enter__(self) -> _Progress:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("reading")
        return self

    def __exit__(self, *details: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, label: str) -> None:
        self._count += 1
        if self._bar is not None:
            self._bar.update(self._task, description=f"{self._count}: {label}")


def _show(report: CompressionReport, metric: str | None) -> None:
    table = Table(title="Pareto front", title_justify="left", header_style="bold")
    table.add_column("plan", overflow="fold")
    for column in ("bytes", "time", "worst SQNR", metric or "metric"):
        table.add_column(column, justify="right", no_wrap=True)
    original = report.original
    for trial in report.trials:
        if trial.label not in report.front or trial.figures is None:
            continue
        table.add_row(
            trial.label + (" *" if trial.label == report.plan else ""),
            f"{trial.figures.size:,}",
            f"{trial.figures.seconds / original.seconds:.2f} x",
            "" if trial.sqnr is None else f"{trial.sqnr:.1f} dB",
            "" if trial.metric is None else f"{report.shown(trial.metric):.4g}",
        )
    kind = "measured" if report.result.is_measured else "by the cost model"
    table.caption = f"* the result; times of one run over the original's, {kind}, on {report.target}"
    console.print(table)
    for trial in report.trials:
        if trial.failure:
            console.print(f"Not possible: {trial.label}: {trial.failure}", markup=False)
    for note in report.notes:
        console.print(note, markup=False)
    change = report.evidence.metric
    if change is not None:
        bounds = change.interval
        interval = "" if bounds is None else f", 95 % from {bounds[0]:.4g} to {bounds[1]:.4g}"
        console.print(
            f"{metric}: {change.before:.4g} -> {change.after:.4g}, loss {change.loss:.4g}{interval} "
            f"({change.samples} samples).",
            markup=False,
        )
    for error in report.evidence.outputs:
        console.print(f"{error.name}: SQNR {error.sqnr:.1f} dB ({report.evidence.judged}).", markup=False)
    console.print(f"{report.plan}: {original.size:,} -> {report.result.size:,} bytes.", markup=False)
    console.print(f"Budget {report.verdict}: {report.reason}.", markup=False)
