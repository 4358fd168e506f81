"""The stimuli of MLPerf Tiny for image classification and anomaly detection, for ``compress.py``.

The folder in the variable ``MLPERF_TINY_STIMULI`` is ``datasets`` of two commits of github.com/eembc/energyrunner (the
files were removed later):

    git checkout 2a173774fa1ec3cc7c7d0f7f777c5219a2a5885a -- datasets
    git checkout 6e02e03a78da66ee042bb43f519daaf57e8577e5 -- datasets

``y_labels.csv`` lists the 200 images and 248 sounds that judge. Quantizers see other files: images of CIFAR-10, and
normal sounds that are not listed.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.compress.evidence import Measurement
from sardonyx.compress.evidence.metrics import METRICS

_FRAMES, _BINS, _WINDOW = 200, 128, 5
"""Frames and mel bins of a sound, and the frames of a window, which is one input of the autoencoder."""

_CALIBRATION = (4, 7)
"""Every fourth of the normal sounds, and every seventh of its windows, calibrate."""

Split = tuple[list[Any], list[Any], Any]
"""Feeds to calibrate, feeds that judge, and the metric of the outputs."""


def _listed(name: str) -> tuple[Path, list[str], np.ndarray]:
    """Return the folder of a data set, and the files with their classes."""
    root = os.environ.get("MLPERF_TINY_STIMULI")
    if not root:
        raise SystemExit("MLPERF_TINY_STIMULI is not set; benchmarks/compress_tiny.py says where the files are.")
    folder = Path(root) / name
    with (folder / "y_labels.csv").open(newline="") as file:
        rows = [row for row in csv.reader(file) if len(row) >= 3]
    return folder, [row[0].strip() for row in rows], np.array([int(row[2]) for row in rows])


def images(calibration: list[Any]) -> Split:
    """Return the images of the networks of CIFAR-10, as floats of 0 to 255, channels first."""
    folder, files, labels = _listed("ic01")
    pixels = np.stack([np.fromfile(folder / file, np.uint8).reshape(32, 32, 3) for file in files])
    test = [{"input": image[None]} for image in pixels.transpose(0, 3, 1, 2).astype(np.float32)]

    def judge(outputs: list[Any]) -> Measurement:
        hits = np.concatenate([np.asarray(one[0]).argmax(1) for one in outputs]) == labels
        return Measurement(100 * float(hits.mean()), hits.astype(np.float64), None, 100.0)

    return calibration, test, judge


def _windows(path: Path) -> np.ndarray:
    frames = np.fromfile(path, np.float32).reshape(_FRAMES, _BINS)
    windows = np.lib.stride_tricks.sliding_window_view(frames, (_WINDOW, _BINS))
    return np.ascontiguousarray(windows.reshape(-1, _WINDOW * _BINS))


def sounds() -> Split:
    """Return the sounds of machines; the score of a sound is the mean squared error of its windows."""
    folder, files, labels = _listed("ad01")
    others = sorted({path.name for path in folder.glob("normal*.bin")} - set(files))
    sounds, windows = _CALIBRATION
    calibration = [{"input": _windows(folder / file)[::windows]} for file in others[::sounds]]
    test = [{"input": _windows(folder / file)} for file in files]
    area = METRICS["auc"].statistic
    assert area is not None

    def judge(outputs: list[Any]) -> Measurement:
        pairs = zip(outputs, test, strict=True)
        errors = [float(np.square(np.asarray(one[0], np.float64) - feeds["input"]).mean()) for one, feeds in pairs]
        rows = np.stack([np.array(errors), labels.astype(np.float64)], 1)
        return Measurement(100 * area(rows), rows, area, 100.0)

    return calibration, test, judge
