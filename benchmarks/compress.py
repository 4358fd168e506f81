"""Measure what quantization costs, as the metric of trained models, beside other quantizers.

    SARDONYX_SUITES=… python benchmarks/compress.py --tasks kws resnet8 --sections static --json out.json --plot out.png

The trained models with their data are in the folder ``compress`` beside the suites. Sections: ``static`` (int8 by ours
and the peers), ``methods`` (int8 by each of our methods), ``int4`` (weights in blocks of 32). Each quantizer runs in a
process of its own on the same calibration samples; processor time and peak memory are those of the process. Metric and
SQNR are those of the test samples, which no quantizer sees, computed by ONNX Runtime for all files alike. The interval
is that of the loss against float32, paired, at 95 %; so is that of our loss against the peer with the best metric.
Of classifiers, the metric without the mean shift of each class against float32 is shown beside: a gain by a shift
is chance. With ``--cache`` the rows of peers are read from a folder if the
version of the peer, the model and the number of samples are the same; rows of ours are always measured.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import rich.console
import rich.table

import report
import tables
from compress_quantizers import SECTIONS
from compress_tasks import MLPERF_TINY, STIMULI, TASKS, TRANSFORMERS, Task, load_task
from sardonyx.compress.evidence import Measurement, metric_change

QUANTIZERS = Path(__file__).with_name("compress_quantizers.py")


def outputs_of(path: str, task: Task) -> list[list[Any]]:
    """Return the outputs of a model on the test samples, by ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return [session.run(None, feeds) for feeds in task.test]


def sqnr(expected: list[list[Any]], actual: list[list[Any]]) -> float:
    """Return the mean signal-to-noise ratio of the float outputs in dB; infinite ones count as 100."""
    ratios = []
    for index in range(len(expected[0])):
        pairs = [(x[index], y[index]) for x, y in zip(expected, actual, strict=True)]
        if pairs[0][0].dtype.kind != "f":
            continue
        signal = sum(float(np.square(x, dtype=np.float64).sum()) for x, _ in pairs)
        noise = sum(float(np.square(x.astype(np.float64) - y).sum()) for x, y in pairs)
        ratios.append(min(10 * math.log10(max(signal, 1e-300) / max(noise, 1e-300)), 100.0))
    return float(np.mean(ratios))


def without_shift(expected: list[list[Any]], actual: list[list[Any]]) -> list[list[Any]]:
    """Return scores of classes as logits, without their mean difference from those of another model."""

    def logits(scores: np.ndarray) -> np.ndarray:
        are_shares = scores.min() >= 0 and np.allclose(scores.sum(-1), 1, atol=1e-3)
        # Shares in 8 bits have zeros: below half of the last bit, no difference is counted.
        return np.asarray(np.log(np.maximum(scores, 1 / 512)) if are_shares else scores)

    first, second = ([logits(scores) for scores, *_ in outputs] for outputs in (expected, actual))
    centred = [[x - x.mean(-1, keepdims=True) for x in one] for one in (first, second)]
    shift = np.concatenate(centred[1]).mean(0) - np.concatenate(centred[0]).mean(0)
    return [[x - shift] for x in centred[1]]


def quantize_apart(task: Task, way: str, path: Path) -> dict[str, Any]:
    """Return the figures of a quantizer in a process of its own, or its failure."""
    command = [sys.executable, str(QUANTIZERS), task.name, way, str(path)]
    # As an installed package: sources are not compiled to bytecode in every process.
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines or not path.exists():
        reasons = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit status {done.returncode}"]
        return {"way": way, "failure": reasons[-1][:200]}
    return {"way": way, **json.loads(lines[-1])}


def cached_row(task: Task, way: str, cache: Path | None) -> Path | None:
    """Return the file of a peer's row in the cache; None for ours, and without a cache."""
    if cache is None or way.startswith("sardonyx"):
        return None
    version = importlib.metadata.version(way.split()[0])
    digest = hashlib.sha256(Path(task.model).read_bytes()).hexdigest()[:12]
    return cache / f"{task.name}-{digest}-{len(task.test)}-{way.replace(' ', '_')}-{version}.json"


def measure(task: Task, ways: list[str], folder: Path, cache: Path | None = None) -> list[dict[str, Any]]:
    """Return the rows of one task."""
    reference = outputs_of(task.model, task)
    before = None if task.judge is None else task.judge(reference)
    rows: list[dict[str, Any]] = [{"way": "float32", "bytes": Path(task.model).stat().st_size}]
    if before is not None:
        rows[0]["metric"] = before.shown
    for way in ways:
        stored = cached_row(task, way, cache)
        if stored is not None and stored.is_file():
            rows.append(json.loads(stored.read_text()))
            continue
        path = folder / f"{way.replace(' ', '_')}.onnx"
        row = quantize_apart(task, way, path)
        rows.append(row)
        if "failure" in row:
            continue
        try:
            outputs = outputs_of(str(path), task)
        except Exception as error:  # ONNX Runtime's errors have no base class of their own
            row["failure"] = f"{type(error).__name__}: {error}"[:200]
            continue
        row["bytes"] = path.stat().st_size
        row["sqnr"] = sqnr(reference, outputs)
        if before is not None:
            after = task.judge(outputs)
            change = metric_change(before, after)
            row["metric"], row["loss"], row["interval"] = change.after, change.loss, change.interval
            if task.unit.startswith("top-1") and outputs[0][0].ndim == 2:
                row["unshifted"] = task.judge(without_shift(reference, outputs)).shown
            row["value"], row["scores"] = after.value, None if after.scores is None else after.scores.tolist()
        if stored is not None:
            stored.parent.mkdir(parents=True, exist_ok=True)
            stored.write_text(json.dumps(row, default=np.ndarray.tolist))
    if before is not None:
        compare_with_best(before, rows)
    return rows


def compare_with_best(before: Measurement, rows: list[dict[str, Any]]) -> None:
    """Add our loss against the best peer with a smaller file to our row, paired if there are scores."""
    ours = next((row for row in rows if row["way"] == "sardonyx" and "value" in row), None)
    size = rows[0]["bytes"]
    # A file as large as the original's holds float weights: nothing is compressed, and nothing is lost.
    peers = [
        row for row in rows if "value" in row and not row["way"].startswith("sardonyx") and row["bytes"] < 0.9 * size
    ]
    if ours is None or not peers:
        return
    best = max(peers, key=lambda row: row["value"])
    first, second = (
        replace(before, value=row["value"], scores=None if row["scores"] is None else np.asarray(row["scores"]))
        for row in (best, ours)
    )
    # The best of several peers on the same samples is partly chance: the interval holds for all of them.
    change = metric_change(first, second, comparisons=len(peers))
    ours["best peer"] = {"way": best["way"], "loss": change.loss, "interval": change.interval}


def show(task: Task, rows: list[dict[str, Any]]) -> None:
    columns = ("quantizer", task.unit or "metric", "loss (95 %)", "unshifted", "SQNR", "KiB", "CPU s", "peak MiB")
    table = rich.table.Table(*columns, title=f"{task.name}: {len(task.test)} test feeds")
    for row in rows:
        if "failure" in row:
            table.add_row(row["way"], row["failure"])
            continue
        interval = row.get("interval")
        loss = f"{row['loss']:.2f}" if "loss" in row else ""
        table.add_row(
            row["way"], f"{row['metric']:.2f}" if "metric" in row else "–",
            loss + (f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else ""),
            f"{row['unshifted']:.2f}" if "unshifted" in row else "",
            f"{row['sqnr']:.1f}" if "sqnr" in row else "", f"{row['bytes'] / 1024:.0f}",
            f"{row['seconds']:.1f}" if "seconds" in row else "", f"{row['peak']:.0f}" if "peak" in row else "",
        )  # fmt: skip
    rich.console.Console(width=150).print(table)
    print_target(task, rows)
    best = next((row["best peer"] for row in rows if "best peer" in row), None)
    if best is not None:
        interval = best["interval"]
        bounds = "" if interval is None else f", 95 % from {interval[0]:.2f} to {interval[1]:.2f}"
        print(f"Our loss against the best peer, {best['way']}: {best['loss']:.2f}{bounds}.")


def print_target(task: Task, rows: list[dict[str, Any]]) -> None:
    """Print if our model and float32 reach the accuracy that MLPerf Tiny requires."""
    target = MLPERF_TINY.get(task.name)
    for row in rows if target is not None else ():
        if row["way"] in ("float32", "sardonyx") and "metric" in row:
            verdict = "reached" if row["metric"] >= target else "not reached"
            print(f"MLPerf Tiny requires {target:.0f}: {verdict} by {row['way']} ({row['metric']:.2f}).")


def against_best(results: dict[str, list[dict[str, Any]]]) -> tables.Table:
    """Return our loss against the peer with the best metric, by task."""
    lines = []
    for name, rows in results.items():
        best = next((row["best peer"] for row in rows if "best peer" in row), None)
        if best is not None:
            interval = best["interval"]
            bounds = "–" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"
            within = "–" if interval is None else "yes" if interval[0] <= 0 else "NO"
            lines.append([name, best["way"], f"{best['loss']:.2f}", bounds, within])
    return tables.Table(
        "Static int8: against the best peer",
        "The loss of ours against the peer with the best metric on the same samples; negative: ours is better. "
        "The interval holds for all peers at once.",
        ["task", "best peer", "loss", "95 %, paired", "at least equal within the interval"], lines,
    )  # fmt: skip


def summary(results: dict[str, list[dict[str, Any]]]) -> tables.Table:
    """Return the metric, and the SQNR of the outputs in dB, by task and quantizer."""
    ways = list(dict.fromkeys(row["way"] for rows in results.values() for row in rows))

    def cell(rows: list[dict[str, Any]], way: str) -> str:
        row = next((row for row in rows if row["way"] == way), {"failure": "not measured"})
        if "failure" in row:
            return "not measured" if row["failure"] == "not measured" else "fails"
        metric = f"{row['metric']:.2f}" if "metric" in row else "–"
        return f"{metric} ({row['sqnr']:.1f})" if "sqnr" in row else metric

    return tables.Table(
        "Static int8: accuracy",
        "The metric on test samples, and the SQNR of the outputs in dB. Perplexity for lm, mAP50 for fastestdet and "
        "yolox, top-1 for the others; anomaly has no labels.",
        ["task", *ways], [[name, *(cell(rows, way) for way in ways)] for name, rows in results.items()],
    )  # fmt: skip


def costs(results: dict[str, list[dict[str, Any]]]) -> tables.Table:
    """Return processor time and growth of memory, by task and quantizer, and our time over two peers."""
    ways = [way for way in dict.fromkeys(row["way"] for rows in results.values() for row in rows) if way != "float32"]
    lines = []
    for name, rows in results.items():
        measured = {row["way"]: row for row in rows if "seconds" in row}
        cells = [
            f"{measured[way]['seconds']:.1f} ({measured[way]['growth']:.0f})" if way in measured else "–"
            for way in ways
        ]
        for peer in ("onnxruntime entropy", "nncf"):
            both = "sardonyx" in measured and peer in measured
            cells.append(f"{measured['sardonyx']['seconds'] / measured[peer]['seconds']:.2f}" if both else "–")
        lines.append([name, *cells])
    return tables.Table(
        "Static int8: processor time and memory",
        "Seconds of processor time of the whole quantization with imports, and the growth of the process in MiB; the "
        "time of ours over that of ONNX Runtime's entropy calibration, and over that of NNCF.",
        ["task", *ways, "over entropy", "over nncf"], lines,
    )  # fmt: skip


def plot(results: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draw the SQNR of the outputs and the loss of the metric, by task and quantizer."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ways = list(dict.fromkeys(row["way"] for rows in results.values() for row in rows[1:]))
    figure, axes = pyplot.subplots(2, figsize=(10, 8), sharex=True)
    for axis, key, label in zip(axes, ("sqnr", "loss"), ("SQNR of outputs, dB", "loss of the metric"), strict=True):
        for number, way in enumerate(ways):
            heights = [
                next((row.get(key, np.nan) for row in rows if row["way"] == way), np.nan) for rows in results.values()
            ]
            axis.bar(np.arange(len(results)) + number / (len(ways) + 1), heights, 1 / (len(ways) + 1), label=way)
        axis.set_ylabel(label)
    axes[1].set_xticks(np.arange(len(results)) + 0.4, list(results))
    axes[0].legend(fontsize=6, ncols=3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what quantization costs, beside other quantizers.")
    parser.add_argument(
        "--tasks", nargs="*", default=TASKS, help=f"some of {', '.join((*TASKS, *TRANSFORMERS, *STIMULI))}"
    )
    parser.add_argument("--sections", nargs="*", default=["static"], choices=list(SECTIONS), help="the comparisons")
    parser.add_argument("--only", nargs="*", default=[], help="quantizers of the sections whose names have these words")
    parser.add_argument("--json", type=Path, help="write every figure here, task by task")
    parser.add_argument("--plot", type=Path, help="write a plot here")
    parser.add_argument("--cache", type=Path, help="a folder for the rows of peers")
    parser.add_argument("--markdown", type=Path, help="page whose section accuracy is rewritten")
    parser.add_argument("--merge", nargs="*", type=Path, default=[], help="figures of earlier runs, not measured again")
    options = parser.parse_args()
    results: dict[str, list[dict[str, Any]]] = {}
    for path in options.merge:
        for name, rows in json.loads(path.read_text()).items():
            known = {row["way"] for row in results.get(name, ())}
            results[name] = [*results.get(name, ()), *(row for row in rows if row["way"] not in known)]
    ways = [way for section in options.sections for way in SECTIONS[section]]
    ways = [way for way in ways if not options.only or any(word in way for word in options.only)]
    for name in [] if options.merge else options.tasks:
        task = load_task(name)
        with tempfile.TemporaryDirectory() as folder:
            results[name] = measure(task, ways, Path(folder), options.cache)
        show(task, results[name])
        if options.json:
            options.json.write_text(json.dumps(results, indent=1, default=np.ndarray.tolist))
    if options.plot:
        plot(results, options.plot)
    if options.markdown:
        packages = ("sardonyx", "onnxruntime", "nncf", "onnxsim")
        facts = {**{name: importlib.metadata.version(name) for name in packages}, **report.machine_and_date()}
        report.rewrite_section(
            options.markdown,
            report.markdown([summary(results), against_best(results), costs(results)], facts),
            "accuracy",
        )


if __name__ == "__main__":
    main()
