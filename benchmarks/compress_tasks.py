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
from compress_detectors import DETECTORS
from sardonyx.compress.evidence import Measurement
from sardonyx.compress.evidence.measurement import minus_perplexity

TASKS = ("kws", "vww", "resnet8", "resnet20", "mobilenetv2", "lm", "fastestdet", "yolox", "anomaly")
TRANSFORMERS = ("minilm", "gpt2", "vit_s")
"""Models without labels, which are judged by the errors of their outputs."""


MLPERF_TINY = {"kws": 90.0, "vww": 80.0, "resnet8": 85.0}
"""Top-1 that the closed division of MLPerf Tiny requires.

The autoencoder needs an area under the curve of 0.85. Source: Banbury et al., MLPerf Tiny Benchmark, NeurIPS 2021,
table 1. The images of resnet8 here were stored anew as JPEG, with which float32 has 75.52, and there are no labelled
sounds: these two targets are not judged.
"""


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
    if name in DETECTORS:
        detector = DETECTORS[name](module)
        return Task(name, detector.model, detector.calibration, detector.test, "mAP50", detector.judge)
    task = getattr(module, name)()

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
