"""Detect objects on photos of many sizes with one session: OpenCV reads, resizes and draws the photos.

    python examples/detect_digits.py [--out FOLDER]

The photos are composed of handwritten digits that were not used in training, enlarged to three times the detector's
size. Needs `opencv-python-headless`.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

import sardonyx
from sardonyx import demo

INK = 16.0
"""Value of ink in the detector's images, whose paper is 0; a photo has 255 for paper and 0 for ink."""

ZOOM = 3
SIZES = ((64, 64), (96, 128), (75, 101), (128, 80), (110, 57), (160, 200), (57, 143), (240, 320))


@dataclass(frozen=True)
class Photo:
    """A file with its ground truth: boxes (count, 4) as x1, y1, x2, y2 in pixels, and labels (count,)."""

    path: Path
    boxes: np.ndarray
    labels: np.ndarray


def compose(path: Path, height: int, width: int, rng: np.random.Generator) -> Photo:
    """Write a photo of held-out digits, each 15 to 30 pixels (times the zoom), without overlap."""
    digits, labels = demo.inputs("digits_classifier")["image"][:, 0], demo.truth("digits_classifier")["labels"]
    scene = 2 + rng.normal(0, 0.5, (height, width)).astype(np.float32)
    occupied = np.zeros((height, width), bool)
    boxes, shown = [], []
    for _ in range(height * width // 600):
        size, index = int(rng.integers(15, 31)), int(rng.integers(len(digits)))
        glyph = cv2.resize(np.pad(digits[index], 1), (size, size), interpolation=cv2.INTER_LINEAR)
        top, left = int(rng.integers(0, height - size + 1)), int(rng.integers(0, width - size + 1))
        region = slice(top, top + size), slice(left, left + size)
        if occupied[region].any():
            continue
        occupied[region] = True
        scene[region] = np.maximum(scene[region], glyph)
        rows, columns = np.nonzero(glyph > INK / 4)
        boxes.append((left + columns.min(), top + rows.min(), left + columns.max() + 1, top + rows.max() + 1))
        shown.append(labels[index])
    large = cv2.resize(scene, (width * ZOOM, height * ZOOM), interpolation=cv2.INTER_CUBIC)
    cv2.imwrite(str(path), 255 - np.clip(large * 255 / INK, 0, 255).astype(np.uint8))
    return Photo(path, np.array(boxes, np.float32).reshape(-1, 4) * ZOOM, np.array(shown, np.int64))


def detect(session: sardonyx.Session, photo: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return boxes (count, 4) in pixels, scores and labels (count,) of a grey photo (height, width)."""
    height, width = (size // ZOOM for size in photo.shape)
    small = cv2.resize(photo, (width, height), interpolation=cv2.INTER_AREA)
    image = (255 - small.astype(np.float32)) * (INK / 255)
    boxes, scores, labels, _ = session.run(None, {"image": image[None, None]})
    return boxes * np.float32(ZOOM), scores, labels


def overlap(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the intersection over union of each pair of boxes, (boxes, others)."""
    a, b = boxes[:, None], others[None]
    sides = np.clip(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0, None)
    common = sides.prod(-1)
    return common / ((a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - common)


def draw(photo: np.ndarray, boxes: np.ndarray, scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the photo in colours with the detections."""
    drawn = cv2.cvtColor(photo, cv2.COLOR_GRAY2BGR)
    for (x1, y1, x2, y2), score, label in zip(boxes.round().astype(int).tolist(), scores, labels, strict=True):
        cv2.rectangle(drawn, (x1, y1), (x2, y2), (0, 160, 0), 2)
        cv2.putText(drawn, f"{label} {score:.2f}", (x1, y1 - 4), cv2.FONT_HERSHEY_SIMPLEX, 0.4, (0, 0, 200), 1)
    return drawn


def main(folder: Path) -> float:
    """Detect on all photos; return the F1 score at an overlap of 0.5 with the correct digit."""
    session = sardonyx.Session(demo.path("digits_detector"), compile="wait")
    rng = np.random.default_rng(0)
    hits = detections = total = 0
    for number, (height, width) in enumerate(SIZES):
        shown = compose(folder / f"photo_{number}.png", height, width, rng)
        photo = cv2.imread(str(shown.path), cv2.IMREAD_GRAYSCALE)
        boxes, scores, labels = detect(session, photo)
        cv2.imwrite(str(folder / f"found_{number}.png"), draw(photo, boxes, scores, labels))
        right = (overlap(boxes, shown.boxes) >= 0.5) & (labels[:, None] == shown.labels[None])
        hits, detections, total = hits + int(right.any(0).sum()), detections + len(labels), total + len(shown.labels)
        print(f"{photo.shape[1]:4} x {photo.shape[0]:3}: {len(labels):3} detections, {len(shown.labels):3} digits")
    score = 2 * hits / (detections + total)
    print(f"F1 {score:.3f} on {total} digits; one session, {len(SIZES)} sizes, drawings in {folder}")
    return score


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for the photos and drawings (default: a temporary folder)")
    folder = parser.parse_args().out
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        main(folder)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
