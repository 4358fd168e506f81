"""Mean average precision of boxes at an overlap of one half.

Matching of answers to labelled boxes concerns one image and one class at a time, so that an image is one row of scores,
and resampled rows need no new matching.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sardonyx.errors import OptionError

OVERLAP = 0.5
RECALLS = np.linspace(0, 1, 101)
MOST_ANSWERS = 1000
"""Answers of an image that count, those of the highest scores."""


class Runs(NamedTuple):
    """Runs of a model.

    Attributes:
        outputs: The outputs of every run by name.
        samples: The number of samples of every run.
    """

    outputs: Sequence[Mapping[str, Any]]
    samples: Sequence[int]


class Boxes(NamedTuple):
    """Boxes of one image.

    Attributes:
        corners: x and y of two corners, shape [boxes, 4].
        classes: Shape [boxes].
        scores: Shape [boxes]; ones for labels.
    """

    corners: np.ndarray
    classes: np.ndarray
    scores: np.ndarray


Matches = dict[int, tuple[np.ndarray, np.ndarray, int]]
"""By class: the scores of the answers, True for the answers with a box of their own, the number of labelled boxes."""


def labelled_boxes(labels: Mapping[str, np.ndarray]) -> dict[int, Boxes]:
    """Return the labelled boxes by image.

    Args:
        labels: ``boxes`` [boxes, 4] of corners with ``labels`` and ``image_index`` [boxes]; or one array [boxes, 6] of
            image, class and corners.

    Raises:
        OptionError: The arrays have other shapes.
    """
    arrays = dict(labels)
    if len(arrays) == 1:
        rows = next(iter(arrays.values()))
        if rows.ndim == 2 and rows.shape[1] == 6:
            arrays = {"image_index": rows[:, 0], "labels": rows[:, 1], "boxes": rows[:, 2:]}
    try:
        corners, classes, images = (arrays[name] for name in ("boxes", "labels", "image_index"))
    except KeyError:
        raise OptionError(
            f"map50 needs boxes, labels and image_index, or rows of image, class and corners; got {', '.join(labels)}.",
            where="labels",
        ) from None
    if corners.ndim != 2 or corners.shape[1] != 4 or not len(corners) == classes.size == images.size:
        raise OptionError(f"expected boxes [boxes, 4], got {list(corners.shape)}.", where="labels")
    classes, images = classes.reshape(-1).astype(int), images.reshape(-1).astype(int)
    ones = np.ones(len(corners))
    classes, images = classes.reshape(-1).astype(int), images.reshape(-1).astype(int)
    ones = np.ones(len(corners))
    return {
        int(image): Boxes(corners[images == image], classes[images == image], ones[images == image])
        for image in np.unique(images)
    }


def box_rows(runs: Runs, truth: Mapping[int, Boxes]) -> np.ndarray:
    """Return the matches of every image, as an array of objects.

    Args:
        runs: Runs with the outputs ``boxes``, ``scores`` and ``labels``, and ``image_index`` if a run holds several
            images; or with rows of corners, score and class as the first output.
        truth: The labelled boxes by image, in the order of the runs.

    Raises:
        OptionError: The outputs have another form, or a label names an image that was not run.
    """
    answers = [
        image
        for outputs, samples in zip(runs.outputs, runs.samples, strict=True)
        for image in _answers(outputs, samples)
    ]
    if truth and not 0 <= min(truth) <= max(truth) < len(answers):
        raise OptionError(
            f"expected images from 0 to {len(answers) - 1}, got {min(truth)} to {max(truth)}.", where="labels"
        )
    rows = np.empty(len(answers), object)
    for number, image in enumerate(answers):
        rows[number] = _matches(image, truth.get(number, _NOTHING))
    return rows


_NOTHING = Boxes(np.zeros((0, 4)), np.zeros(0, int), np.zeros(0))


def _answers(outputs: Mapping[str, Any], samples: int) -> list[Boxes]:
    if {"boxes", "scores", "labels"} <= outputs.keys():
        corners = np.asarray(outputs["boxes"], np.float64).reshape(-1, 4)
        scores = np.asarray(outputs["scores"], np.float64).reshape(-1)
        classes = np.asarray(outputs["labels"]).reshape(-1).astype(int)
        images = np.asarray(outputs.get("image_index", np.zeros(len(scores)))).reshape(-1).astype(int)
        return [Boxes(corners[images == i], classes[images == i], scores[images == i]) for i in range(samples)]
    rows = next(iter(outputs.values()))
    if not isinstance(rows, np.ndarray) or rows.ndim not in (2, 3) or rows.shape[-1] != 6:
        raise OptionError(
            "map50 needs outputs boxes, scores and labels, or rows of corners, score and class as the first output.",
            where="metric",
            remedy="Give an evaluate function that decodes the outputs.",
        )
    return [
        Boxes(image[:, :4].astype(np.float64), image[:, 5].astype(int), image[:, 4].astype(np.float64))
        for image in (rows[None] if rows.ndim == 2 else rows)
    ]


def _matches(answers: Boxes, truth: Boxes) -> Matches:
    matches: Matches = {}
    for label in np.union1d(answers.classes, truth.classes):
        own, true = answers.classes == label, truth.corners[truth.classes == label]
        scores, corners = answers.scores[own], answers.corners[own]
        finite = np.isfinite(scores) & np.isfinite(corners).all(1)
        scores, corners = scores[finite], corners[finite]
        order = np.argsort(-scores, kind="stable")[:MOST_ANSWERS]
        scores, corners = scores[order], corners[order]
        hits = np.zeros(len(scores), bool)
        if len(true) and len(scores):
            overlaps = _overlaps(corners, true)
            for number in range(len(scores)):
                best = int(overlaps[number].argmax())
                if overlaps[number, best] >= OVERLAP:
                    hits[number] = True
                    overlaps[:, best] = -1
        matches[int(label)] = scores, hits, len(true)
    return matches


def _overlaps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    low, high = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:], b[None, :, 2:])
    common = np.clip(high - low, 0, None).prod(-1)
    areas = [np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(-1) for boxes in (a, b)]
    return np.asarray(common / np.maximum(areas[0][:, None] + areas[1][None] - common, 1e-12))


def average_precision(rows: np.ndarray) -> float:
    """Return the mean over classes of the precision at 101 recalls, from the matches of images."""
    labels = {label for row in rows for label, (_, _, count) in row.items() if count}
    if not labels:
        return float("nan")
    total = 0.0
    for label in labels:
        parts = [row[label] for row in rows if label in row]
        scores = np.concatenate([part[0] for part in parts])
        if not len(scores):
            continue
        hits = np.concatenate([part[1] for part in parts])[np.argsort(-scores, kind="stable")]
        right = np.cumsum(hits)
        precision = np.maximum.accumulate((right / np.arange(1, len(right) + 1))[::-1])[::-1]
        recall = right / sum(part[2] for part in parts)
        offsets = np.searchsorted(recall, RECALLS)
        total += float(np.append(precision, 0.0)[offsets].mean())
    return total / len(labels)
