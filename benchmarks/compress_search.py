"""Measure what a search under a budget gains over static int8, on trained models with labelled data.

    SARDONYX_SUITES=… python benchmarks/compress_search.py --tasks kws vww --json search.json --plot search.png

Each model (of ``compress.py``) is quantized to static int8 with the defaults, and compressed under a budget of its
metric. Both use the same calibration samples. The search sees every second test sample, and the figures here are those
of the other half, which neither has seen. A plan of the search's front *beats* static int8 if nothing of metric, file
size and time is worse and something is better; times are medians of runs that alternate with the original's.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rich.console
import rich.table

import sardonyx
from compress import TASKS, load_tasks
from sardonyx.compress.evidence import Measurement, metric_change
from sardonyx.compress.evidence import measure as measure_session
from sardonyx.report.alternation import alternate, ratio

DROPS = {"lm": 0.1}
"""Budgets in the units of the metric: perplexity; half a point for all others."""

LOWER_IS_BETTER = ("perplexity",)
SECONDS = 2.0


@dataclass(frozen=True)
class Half:
    """Every second batch of a task's test samples.

    Attributes:
        task: The task.
        first: The index of the first batch: 0 for the search, 1 for the judge.
    """

    task: Any
    first: int

    def metric(self, session: sardonyx.Session) -> tuple[float, np.ndarray | None]:
        """Return the metric of these batches, higher is better, and the scores per sample."""
        outputs = [session.run(None, feeds) for feeds in self.task.test]
        sign = -1.0 if self.task.unit in LOWER_IS_BETTER else 1.0
        value, scores = self.task.metric(outputs)
        if scores is None:
            return sign * float(value), None
        rows = sign * np.asarray(scores, np.float64)
        batch = len(rows) // len(outputs)
        chosen = np.concatenate([rows[i : i + batch] for i in range(self.first * batch, len(rows), 2 * batch)])
        if self.task.unit in LOWER_IS_BETTER:
            return -float(np.exp(-chosen.mean())), chosen
        return 100 * float(chosen.mean()), chosen


def measure(name: str, trials: int) -> dict[str, Any]:
    """Return the figures of one task: the original, static int8, and the result of the search."""
    task = getattr(load_tasks(), name)()
    search, judge = Half(task, 0), Half(task, 1)
    source = sardonyx.load(task.model)
    models = {"original": source, "static int8": sardonyx.quantize(source, task.calib).model}
    start = time.process_time()
    result = sardonyx.compress(
        source, task.calib, evaluate=search.metric, budget=sardonyx.Budget(drop=DROPS.get(name, 0.5)), trials=trials
    )
    seconds = time.process_time() - start
    models["compress"] = result.model
    sessions = {key: sardonyx.Session(model, compile="wait") for key, model in models.items()}
    feeds = task.latency
    times = alternate({key: lambda s=s: s.run(None, feeds) for key, s in sessions.items()}, SECONDS)  # type: ignore[misc]
    measured = {key: judge.metric(session) for key, session in sessions.items()}
    rows = {
        key: {
            "metric": measured[key][0],
            "bytes": len(sardonyx.to_proto(models[key]).SerializeToString()),
            "time": ratio(times[key], times["original"]),
        }
        for key in sessions
    }
    loss = loss_of(measured["static int8"], measured["compress"])
    report = result.report
    return {
        "task": name, "unit": task.unit, "samples": task.n, "rows": rows, "plan": report.plan,
        "verdict": report.verdict, "seconds": seconds, "trials": len(report.trials), "loss": loss,
        "beats": beats(rows["compress"], rows["static int8"], loss),
    }  # fmt: skip


def loss_of(theirs: tuple[float, Any], ours: tuple[float, Any]) -> tuple[float, float]:
    """Return the interval of the loss against static int8; the loss twice if there are no scores."""
    first, second = measurement(theirs), measurement(ours)
    change = metric_change(first, second)
    return change.interval or (change.loss, change.loss)


def measurement(answer: tuple[float, Any]) -> Measurement:
    """Return a number with its scores as the evidence has them."""
    return measure_session(None, lambda session: answer)  # type: ignore[arg-type]


def beats(ours: dict[str, float], theirs: dict[str, float], loss: tuple[float, float]) -> bool:
    """Return True if nothing is worse and something is better.

    A metric is worse if the interval of the loss is above 0; times within 3 % are equal.
    """
    worse = loss[0] > 0 or ours["bytes"] > theirs["bytes"] or ours["time"] > 1.03 * theirs["time"]
    better = loss[1] < 0 or ours["bytes"] < theirs["bytes"] or 1.03 * ours["time"] < theirs["time"]
    return better and not worse


def show(results: Sequence[dict[str, Any]]) -> None:
    table = rich.table.Table("task", "", "metric", "KiB", "time", "plan", title="Search against static int8")
    for result in results:
        for key, row in result["rows"].items():
            plan = f"{result['plan']} ({result['verdict']}, beats: {result['beats']})" if key == "compress" else ""
            table.add_row(
                result["task"], key, f"{row['metric']:.2f}", f"{row['bytes'] / 1024:.1f}", f"{row['time']:.2f} x", plan
            )
        table.add_section()
    rich.console.Console(width=140).print(table)


def plot(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the share of size and the loss of the metric, of static int8 and of the search."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for result in results:
        first = result["rows"]["original"]
        points = [(result["rows"][key]["bytes"] / first["bytes"], result["rows"][key]["metric"] - first["metric"])
                  for key in ("static int8", "compress")]  # fmt: skip
        axes.annotate("", points[1], points[0], arrowprops={"arrowstyle": "->"})
        axes.plot(*points[0], "o", color="#9a5b3f")
        axes.plot(*points[1], "o", color="#2f6f8f", label=result["task"])
        axes.annotate(result["task"], points[1])
    axes.set_xlabel("share of the original's bytes (arrows from static int8 to the search)")
    axes.set_ylabel("metric minus the original's, higher is better")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a search under a budget against static int8.")
    parser.add_argument("--tasks", nargs="*", default=TASKS, help=f"some of {', '.join(TASKS)}")
    parser.add_argument("--trials", type=int, default=40, help="the most plans of a search")
    parser.add_argument("--json", type=Path, help="write every figure here")
    parser.add_argument("--plot", type=Path, help="write a plot here")
    options = parser.parse_args()
    results = [measure(name, options.trials) for name in options.tasks]
    show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    if options.plot:
        plot(results, options.plot)


if __name__ == "__main__":
    main()
