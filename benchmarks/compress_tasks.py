"""Trained models with labelled data, and transformers without labels, for ``compress.py``."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

import suites
from sardonyx.compress.evidence import Measurement
from sardonyx.compress.evidence.measurement import minus_perplexity

TASKS = ("kws", "vww", "resnet8", "resnet20", "mobilenetv2", "lm", "fastestdet", "yolox", "anomaly")
TRANSFORMERS = ("minilm", "gpt2", "vit_s")
"""Models without labels, which are judged by the errors of their outputs."""


@dataclass(frozen=True)
class Task:
    """A model with data.

    Attributes:
        name: The name.
        model: The path of the model.
        calibration: Feeds that quantizers see.
        test: Feeds that judge.
        unit: The unit of the metric; empty without labels.
        judge: The metric of the outputs of all test feeds; None without labels.
    """

    name: str
    model: str
    calibration: Sequence[Any]
    test: Sequence[Any]
    unit: str
    judge: Any


def load_task(name: str) -> Task:
    """Return a task by name.

    Raises:
        SystemExit: The folder of the models is missing.
    """
    if name in TRANSFORMERS:
        return _transformer(name)
    module = _module()
    if name == "anomaly":
        return _anomaly()
    task = _yolox(module) if name == "yolox" else getattr(module, name)()

    def judge(outputs: list[Any]) -> Measurement:
        value, scores = task.metric(outputs)
        if task.unit == "perplexity":
            return Measurement(-value, -np.asarray(scores, np.float64), minus_perplexity, lower_is_better=True)
        rows = None if scores is None else np.asarray(scores, np.float64)
        return Measurement(value, rows, None, 1.0 if rows is None else 100.0)

    return Task(name, str(task.model), task.calib, task.test, task.unit, judge)


def _module() -> Any:
    path = suites.suites_folder().parent / "compress" / "tasks.py"
    if not path.is_file():
        raise SystemExit(f"the trained models with labelled data are missing: {path}")
    spec = importlib.util.spec_from_file_location("compress_tasks_data", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _yolox(module: Any) -> Any:
    """Return YOLOX-nano on the COCO images: pixels of 0 to 255, padded by 114, and boxes decoded here."""
    from PIL import Image

    size = 416
    labelled, count, boxes = module.coco()
    others, _, _ = module.coco("train2017")

    def ratio(pixels: np.ndarray) -> float:
        return float(min(size / pixels.shape[0], size / pixels.shape[1]))

    def feeds(stored: Any, index: int) -> dict[str, np.ndarray]:
        pixels = module.image(stored, index)
        scale = ratio(pixels)
        height, width = int(pixels.shape[0] * scale), int(pixels.shape[1] * scale)
        resized = Image.fromarray(pixels[..., ::-1].copy()).resize((width, height), Image.Resampling.BILINEAR)
        canvas = np.full((size, size, 3), 114, np.float32)
        canvas[:height, :width] = np.asarray(resized)
        return {"images": np.ascontiguousarray(canvas.transpose(2, 0, 1)[None])}

    grids, strides = [], []
    for stride in (8, 16, 32):
        ys, xs = np.mgrid[0 : size // stride, 0 : size // stride]
        grids.append(np.stack([xs, ys], -1).reshape(-1, 2))
        strides.append(np.full((len(grids[-1]), 1), stride))
    grid, step = np.concatenate(grids), np.concatenate(strides)

    def metric(outputs: list[Any]) -> tuple[float, None]:
        predictions = []
        for number, output in enumerate(outputs):
            rows = np.asarray(output[0])[0].astype(np.float64)
            pixels = module.image(labelled, number)
            span = np.array([pixels.shape[1], pixels.shape[0]]) * ratio(pixels)
            centres = (rows[:, :2] + grid) * step / span
            sizes = np.exp(np.minimum(rows[:, 2:4], 20)) * step / span
            classes = rows[:, 5:].argmax(1)
            scores = rows[:, 4] * rows[:, 5:].max(1)
            chosen = scores > 0.01
            corners = np.concatenate([centres - sizes / 2, centres + sizes / 2], 1)[chosen]
            scores, classes = scores[chosen], classes[chosen]
            best = module.nms(corners, scores, classes, 0.65)[:100] if len(corners) else []
            predictions.append((corners[best], scores[best], classes[best]))
        return module.mean_ap(predictions, boxes), None

    path = module.upgraded(module.R + "yolox_nano.onnx")
    name = onnx.load(path, load_external_data=False).graph.input[0].name
    calibration = [{name: feeds(others, index)["images"]} for index in range(32)]
    test = module.Lazy(count, lambda index: {name: feeds(labelled, index)["images"]})
    return module.Task("yolox", path, calibration, test, metric, "mAP50", count, calibration[0])


def _anomaly() -> Task:
    """Return the autoencoder of MLPerf Tiny on random spectra: there are no labels."""
    path = suites.suites_folder().parent / "compress" / "ad_autoencoder.onnx"
    shape = onnx.load(str(path)).graph.input[0]
    sizes = [axis.dim_value or 1 for axis in shape.type.tensor_type.shape.dim]
    rng = np.random.default_rng(0)
    samples = [{shape.name: (rng.standard_normal(sizes) * 10 - 20).astype(np.float32)} for _ in range(96)]
    return Task("anomaly", str(path), samples[:64], samples[64:], "", None)


def _transformer(name: str) -> Task:
    path = suites.suites_folder().parent / "models" / f"{name}.onnx"
    if not path.is_file():
        raise SystemExit(f"the model is missing: {path}")
    inputs = onnx.load(str(path), load_external_data=False).graph.input
    rng = np.random.default_rng(0)
    samples = [
        {value.name: _random(value, rng) for value in inputs}
        for _ in range(16)
    ]  # fmt: skip
    return Task(name, str(path), samples[:8], samples[8:], "", None)


def _random(value: onnx.ValueInfoProto, rng: np.random.Generator) -> np.ndarray:
    kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    shape = [axis.dim_value or 1 for axis in value.type.tensor_type.shape.dim]
    if np.issubdtype(kind, np.integer):
        return rng.integers(1, 1000, shape).astype(kind)
    return rng.standard_normal(shape).astype(kind)
