"""Measure what a search under a budget gains over static int8, on trained models with labelled data.

    SARDONYX_SUITES=… python benchmarks/compress_search.py --tasks kws vww --json search.json --plot search.png

Each model (of ``compress.py``) is quantized to static int8 with the defaults, and compressed under a budget of its
metric: half a point, a tenth of perplexity, or 20 dB without labels. Both use the same calibration samples. The search
sees every second test sample, and the figures here are those of the other half, which neither has seen; detectors have
no scores per image, and are measured on all images by both (marked). The result *beats* static int8 if nothing of
metric, file size and time is worse and something is better, and is *on the front* if static int8 does not beat it;
times are medians of runs that alternate with the original's.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import rich.console
import rich.table

import sardonyx
from compress_tasks import TASKS, Task, load_task
from sardonyx.compress.evidence import Measurement, metric_change, output_errors
from sardonyx.report.alternation import alternate, ratio

DROPS = {"lm": 0.1}
"""Budgets in the units of the metric: perplexity; half a point for all others."""

LEAST_SQNR = 20.0
"""The budget in dB of models without labels."""

SECONDS = 2.0


@dataclass(frozen=True)
class Half:
    """Every second sample of a task's test data.

    Attributes:
        task: The task.
        first: The index of the first sample: 0 for the search, 1 for the judge.
    """

    task: Task
    first: int

    def metric(self, session: sardonyx.Session) -> Measurement:
        """Return the metric of these samples; of all samples if there are no scores per sample."""
        whole: Measurement = self.task.judge(list(self._outputs(session)))
        if whole.scores is None:
            return whole
        rows = whole.scores[self.first :: 2]
        value = whole.scale * float(rows.mean() if whole.statistic is None else whole.statistic(rows))
        return replace(whole, value=value, scores=rows)

    def _outputs(self, session: sardonyx.Session) -> Iterator[list[np.ndarray]]:
        """Yield the outputs of all samples; those of the other half are not computed, and hold other numbers."""
        count, last = 0, None
        for feeds in self.task.test:
            rows = len(next(iter(feeds.values())))
            own = slice((self.first - count) % 2, None, 2)
            count += rows
            if rows == 1:
                if last is None or own.start == 0:
                    last = session.run(None, feeds)
                yield last
                continue
            halves = session.run(None, {name: array[own] for name, array in feeds.items()})
            outputs = [np.zeros((rows, *half.shape[1:]), half.dtype) for half in halves]
            for output, half in zip(outputs, halves, strict=True):
                output[own] = half
            yield outputs


def measure(name: str, trials: int, seconds: float | None, state: Path | None) -> dict[str, Any]:
    """Return the figures of one task: the original, static int8, and the result of the search."""
    task = load_task(name)
    source = sardonyx.load(task.model)
    models = {"original": source, "static int8": sardonyx.quantize(source, task.calibration).model}
    budget = sardonyx.Budget(drop=DROPS.get(name, 0.5)) if task.judge else sardonyx.Budget(sqnr=LEAST_SQNR)
    start, begin = time.process_time(), time.perf_counter()
    result = sardonyx.compress(
        source, task.calibration, evaluate=Half(task, 0).metric if task.judge else None, budget=budget, trials=trials,
        time=seconds, state=None if state is None else state / name,
    )  # fmt: skip
    spent = {"seconds": time.process_time() - start, "elapsed": time.perf_counter() - begin}
    models["compress"] = result.model
    sessions = {key: sardonyx.Session(model, compile="wait") for key, model in models.items()}
    feeds = task.calibration[0]
    times = alternate({key: lambda s=s: s.run(None, feeds) for key, s in sessions.items()}, SECONDS)  # type: ignore[misc]
    measured = {key: judged(task, sessions["original"], session) for key, session in sessions.items()}
    rows = {
        key: {
            "metric": measured[key].shown,
            "bytes": len(sardonyx.to_proto(models[key]).SerializeToString()),
            "time": ratio(times[key], times["original"]),
        }
        for key in sessions
    }
    change = metric_change(measured["static int8"], measured["compress"])
    loss = change.interval or (change.loss, change.loss)
    report = result.report
    first = report.original
    front = [
        {"plan": trial.label, "bytes": trial.figures.size / first.size, "time": trial.figures.seconds / first.seconds,
         "metric": trial.metric if trial.metric is not None else trial.sqnr}
        for trial in report.trials if trial.label in report.front and trial.figures is not None
    ]  # fmt: skip
    return {
        "task": name, "unit": task.unit or "dB", "split": measured["original"].scores is not None, "rows": rows,
        "plan": report.plan, "verdict": report.verdict, **spent, "stopped": report.stopped,
        "trials": len(report.trials), "loss": loss,
        "beats": beats(rows["compress"], rows["static int8"], loss),
        "beaten": beats(rows["static int8"], rows["compress"], (-loss[1], -loss[0])), "front": front,
        "lower": measured["original"].lower_is_better,
    }  # fmt: skip


def judged(task: Task, original: sardonyx.Session, session: sardonyx.Session) -> Measurement:
    """Return the metric on the judge's half; the SQNR of the worst output without labels."""
    if task.judge:
        return Half(task, 1).metric(session)
    if session is original:
        return Measurement(200.0)
    return Measurement(min(200.0, *(error.sqnr for error in output_errors(original, session, task.test))))


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
            rank = "beats static int8" if result["beats"] else "on the front" if not result["beaten"] else "beaten"
            plan = f"{result['plan']} ({result['verdict']}, {rank})" if key == "compress" else ""
            mark = "" if result["split"] else " (all)"
            table.add_row(
                result["task"], key, f"{row['metric']:.2f}{mark}", f"{row['bytes'] / 1024:.1f}", f"{row['time']:.2f} x",
                plan,
            )  # fmt: skip
        table.add_section()
    rich.console.Console(width=150).print(table)


def plot(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw size and change of the metric of each search's front, its result, and static int8."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(len(results), 4)
    figure, grid = pyplot.subplots(-(-len(results) // columns), columns, squeeze=False, figsize=(3.4 * columns, 6))
    for axes, result in zip(grid.flat, results, strict=False):
        first, sign = result["rows"]["original"], -1 if result["lower"] else 1
        front = [one for one in result["front"] if one["metric"] is not None and one["plan"] != "original"]
        if result["unit"] != "dB":
            start = next(one["metric"] for one in result["front"] if one["plan"] == "original")
            axes.plot([one["bytes"] for one in front], [one["metric"] - start for one in front], ".", color="#888888")
        for key, color in (("static int8", "#9a5b3f"), ("compress", "#2f6f8f")):
            row = result["rows"][key]
            change = row["metric"] - (0 if result["unit"] == "dB" else first["metric"])
            axes.plot(row["bytes"] / first["bytes"], sign * change, "o", color=color, label=key)
        axes.set_title(f"{result['task']} ({result['unit']})", fontsize=9)
        axes.set_xlabel("share of the bytes", fontsize=8)
    grid[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a search under a budget against static int8.")
    parser.add_argument("--tasks", nargs="*", default=TASKS, help=f"some of {', '.join(TASKS)}")
    parser.add_argument("--trials", type=int, default=40, help="the most plans of a search")
    parser.add_argument("--seconds", type=float, help="the time of a search")
    parser.add_argument("--state", type=Path, help="a folder from which searches resume")
    parser.add_argument("--json", type=Path, help="write every figure here; figures of other tasks there remain")
    parser.add_argument("--plot", type=Path, help="write a plot here")
    options = parser.parse_args()
    results = []
    if options.json and options.json.exists():
        results = [one for one in json.loads(options.json.read_text()) if one["task"] not in options.tasks]
    for name in options.tasks:
        results.append(measure(name, options.trials, options.seconds, options.state))
        show(results[-1:])
        if options.json:
            options.json.write_text(json.dumps(results, indent=1))
    if len(results) > 1:
        show(results)
    if options.plot:
        plot(results, options.plot)


if __name__ == "__main__":
    main()
