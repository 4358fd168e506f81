"""Built-in metrics are those of the libraries that define them, and refuse labels that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from sklearn import metrics as sklearn_metrics

import sardonyx
from sardonyx import demo
from sardonyx.compress.evidence import METRICS, Measurement, measure, metric, read_labels
from sardonyx.errors import ModelFileError, OptionError

RNG = np.random.default_rng(0)


def returning(shape: str, kind: str = "float") -> sardonyx.Session:
    """Return a session whose output is its input."""
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({kind}[{shape}] x) => ({kind}[{shape}] y) {{ y = Identity(x) }}'
    return sardonyx.Session(onnx.parser.parse_model(text), compile="off")


def value_of(name: str, scores: np.ndarray, labels: Any, kind: str = "float") -> Measurement:
    shape = ", ".join(["N", *map(str, scores.shape[1:])])
    feeds = [{"x": scores[i : i + 1]} for i in range(len(scores))]
    return measure(returning(shape, kind), metric(name, labels, feeds))


LOGITS = RNG.standard_normal((40, 7)).astype(np.float32)
LABELS = RNG.integers(0, 7, 40)


def expected_values() -> Iterator[tuple[str, np.ndarray, np.ndarray, float]]:
    yield "top1", LOGITS, LABELS, 100 * sklearn_metrics.accuracy_score(LABELS, LOGITS.argmax(1))
    yield "top5", LOGITS, LABELS, 100 * sklearn_metrics.top_k_accuracy_score(LABELS, LOGITS, k=5)
    yield "f1", LOGITS, LABELS, 100 * sklearn_metrics.f1_score(LABELS, LOGITS.argmax(1), average="macro")
    yield "auc", LOGITS[:, :1], LABELS % 2, 100 * sklearn_metrics.roc_auc_score(LABELS % 2, LOGITS[:, 0])
    yield "perplexity", LOGITS, LABELS, np.exp(sklearn_metrics.log_loss(LABELS, softmax(LOGITS)))
    targets = RNG.standard_normal((40, 7)).astype(np.float32)
    yield "mse", LOGITS, targets, sklearn_metrics.mean_squared_error(targets, LOGITS)
    yield "mae", LOGITS, targets, sklearn_metrics.mean_absolute_error(targets, LOGITS)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x.astype(np.float64))
    return np.asarray(e / e.sum(-1, keepdims=True))


@pytest.mark.parametrize("name, scores, labels, expected", list(expected_values()), ids=lambda v: str(v)[:10])
def test_metrics_agree_with_scikit_learn(name: str, scores: np.ndarray, labels: np.ndarray, expected: float) -> None:
    assert value_of(name, scores, labels).shown == pytest.approx(expected, rel=1e-5)


def test_classes_may_be_the_second_axis_and_labels_one_hot() -> None:
    pixels = RNG.standard_normal((6, 4, 5, 3)).astype(np.float32)
    truth = RNG.integers(0, 4, (6, 5, 3))
    expected = 100 * (pixels.argmax(1) == truth).mean()
    assert value_of("top1", pixels, truth).value == pytest.approx(expected)
    assert value_of("top1", LOGITS, np.eye(7)[LABELS]).value == value_of("top1", LOGITS, LABELS).value
    assert value_of("top1", LOGITS.argmax(1), LABELS, "int64").value == value_of("top1", LOGITS, LABELS).value


def test_ignored_pixels_do_not_count() -> None:
    pixels = RNG.standard_normal((6, 4, 5, 3)).astype(np.float32)
    answers, truth = pixels.argmax(1), RNG.integers(0, 4, (6, 5, 3))
    expected = sklearn_metrics.jaccard_score(truth.ravel(), answers.ravel(), average="macro")
    assert value_of("miou", pixels, truth).value == pytest.approx(100 * expected)
    ignored = np.where(answers == truth, truth, 255)
    assert value_of("miou", pixels, ignored).value == 100
    assert value_of("miou", answers, ignored, "int64").value == 100


def test_perplexity_of_tokens_without_labels_is_that_of_the_next_token() -> None:
    tokens = RNG.integers(0, 5, (8, 6))

    table = ", ".join(str(x) for x in LOGITS[:5, :5].ravel())
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (int64[N, 6] x) => (float[N, 6, 5] y)
        <float[5, 5] t = {{{table}}}> {{ y = Gather(t, x) }}"""
    session = sardonyx.Session(onnx.parser.parse_model(text), compile="off")
    feeds = [{"x": row[None]} for row in tokens]
    value = measure(session, metric("perplexity", None, feeds)).shown
    logs = np.log(softmax(LOGITS[:5, :5]))[tokens[:, :-1], tokens[:, 1:]]
    assert value == pytest.approx(np.exp(-logs.mean()))


def test_the_detector_of_the_package_finds_its_boxes(tmp_path: Path) -> None:
    name = "digits_detector"
    with np.load(demo.path(name).with_suffix(".npz")) as stored:
        images, expected = stored["in::image"], {key: stored[f"truth::{key}"] for key in ("boxes", "labels")}
    session = sardonyx.Session(demo.path(name), compile="off")
    labels = read_labels(demo.path(name).with_suffix(".npz"), ["image"], "map50")
    assert labels is not None and set(labels) == {"boxes", "labels", "image_index"}
    together = measure(session, metric("map50", labels, [{"image": images}]))
    singly = measure(session, metric("map50", labels, [{"image": images[i : i + 1]} for i in range(len(images))]))
    assert together.value == singly.value > 80
    assert together.scores is not None and len(together.scores) == len(images)
    shifted = {**labels, "boxes": expected["boxes"] + 40}
    assert measure(session, metric("map50", shifted, [{"image": images}])).value < 10


def test_average_precision_is_that_of_a_ranking_by_hand() -> None:
    # Two boxes; answers in order of their scores: right, wrong, right. Precision 1 up to recall 1/2, then 2/3.
    box = np.array([[0, 0, 10, 10], [50, 50, 60, 60]], np.float32)
    rows = [[*box[0], 0.9, 0], [20, 20, 30, 30, 0.8, 0], [*box[1], 0.7, 0]]
    truth = np.array([[0, 0, *box[0]], [0, 0, *box[1]]])
    value = value_of("map50", np.array([rows], np.float32), truth).value
    assert value == pytest.approx(100 * (51 + 50 * 2 / 3) / 101)


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "unknown metric": (lambda: metric("bleu", [0], [{}]), "expected one of"),
    "no samples": (lambda: metric("top1", [0], []), "at least one sample"),
    "no labels": (lambda: metric("top1", [], [{"x": LOGITS}]), "at least one label"),
    "count of labels": (lambda: value_of("top1", LOGITS, LABELS[:-1]), "the labels"),
    "class out of range": (lambda: value_of("top1", LOGITS, LABELS + 1), "expected labels from 0 to 6"),
    "fractions": (lambda: value_of("top1", LOGITS, LABELS + 0.5), "fractions"),
    "texts": (lambda: value_of("top1", LOGITS, LABELS.astype(str)), "expected labels as integers"),
    "one class alone": (lambda: value_of("auc", LOGITS[:, :1], LABELS * 0), "both classes"),
    "shapes": (lambda: value_of("mse", LOGITS, LOGITS[:, :3]), "the labels"),
    "boxes": (lambda: value_of("map50", LOGITS, LABELS), "map50 needs"),
    "one score": (lambda: value_of("top1", LOGITS[:, :1], LABELS * 0), "at least 2 classes"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_by_name(case: str) -> None:
    call, message = BAD[case]
    with pytest.raises(OptionError, match=message):
        call()


def test_labels_are_the_arrays_that_are_no_inputs(tmp_path: Path) -> None:
    path = tmp_path / "eval.npz"

    def labels(metric: str = "top1", **arrays: Any) -> Any:
        np.savez(path, x=LOGITS, **arrays)
        read = read_labels(path, ["x"], metric)
        return None if read is None else list(read)

    assert labels(anything=LABELS) == ["anything"]
    assert labels(y=LABELS, id=LABELS) == ["y"]
    assert labels("perplexity") is None
    with pytest.raises(OptionError, match="no labels"):
        labels()
    with pytest.raises(OptionError, match="several arrays"):
        labels(a=LABELS, b=LABELS)
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_labels(tmp_path / "missing.npz", ["x"], "top1")


def test_every_metric_is_tried_here() -> None:
    assert set(METRICS) == {name for name, *_ in expected_values()} | {"miou", "map50"}
