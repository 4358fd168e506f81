"""Quantized models answer like their originals within the error of the integers, on every engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx.compress.quantization import Quantized, quantize
from sardonyx.compress.quantization.methods import sequential
from sardonyx.errors import EvaluationError, ModelFileError, OptionError, UnsupportedError
from tests.compress.quantization.networks import sentences, transformer

DEMO = Path(sardonyx.__file__).parent / "demo"
CLASSIFIER = DEMO / "digits_classifier.onnx"


def network(seed: int = 0) -> bytes:
    """Return two convolutions with a residual sum, a pool and two products, of a batch of open size."""
    rng = np.random.default_rng(seed)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        values = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        return helper.make_tensor(name, TensorProto.FLOAT, shape, values.astype(np.float32).ravel())

    weights = [weight("w1", 8, 3, 3, 3), weight("b1", 8), weight("w2", 8, 8, 3, 3), weight("w3", 8, 64)]
    weights += [weight("b3", 64), weight("w4", 64, 5)]
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["r1", "c2"], ["s"]),
        helper.make_node("GlobalAveragePool", ["s"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["g"], "gemm"),
        helper.make_node("Relu", ["g"], ["r2"]),
        helper.make_node("MatMul", ["r2", "w4"], ["y"], "head"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 12, 12])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 5])
    graph = helper.make_graph(nodes, "net", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def samples(count: int, seed: int = 1) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal((2, 3, 12, 12)).astype(np.float32)} for _ in range(count)]


def decibels(model: Any, result: Quantized, feeds: list[dict[str, np.ndarray]], engine: str) -> float:
    signal = noise = 0.0
    if engine == "native":
        run = sardonyx.Session(result.model, compile="wait").run
    else:
        proto = sardonyx.to_proto(result.model).SerializeToString()
        run = onnxruntime.InferenceSession(proto, providers=["CPUExecutionProvider"]).run
    original = sardonyx.Session(model, compile="wait")
    for sample in feeds:
        (expected,), (actual,) = original.run(None, sample), run(None, sample)
        signal += float(np.square(expected).sum())
        noise += float(np.square(expected - actual).sum())
    return float(10 * np.log10(signal / noise))


WAYS: dict[str, tuple[dict[str, Any], float]] = {
    "static": ({"data": samples(12), "reduce_range": True}, 20.0),
    "static, per tensor": ({"data": samples(12), "granularity": "tensor", "reduce_range": True}, 18.0),
    "dynamic": ({}, 28.0),
    "int8 weights": ({"mode": "weights"}, 30.0),
    "int4 weights": ({"weights": "int4"}, 15.0),
    "int4 symmetric weights per channel": ({"weights": "int4", "symmetric": True, "granularity": "channel"}, 12.0),
}


@pytest.mark.parametrize("engine", ["native", "onnxruntime"])
@pytest.mark.parametrize("way", WAYS)
def test_outputs_stay_close(way: str, engine: str) -> None:
    options, least = WAYS[way]
    options = dict(options)
    result = quantize(network(), options.pop("data", None), **options)
    onnx.checker.check_model(sardonyx.to_proto(result.model), full_check=True)
    assert decibels(network(), result, samples(4, seed=2), engine) > least
    before, after = result.report.weight_bytes
    assert after < before / 2


def test_the_report_states_what_was_measured() -> None:
    report = quantize(network(), samples(12)).report
    assert (report.mode, report.samples, report.judged, report.quantized) == ("static", 12, "held out", 4)
    assert [error.name for error in report.outputs] == ["y"]
    assert report.outputs[0].sqnr > 20
    assert not report.floats
    assert quantize(network(), samples(2)).report.judged == "calibration samples"
    without = quantize(network()).report
    assert (without.mode, without.judged, without.outputs) == ("dynamic", "not judged (no data)", ())
    assert without.notes


def test_convolutions_keep_8_bits_where_products_have_4() -> None:
    result = quantize(network(), weights="int4")
    types = {value.dtype.name for value in result.model.graph.initializers.values() if value.dtype is not None}
    assert {"INT8", "UINT4"} <= types
    assert any("2 convolutions have 8 bits" in note for note in result.report.notes)


def test_the_evidence_is_in_the_file(tmp_path: Path) -> None:
    result = quantize(network(), samples(6))
    result.save(tmp_path / "small.onnx")
    stored = sardonyx.load(tmp_path / "small.onnx").metadata_props["sardonyx.quantization"]
    assert json.loads(stored)["evidence"]["outputs"][0]["sqnr"] == result.report.outputs[0].sqnr


def test_the_source_is_unchanged() -> None:
    model = sardonyx.load(network())
    before = sardonyx.to_proto(model).SerializeToString()
    quantize(model, samples(5))
    assert sardonyx.to_proto(model).SerializeToString() == before


def test_excluded_nodes_stay_in_float() -> None:
    result = quantize(network(), samples(5), exclude=["head", "Conv"])
    assert {node.name for node in result.report.floats} == {"conv1", "conv2", "head"}
    assert result.report.quantized == 1


@pytest.mark.parametrize("calibration", ["minmax", "moving-average", "percentile", "mse", "entropy"])
def test_every_calibration_serves(calibration: str) -> None:
    result = quantize(network(), samples(8), calibration=calibration, reduce_range=True)
    assert result.report.calibration == calibration
    assert decibels(network(), result, samples(4, seed=2), "native") > 15


def test_data_are_read_once_and_may_be_a_generator_or_a_file(tmp_path: Path) -> None:
    drawn = samples(8)
    expected = quantize(network(), drawn).report
    assert quantize(network(), iter(drawn)).report == expected
    np.savez(tmp_path / "data.npz", x=np.concatenate([sample["x"] for sample in drawn]))
    assert quantize(network(), tmp_path / "data.npz").report.samples == 16


def test_a_trained_classifier_keeps_its_accuracy() -> None:
    with np.load(DEMO / "digits_classifier.npz") as stored:
        arrays = dict(stored)
    session = sardonyx.Session(CLASSIFIER, compile="wait")
    (info,) = session.get_inputs()
    images = next(array for array in arrays.values() if array.ndim > 1 and array.dtype == np.float32)
    feeds = [{info.name: images[i : i + 1]} for i in range(min(len(images), 64))]
    small = sardonyx.Session(quantize(CLASSIFIER, feeds[::2]).model, compile="wait")
    agreement = [session.run(None, f)[0].argmax() == small.run(None, f)[0].argmax() for f in feeds[1::2]]
    assert np.mean(agreement) >= 0.95


def constant_zero() -> list[dict[str, np.ndarray]]:
    return [{"x": np.zeros((1, 3, 12, 12), np.float32)} for _ in range(5)]


def test_constant_activations_have_a_scale() -> None:
    result = quantize(network(), constant_zero())
    (y,) = sardonyx.Session(result.model, compile="wait").run(None, constant_zero()[0])
    assert np.isfinite(y).all()


def test_weights_of_zeros_stay_zeros() -> None:
    model = onnx.load_model_from_string(network())
    for tensor in model.graph.initializer:
        if tensor.name == "w4":
            tensor.CopyFrom(helper.make_tensor("w4", TensorProto.FLOAT, [64, 5], np.zeros(320)))
    for options in ({"data": samples(5)}, {}, {"weights": "int4"}):
        result = quantize(model.SerializeToString(), **options)  # type: ignore[arg-type]
        (y,) = sardonyx.Session(result.model, compile="wait").run(None, samples(1)[0])
        assert not y.any()


BAD: dict[str, tuple[type[Exception], dict[str, Any], str]] = {
    "no sample": (OptionError, {"data": []}, "at least one sample"),
    "two arrays for one input": (OptionError, {"data": [(np.zeros(3), np.zeros(3))]}, "expected a mapping"),
    "wrong name": (OptionError, {"data": [{"z": np.zeros(3, np.float32)}]}, "unknown input z"),
    "wrong shape": (OptionError, {"data": [{"x": np.zeros((1, 3), np.float32)}]}, "expected"),
    "NaN": (EvaluationError, {"data": [{"x": np.full((1, 3, 12, 12), np.nan, np.float32)}]}, "holds NaN"),
    "no file": (ModelFileError, {"data": "missing.npz"}, "cannot be read"),
    "method": (OptionError, {"data": samples(1), "calibration": "best"}, "expected 'auto'"),
    "mode": (OptionError, {"mode": "fast"}, "expected 'static'"),
    "static without data": (OptionError, {"mode": "static"}, "requires data"),
    "type": (OptionError, {"weights": "int3"}, "expected a Scheme or one of"),
    "dynamic int4": (OptionError, {"weights": "int4", "mode": "dynamic"}, "mode 'weights'"),
    "block of one": (OptionError, {"weights": "int4", "block": 1}, "at least 2"),
    "unknown node": (OptionError, {"exclude": ["conv9"]}, "conv9"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_by_name(case: str) -> None:
    error, options, message = BAD[case]
    options = dict(options)
    with pytest.raises(error, match=message):
        quantize(network(), options.pop("data", None), **options)


def test_a_model_without_weights_is_refused() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(UnsupportedError, match="no node can be quantized"):
        quantize(model)


@pytest.mark.long
def test_rows_of_the_float_model_read_at_once_and_stage_by_stage_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    files = []
    for most in (sequential.MOST_BYTES, 0):
        monkeypatch.setattr(sequential, "MOST_BYTES", most)
        result = quantize(transformer(), sentences(5), weights="int4", method="sequential")
        files.append(sardonyx.to_proto(result.model).SerializeToString(deterministic=True))
    assert files[0] == files[1]
