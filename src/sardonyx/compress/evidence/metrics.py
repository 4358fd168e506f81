"""Built-in metrics: functions of a session over stored samples with labels.

Every metric computes rows of scores, one a sample, and a statistic of the rows; both are paired between models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.compress.evidence.boxes import Runs, average_precision, box_rows, labelled_boxes
from sardonyx.compress.evidence.intervals import Statistic
from sardonyx.compress.evidence.measurement import Evaluate, Measurement, minus_perplexity
from sardonyx.compress.evidence.outputs import is_float
from sardonyx.errors import OptionError
from sardonyx.runtime.session import Session

IGNORED_LABELS = (-100, 255)
"""Labels that no metric counts: -100 of tokens, 255 of pixels."""

Labels = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Metric:
    """A built-in metric.

    Attributes:
        rows: A function from the outputs of all runs, in order, and the labels to rows of scores.
        statistic: The function from rows to the metric; None for the mean.
        scale: The metric over the statistic.
        lower_is_better: True for errors: the metric is minus what is shown.
    """

    rows: Callable[[Runs, Labels], np.ndarray]
    statistic: Statistic | None = None
    scale: float = 1.0
    lower_is_better: bool = False


def metric(name: str, labels: Any, samples: Iterable[Mapping[str, Any]]) -> Evaluate:
    """Return a function that measures a session.

    Args:
        name: One of :data:`METRICS`.
        labels: The labels of all samples in axis 0; a mapping from names to arrays where a metric needs several; for
            perplexity None, if the labels are the next tokens of the input.
        samples: Feeds of the original model in the order of the labels, each with one or several samples in axis 0.

    Raises:
        OptionError: The metric is unknown, or there are no samples or labels. When the function runs: labels and
            outputs do not fit.

    Example:
        >>> evaluate = metric("top1", labels, [{"x": image[None]} for image in images])
    """
    if name not in METRICS:
        raise OptionError(f"expected one of {', '.join(METRICS)}, got {name!r}.", where="metric")
    feeds = list(samples)
    if labels is None and name == "perplexity":
        labels = _next_tokens(feeds)
    stored = labels if isinstance(labels, Mapping) else {"labels": labels}
    arrays = {key: np.asarray(array) for key, array in stored.items()}
    if not feeds:
        raise OptionError("expected at least one sample.", where="evaluate", remedy="Give labelled samples.")
    if not arrays or not all(array.size for array in arrays.values()):
        raise OptionError("expected at least one label.", where="evaluate", remedy="Give labelled samples.")
    chosen = METRICS[name]

    def evaluate(session: Session) -> Measurement:
        names = [info.name for info in session.get_outputs()]
        types = {info.name: info.type for info in session.get_inputs()}
        outputs = [dict(zip(names, session.run(None, _in_types(sample, types)), strict=True)) for sample in feeds]
        runs = Runs(outputs, [_count(sample) for sample in feeds])
        rows = chosen.rows(runs, arrays)
        value = float(rows.mean()) if chosen.statistic is None else chosen.statistic(rows)
        return Measurement(
            value * chosen.scale, rows, chosen.statistic, chosen.scale, lower_is_better=chosen.lower_is_better
        )

    evaluate.__name__ = name
    return evaluate


def _count(sample: Mapping[str, Any]) -> int:
    """Return the number of samples in feeds: the size of axis 0."""
    return next((len(array) for array in sample.values() if np.ndim(array)), 1)


def _next_tokens(feeds: list[Mapping[str, Any]]) -> np.ndarray:
    """Return the token after every token of the only input of integers; none after the last.

    Raises:
        OptionError: There is not one such input, or its shape differs between samples.
    """
    tokens = [[array for array in sample.values() if np.asarray(array).dtype.kind in "iu"] for sample in feeds]
    if not all(len(arrays) == 1 for arrays in tokens) or len({arrays[0].shape[1:] for arrays in tokens}) > 1:
        raise OptionError("expected labels, or one input of tokens of one length.", where="labels")
    joined = np.concatenate([arrays[0] for arrays in tokens]).astype(np.int64)
    return np.concatenate([joined[:, 1:], np.full_like(joined[:, :1], IGNORED_LABELS[0])], 1)


_FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}


def _in_types(sample: Mapping[str, Any], types: Mapping[str, str]) -> dict[str, Any]:
    """Return feeds whose floats have the precision of the session's inputs."""
    return {
        name: array.astype(_FLOATS[types[name]]) if is_float(array) and types.get(name) in _FLOATS else array
        for name, array in sample.items()
    }


def _first(runs: Runs) -> np.ndarray:
    """Return the first output of all runs, joined along axis 0.

    Raises:
        OptionError: The first output is not an array whose axis 0 holds samples.
    """
    arrays = [next(iter(outputs.values())) for outputs in runs.outputs]
    if not all(isinstance(array, np.ndarray) and array.ndim for array in arrays):
        raise OptionError(
            "expected an array with samples in axis 0 as the first output.", where="metric",
            remedy="Give an evaluate function.",
        )  # fmt: skip
    if len({array.shape[1:] for array in arrays}) > 1:
        raise OptionError(
            "expected the first output to have the same shape for every sample.", where="metric",
            remedy="Give an evaluate function.",
        )  # fmt: skip
    joined = np.concatenate(arrays)
    return joined.astype(np.float64) if is_float(joined) else joined


def _only(labels: Labels) -> np.ndarray:
    if len(labels) != 1:
        raise OptionError(f"expected one array of labels, got {', '.join(labels)}.", where="labels")
    return next(iter(labels.values()))


def _classes(runs: Runs, labels: Labels) -> tuple[np.ndarray, np.ndarray]:
    """Return scores of classes with the classes last, and the labels as integers of the shape of the other axes.

    Raises:
        OptionError: Labels and scores do not fit.
    """
    scores, truth = _first(runs), _only(labels)
    if scores.ndim > 2 and truth.ndim == 1 and scores.size == scores.shape[0] * scores.shape[1]:
        scores = scores.reshape(scores.shape[:2])  # Scores with axes of one pixel.
    if truth.shape == scores.shape and scores.ndim > 1 and scores.shape[-1] > 1 and is_float(scores):
        truth = truth.argmax(-1)  # Labels as one-hot rows.
    if truth.ndim > 1 and truth.shape[-1] == 1 and truth.ndim == scores.ndim:
        truth = truth[..., 0]
    if truth.dtype.kind == "f" and not np.array_equal(truth, np.round(truth)):
        raise OptionError("expected labels as integers, got fractions.", where="labels")
    truth = truth.astype(np.int64) if truth.dtype.kind in "biuf" else truth
    if truth.dtype.kind != "i":
        raise OptionError(f"expected labels as integers, got {truth.dtype}.", where="labels")
    if scores.shape[:-1] != truth.shape:
        if scores.ndim == truth.ndim + 1 and scores.shape[:1] + scores.shape[2:] == truth.shape:
            scores = np.moveaxis(scores, 1, -1)
        else:
            raise OptionError(
                f"the first output has the shape {list(scores.shape)}, the labels {list(truth.shape)}: expected labels "
                "of the output's shape without the axis of classes.", where="labels",
            )  # fmt: skip
    counted = truth[~np.isin(truth, IGNORED_LABELS)] if truth.ndim > 1 else truth
    if counted.size and (counted.min() < 0 or counted.max() >= scores.shape[-1]):
        raise OptionError(
            f"expected labels from 0 to {scores.shape[-1] - 1}, got {counted.min()} to {counted.max()}.", where="labels"
        )
    return scores, truth


def _mean_per_sample(values: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Return the means over all axes but the first of the counted elements."""
    axes = tuple(range(1, values.ndim))
    return np.asarray(np.where(counted, values, 0).sum(axes) / np.maximum(counted.sum(axes), 1))


def _counted(truth: np.ndarray) -> np.ndarray:
    """Return True where a label counts; labels of whole samples always do."""
    return ~np.isin(truth, IGNORED_LABELS) if truth.ndim > 1 else np.ones(truth.shape, bool)


def _top(k: int) -> Callable[[Runs, Labels], np.ndarray]:
    def rows(runs: Runs, labels: Labels) -> np.ndarray:
        first, truth = _first(runs), _only(labels)
        if not is_float(first) and first.shape == truth.shape:  # The model returns classes.
            return _mean_per_sample((first == truth).astype(np.float64), _counted(truth))
        scores, truth = _classes(runs, labels)
        if scores.shape[-1] < 2:
            raise OptionError("expected scores of at least 2 classes.", where="metric", remedy="Use auc.")
        own = np.take_along_axis(scores, np.where(_counted(truth), truth, 0)[..., None], -1)
        # Ties count in the order of classes, as in argmax; NaN is no hit.
        above = (scores > own).sum(-1) + ((scores == own) & (np.arange(scores.shape[-1]) < truth[..., None])).sum(-1)
        hits = (above < k) & np.isfinite(own[..., 0]) & ~np.isnan(scores).any(-1)
        return _mean_per_sample(hits.astype(np.float64), _counted(truth))

    return rows


def _log_likelihoods(runs: Runs, labels: Labels) -> np.ndarray:
    scores, truth = _classes(runs, labels)
    counted = _counted(truth)
    shifted = scores - scores.max(-1, keepdims=True)
    own = np.take_along_axis(shifted, np.where(counted, truth, 0)[..., None], -1)[..., 0]
    logs = own - np.log(np.exp(shifted).sum(-1))
    return _mean_per_sample(logs, counted) if logs.ndim > 1 else logs


def _errors(power: int) -> Callable[[Runs, Labels], np.ndarray]:
    def rows(runs: Runs, labels: Labels) -> np.ndarray:
        values, truth = _first(runs), _only(labels)
        if values.shape != truth.shape and values.size == truth.size and len(values) == len(truth):
            truth = truth.reshape(values.shape)
        if values.shape != truth.shape:
            raise OptionError(
                f"the first output has the shape {list(values.shape)}, the labels {list(truth.shape)}.", where="labels"
            )
        distance = np.abs(values - truth.astype(np.float64)) ** power
        return np.asarray(-distance.reshape(len(values), -1).mean(1))

    return rows


def _scores_with_labels(runs: Runs, labels: Labels) -> np.ndarray:
    """Return rows of a score and a label of 0 or 1."""
    scores, truth = _first(runs), _only(labels).reshape(-1)
    scores = scores.reshape(len(scores), -1)
    if scores.shape[1] not in (1, 2) or len(scores) != len(truth) or not np.isin(truth, (0, 1)).all():
        raise OptionError(
            f"auc needs one score, or two of classes, a sample and labels of 0 and 1, got scores {list(scores.shape)} "
            f"and {len(truth)} labels.", where="labels",
        )  # fmt: skip
    if len(np.unique(truth)) < 2:
        raise OptionError("auc needs samples of both classes.", where="labels")
    own = scores[:, 0] if scores.shape[1] == 1 else scores[:, 1] - scores[:, 0]
    return np.stack([own, truth.astype(np.float64)], 1)


def _area_under_curve(rows: np.ndarray) -> float:
    """Return the share of pairs of a positive and a negative sample in the right order; ties count half."""
    scores, truth = rows[:, 0], rows[:, 1] > 0.5
    positives, negatives = int(truth.sum()), int((~truth).sum())
    if not positives or not negatives or not np.isfinite(scores).all():
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float((ranks[truth].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def _intersections(runs: Runs, labels: Labels) -> np.ndarray:
    """Return, for each sample and class, the pixels of intersection and of union; shape [samples, classes, 2]."""
    first, truth = _first(runs), _only(labels)
    if is_float(first):
        scores, truth = _classes(runs, labels)
        answers, classes = scores.argmax(-1), scores.shape[-1]
    else:
        if first.shape != truth.shape or truth.dtype.kind not in "iu":
            raise OptionError(
                f"expected integers of the shape {list(first.shape)}, got {truth.dtype} {list(truth.shape)}.",
                where="labels",
            )
        own = truth[_counted(truth)]
        if min(int(first.min()), int(own.min(initial=0))) < 0:
            raise OptionError("expected classes of 0 and more.", where="labels")
        answers, classes = first, int(max(first.max(), own.max(initial=0))) + 1
    if classes > 1 << 16:
        raise OptionError(f"expected at most 65,536 classes, got {classes:,}.", where="labels")
    rows = np.zeros((len(truth), classes, 2))
    for number, (answer, label) in enumerate(zip(answers, truth, strict=True)):
        counted = _counted(label) if label.ndim else np.ones((), bool)
        own, true = answer[counted].astype(np.int64), label[counted].astype(np.int64)
        both = np.bincount(own[own == true], minlength=classes)
        rows[number, :, 0] = both
        rows[number, :, 1] = np.bincount(own, minlength=classes) + np.bincount(true, minlength=classes) - both
    return rows


def _mean_intersection_over_union(rows: np.ndarray) -> float:
    intersection, union = rows.sum(0).T
    present = union > 0
    return float((intersection[present] / union[present]).mean()) if present.any() else float("nan")


def _f1_rows(runs: Runs, labels: Labels) -> np.ndarray:
    """Return, for each sample and class, hits, answers and labels; shape [samples, classes, 3]."""
    scores, truth = _classes(runs, labels)
    if truth.ndim != 1:
        raise OptionError(f"f1 needs one label a sample, got the shape {list(truth.shape)}.", where="labels")
    classes = np.arange(scores.shape[-1])
    answers = scores.argmax(-1)[:, None] == classes
    true = truth[:, None] == classes
    return np.stack([answers & true, answers, true], -1).astype(np.float64)


def _macro_f1(rows: np.ndarray) -> float:
    hits, answers, true = rows.sum(0).T
    present = true > 0
    return float((2 * hits[present] / (answers + true)[present]).mean()) if present.any() else float("nan")


def _detections(runs: Runs, labels: Labels) -> np.ndarray:
    return box_rows(runs, labelled_boxes(labels))


METRICS: dict[str, Metric] = {
    "top1": Metric(_top(1), scale=100.0),
    "top5": Metric(_top(5), scale=100.0),
    "f1": Metric(_f1_rows, _macro_f1, 100.0),
    "auc": Metric(_scores_with_labels, _area_under_curve, 100.0),
    "perplexity": Metric(_log_likelihoods, minus_perplexity, lower_is_better=True),
    "mse": Metric(_errors(2), lower_is_better=True),
    "mae": Metric(_errors(1), lower_is_better=True),
    "miou": Metric(_intersections, _mean_intersection_over_union, 100.0),
    "map50": Metric(_detections, average_precision, 100.0),
}
"""The metrics by name. Percent for `top1`, `top5`, `f1` (mean over classes), `auc`, `miou` and `map50`."""
