"""Options that the verbs of compression share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.compress.evidence import METRICS, Evaluate, stored_metric
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


def evaluate_of(
    evaluation: Path | None, metric_name: str, model: Path, preprocess: Path | None = None
) -> Evaluate | None:
    """Return the metric of ``--eval``; None without."""
    return None if evaluation is None else stored_metric(metric_name, evaluation, load(model), preprocess)
