"""Trained models with labelled data, and transformers without labels, for ``compress.py``."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

import compress_tiny
import suites
from compress_detectors import DETECTORS
from sardonyx.compress.evidence import Measurement
from sardonyx.compress.evidence.measurement import minus_perplexity

TASKS = ("kws", "vww", "resnet8", "resnet20", "mobilenetv2", "lm", "fastestdet", "yolox", "anomaly")
TRANSFORMERS = ("minilm", "gpt2", "vit_s")
"""Models without labels, which are judged by the errors of their outputs."""


STIMULI = ("tiny_images", "tiny_sounds")
"""Tasks by the stimuli of MLPerf Tiny, which ``compress_tiny.py`` reads from a folder of their own."""

MLPERF_TINY = {"kws": 90.0, "vww": 80.0, "tiny_images": 85.0, "tiny_sounds": 85.0}
"""The metric that the closed division of MLPerf Tiny requires: top-1 or, for sounds, AUC, in %.

Source: Banbury et al., MLPerf Tiny Benchmark, NeurIPS 2021, table 1. The images of the task resnet8 were stored anew as
JPEG, with which float32 has 75.52: they do not judge this target.
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
    if name in STIMULI:
        return _stimuli(name, module)
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


def _stimuli(name: str, module: Any) -> Task:
    """Return a network of MLPerf Tiny on the benchmark's own images or sounds."""
    if name == "tiny_images":
        task = module.resnet8()
        calibration, test, judge = compress_tiny.images(task.calib)
        return Task(name, str(task.model), calibration, test, "top-1 %", judge)
    calibration, test, judge = compress_tiny.sounds()
    model = suites.suites_folder().parent / "compress" / "ad_autoencoder.onnx"
    return Task(name, str(model), calibration, test, "AUC %", judge)


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
