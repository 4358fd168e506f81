"""Find objects on photos of many sizes with one session: OpenCV reads, resizes and draws, the shipped detector finds.

    python examples/detect_digits.py [--out FOLDER]

The photos are composed of real handwritten digits that no training saw, three times as large as the detector wants.
Needs `opencv-python-headless`.
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
"""The detector's pixels: from 0, paper, to 16, ink. A photo has 255 for paper and 0 for ink."""

ZOOM = 3
SIZES = ((64, 64), (96, 128), (75, 101), (128, 80), (110, 57), (160, 200), (57, 143), (240, 320))


@dataclass(frozen=True)
class Photo:
    """A file, and what it shows: boxes (count, 4) as x1, y1, x2, y2 in its pixels, and labels (count,)."""

    path: Path
    boxes: np.ndarray
    labels: np.ndarray


def compose(path: Path, height: int, width: int, rng: np.random.Generator) -> Photo:
    """A photo of held-out digits, of 15 to 30 pixels (times the zoom) each, that do not overlap."""
    digits, labels = demo.inputs("digits_classifier")["image"][:, 0], demo.truth("digits_classifier")["labels"]
    scene = 2 + rng.normal(0, 0.5, (height, width)).astype(np.float32)
    taken = np.zeros((height, width), bool)
    boxes, shown = [], []
    for _ in range(height * width // 600):
        size, index = int(rng.integers(15, 31)), int(rng.integers(len(digits)))
        glyph = cv2.resize(np.pad(digits[index], 1), (size, size), interpolation=cv2.INTER_LINEAR)
        top, left = int(rng.integers(0, height - size + 1)), int(rng.integers(0, width - size + 1))
        place = slice(top, top + size), slice(left, left + size)
        if taken[place].any():
            continue
        taken[place] = True
        scene[place] = np.maximum(scene[place], glyph)
        rows, columns = np.nonzero(glyph > INK / 4)
        boxes.append((left + columns.min(), top + rows.min(), left + columns.max() + 1, top + rows.max() + 1))
        shown.append(labels[index])
    large = cv2.resize(scene, (width * ZOOM, height * ZOOM), interpolation=cv2.INTER_CUBIC)
    cv2.imwrite(str(path), 255 - np.clip(large * 255 / INK, 0, 255).astype(np.uint8))
    return Photo(path, np.array(boxes, np.float32).reshape(-1, 4) * ZOOM, np.array(shown, np.int64))


def detect(session: sardonyx.Session, photo: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Boxes (found, 4) in the photo's pixels, scores (found,) and labels (found,) of a grey photo (height, width)."""
    height, width = (size // ZOOM for size in photo.shape)
    small = cv2.resize(photo, (width, height), interpolation=cv2.INTER_AREA)
    image = (255 - small.astype(np.float32)) * (INK / 255)
    boxes, scores, labels, _ = session.run(None, {"image": image[None, None]})
    return boxes * np.float32(ZOOM), scores, labels


def overlap(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union of each box with each other one, (boxes, others)."""
    a, b = boxes[:, None], others[None]
    sides = np.clip(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0, None)
    common = sides.prod(-1)
    return common / ((a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - common)


def draw(photo: np.ndarray, boxes: np.ndarray, scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The photo in colours, with what was found on it."""
    drawn = cv2.cvtColor(photo, cv2.COLOR_GRAY2BGR)
    for (x1, y1, x2, y2), score, label in zip(boxes.round().astype(int).tolist(), scores, labels, strict=True):
        cv2.rectangle(drawn, (x1, y1), (x2, y2), (0, 160, 0), 2)
        cv2.putText(drawn, f"{label} {score:.2f}", (x1, y1 - 4), cv2.FONT_HERSHEY_SIMPLEX, 0.4, (0, 0, 200), 1)
    return drawn


def main(folder: Path) -> float:
    """Detect on all photos; returns the F1 score at an overlap of a half, with the right digit."""
    session = sardonyx.Session(demo.path("digits_detector"), compile="wait")
    rng = np.random.default_rng(0)
    hits = found = there = 0
    for number, (height, width) in enumerate(SIZES):
        shown = compose(folder / f"photo_{number}.png", height, width, rng)
        photo = cv2.imread(str(shown.path), cv2.IMREAD_GRAYSCALE)
        boxes, scores, labels = detect(session, photo)
        cv2.imwrite(str(folder / f"found_{number}.png"), draw(photo, boxes, scores, labels))
        right = (overlap(boxes, shown.boxes) >= 0.5) & (labels[:, None] == shown.labels[None])
        hits, found, there = hits + int(right.any(0).sum()), found + len(labels), there + len(shown.labels)
        print(f"{photo.shape[1]:4} x {photo.shape[0]:3}: {len(labels):3} found of {len(shown.labels):3}")
    score = 2 * hits / (found + there)
    print(f"F1 {score:.3f} on {there} digits; one session, {len(SIZES)} sizes, drawn to {folder}")
    return score


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for the photos and what is drawn (default: a temporary one)")
    given = parser.parse_args().out
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        main(given)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
