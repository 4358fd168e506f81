"""``compress`` keeps its promise on the trained models of the package, and refuses what it cannot keep."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sardonyx
from sardonyx import Budget, demo
from sardonyx.compress.evidence import stored_metric
from sardonyx.compress.search import Compressed
from sardonyx.compress.search.compression import closest_note
from sardonyx.compress.search.moves import layer_shares
from sardonyx.compress.search.page import page_of
from sardonyx.compress.search.short_names import shorten_names
from sardonyx.errors import EvaluationError, OptionError
from sardonyx.rewrite.analysis.inference import infer_shapes

CLASSIFIER = demo.path("digits_classifier")


def images() -> tuple[np.ndarray, np.ndarray]:
    with np.load(CLASSIFIER.with_suffix(".npz")) as stored:
        return stored["in::image"], stored["truth::labels"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compress")
    pixels, labels = images()
    np.savez(folder / "train.npz", image=pixels[:32])
    np.savez(folder / "eval.npz", image=pixels[160:], labels=labels[160:])
    return folder


def top1(files: Path) -> Any:
    return stored_metric("top1", files / "eval.npz", sardonyx.load(CLASSIFIER))


@pytest.fixture(scope="module")
def result(files: Path) -> Compressed:
    return sardonyx.compress(
        CLASSIFIER, files / "train.npz", evaluate=top1(files), budget=Budget(drop=5, size="100KB"), measured=False,
        trials=7, state=files / "state",
    )  # fmt: skip


def test_the_result_keeps_the_budget_and_says_how_surely(result: Compressed, files: Path) -> None:
    report = result.report
    assert report.verdict == "kept"
    change = report.evidence.metric
    assert change is not None and change.interval is not None
    assert change.samples == 200
    assert change.interval[1] <= 5
    assert report.result.size <= 100_000 < report.original.size
    assert report.result.seconds < report.original.seconds
    assert report.evidence.judged == "held out"
    after = top1(files)(sardonyx.Session(result.model, compile="wait"))
    assert after.value == change.after


def test_the_file_is_standard_and_has_the_evidence(result: Compressed, tmp_path: Path) -> None:
    result.save(tmp_path / "small.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "small.onnx"), full_check=True)
    assert abs((tmp_path / "small.onnx").stat().st_size - result.report.result.size) < 2000
    stored = json.loads(sardonyx.load(tmp_path / "small.onnx").metadata_props["sardonyx.compress"])
    assert (stored["verdict"], stored["plan"]) == ("kept", result.report.plan)
    assert stored["evidence"]["metric"]["samples"] == 200


def test_a_second_search_resumes_and_has_the_same_result(result: Compressed, files: Path) -> None:
    tried: list[str] = []
    again = sardonyx.compress(
        CLASSIFIER, files / "train.npz", evaluate=top1(files), budget=Budget(drop=5, size="100KB"), measured=False,
        trials=7, state=files / "state", progress=tried.append,
    )  # fmt: skip
    assert tried == ["original"]
    assert again.report == result.report
    first, second = (sardonyx.to_proto(one.model).SerializeToString(deterministic=True) for one in (result, again))
    assert first == second


def test_a_state_of_other_samples_is_refused(files: Path) -> None:
    pixels, _ = images()
    options: dict[str, Any] = {"budget": Budget(sqnr=10), "measured": False, "trials": 1, "state": files / "other"}
    samples = [{"image": one[None]} for one in pixels[:6]]
    sardonyx.compress(CLASSIFIER, samples, **options)
    sardonyx.compress(CLASSIFIER, [dict(one) for one in samples], **options)
    for others in (samples[:5], samples[::-1], [{"image": one["image"] + 1} for one in samples]):
        with pytest.raises(OptionError, match="another search"):
            sardonyx.compress(CLASSIFIER, others, **options)


def test_a_state_of_a_metric_of_another_name_is_refused_at_an_equal_number(files: Path) -> None:
    def one(session: Any) -> float:
        return 100.0

    def another(session: Any) -> float:
        return 100.0

    options: dict[str, Any] = {
        "budget": Budget(drop=5), "measured": False, "trials": 1, "state": files / "named", "data": None,
    }  # fmt: skip
    sardonyx.compress(CLASSIFIER, evaluate=one, **options)
    sardonyx.compress(CLASSIFIER, evaluate=one, **options)
    with pytest.raises(OptionError, match="another search"):
        sardonyx.compress(CLASSIFIER, evaluate=another, **options)
    assert (top1(files).__name__, stored_metric("f1", files / "eval.npz", sardonyx.load(CLASSIFIER)).__name__) == (
        "top1", "f1",
    )  # fmt: skip


def test_the_report_states_the_bytes_of_the_file(result: Compressed, tmp_path: Path) -> None:
    result.save(tmp_path / "small.onnx")
    assert (tmp_path / "small.onnx").stat().st_size == result.report.result.size


def test_the_stored_report_counts_for_the_limit_of_the_size(files: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"evaluate": top1(files), "measured": False, "trials": 2, "state": tmp_path / "state"}
    free = sardonyx.compress(CLASSIFIER, files / "train.npz", budget=Budget(drop=5), **options).report.result.size
    for limit in (free, free - 1):
        budget = Budget(drop=5, size=limit)
        limited = sardonyx.compress(CLASSIFIER, files / "train.npz", budget=budget, **options)
        limited.save(tmp_path / "small.onnx")
        if limited.report.verdict != "not kept":
            assert (tmp_path / "small.onnx").stat().st_size <= limit


def test_the_page_shows_every_plan(result: Compressed) -> None:
    page = page_of("digits", result.report, "top1")
    assert page.count("<svg") == 2
    assert "Budget kept" in page
    for trial in result.report.trials:
        assert trial.label in page
    assert "src=" not in page and "http" not in page


def test_a_metric_that_never_ends_ends_with_the_time(files: Path) -> None:
    sessions: list[sardonyx.Session] = []

    def evaluate(session: sardonyx.Session) -> float:
        sessions.append(session)
        while True:
            session.run(None, {"image": images()[0][:1]})
            if session is sessions[0]:
                return 1.0

    report = sardonyx.compress(
        CLASSIFIER, files / "train.npz", evaluate=evaluate, budget=Budget(drop=0.1), measured=False, time=1.5
    ).report
    assert report.stopped == "the time budget"
    assert [trial.label for trial in report.trials] == ["original"]
    assert report.plan == "original"


def test_a_budget_that_nothing_keeps_gives_the_original_back(files: Path) -> None:
    result = sardonyx.compress(CLASSIFIER, files / "train.npz", budget=Budget(size="5KB"), measured=False, trials=3)
    assert result.report.verdict == "not kept"
    assert result.report.plan == "original"
    assert "size" in result.report.reason
    assert any("closest" in note for note in result.report.notes)
    original = sardonyx.to_proto(sardonyx.load(CLASSIFIER)).SerializeToString(deterministic=True)
    assert sardonyx.to_proto(result.model).SerializeToString(deterministic=True) == original


def test_a_result_that_measures_slower_is_rejected(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sardonyx.compress.search import compression as module
    from sardonyx.compress.search.figures import Measured

    monkeypatch.setattr(module, "measure_beside", lambda *arguments: Measured((1e-3, 2e-3), (1.9, 2.1)))
    result = sardonyx.compress(CLASSIFIER, files / "train.npz", trials=3)
    assert result.report.plan == "original"
    note = next(note for note in result.report.notes if "2.00 x the time of the original" in note)
    assert note.endswith("Accept a slower result with `allow_slower=True` (`--allow-slower`).")
    assert result.report.verdict == "kept"


@pytest.mark.parametrize(("broken", "permits"), [(["speed"], True), (["size", "speed"], False), ([], False)])
def test_the_note_about_a_slower_result_says_how_to_accept_it(broken: list[str], permits: bool) -> None:
    assert ("--allow-slower" in closest_note("int8", broken)) is permits


def test_a_layer_that_saves_little_stays_before_a_large_one() -> None:
    """Shares of weights and of multiplications decide with the noise."""
    text = """<ir_version: 9, opset_import: ["" : 17]> net (float[4, 16] x) => (float[4, 64] y)
        { a = MatMul (x, first) y = MatMul (a, second) }"""
    model = onnx.parser.parse_model(text)
    for name, shape in {"first": (16, 16), "second": (16, 64)}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    loaded = sardonyx.load(model)
    infer_shapes(loaded)
    assert list(layer_shares(loaded).values()) == pytest.approx([2 * 0.2, 2 * 0.8])


def test_short_names_change_no_result() -> None:
    model = sardonyx.load(CLASSIFIER)
    before = sardonyx.to_proto(model).SerializeToString(deterministic=True)
    short = shorten_names(model)
    assert sardonyx.to_proto(model).SerializeToString(deterministic=True) == before
    pixels, _ = images()
    outputs = [sardonyx.run(one, {"image": pixels[:4]}) for one in (model, short)]
    np.testing.assert_array_equal(outputs[0]["probabilities"], outputs[1]["probabilities"])
    sizes = [len(sardonyx.to_proto(one).SerializeToString()) for one in (model, short)]
    assert sizes[1] < sizes[0]
    onnx.checker.check_model(sardonyx.to_proto(short), full_check=True)


def evaluation(answer: Any) -> Callable[[sardonyx.Session], Any]:
    def evaluate(session: sardonyx.Session) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return evaluate


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "nothing to judge": ({"data": None}, OptionError, "expected `data` or `evaluate`"),
    "no sample": ({"data": []}, OptionError, "at least one sample"),
    "evaluate raises": (
        {"evaluate": evaluation(ValueError("boom")), "budget": Budget(drop=1)}, EvaluationError, "ValueError: boom"
    ),
    "evaluate is NaN": (
        {"evaluate": evaluation(float("nan")), "budget": Budget(drop=1)}, EvaluationError, "finite number"
    ),
    "evaluate is no function": ({"evaluate": 3, "budget": Budget(drop=1)}, OptionError, "expected a function"),
    "drop without evaluate": ({"budget": Budget(drop=1)}, OptionError, "a permitted loss needs a metric"),
    "evaluate without drop": ({"evaluate": evaluation(90.0)}, OptionError, "largest permitted loss"),
    "drop in other units": (
        {"evaluate": evaluation(0.91), "budget": Budget(drop=0.5)}, OptionError, "half of the metric"
    ),
    "size of nothing": ({"budget": Budget(size=10)}, OptionError, "the interface of the model alone"),
    "target": ({"target": "abacus"}, OptionError, "expected 'native' or 'onnxruntime'"),
    "trials": ({"trials": 0}, OptionError, "expected at least 1"),
    "time": ({"time": "soon"}, OptionError, "time: expected a number with a unit"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_before_the_first_step(case: str) -> None:
    options, error, message = BAD[case]
    tried: list[str] = []
    with pytest.raises(error, match=message):
        sardonyx.compress(CLASSIFIER, **{"data": {"image": images()[0][:1]}, "progress": tried.append, **options})
    assert tried in ([], ["original"])


def test_a_model_whose_work_is_unknown_comes_back() -> None:
    text = '<ir_version: 10, opset_import: ["": 21]> g (string[N] x) => (string[N] y) { y = StringNormalizer(x) }'
    data = {"x": np.array(["A", "b"])}
    result = sardonyx.compress(onnx.parser.parse_model(text), data, trials=2, measured=False)
    assert result.report.plan == "original"
    assert "1.000" in page_of("net", result.report)


def test_the_package_is_also_the_function() -> None:
    import inspect

    import sardonyx.compress.float16

    assert callable(sardonyx.compress)
    assert "budget" in inspect.signature(sardonyx.compress).parameters
    assert sardonyx.compress.float16.convert_float16 is sardonyx.convert_float16
