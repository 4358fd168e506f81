"""Streams in the form of River: metrics, detectors and models of one row at a time."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, parser

import sardonyx
from sardonyx import train
from sardonyx.errors import ExecutionError, FeedError, OptionError
from sardonyx.train import Learner, RiverModel


class Recorded:
    """A metric in the form of River's that keeps its observations."""

    def __init__(self, requires_labels: bool = True) -> None:
        self.requires_labels = requires_labels
        self.pairs: list[tuple[Any, Any]] = []

    def update(self, y_true: Any, y_pred: Any) -> None:
        self.pairs.append((y_true, y_pred))

    def get(self) -> float:
        return float(len(self.pairs))


def perceptron(end: str = "", outputs: int = 2, type: str = "float") -> bytes:
    """A linear classifier of two features, with a function of the logits."""
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        net ({type}[N, 2] x) => ({type}[N, {outputs}] y) <{type}[2, {outputs}] w, {type}[{outputs}] b>
        {{ {"y" if not end else "z"} = Gemm(x, w, b) {end} }}"""
    model = parser.parse_model(text)
    rng, code = np.random.default_rng(0), TensorProto.DataType.Value(type.upper())
    for name, shape in (("w", (2, outputs)), ("b", (outputs,))):
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(helper.make_tensor(name, code, shape, array.ravel()))
    return model.SerializeToString()


def session_of(model: bytes) -> sardonyx.Session:
    return sardonyx.Session(model, compile="wait", threads=1)


def rows(count: int) -> list[tuple[dict[str, float], bool]]:
    """Rows of named features, with labels that a line separates."""
    points = np.random.default_rng(1).standard_normal((count, 2))
    return [({"b": float(b), "a": float(a), "other": 9.0}, bool(a + b > 0)) for a, b in points]


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (perceptron(), "cross-entropy"),
        (perceptron("y = Softmax(z)"), "cross-entropy"),
        (perceptron(outputs=1), "bce"),
        (perceptron("y = Sigmoid(z)", outputs=1), "bce"),
    ],
    ids=["logits", "softmax", "logit", "sigmoid"],
)
def test_a_learner_is_a_model_of_river(model: bytes, loss: str) -> None:
    with Learner(
        session_of(model), loss, train.SGD(0.5), batch=4, metrics=["top1"] if loss != "bce" else []
    ) as learner:
        river = RiverModel(learner, ["a", "b"])
        for x, y in rows(200):
            river.learn_one(x, y)
        learner.flush()
        right = 0
        for x, y in rows(50):
            chances = river.predict_proba_one(x)
            assert set(chances) == {False, True} and sum(chances.values()) == pytest.approx(1)
            assert river.predict_one(x) is (chances[True] > 0.5)
            right += river.predict_one(x) is y
        assert right > 45
        if loss != "bce":
            assert 0.5 < learner.report.metrics["top1"] <= 1


def test_prequential_metrics_of_river_see_each_sample_before_it_is_learned_from() -> None:
    hits, chances = Recorded(), Recorded(requires_labels=False)
    session = session_of(perceptron())
    x = np.array([[1, 2], [-1, 0.5], [0.3, -2]], np.float32)
    logits = session.run(None, {"x": x})[0]
    with Learner(session, "cross-entropy", batch=3, metrics=[hits, chances]) as learner:
        learner.learn({"x": x}, np.array([0, 1, 1]))
        learner.flush()
        assert learner.report.metrics == {"Recorded": 3.0, "Recorded_2": 3.0}
    assert [truth for truth, _ in hits.pairs] == [0, 1, 1]
    assert [guess for _, guess in hits.pairs] == logits.argmax(1).tolist()
    powers = np.exp(logits.astype(np.float64))
    expected = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose([[share[0], share[1]] for _, share in chances.pairs], expected, rtol=1e-5)


class Failing(Recorded):
    def update(self, y_true: Any, y_pred: Any) -> None:
        raise ValueError("no")


def test_a_metric_that_fails_stops_the_learner_by_name() -> None:
    x, labels = np.ones((1, 2), np.float32), np.array([0])
    with Learner(session_of(perceptron()), "cross-entropy", batch=1, metrics=[Failing()], queue_size=2) as learner:
        with pytest.raises(ExecutionError, match="stopped") as raised:
            for _ in range(8):  # More than the queue holds: a full queue does not wait for a thread that has ended.
                learner.learn({"x": x}, labels)
        assert "Failing failed: ValueError: no" in str(raised.value) and "Failing" in learner.report.error
    with pytest.raises(OptionError, match="no labels"):
        Learner(session_of(perceptron()), train.OutputLoss(), metrics=["top1"])


class Undefined(Recorded):
    def get(self) -> float:
        return 1 / (len(self.pairs) - 1)


class Top1(Recorded):
    """A metric whose class has the name of an own metric."""


Top1.__name__ = "top1"


class Broken(Recorded):
    def get(self) -> float:
        raise ValueError("no")


def test_the_report_has_nan_for_a_metric_without_a_value() -> None:
    x, labels = np.ones((1, 2), np.float32), np.array([0])
    metrics = [Undefined(), Recorded(), "top1"]
    with Learner(session_of(perceptron()), "cross-entropy", batch=1, metrics=metrics) as learner:
        assert all(np.isnan(value) for value in learner.report.metrics.values())
        learner.learn({"x": x}, labels)
        learner.flush()
        values = learner.report.metrics
        assert np.isnan(values["Undefined"]) and values["Recorded"] == 1 and values["top1"] in (0, 1)
        learner.learn({"x": x}, labels)
        learner.flush()
        assert learner.report.metrics["Undefined"] == 1


def test_a_metric_whose_value_fails_is_named() -> None:
    x, labels = np.ones((1, 2), np.float32), np.array([0])
    with Learner(session_of(perceptron()), "cross-entropy", batch=1, metrics=[Broken()]) as learner:
        learner.learn({"x": x}, labels)
        learner.flush()
        with pytest.raises(ExecutionError, match="metrics: Broken failed: ValueError"):
            _ = learner.report


def test_metrics_of_equal_names_are_numbered_in_any_order() -> None:
    for metrics in ([Top1(), "top1", Top1()], ["top1", Top1(), Top1()]):
        with Learner(session_of(perceptron()), "cross-entropy", batch=1, metrics=metrics) as learner:
            learner.learn({"x": np.ones((2, 2), np.float32)}, np.array([0, 1]))
            learner.flush()
            assert learner.report.metrics == {"top1": 0.5, "top1_2": 2.0, "top1_3": 2.0}


def test_prequential_metrics_of_binary_labels_and_of_numbers() -> None:
    binary, numbers = Recorded(), Recorded()
    with Learner(session_of(perceptron(outputs=1)), "bce", metrics=[binary]) as learner:
        learner.learn({"x": np.ones((2, 2), np.float32)}, np.array([[1.0], [0.0]], np.float32))
        learner.flush()
    assert [truth for truth, _ in binary.pairs] == [True, False] and isinstance(binary.pairs[0][1], bool)
    with Learner(session_of(perceptron()), "mse", metrics=[numbers, "mae"]) as learner:
        learner.learn({"x": np.ones((1, 2), np.float32)}, np.array([[1.0, 2.0]], np.float32))
        learner.flush()
        error = np.mean([abs(truth - guess) for truth, guess in numbers.pairs])
        assert learner.report.metrics["mae"] == pytest.approx(error, rel=1e-6)


def test_rows_and_options_that_do_not_fit_are_refused() -> None:
    with Learner(session_of(perceptron()), "cross-entropy") as learner:
        with pytest.raises(OptionError, match="expected an input"):
            RiverModel(learner, ["a"])
        with pytest.raises(OptionError, match="different features"):
            RiverModel(learner, ["a", "a"])
        river = RiverModel(learner, ["a", "b"], classes=["down", "up"])
        with pytest.raises(FeedError, match="'b' is missing"):
            river.predict_one({"a": 1})
        with pytest.raises(FeedError, match="expected one of 'down', 'up', got 'left'"):
            river.learn_one({"a": 1, "b": 2}, "left")
        with pytest.raises(OptionError, match="expected 3 numbers"):
            RiverModel(learner, ["a", "b"], classes=[1, 2, 3]).predict_one({"a": 1, "b": 2})
    with pytest.raises(OptionError, match="the name of a metric"):
        Learner(session_of(perceptron()), "cross-entropy", metrics=[3])


@pytest.mark.parametrize("value", ["red", [1, 2], None, 1j, np.ones(2), 10**400, 1e300])
def test_features_that_are_no_numbers_are_refused(value: Any) -> None:
    with Learner(session_of(perceptron()), "cross-entropy") as learner:
        river = RiverModel(learner, ["a", "b"])
        for call in (river.predict_one, river.predict_proba_one, lambda row: river.learn_one(row, True)):
            with pytest.raises(FeedError, match="row, 'a': expected a number"):
                call({"a": value, "b": 1})
        with pytest.raises(FeedError, match="expected a mapping"):
            river.predict_one(value)
        assert learner.report.error == ""


@pytest.mark.parametrize("label", ["x", [1, 2], None, np.ones(2), 1.7, float("nan"), 2**80])
def test_labels_that_are_no_numbers_or_classes_are_refused(label: Any) -> None:
    with Learner(session_of(perceptron()), "cross-entropy") as learner:
        for classes in (None, (False, True)):
            with pytest.raises(FeedError, match=r"^label: expected"):
                RiverModel(learner, ["a", "b"], classes=classes).learn_one({"a": 1, "b": np.float32(2)}, label)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("label", [np.float32("nan"), np.float64("inf"), np.float64(2**63), Decimal("sNaN")])
def test_labels_out_of_range_are_refused_without_warnings(label: Any) -> None:
    with Learner(session_of(perceptron()), "cross-entropy") as learner, np.errstate(all="raise"):
        for classes in (None, (False, True)):
            with pytest.raises(FeedError, match=r"^label: expected"):
                RiverModel(learner, ["a", "b"], classes=classes).learn_one({"a": 1, "b": 2}, label)


@pytest.mark.parametrize("type", ["float", "bfloat16"])
def test_features_are_numbers_of_any_kind(type: str) -> None:
    model = perceptron(type=type)
    one = ml_dtypes.bfloat16(1)
    with Learner(session_of(model), "cross-entropy") as learner, np.errstate(all="raise"):
        river = RiverModel(learner, ["a", "b"])
        expected = river.predict_proba_one({"a": 1.0, "b": 0.0})
        for value in (1, True, Decimal(1), Fraction(1), np.array(1), np.array(one), one, np.float16(1), np.bool_(1)):
            assert river.predict_proba_one({"a": value, "b": np.float64(1e-60)}) == expected
        for value in (10**400, Decimal("sNaN"), np.array("1"), np.array(1j)):
            with pytest.raises(FeedError, match="row, 'a': expected a number"):
                river.predict_one({"a": value, "b": 0})


def test_extreme_logits_are_probabilities() -> None:
    with Learner(session_of(perceptron(outputs=1)), "bce") as learner, np.errstate(all="raise"):
        river = RiverModel(learner, ["a", "b"])
        extremes = [river.predict_proba_one({"a": sign * 1e7, "b": sign * 1e7}) for sign in (-1, 1)]
        assert sorted(one[True] for one in extremes) == [0, 1] and all(sum(one.values()) == 1 for one in extremes)


def test_river_evaluates_a_learner() -> None:
    evaluate = pytest.importorskip("river.evaluate", reason="river is not installed (extra: online)")
    metrics = pytest.importorskip("river.metrics")
    accuracy, loss = metrics.Accuracy(), metrics.LogLoss()
    with Learner(
        session_of(perceptron()), "cross-entropy", train.SGD(0.5), batch=1, drift="adwin", metrics=[accuracy, loss]
    ) as learner:
        model = RiverModel(learner, ["a", "b"]).estimator()
        for metric in (metrics.Accuracy(), metrics.LogLoss()):
            assert evaluate.progressive_val_score(rows(200), model, metric).get() > 0
        learner.flush()
        report = learner.report
        assert report.metrics["Accuracy"] > 0.8 and 0 < report.metrics["LogLoss"] < 1


def test_a_trainer_is_a_model_of_river_that_learns_at_once() -> None:
    model, data = perceptron(), rows(150)
    trainer = train.Trainer(model, "cross-entropy", train.SGD(0.5), threads=1)
    river = RiverModel(trainer, ["a", "b"])
    expected = train.Trainer(model, "cross-entropy", train.SGD(0.5), threads=1)
    for x, y in data:
        point = np.array([[x["a"], x["b"]]], np.float32)
        assert river.predict_one(x) == bool(expected.forward({"x": point})["y"].argmax())
        river.learn_one(x, y)
        expected.step({"x": point, "labels": np.array([int(y)])})
    for name, array in expected.state().items():
        np.testing.assert_array_equal(trainer.state()[name], array)


@pytest.mark.parametrize("outputs", [1, 2])
def test_many_rows_progress_as_one_row_after_the_other(outputs: int) -> None:
    model, data = perceptron(outputs=outputs), rows(150)
    loss = "bce" if outputs == 1 else "cross-entropy"
    one, many = (
        RiverModel(train.Trainer(model, loss, train.SGD(0.5), threads=1), ["a", "b"], ["no", "yes"]) for _ in range(2)
    )
    labels = ["yes" if y else "no" for _, y in data]
    expected = []
    for (x, _), y in zip(data, labels, strict=True):
        expected.append(one.predict_one(x))
        one.learn_one(x, y)
    columns = {name: np.array([x[name] for x, _ in data]) for name in ("a", "b")}
    assert many.progress_many(columns, labels).tolist() == expected
    assert many.predict_many(columns).tolist() == one.predict_many(columns).tolist()
    many.learn_many(columns, labels)
    with pytest.raises(FeedError, match="'b' is missing"):
        many.predict_many({"a": [1.0]})
    with pytest.raises(FeedError, match="expected 150 labels, got 2"):
        many.learn_many(columns, labels[:2])
    with pytest.raises(FeedError, match="expected one of 'no', 'yes', got 'perhaps'"):
        many.learn_many(columns, [*labels[1:], "perhaps"])
    with pytest.raises(FeedError, match="columns of one length"):
        many.predict_many({"a": [1.0], "b": [1.0, 2.0]})
    with pytest.raises(FeedError, match="a column of numbers"):
        many.predict_many({"a": ["x"], "b": ["y"]})
    with pytest.raises(FeedError, match="float"):
        many.predict_many({"a": [1e300], "b": [0.0]})


def test_a_data_frame_has_a_series_of_answers() -> None:
    pandas = pytest.importorskip("pandas")
    river = RiverModel(train.Trainer(perceptron(), "cross-entropy", train.SGD(0.5), threads=1), ["a", "b"])
    frame = pandas.DataFrame({"b": [1.0, -1.0], "a": [0.5, 0.25]}, index=["first", "second"])
    answers = river.progress_many(frame, pandas.Series([True, False], index=frame.index))
    assert list(answers.index) == ["first", "second"] and set(answers) <= {True, False}


def test_rows_of_a_learner_have_no_order() -> None:
    with Learner(session_of(perceptron()), "cross-entropy") as learner:
        river = RiverModel(learner, ["a", "b"])
        river.learn_many({"a": [1.0, 2.0], "b": [1.0, 2.0]}, [True, False])
        assert len(river.predict_many({"a": [1.0, 2.0], "b": [1.0, 2.0]})) == 2
        with pytest.raises(OptionError, match="follow no order"):
            river.progress_many({"a": [1.0], "b": [1.0]}, [True])


@pytest.mark.parametrize("metrics", [[], ["top1"]])
def test_a_learner_of_single_samples_trains_as_a_trainer_does(metrics: list[str]) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((120, 2)).astype(np.float32)
    labels = (x.sum(1) > 0).astype(np.int64)
    trainer = train.Trainer(perceptron(), "cross-entropy", train.SGD(0.1), batch_norm="frozen", threads=1)
    losses, outputs = trainer.step_samples({"x": x, "labels": labels})
    session = session_of(perceptron())
    options: dict[str, Any] = {"batch": 1, "publish_every": 50, "metrics": metrics}
    with Learner(session, "cross-entropy", train.SGD(0.1), **options) as learner:
        for i in range(120):
            learner.learn({"x": x[i : i + 1]}, labels[i : i + 1])
        learner.flush()
        report = learner.report
        assert (report.samples, report.steps, report.published) == (120, 120, 3)
        assert report.prequential_loss == pytest.approx(losses.mean(), rel=1e-12)
        if metrics:
            assert report.metrics["top1"] == pytest.approx((outputs["y"].argmax(1) == labels).mean())
        for name, array in trainer.file_weights().items():
            np.testing.assert_array_equal(session.model.graph.initializers[name].const_value.numpy(), array)


def test_a_learner_of_single_samples_leaves_out_a_sample_without_a_finite_loss() -> None:
    x = np.random.default_rng(2).standard_normal((30, 2)).astype(np.float32)
    x[20] = np.inf
    labels = (x.sum(1) > 0).astype(np.int64)
    with Learner(session_of(perceptron()), "cross-entropy", train.SGD(0.1), batch=1, publish_every=8) as learner:
        learner.learn({"x": x}, labels)
        learner.flush()
        report = learner.report
    assert (report.samples, report.undone, report.steps, report.error) == (30, 1, 25, "")
