"""Options that the verbs of compression share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import typer
from rich.table import Table

from sardonyx.cli.output import AsJson, console, names_in, print_json, progress, report_written
from sardonyx.compress.evidence import METRICS, CompressionResult, Evaluate, Evidence, plain, stored_metric
from sardonyx.model import load

Samples = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Samples of real inputs to learn from: .npz (axis 0 of each array), or a folder of images, audio or "
        "arrays.",
        show_default=False,
    ),
]
Preprocess = Annotated[
    Path | None, typer.Option(help="Model that computes inputs from the items of --data.", show_default=False)
]
Evaluation = Annotated[
    Path | None,
    typer.Option("--eval", help="Samples with labels (.npz) for --metric that judge.", show_default=False),
]
MetricName = Annotated[str, typer.Option("--metric", help=f"Metric of --eval: {', '.join(METRICS)}.")]
Drop = Annotated[
    float | None,
    typer.Option(help="Largest permitted loss of the metric, in its units, for the verdict.", show_default=False),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(help="Leave these nodes or operators as they are (A,B; repeatable).", show_default=False),
]
Seed = Annotated[int, typer.Option(help="Seed of random draws, orders and intervals.")]

OPTIONS_OF_PARAMETERS = {"evaluate": "--eval"}
"""Options by the parameters of the functions of compression that have other names."""

_MOST_LAYERS = 20
"""Rows of a table of layers."""


def evaluate_of(
    evaluation: Path | None, metric_name: str, model: Path, preprocess: Path | None = None
) -> Evaluate | None:
    """Return the metric of ``--eval``; None without."""
    return None if evaluation is None else stored_metric(metric_name, evaluation, load(model), preprocess)


@dataclass(frozen=True)
class Shared:
    """The options that all verbs of one compression have."""

    data: Samples = None
    preprocess: Preprocess = None
    evaluation: Evaluation = None
    metric_name: MetricName = "top1"
    drop: Drop = None
    exclude: Exclude = None
    as_json: AsJson = False


def compress_file(
    function: Callable[..., CompressionResult[Any]], action: str, show: Callable[[Any], None], model: Path,
    output: Path, shared: Shared, **options: Any,
) -> None:  # fmt: skip
    """Compress a file, write the result, and print the report.

    Args:
        function: The function of ``sardonyx.compress``.
        action: The action, for the progress.
        show: Prints the report for a person.
        model: The file.
        output: The file to write.
        shared: The shared options.
        options: Further options of the function.

    Raises:
        typer.Exit: The result is *not kept*; the code is 1.
        SardonyxError: The model, an option or the data are wrong.
    """
    with progress(action, quiet=shared.as_json):
        result = function(
            model,
            shared.data,
            preprocess=shared.preprocess,
            evaluate=evaluate_of(shared.evaluation, shared.metric_name, model, shared.preprocess),
            drop=shared.drop,
            exclude=names_in(shared.exclude),
            **options,
        )
        result.save(output)
    finish(result.report, output, show, as_json=shared.as_json)


class Judged(Protocol):
    """A report with evidence."""

    @property
    def evidence(self) -> Evidence:
        """The errors of the outputs, the metric and the verdict."""


Report = TypeVar("Report", bound=Judged)


def finish(report: Report, output: Path, show: Callable[[Report], None], *, as_json: bool) -> None:
    """Print the report of a written file.

    Args:
        report: The report.
        output: The file.
        show: Prints the report for a person.
        as_json: True to print JSON.

    Raises:
        typer.Exit: The loss of the metric exceeds ``--drop``; the code is 1.
    """
    if as_json:
        print_json({"written": str(output), **plain(report)})
    else:
        show(report)
        report_written(output, as_json=False)
    if report.evidence.verdict == "not kept":
        raise typer.Exit(1)


def show_layers(layers: Iterable[tuple[str, str, str]], title: str = "Layers that stay") -> None:
    """Print the name, operator and reason of layers that stay; layers that changed have no reason."""
    unchanged = [layer for layer in layers if layer[2]]
    if not unchanged:
        return
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in ("node", "operator", "why"):
        table.add_column(column, overflow="fold")
    for layer in unchanged[:_MOST_LAYERS]:
        table.add_row(*layer)
    console.print(table)


def show_evidence(evidence: Evidence) -> None:
    """Print the errors of the outputs, and the metric with the verdict."""
    if not evidence.outputs:
        console.print(f"Accuracy: {evidence.judged}.", markup=False)
    for error in evidence.outputs:
        console.print(f"{error.name}: SQNR {error.sqnr:.1f} dB ({evidence.judged}).", markup=False)
    change = evidence.metric
    if change is not None:
        console.print(
            f"Metric: {change.before:.4g} -> {change.after:.4g}; {evidence.verdict}: {evidence.reason}.", markup=False
        )
