"""Results whose loss is proved go before better ones, and work of constants alone is no work of a run."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

import sardonyx
from sardonyx import Budget
from tests.compress.perceptron import network, samples, weight

SAMPLES = 4000


def test_a_proved_loss_goes_before_a_smaller_file() -> None:
    model, (feeds, *_) = network(), samples(20)
    expected = sardonyx.Session(model, compile="wait").run(None, feeds)[0]

    def evaluate(session: sardonyx.Session) -> tuple[float, np.ndarray]:
        hits = np.ones(SAMPLES)
        error = session.run(None, feeds)[0] - expected
        if np.square(error).mean() > 1e-3 * np.square(expected).mean():
            hits[: SAMPLES // 80] = 0  # 1.25 points, inside of the budget, and the interval is not.
        return 100 * float(hits.mean()), hits

    result = sardonyx.compress(
        model, samples(20), evaluate=evaluate, budget=Budget(drop=1.4, size=8000), measured=False, trials=14
    )
    report = result.report
    assert report.verdict == "kept" and report.evidence.metric is not None and report.evidence.metric.loss == 0
    assert any("not proved" in note for note in report.notes)
    sizes = [trial.figures.size for trial in report.trials if trial.figures is not None]
    assert min(sizes) < report.result.size < 0.6 * report.original.size


def test_a_proved_result_that_is_slower_than_static_int8_does_not_go_before_it() -> None:
    model, (feeds, *_) = network(), samples(20)
    expected = sardonyx.Session(model, compile="wait").run(None, feeds)[0]
    static = sardonyx.Session(sardonyx.quantize(model, samples(20)).model, compile="wait").run(None, feeds)[0]
    most = 0.5 * np.square(static - expected).mean()

    def evaluate(session: sardonyx.Session) -> tuple[float, np.ndarray]:
        hits = np.ones(SAMPLES)
        if np.square(session.run(None, feeds)[0] - expected).mean() > most:
            hits[: SAMPLES // 80] = 0  # As by static int8: inside of the budget, and the interval is not.
        return 100 * float(hits.mean()), hits

    result = sardonyx.compress(
        model, samples(20), evaluate=evaluate, budget=Budget(drop=1.4), measured=False, trials=10
    )
    report = result.report
    assert report.verdict == "not judged" and report.plan == "int8 + short names"
    assert any("is proved, but is larger or slower than static int8" in note for note in report.notes)


def test_a_proof_of_shorter_names_alone_does_not_go_before_a_small_model() -> None:
    """A lossless move is always proved, and saves next to nothing."""
    model, (feeds, *_) = network(), samples(20)
    expected = sardonyx.Session(model, compile="wait").run(None, feeds)[0]

    def evaluate(session: sardonyx.Session) -> tuple[float, np.ndarray]:
        hits = np.ones(SAMPLES)
        first = 0 if np.array_equal(session.run(None, feeds)[0], expected) else 50
        hits[first : first + 100] = 0  # 50 samples are lost and 50 gained: no loss, and a wide interval.
        return 100 * float(hits.mean()), hits

    result = sardonyx.compress(
        model, samples(20), evaluate=evaluate, budget=Budget(drop=0.4), measured=False, trials=12
    )
    report = result.report
    assert report.verdict == "not judged"
    assert report.result.size < 0.5 * report.original.size


def test_integer_weights_of_recurrent_layers_are_no_slower() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]> net (float[T, 1, 16] x) => (float[T, 1, 1, 48] y)
        { y = GRU<hidden_size: int = 48>(x, w, r) }"""
    model = onnx.parser.parse_model(text)
    for name, array in {"w": weight(1, 144, 16), "r": weight(1, 144, 48, seed=1)}.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    data = [{"x": weight(7, 1, 16, seed=seed)} for seed in range(8)]
    report = sardonyx.compress(model, data, measured=False, trials=7).report
    assert report.result.size < 0.4 * report.original.size
    assert report.result.seconds <= 1.02 * report.original.seconds
