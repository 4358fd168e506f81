"""Bad input of every kind ends in a named error or a stated fallback, and large models stream."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sardonyx
from sardonyx.compress.quantization import quantize
from sardonyx.errors import EvaluationError, UnsupportedError
from tests.compress.quantization.networks import decibels, detector, images, transformer


def parsed(text: str, **arrays: np.ndarray) -> bytes:
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model.SerializeToString()


def weight(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_one_sample_judges_itself_and_the_report_says_so() -> None:
    report = quantize(detector(), images(1)).report
    assert (report.samples, report.judged) == (1, "calibration samples")


def test_an_evaluate_function_that_raises_is_named_and_the_file_is_untouched(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(detector())

    def evaluate(session: sardonyx.Session) -> float:
        raise ZeroDivisionError("no labels")

    with pytest.raises(EvaluationError, match="no labels"):
        quantize(path, images(4), evaluate=evaluate, calibration="minmax")
    assert path.read_bytes() == detector() and [item.name for item in tmp_path.iterdir()] == ["model.onnx"]


def test_a_preprocessing_that_raises_is_named() -> None:
    def preprocess(item: int) -> Any:
        return images(1)[0] if item < 2 else item / 0

    with pytest.raises(EvaluationError, match="preprocess, sample 2: the function raised ZeroDivisionError"):
        quantize(detector(), [0, 1, 2, 3], preprocess=preprocess)


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_are_named_where_they_stay(operator: str) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator]
    text = f"""<ir_version: 9, opset_import: ["" : 17]>
        net (float[5, 1, 4] x) => (float[5, 1, 1, 8] y) {{ [cell] y = {operator}<hidden_size: int = 8>(x, w, r) }}"""
    model = parsed(text, w=weight(1, gates * 8, 4), r=weight(1, gates * 8, 8))
    with pytest.raises(UnsupportedError, match="the weights of recurrent layers stay as they are: cell"):
        sardonyx.factorize(model, energy=0.9)
    with pytest.raises(UnsupportedError, match="no channel can be removed: 'y' is an output of the model"):
        sardonyx.prune(model, channels=0.3)


def test_a_model_without_the_standard_domain_has_nothing_to_quantize() -> None:
    text = """<ir_version: 9, opset_import: ["ai.onnx.ml" : 3]>
        net (float[n, 4] x) => (float[n, 4] y) { y = ai.onnx.ml.Scaler<scale = [2.0], offset = [1.0]>(x) }"""
    model = onnx.parser.parse_model(text)
    for refused in (lambda: quantize(model), lambda: quantize(model, scheme="int4"), lambda: sardonyx.cluster(model)):
        with pytest.raises(UnsupportedError, match=r"no (node can be quantized|weight is smaller as a palette)"):
            refused()


def test_recurrent_layers_beside_others_are_in_the_notes() -> None:
    cells = "\n".join(f"[cell{n}] s{n} = GRU<hidden_size: int = 8>(x, w{n}, r)" for n in range(7))
    text = f"""<ir_version: 9, opset_import: ["" : 17]>
        net (float[5, 1, 64] x) => (float[5, 1, 64] y, {", ".join(f"float[5, 1, 1, 8] s{n}" for n in range(7))}) {{
            y = MatMul(x, m) {cells} }}"""
    low_rank = weight(64, 2) @ weight(2, 64)
    cell_weights = {f"w{n}": weight(1, 24, 64) * np.float32(n + 1) for n in range(7)}
    model = parsed(text, **cell_weights, r=weight(1, 24, 8), m=low_rank)
    names = "cell0, cell1, cell2, cell3, cell4 and 2 more."
    stay = f"The weights of recurrent layers stay as they are: {names}"
    assert stay in sardonyx.factorize(model, energy=0.9).report.notes


def test_layers_that_stay_do_not_hide_recurrent_ones() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
        net (float[5, 1, 4] x) => (float[5, 1, 1, 8] y, float[5, 1, 2] z) {
            [cell] y = GRU<hidden_size: int = 8>(x, w, r)
            [product] z = MatMul(x, m) }"""
    model = parsed(text, w=weight(1, 24, 4), r=weight(1, 24, 8), m=weight(4, 2))
    with pytest.raises(UnsupportedError, match=r"product: .*; the weights of recurrent layers stay .*: cell"):
        sardonyx.factorize(model, energy=0.9)


def test_the_metric_and_its_verdict_are_in_the_report() -> None:
    sample = images(1, 5)[0]
    expected = sardonyx.Session(detector(), compile="wait").run(None, sample)[0]

    def evaluate(session: sardonyx.Session) -> tuple[float, np.ndarray]:
        scores = -np.abs(session.run(None, sample)[0] - expected).reshape(-1, 6).mean(1)
        return float(scores.mean()), scores

    report = quantize(detector(), images(6), evaluate=evaluate, drop=100.0, calibration="minmax").report
    assert report.evidence.metric is not None and report.evidence.verdict == "kept"


def test_activations_with_elements_for_infinity_stay_in_float() -> None:
    text = """<ir_version: 9, opset_import: ["": 17]> n (float[N, 8] x, float[N, 8] mask) => (float[N, 4] y)
        { s = Max(x, mask) h = MatMul(s, w) r = Relu(h) y = MatMul(r, v) }"""
    model = parsed(text, w=weight(8, 6), v=weight(6, 4))
    rng = np.random.default_rng(1)
    feeds = [
        {
            "x": rng.standard_normal((3, 8)).astype(np.float32),
            "mask": np.where(rng.random((3, 8)) < 0.3, np.float32(-1e9), 0),
        }
        for _ in range(6)
    ]
    masked = parsed(text.replace("Max(x, mask)", "Add(x, mask)"), w=np.abs(weight(8, 6)) * 1e-9, v=weight(6, 4))
    assert not any("infinity" in note for note in quantize(model, feeds).report.notes)
    result = quantize(masked, feeds)
    assert any("stand for infinity" in note and "stay in float" in note for note in result.report.notes)
    (y,) = sardonyx.Session(result.model, compile="wait").run(None, feeds[0])
    assert np.isfinite(y).all()


def test_an_activation_without_elements_stays_in_float() -> None:
    text = """<ir_version: 9, opset_import: ["": 17]> n (float[N, 8] x, float[M, 8] e) => (float[N, 4] y, float[M, 4] z)
        { y = MatMul(x, w) z = MatMul(e, v) }"""
    model = parsed(text, w=weight(8, 4), v=weight(8, 4))
    feeds = [{"x": weight(2, 8, seed=i), "e": np.zeros((0, 8), np.float32)} for i in range(5)]
    result = quantize(model, feeds)
    assert any("no elements of e" in note for note in result.report.notes)
    assert result.report.quantized == 2


def test_bodies_and_recurrent_layers_have_integer_weights() -> None:
    text = """<ir_version: 9, opset_import: ["": 17]> n (float[T, N, 8] x, bool c) => (float[T, N, 4] y)
        {
            h, last = LSTM<hidden_size = 6>(x, W, R)
            s = Squeeze(h, one)
            y = If(c) <then_branch = t () => (float[T, N, 4] a) { a = MatMul(s, v) },
                       else_branch = f () => (float[T, N, 4] b) { b = MatMul(s, u) }>
        }"""
    arrays = {"W": weight(1, 24, 8) / 3, "R": weight(1, 24, 6) / 3, "v": weight(6, 4), "u": weight(6, 4, seed=2)}
    model = parsed(text, one=np.array([1]), **arrays)
    feeds = [{"x": weight(3, 2, 8, seed=i), "c": np.array(i % 2 == 0)} for i in range(6)]
    original = sardonyx.Session(model, compile="off")
    options: dict[str, Any]
    for options in ({"mode": "weights"}, {"mode": "dynamic"}):
        result = quantize(model, **options)
        assert result.report.quantized == 4 and not result.report.floats
        onnx.checker.check_model(sardonyx.to_proto(result.model), full_check=True)
        session = sardonyx.Session(result.model, compile="off")
        for sample in feeds[:2]:
            expected, actual = original.run(None, sample)[0], session.run(None, sample)[0]
            assert np.abs(expected - actual).max() < 0.05 * np.abs(expected).max()


def test_functions_are_inlined() -> None:
    text = """<ir_version: 9, opset_import: ["": 17, "own": 1]> n (float[N, 8] x) => (float[N, 4] y)
        { h = own.block(x, w) y = own.block(h, v) }
        <domain: "own", opset_import: ["": 17]> block (a, b) => (c) { m = MatMul(a, b) c = Relu(m) }"""
    model = parsed(text, w=weight(8, 6), v=weight(6, 4))
    result = quantize(model, [{"x": weight(4, 8, seed=i)} for i in range(8)])
    assert result.report.quantized == 2 and not result.model.functions
    assert decibels(model, result, [{"x": weight(4, 8, seed=20)}], "native") > 20


def test_sizes_change_from_sample_to_sample() -> None:
    feeds = [{"tokens": np.arange(length, dtype=np.int64)[None]} for length in (3, 11, 5, 7, 4)]
    assert quantize(transformer(), feeds, calibration="mse").report.samples == 5


STREAM = """
import json, resource, sys
import numpy as np
from sardonyx.compress.quantization import quantize
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
data = [{"x": np.ones((4, 2048), np.float32)}] if sys.argv[2] == "static" else None
quantize(sys.argv[1], data, mode=sys.argv[2], method="nearest").save(sys.argv[3])
print(json.dumps([before, peak()]))
"""


@pytest.mark.long
@pytest.mark.parametrize(("mode", "share"), [("dynamic", 0.8), ("weights", 0.8), ("static", 1.3)])
def test_large_models_stream(tmp_path: Path, mode: str, share: float) -> None:
    size, count = 2048, 16  # 256 MiB
    lines = [f"h{i} = MatMul({'x' if i == 0 else f'r{i - 1}'}, w{i}) r{i} = Relu(h{i})" for i in range(count)]
    text = f"""<ir_version: 9, opset_import: ["": 17]> n (float[N, {size}] x) => (float[N, {size}] y)
        {{ {" ".join(lines)} y = Identity(r{count - 1}) }}"""
    path = tmp_path / "large.onnx"
    path.write_bytes(parsed(text, **{f"w{i}": weight(size, size, seed=i) / np.float32(32) for i in range(count)}))
    outcome = subprocess.run(
        [sys.executable, "-c", STREAM, str(path), mode, str(tmp_path / "small.onnx")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    before, after = json.loads(outcome.stdout)
    # The compiler and the rules are imported after the first measurement; pages of the file are released every 64 MiB.
    assert after - before <= share * path.stat().st_size + (128 << 20)


@pytest.mark.parametrize("method", ["gptq", "auto"])
@pytest.mark.parametrize("number", [-1e30, np.inf])
def test_weights_are_rounded_by_the_rows_without_elements_for_infinity(method: str, number: float) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> m (float[N, 32] x, float[N, 32] u) => (float[N, 8] y,
        float[N, 8] z) { y = Gemm(x, w, b) z = Gemm(u, w, b) }"""
    rng = np.random.default_rng(0)
    proto = parsed(text, w=0.1 * weight(32, 8), b=weight(8))
    feeds = [{name: (5 + rng.standard_normal((64, 32))).astype(np.float32) for name in "xu"} for _ in range(6)]
    sample = feeds[0] | {}
    for one in feeds[1:]:
        one["x"][7, 3] = number
    for options in ({}, {"mode": "weights", "weights": "int4"}):
        result = quantize(proto, feeds[1:], method=method, **options)
        (y, z), (expected, other) = (list(sardonyx.run(model, sample).values()) for model in (result.model, proto))
        assert np.abs(y - expected).max() < 0.3 and np.abs(z - other).max() < 0.3


def test_a_recurrent_weight_that_hurts_returns_to_float() -> None:
    rng = np.random.default_rng(0)
    w, r = (rng.standard_normal((1, 32, 8)).astype(np.float32) * 0.2 for _ in range(2))
    w[0, :, 0] *= 2000  # Input 0 is small: the integers of the others would be 0.
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]> main (float[T, 1, 8] x) => (float[T, 1, 1, 8] y)
        { y = LSTM <hidden_size = 8> (x, w, r) }""",
        w=w, r=r,
    )  # fmt: skip
    samples = []
    for seed in range(12):
        x = np.random.default_rng(seed).standard_normal((6, 1, 8)).astype(np.float32)
        x[:, :, 0] *= 1e-3
        samples.append({"x": x})
    report = sardonyx.quantize(model, samples).report
    assert any("stay in float" in note and "[W]" in note for note in report.notes), report.notes
    assert min(error.sqnr for error in report.evidence.outputs) > 25


def test_useless_results_are_not_kept() -> None:
    large = weight(64, 8)
    large[0] = 1000  # Input 0 is always 0.
    model = parsed(
        """<ir_version: 8, opset_import: ["": 21]> main (float[N, 64] x) => (float[N, 8] y) { y = MatMul(x, w) }""",
        w=large,
    )  # fmt: skip
    samples = [{"x": weight(4, 64, seed=seed) * (np.arange(64) > 0)} for seed in range(8)]
    report = sardonyx.quantize(model, samples, weights="int2", granularity="tensor", method="nearest").report
    assert report.evidence.verdict == "not kept" and "the budget is 10 dB" in report.evidence.reason
    assert sardonyx.quantize(model, samples).report.evidence.verdict == "not judged"


def test_samples_unlike_those_of_the_calibration_are_a_note() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]> main (float[N, 16] x) => (float[N, 5] y) { y = MatMul(x, w) }""",
        w=weight(16, 5),
    )  # fmt: skip
    samples = [{"x": weight(20, 16, seed=seed) * (20 if seed == 3 else 1)} for seed in range(8)]
    assert any("too few for all inputs" in note for note in quantize(model, samples).report.notes)


def test_labels_are_judged_by_the_scores_that_decide_on_them() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]> main (float[N, 16] x) => (int64[N] label)
        { h = MatMul(x, w)  s = Softmax(h)  label = ArgMax <axis = 1, keepdims = 0> (s) }""",
        w=weight(16, 5),
    )  # fmt: skip
    report = sardonyx.quantize(model, [{"x": weight(50, 16, seed=seed)} for seed in range(8)]).report
    (error,) = report.evidence.outputs
    assert error.name == "label" and error.sqnr > 15
    assert not any("inf dB" in note for note in report.notes)


def rows(samples: int) -> list[dict[str, np.ndarray]]:
    return [{"x": weight(2, 8, seed=number)} for number in range(samples)]


PRODUCT = '<ir_version: 9, opset_import: ["": 17]> net (float[2, 8] x) => (float[2, 8] y) { %s }'
TRANSPOSED = PRODUCT % "d = DequantizeLinear(q, s, z) t = Transpose(d) y = MatMul(x, t)"
INTEGERS = PRODUCT % ("a, s, z = DynamicQuantizeLinear(x) i = MatMulInteger(a, q, z) f = Cast<to = 1>(i) y = Mul(f, s)")


@pytest.mark.parametrize(
    ("first", "mode"),
    [({"form": "qdq"}, "static"), ({"form": "qoperator", "target": "onnxruntime"}, "dynamic"),
     ({"mode": "dynamic"}, "static"), ({"mode": "weights"}, "weights")],
)  # fmt: skip
def test_a_quantized_model_is_refused_by_name(first: dict[str, Any], mode: Any) -> None:
    model = parsed(PRODUCT % "a = MatMul(x, w) b = Relu(a) y = MatMul(b, w)", w=weight(8, 8))
    quantized = quantize(model, None if first.get("mode") == "dynamic" else rows(8), **first).model
    with pytest.raises(UnsupportedError, match="the weight is quantized already") as refused:
        quantize(quantized, rows(8), mode=mode)
    assert refused.value.remedy == "Quantize the float32 model."


@pytest.mark.parametrize("text", [TRANSPOSED, INTEGERS])
def test_weights_that_other_quantizers_have_written_are_refused_by_name(text: str) -> None:
    arrays: dict[str, Any] = {"q": np.ones((8, 8), np.int8)}
    if "DequantizeLinear" in text:
        arrays |= {"s": np.float32(0.1), "z": np.int8(0)}
    with pytest.raises(UnsupportedError, match="the weight is quantized already"):
        quantize(parsed(text, **{name: np.asarray(array) for name, array in arrays.items()}), rows(4))
