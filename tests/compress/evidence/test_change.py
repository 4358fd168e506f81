"""Verdicts claim no more than the samples show."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import sardonyx
from sardonyx import demo
from sardonyx.compress.evidence import (
    HELD_OUT,
    Evidence,
    Measurement,
    OutputError,
    compare_metrics,
    layers_that_hurt,
    measure,
    metric_change,
    output_errors,
    standard_error,
    store,
)
from sardonyx.compress.quantization import quantize
from sardonyx.errors import EvaluationError, OptionError


def hits(n: int, wrong: int) -> Measurement:
    scores = np.ones(n)
    scores[:wrong] = 0
    return Measurement(100 * float(scores.mean()), scores, None, 100.0)


def test_a_small_loss_on_many_samples_is_kept() -> None:
    change = metric_change(hits(20_000, 2000), hits(20_000, 2010), drop=0.5)
    assert change.verdict == "kept"
    assert change.loss == pytest.approx(0.05)
    assert change.interval is not None and change.interval[0] < 0.05 < change.interval[1] <= 0.5
    assert change.needed is None


def test_the_same_loss_on_few_samples_is_not_judged_and_names_the_needed_samples() -> None:
    change = metric_change(hits(200, 20), hits(200, 20), drop=0.5)
    assert change.verdict == "not judged"
    assert change.needed is not None and change.needed > 200
    assert f"{change.needed:,} samples" in change.reason
    tenth = change.needed // 10 + 1
    assert metric_change(hits(10 * tenth, tenth), hits(10 * tenth, tenth), drop=0.5).verdict == "kept"
    fewer = 9 * tenth // 10
    assert metric_change(hits(10 * fewer, fewer), hits(10 * fewer, fewer), drop=0.5).verdict == "not judged"


def test_a_measured_loss_above_the_budget_is_not_kept() -> None:
    assert metric_change(hits(200, 20), hits(200, 22), drop=0.5).verdict == "not kept"
    assert metric_change(hits(50_000, 20), hits(50_000, 4000), drop=0.5).verdict == "not kept"


def test_without_scores_or_budget_nothing_is_claimed() -> None:
    change = metric_change(Measurement(90.0), Measurement(89.9), drop=0.5)
    assert (change.verdict, change.interval, change.samples) == ("not judged", None, 0)
    assert "no scores per sample" in change.reason
    assert metric_change(hits(200, 20), hits(200, 20)).verdict == "not judged"
    assert metric_change(Measurement(90.0), Measurement(80.0), drop=0.5).verdict == "not kept"


def test_selection_from_many_widens_the_interval() -> None:
    one, many = (metric_change(hits(900, 80), hits(900, 82), drop=1, comparisons=count) for count in (1, 20))
    assert one.interval is not None and many.interval is not None
    assert many.interval[1] > one.interval[1]


def test_the_standard_error_is_that_of_the_paired_difference() -> None:
    before, after = hits(400, 40), hits(400, 44)
    difference = after.scores - before.scores  # type: ignore[operator]
    assert standard_error(before, after) == pytest.approx(100 * difference.std(ddof=1) / 20)
    assert standard_error(before, before) == 0 == standard_error(Measurement(1.0), Measurement(2.0))
    rng = np.random.default_rng(0)
    rows = -rng.exponential(1.4, (2, 300))
    first, second = (measure_of((-float(np.exp(-row.mean())), row)) for row in rows)
    assert standard_error(first, second) == pytest.approx(np.exp(1.4) * 1.4 * (2 / 300) ** 0.5, rel=0.3)


def test_perplexity_has_its_usual_sign() -> None:
    logs = -np.random.default_rng(0).exponential(1.4, 200)
    before = measure_of((-float(np.exp(-logs.mean())), logs))
    after = measure_of((-float(np.exp(-(logs - 0.01).mean())), logs - 0.01))
    change = metric_change(before, after, drop=0.2)
    assert change.before == pytest.approx(np.exp(-logs.mean()))
    assert change.after > change.before
    assert change.loss == pytest.approx(change.after - change.before)
    assert change.verdict == "kept"


def measure_of(answer: Any) -> Measurement:
    return measure(sardonyx.Session(demo.path("digits_classifier"), compile="off"), lambda session: answer)


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "text": ("good", OptionError, "expected a number"),
    "nothing": (None, OptionError, "expected a number"),
    "NaN": (float("nan"), EvaluationError, "finite number"),
    "NaN of numpy": (np.array(np.nan), EvaluationError, "finite number"),
    "NaN in scores": ((0.5, [0.5, float("nan")]), EvaluationError, "finite scores"),
    "scores of another number": ((70.0, [1.0, 0.0]), OptionError, "the mean of the scores"),
    "matrix of scores": ((0.5, [[0.5]]), OptionError, "one score a sample"),
    "scores that are texts": ((0.5, ["a"]), OptionError, "scores as numbers"),
    "empty scores": ((0.5, []), OptionError, "one score a sample"),
}


@pytest.mark.parametrize("case", BAD)
def test_answers_that_measure_nothing_are_refused(case: str) -> None:
    answer, error, message = BAD[case]
    with pytest.raises(error, match=message):
        measure_of(answer)


def test_a_function_that_raises_is_named() -> None:
    def evaluate(session: sardonyx.Session) -> float:
        raise KeyError("logits")

    model = sardonyx.load(demo.path("digits_classifier"))
    with pytest.raises(EvaluationError, match="evaluate: the function raised KeyError: 'logits'"):
        compare_metrics(model, model, evaluate)


def test_scores_of_other_samples_are_refused() -> None:
    with pytest.raises(OptionError, match="same samples"):
        metric_change(hits(100, 3), hits(90, 3), drop=1)
    for drop in (-1.0, float("nan"), float("inf")):
        with pytest.raises(OptionError, match="drop"):
            metric_change(hits(100, 3), hits(100, 3), drop=drop)


def test_the_verdict_is_in_the_file() -> None:
    model = sardonyx.load(demo.path("digits_classifier"))
    evidence = Evidence(8, HELD_OUT, (OutputError("y", float("inf")),), metric_change(hits(200, 20), hits(200, 21), 2))
    store(model, "compress", evidence)
    stored = json.loads(model.metadata_props["sardonyx.compress"])
    assert stored["verdict"] == evidence.verdict
    assert stored["outputs"] == [{"name": "y", "sqnr": "inf"}]
    assert stored["metric"]["samples"] == 200


def test_outputs_alone_are_judged_by_their_own_budget() -> None:
    errors = (OutputError("y", 31.0), OutputError("z", 25.0))
    assert Evidence(8, HELD_OUT, errors).verdict == "not judged"
    assert Evidence(8, HELD_OUT, errors, least_sqnr=20).verdict == "kept"
    assert Evidence(8, HELD_OUT, errors, least_sqnr=30).verdict == "not kept"
    assert Evidence(2, "calibration samples", errors, least_sqnr=20).verdict == "not judged"
    lost = metric_change(hits(200, 20), hits(200, 40), drop=0.5)
    assert Evidence(8, HELD_OUT, errors, lost, least_sqnr=20).verdict == "not kept"


def model_of(text: str) -> onnx.ModelProto:
    head = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y)'
    return onnx.parser.parse_model(f"{head} {{ {text} }}")


def test_equal_infinities_are_no_error_and_others_are() -> None:
    feeds = [{"x": np.array([1.0, 2.0, 0.0], np.float32)}]
    log, same, other = (sardonyx.load(model_of(text)) for text in ("y = Log(x)", "z = Log(x) y = Abs(z)", "y = Abs(x)"))
    assert output_errors(log, log, feeds)[0].sqnr == float("inf")
    assert output_errors(log, same, feeds)[0].sqnr == -float("inf")
    assert output_errors(log, other, feeds)[0].sqnr == -float("inf")


def test_layers_that_hurt_are_those_with_few_bits() -> None:
    with np.load(demo.path("digits_classifier").with_suffix(".npz")) as stored:
        images = stored["in::image"]
    model = sardonyx.load(demo.path("digits_classifier"))
    result = quantize(model, weights="int4")
    layers = layers_that_hurt(model, result.model, {"image": images[:1]}, most=2)
    assert 1 <= len(layers) <= 2
    assert all(layer.error >= layer.growth > 0 for layer in layers)
    assert {layer.node for layer in layers} <= {node.name for node in model.graph}


@pytest.mark.parametrize(
    "element, expression, decibels",
    [
        ("int64", "ArgMax <axis = 1, keepdims = 0> (z)", 10.0),
        ("uint8", "Cast <to = 2> (z)", 35.0),
        ("bool", "Less(z, x)", float("inf")),
    ],
)
def test_outputs_without_floats_are_judged_as_labels_or_numbers(element: str, expression: str, decibels: float) -> None:
    def model(change: bool) -> ir.Model:
        rank = "[N]" if "ArgMax" in expression else "[N, 3]"
        terms = np.zeros((10, 3), np.float32)
        terms[0] = [0, 2.0, 0] if change else 0
        text = f"""<ir_version: 8, opset_import: ["": 17]> main (float[N, 3] x) => ({element}{rank} y) <float[10, 3] t>
        {{ z = Add(x, t)  y = {expression} }}"""
        proto = onnx.parser.parse_model(text)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(terms, "t"))
        return sardonyx.load(proto)

    feeds = [{"x": np.tile(np.array([[100, 99, 30]], np.float32), (10, 1))}]
    (error,) = output_errors(model(False), model(True), feeds)
    assert error.sqnr == pytest.approx(decibels, abs=15 if element == "uint8" else 0.01)
    assert output_errors(model(False), model(False), feeds)[0].sqnr == float("inf")
