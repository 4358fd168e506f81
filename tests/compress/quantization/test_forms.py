"""Every form, type and target gives a valid model that its engines run with a small error."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import sardonyx
from sardonyx.compress.quantization import Quantized, quantize
from sardonyx.compress.quantization.scheme import Scheme
from sardonyx.compress.quantization.targets import TARGETS
from sardonyx.errors import OptionError, UnsupportedError
from sardonyx.model.check import check
from tests.compress.quantization.networks import decibels, detector, images, sentences, transformer

STATIC: dict[str, tuple[dict[str, Any], float, str]] = {
    "int8": ({}, 28, "native onnxruntime openvino"),
    "int8 activations": ({"activations": "int8"}, 28, "native onnxruntime"),
    "int8 activations for openvino": ({"activations": "int8", "target": "openvino"}, 28, "native onnxruntime openvino"),
    "zero in the middle": (
        {"scheme": Scheme(activations="int8", symmetric_activations=True), "target": "openvino"},
        28,
        "native onnxruntime openvino",
    ),
    "uint8 weights": ({"symmetric": False}, 28, "native onnxruntime openvino"),
    "per tensor": ({"granularity": "tensor"}, 25, "native onnxruntime openvino"),
    "int16": ({"scheme": "int16"}, 60, "native onnxruntime"),
    "w8a16": ({"scheme": "w8a16"}, 35, "native onnxruntime"),
    "float8": ({"scheme": "float8"}, 18, "native onnxruntime"),
    "float8e5m2": ({"scheme": "float8e5m2"}, 12, "native onnxruntime"),
    "w4a8": ({"scheme": "w4a8", "granularity": "channel"}, 8, "native"),
}

WEIGHTS: dict[str, tuple[dict[str, Any], float, str]] = {
    "int8": ({"mode": "weights"}, 32, "native onnxruntime openvino"),
    "dynamic": ({"mode": "dynamic"}, 28, "native onnxruntime openvino"),
    "dynamic uint8": ({"mode": "dynamic", "symmetric": False}, 28, "native onnxruntime"),
    "int4": ({"scheme": "int4"}, 15, "native onnxruntime"),
    "int4, symmetric": ({"scheme": "int4", "symmetric": True}, 15, "native onnxruntime"),
    "int4 for onnxruntime": ({"scheme": "int4", "target": "onnxruntime"}, 15, "native onnxruntime"),
    "int2": ({"scheme": "int2", "block": 16}, 3, "native"),
    "int2 for onnxruntime": ({"scheme": "int2", "block": 16, "target": "onnxruntime"}, 3, "native"),
    "float4": ({"scheme": "float4"}, 14, "native"),
    "float8": ({"scheme": "float8", "mode": "weights"}, 25, "native onnxruntime"),
}


def run_case(model: bytes, data: Any, judged: Any, case: tuple[dict[str, Any], float, str]) -> Quantized:
    options, least, engines = case
    result = quantize(model, data, **options)
    onnx.checker.check_model(sardonyx.to_proto(result.model), full_check=True)
    for engine in engines.split():
        if engine != "openvino" or find_spec("openvino") is not None:
            assert decibels(model, result, judged, engine) > least, engine
    before, after = result.report.weight_bytes
    assert after < before
    return result


def _codes(model: ir.Model) -> list[ir.Value]:
    return [node.outputs[0] for node in model.graph if node.op_type == "QuantizeLinear"]


@pytest.mark.parametrize("name", STATIC)
def test_static_types_keep_the_outputs_of_a_detector(name: str) -> None:
    options, least, engines = STATIC[name]
    # Other processors than those with VNNI add products of 8 bits in saturating 16 bits.
    result = run_case(detector(), images(12), images(3, 2), ({"reduce_range": True, **options}, least, engines))
    if options.get("target") == "openvino":
        # OpenVINO computes other numbers for convolutions of joined int8, and no other activations are joined here.
        assert not any(value.dtype == ir.DataType.INT8 for value in _codes(result.model))
        assert any("convolutions of joined int8" in note for note in result.report.notes)


@pytest.mark.parametrize("name", WEIGHTS)
def test_types_of_weights_keep_the_outputs_of_a_transformer(name: str) -> None:
    run_case(transformer(), None, sentences(3, 2), WEIGHTS[name])


def test_static_quantization_keeps_a_transformer_with_masks_and_large_channels() -> None:
    result = quantize(transformer(), sentences(16), reduce_range=True)
    assert decibels(transformer(), result, sentences(4, 2), "native") > 25
    assert decibels(transformer(), result, sentences(4, 2), "onnxruntime") > 25
    readers = {
        reader.op_type
        for node in result.model.graph
        if node.op_type == "DequantizeLinear"
        for reader in node.outputs[0].consumers()
    }
    assert readers == {"MatMul"}  # Neither residual sums, nor masks, nor normalizations read integers.


@pytest.mark.parametrize("target", ["portable", "onnxruntime"])
def test_operators_on_integers_answer_like_their_pairs(target: str) -> None:
    options: dict[str, Any] = {
        "reduce_range": True, "target": target, "calibration": "minmax", "method": "nearest",
    }  # fmt: skip
    pairs = quantize(detector(), images(8), **options)
    result = quantize(detector(), images(8), form="qoperator", **options)
    onnx.checker.check_model(sardonyx.to_proto(result.model), full_check=target == "portable")
    kinds = [node.op_type for node in result.model.graph]
    assert kinds.count("QLinearConv") == 4
    assert ("QLinearConcat" in kinds and "QLinearAdd" in kinds) == (target == "onnxruntime")
    for engine in ("native", "onnxruntime"):
        assert decibels(detector(), result, images(3, 2), engine) > 28
    a, b = (sardonyx.Session(one.model, compile="wait").run(None, images(1, 3)[0])[0] for one in (pairs, result))
    assert np.abs(a - b).max() <= 0.02 * np.abs(a).max()


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "tensorrt", "native", "portable"])
@pytest.mark.parametrize("way", ["static", "weights", "default"])
def test_check_agrees_with_the_target(target: str, way: str, tmp_path: Path) -> None:
    model, data = (detector(), images(6)) if way == "static" else (transformer(), None)
    options: dict[str, Any] = {"mode": "weights", "scheme": "int4"} if way == "weights" else {}
    if target == "tensorrt" and way == "weights":
        options["symmetric"] = True
    result = quantize(model, data, target=target, **options)
    result.save(tmp_path / "small.onnx")
    before = {finding.code for finding in check(sardonyx.to_proto(sardonyx.load(model)), target=target)}
    after = [f for f in check(tmp_path / "small.onnx", target=target) if f.severity == "error"]
    assert not [finding for finding in after if finding.code not in before]
    if target == "tensorrt":
        constants = result.model.graph.initializers.values()
        zeros = [value for value in constants if str(value.name).endswith("_zero_point")]
        arrays = [value.const_value.numpy() for value in zeros if value.const_value is not None]
        assert arrays and not any(array.astype(np.float32).any() for array in arrays)
        assert not any(value.dtype is not None and value.dtype.name == "INT32" for value in constants)


def test_the_operator_set_is_raised_only_where_needed_and_said() -> None:
    same = quantize(detector(17), images(5))
    assert same.report.opset == (17, 17) and not any("operator set" in note for note in same.report.notes)
    raised = quantize(detector(17), images(5), scheme="w8a16")
    assert raised.report.opset == (17, 21) and any("raised from 17 to 21" in note for note in raised.report.notes)
    assert quantize(detector(17), images(5), opset=19).report.opset == (17, 19)
    with pytest.raises(OptionError, match="need operator set 21, got 19"):
        quantize(detector(17), images(5), scheme="w8a16", opset=19)


REFUSED: dict[str, tuple[type[Exception], dict[str, Any], str]] = {
    "zero points": (OptionError, {"target": "tensorrt", "symmetric": False}, "no zero points"),
    "dynamic": (OptionError, {"target": "tensorrt", "mode": "dynamic"}, "executes static, weights"),
    "type": (UnsupportedError, {"target": "onnxruntime", "scheme": "float4"}, "does not dequantize float4"),
    "16 bits": (UnsupportedError, {"target": "tensorrt", "scheme": "w8a16"}, "does not dequantize"),
    "static 2 bits": (
        UnsupportedError,
        {"target": "onnxruntime", "weights": "int2", "mode": "static"},
        "by weights of 2 bits",
    ),
    "target": (OptionError, {"target": "coreml"}, "expected one of"),
    "form": (OptionError, {"form": "integer"}, "expected 'qdq'"),
    "form of 16 bits": (OptionError, {"form": "qoperator", "scheme": "w8a16"}, "static quantization to 8 bits"),
    "drop alone": (OptionError, {"drop": 0.5}, "a permitted loss needs a metric"),
    "scheme": (OptionError, {"scheme": "int7"}, "expected a Scheme or one of"),
    "method": (OptionError, {"method": "magic"}, "expected 'auto' or one of"),
    "kind of scheme": (OptionError, {"scheme": None}, "expected a name or a Scheme, got NoneType"),
    "kind of method": (OptionError, {"method": ["gptq"]}, "expected 'auto' or one of"),
    "kind of drop": (OptionError, {"drop": "0.5", "evaluate": lambda session: 1.0}, "of 0 or more, got '0.5'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_impossible_requests_are_refused_by_name(case: str) -> None:
    error, options, message = REFUSED[case]
    with pytest.raises(error, match=message):
        quantize(detector(), images(4), **options)


def test_every_target_has_a_table_with_its_operators() -> None:
    for target in TARGETS.values():
        assert target.accepts("QuantizeLinear", {0: "float", 1: "float", 2: target.activations}, 19)
        assert target.accepts("MatMulNBits", {0: "float", 1: "uint8", 2: "float"}, 21, "com.microsoft") == (
            target.name in ("onnxruntime", "openvino", "native")
        )
