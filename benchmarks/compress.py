"""Measure what quantization costs, as the metric of trained models, beside ONNX Runtime's quantizer.

    SARDONYX_SUITES=… python benchmarks/compress.py --tasks kws resnet8 --json compress.json --plot compress.png

The trained models with their data are in the folder ``compress`` beside the suites. Each model is quantized by Sardonyx
(static int8, int8 and int4 weights) and by ONNX Runtime (static int8, ranges by extremes and by percentile) on the same
calibration samples; the metric is that of the test samples, which no quantizer sees, computed by ONNX Runtime and by
Sardonyx's compiled code. Times are the processor time of the quantizers.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import rich.console
import rich.table
from onnxruntime import quantization
from onnxruntime.quantization.shape_inference import quant_pre_process

import sardonyx
import suites

TASKS = ("kws", "vww", "resnet8", "resnet20", "mobilenetv2", "lm", "fastestdet")
OURS: dict[str, dict[str, Any]] = {
    "sardonyx int8": {},
    "sardonyx int8 weights": {"mode": "weights"},
    "sardonyx int4 weights": {"weights": "int4"},
}
PEERS = {
    "onnxruntime int8, extremes": quantization.CalibrationMethod.MinMax,
    "onnxruntime int8, percentile": quantization.CalibrationMethod.Percentile,
}


class Reader(quantization.CalibrationDataReader):
    """Samples for ONNX Runtime's calibration."""

    def __init__(self, samples: Any) -> None:
        self._samples: Iterator[Any] = iter(samples)

    def get_next(self) -> Any:
        return next(self._samples, None)


def load_tasks() -> Any:
    """Return the module that describes models, data and metrics.

    Raises:
        SystemExit: The folder is missing.
    """
    path = suites.suites_folder().parent / "compress" / "tasks.py"
    if not path.is_file():
        raise SystemExit(f"the trained models with labelled data are missing: {path}")
    spec = importlib.util.spec_from_file_location("compress_tasks", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def metric_on(engine: str, path: Path, task: Any) -> float:
    """Return the metric of a model on the test samples."""
    run: Callable[[None, Mapping[str, Any]], Any]
    if engine == "sardonyx":
        run = sardonyx.Session(path, compile="wait").run
    else:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        run = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run
    return float(task.metric([run(None, feeds) for feeds in task.test])[0])


def quantize_with_onnxruntime(task: Any, path: Path, method: Any) -> None:
    prepared = path.with_suffix(".prepared.onnx")
    quant_pre_process(task.model, str(prepared), skip_symbolic_shape=True)
    quantization.quantize_static(
        str(prepared), str(path), Reader(task.calib), quant_format=quantization.QuantFormat.QDQ, per_channel=True,
        calibrate_method=method,
    )  # fmt: skip


def quantizers(task: Any) -> dict[str, Callable[[Path], None]]:
    ways: dict[str, Callable[[Path], None]] = {}
    for name, options in OURS.items():
        ways[name] = lambda path, options=options: sardonyx.quantize(task.model, task.calib, **options).save(path)
    for name, method in PEERS.items():
        ways[name] = lambda path, method=method: quantize_with_onnxruntime(task, path, method)
    return ways


def measure(task: Any, folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of one model, by quantizer."""
    source = Path(task.model)
    rows = [row_of("float32", task, source, source.stat().st_size, 0.0)]
    for name, quantize in quantizers(task).items():
        path = folder / f"{name.replace(' ', '_').replace(',', '')}.onnx"
        start = time.process_time()
        try:
            quantize(path)
        except Exception as error:  # the quantizers' errors have no base class of their own
            rows.append({"way": name, "failure": f"{type(error).__name__}: {error}"[:200]})
            continue
        rows.append(row_of(name, task, path, path.stat().st_size, time.process_time() - start))
    return rows


def row_of(name: str, task: Any, path: Path, size: int, seconds: float) -> dict[str, Any]:
    metrics = {engine: metric_on(engine, path, task) for engine in ("onnxruntime", "sardonyx")}
    return {"way": name, "metrics": metrics, "bytes": size, "seconds": seconds}


def show(task: Any, rows: list[dict[str, Any]]) -> None:
    table = rich.table.Table(
        "quantizer", "on ONNX Runtime", "on Sardonyx", "KiB", "seconds", title=f"{task.name}: {task.unit}, n = {task.n}"
    )
    for row in rows:
        if "failure" in row:
            table.add_row(row["way"], row["failure"])
        else:
            metrics = row["metrics"]
            table.add_row(
                row["way"], f"{metrics['onnxruntime']:.2f}", f"{metrics['sardonyx']:.2f}", f"{row['bytes'] / 1024:.0f}",
                f"{row['seconds']:.1f}",
            )  # fmt: skip
    rich.console.Console().print(table)


def plot(results: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draw the difference of each quantizer's metric from float32, on ONNX Runtime."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ways = [*OURS, *PEERS]
    figure, axes = pyplot.subplots(figsize=(9, 4.5))
    for number, way in enumerate(ways):
        heights = []
        for rows in results.values():
            metrics = {row["way"]: row.get("metrics", {}).get("onnxruntime", np.nan) for row in rows}
            heights.append(metrics.get(way, np.nan) - metrics["float32"])
        axes.bar(np.arange(len(results)) + number / (len(ways) + 1), heights, 1 / (len(ways) + 1), label=way)
    axes.set_xticks(np.arange(len(results)) + 0.3, list(results))
    axes.set_ylabel("metric minus float32")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what quantization costs, beside ONNX Runtime's quantizer.")
    parser.add_argument("--tasks", nargs="*", default=TASKS, help=f"some of {', '.join(TASKS)}")
    parser.add_argument("--json", type=Path, help="write every figure here")
    parser.add_argument("--plot", type=Path, help="write a plot here")
    options = parser.parse_args()
    tasks = load_tasks()
    results: dict[str, list[dict[str, Any]]] = {}
    for name in options.tasks:
        task = getattr(tasks, name)()
        with tempfile.TemporaryDirectory() as folder:
            results[name] = measure(task, Path(folder))
        show(task, results[name])
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    if options.plot:
        plot(results, options.plot)


if __name__ == "__main__":
    main()
