"""Detectors with labelled images, for ``compress.py``: mAP50 with a row of matches per image.

Boxes are decoded here. 64 images judge, so that a loss of one point is often chance: the paired interval over images
says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from PIL import Image

from sardonyx.compress.evidence import Measurement
from sardonyx.compress.evidence.boxes import Runs, average_precision, box_rows, labelled_boxes

_LEAST_SCORE, _MOST_BOXES = 0.01, 100

Boxes = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Corners as shares of the image [boxes, 4], scores and classes [boxes]."""


@dataclass(frozen=True)
class Detector:
    """A detector with data.

    Attributes:
        model: The path of the model.
        calibration: Feeds that quantizers see.
        test: Feeds that judge.
        judge: mAP50 of the outputs of all test feeds.
    """

    model: str
    calibration: list[Any]
    test: Any
    judge: Callable[[list[Any]], Measurement]


class _Feeds:
    """Feeds of the labelled images of one split, computed when read."""

    def __init__(self, module: Any, split: str, feed: Callable[[np.ndarray], dict[str, np.ndarray]]) -> None:
        self._module, self._feed = module, feed
        self._stored, self._count, self.boxes = module.coco(split)

    def __len__(self) -> int:
        return int(self._count)

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        return self._feed(self.pixels(number))

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return (self[number] for number in range(len(self)))

    def pixels(self, number: int) -> np.ndarray:
        return np.asarray(self._module.image(self._stored, number))


def _detector(
    module: Any, path: str, feed: Callable[[np.ndarray], dict[str, np.ndarray]],
    decode: Callable[[np.ndarray, np.ndarray], Boxes], overlap: float,
) -> Detector:  # fmt: skip
    test = _Feeds(module, "val2017", feed)
    labels = np.array([(number, *box) for number, boxes in enumerate(test.boxes) for box in boxes])
    truth = labelled_boxes({"rows": labels})

    def judge(outputs: list[Any]) -> Measurement:
        answers = []
        for number, output in enumerate(outputs):
            corners, scores, classes = decode(np.asarray(output[0]), test.pixels(number))
            chosen = scores > _LEAST_SCORE
            corners, scores, classes = corners[chosen], scores[chosen], classes[chosen]
            best = module.nms(corners, scores, classes, overlap)[:_MOST_BOXES] if len(corners) else []
            answers.append({"boxes": corners[best], "scores": scores[best], "labels": classes[best]})
        rows = box_rows(Runs(answers, [1] * len(answers)), truth)
        return Measurement(100 * average_precision(rows), rows, average_precision, 100.0)

    return Detector(path, list(_Feeds(module, "train2017", feed)), test, judge)


def yolox(module: Any) -> Detector:
    """Return YOLOX-nano: pixels of 0 to 255, padded by 114."""
    size = 416
    path = module.upgraded(module.R + "yolox_nano.onnx")
    name = onnx.load(path, load_external_data=False).graph.input[0].name
    grids, strides = [], []
    for stride in (8, 16, 32):
        ys, xs = np.mgrid[0 : size // stride, 0 : size // stride]
        grids.append(np.stack([xs, ys], -1).reshape(-1, 2))
        strides.append(np.full((len(grids[-1]), 1), stride))
    grid, step = np.concatenate(grids), np.concatenate(strides)

    def ratio(pixels: np.ndarray) -> float:
        return float(min(size / pixels.shape[0], size / pixels.shape[1]))

    def feed(pixels: np.ndarray) -> dict[str, np.ndarray]:
        scale = ratio(pixels)
        height, width = int(pixels.shape[0] * scale), int(pixels.shape[1] * scale)
        resized = Image.fromarray(pixels[..., ::-1].copy()).resize((width, height), Image.Resampling.BILINEAR)
        canvas = np.full((size, size, 3), 114, np.float32)
        canvas[:height, :width] = np.asarray(resized)
        return {name: np.ascontiguousarray(canvas.transpose(2, 0, 1)[None])}

    def decode(output: np.ndarray, pixels: np.ndarray) -> Boxes:
        rows = output[0].astype(np.float64)
        span = np.array([pixels.shape[1], pixels.shape[0]]) * ratio(pixels)
        centres = (rows[:, :2] + grid) * step / span
        sizes = np.exp(np.minimum(rows[:, 2:4], 20)) * step / span
        corners = np.concatenate([centres - sizes / 2, centres + sizes / 2], 1)
        return corners, rows[:, 4] * rows[:, 5:].max(1), rows[:, 5:].argmax(1)

    return _detector(module, path, feed, decode, 0.65)


def fastestdet(module: Any) -> Detector:
    """Return FastestDet: pixels of 0 to 1, the image stretched."""
    size, name = 352, "input.1"

    def feed(pixels: np.ndarray) -> dict[str, np.ndarray]:
        resized = Image.fromarray(pixels[..., ::-1].copy()).resize((size, size), Image.Resampling.BILINEAR)
        return {name: np.asarray(resized).transpose(2, 0, 1)[None].astype(np.float32) / 255}

    def decode(output: np.ndarray, pixels: np.ndarray) -> Boxes:
        del pixels
        cells = output[0].transpose(1, 2, 0).astype(np.float64)
        height, width = cells.shape[:2]
        ys, xs = np.mgrid[0:height, 0:width]
        present, classes = np.clip(cells[..., 0], 0, None), np.clip(cells[..., 5:], 0, None)
        centres = np.stack([(xs + np.tanh(cells[..., 1])) / width, (ys + np.tanh(cells[..., 2])) / height], -1)
        sizes = 1 / (1 + np.exp(-cells[..., 3:5]))
        corners = np.concatenate([centres - sizes / 2, centres + sizes / 2], -1).reshape(-1, 4)
        scores = present**0.6 * classes.max(-1) ** 0.4
        return corners, scores.reshape(-1), classes.argmax(-1).reshape(-1)

    return _detector(module, module.R + "fastestdet.onnx", feed, decode, 0.45)


DETECTORS: dict[str, Callable[[Any], Detector]] = {"yolox": yolox, "fastestdet": fastestdet}
