"""``sardonyx bench``: a model on several engines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sardonyx.cli.output import (
    AsJson,
    console,
    names_in,
    parse_sizes,
    print_json,
    progress,
    read_inputs,
    require_unread,
    write_csv,
)
from sardonyx.errors import MissingDependencyError, OptionError
from sardonyx.model import require_writable
from sardonyx.report.bench import PERCENTILES, Figures, bench

EXAMPLE = "sardonyx bench model.onnx --against onnxruntime --sizes N=1 --sizes N=8 --seconds 1"


def command(
    models: Annotated[
        list[Path],
        typer.Argument(help="The model, or a compiled file (.sdx); or several with equal inputs.", show_default=False),
    ],
    against: Annotated[
        list[str] | None,
        typer.Option(help="Other engines: onnxruntime, openvino (A,B; repeatable).", show_default="onnxruntime"),
    ] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option(
            "--sizes",
            "--size",
            help="Values of open sizes, N=8,S=128; repeat to measure several.",
            show_default=False,
        ),
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(help="Real inputs (.npz); random by default.", show_default=False)
    ] = None,
    seconds: Annotated[float, typer.Option(help="Seconds for each set of sizes.")] = 2.0,
    warmup: Annotated[float, typer.Option(help="Seconds of uncounted runs of each engine before.")] = 0.0,
    threads: Annotated[
        int | None, typer.Option(help="Threads of every engine; all by default.", show_default=False)
    ] = None,
    streams: Annotated[
        str | None,
        typer.Option(help="Also measure runs per second with N concurrent calls: 1,2,4.", show_default=False),
    ] = None,
    times: Annotated[
        Path | None,
        typer.Option(
            help="Write the seconds of every timed run (.csv: sizes, engine, round, run).", show_default=False
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="The file of a plot.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Measure models on several engines: percentiles, ratios with intervals, throughput, energy.

    Engines and models alternate. A ratio above 1 means that Sardonyx is faster on the first model; its interval holds
    the true ratio with 95 % confidence.
    """
    model, *others = models
    assigned = [parse_sizes([text]) for text in sizes or ()]
    concurrency = _counts(streams)
    for path in (times, plot):
        if path is not None:
            require_writable(path)
    require_unread((*models, inputs), {"times": times, "plot": plot})
    with progress("measuring", quiet=as_json):
        engines = names_in(against) if against else None
        results = list(
            bench(
                model, engines, others=others, sizes=assigned, feeds=read_inputs(inputs), seconds=seconds,
                warmup=warmup, threads=threads, streams=concurrency,
            )
        )  # fmt: skip
    if times is not None:
        _write_times(results, times)
    if plot is not None:
        _plot(results, plot, model.name)
    if as_json:
        print_json([figures.as_dict() for figures in results])
        return
    for figures in results:
        console.print(_table(figures, concurrency))


def _counts(text: str | None) -> list[int]:
    try:
        counts = [int(part) for part in (text or "").split(",") if part]
    except ValueError:
        counts = [0]
    if any(count < 1 for count in counts):
        raise OptionError(f"expected counts such as 1,2,4, got '{text}'", where="--streams")
    return counts


def _table(figures: Figures, streams: Sequence[int]) -> Table:
    sizes = ", ".join(f"{name} = {size}" for name, size in figures.sizes.items()) or "as given"
    table = Table(title=f"Milliseconds at {sizes}", title_justify="left")
    table.add_column("engine")
    energy = any(figure.joules is not None for figure in figures.engines)
    columns = [*(f"p{percent}" for percent in PERCENTILES), "runs", "× sardonyx", "95 %"]
    for name in (*columns, *(f"runs/s of {count}" for count in streams), *(["joules"] if energy else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for figure in figures.engines:
        interval = "" if figure.interval is None else f"{figure.interval[0]:.2f}–{figure.interval[1]:.2f}"
        row = [f"{1e3 * figure.percentiles[percent]:.3f}" for percent in PERCENTILES]
        row += [
            str(figure.runs),
            f"{figure.ratio:.2f}",
            interval,
            *(f"{figure.streams[count]:.0f}" for count in streams),
        ]
        if energy:
            row.append("" if figure.joules is None else f"{figure.joules:.3g}")
        table.add_row(figure.engine, *row)
    table.caption = (
        "× sardonyx: median over the rounds of the time over that of Sardonyx on the first model in the same round, so "
        "that drift cancels; the p columns are percentiles of all runs."
    )
    return table


def _write_times(results: Sequence[Figures], path: Path) -> None:
    rows = [
        (" ".join(f"{name}={size}" for name, size in figures.sizes.items()), *row)
        for figures in results
        for row in figures.times()
    ]
    write_csv(path, ("sizes", "engine", "round", "run", "seconds"), rows)


def _plot(results: Sequence[Figures], path: Path, title: str) -> None:
    """Plot medians as bars, with the span to the 90th percentile, by sizes and engine."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingDependencyError("matplotlib is not installed", remedy="pip install matplotlib") from error
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    engines = [entry.engine for entry in results[0].engines]
    width = 0.8 / len(engines)
    for column, engine in enumerate(engines):
        rows = [figures.engines[column] for figures in results]
        medians = [1e3 * row.percentiles[50] for row in rows]
        spans = [1e3 * (row.percentiles[90] - row.percentiles[50]) for row in rows]
        at = [number + column * width for number in range(len(rows))]
        axes.bar(at, medians, width, yerr=[[0] * len(rows), spans], capsize=3, label=engine)
    labels = [", ".join(f"{n}={s}" for n, s in figures.sizes.items()) or "as given" for figures in results]
    axes.set_xticks([number + 0.4 - width / 2 for number in range(len(results))], labels)
    axes.set_ylabel("milliseconds, median to 90th percentile")
    axes.set_title(title)
    axes.legend()
    figure.savefig(path)
