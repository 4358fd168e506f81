"""Scripts for ``onnxruntime.quantization`` and ``nncf`` run on Sardonyx's quantizer."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.compress.quantization.networks import Sample, detector, images, transformer

import sardonyx
from sardonyx.compat import nncf
from sardonyx.compat.onnxruntime import quantization as q
from sardonyx.compat.onnxruntime.quantization import matmul_nbits_quantizer, qdq_loss_debug, quant_utils
from sardonyx.errors import OptionError


class Reader(q.CalibrationDataReader):
    def __init__(self, samples: list[Sample]) -> None:
        self._samples: Iterator[Sample] = iter(samples)

    def get_next(self) -> Any:
        return next(self._samples, None)


def error_of(model: Any, path: Path) -> float:
    """Return the relative error of the first output."""
    before, after = sardonyx.Session(model, compile="wait"), sardonyx.Session(path, compile="wait")
    sample = images(1, 9)[0]
    expected, actual = before.run(None, sample)[0], after.run(None, sample)[0]
    return float(np.linalg.norm(expected - actual) / np.linalg.norm(expected))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(detector())
    return path


STATIC: dict[str, dict[str, Any]] = {
    "defaults": {},
    "channel, unsigned": {"per_channel": True, "activation_type": q.QuantType.QUInt8, "reduce_range": True},
    "operators": {"quant_format": q.QuantFormat.QOperator, "activation_type": q.QuantType.QUInt8},
    "entropy": {"calibrate_method": q.CalibrationMethod.Entropy},
    "percentile": {"calibrate_method": q.CalibrationMethod.Percentile, "extra_options": {"ActivationSymmetric": True}},
}


@pytest.mark.parametrize("case", STATIC)
def test_static_quantization_writes_a_model_that_answers_alike(model: Path, tmp_path: Path, case: str) -> None:
    output = tmp_path / "small.onnx"
    q.quantize_static(model, output, Reader(images(6)), **STATIC[case])
    assert error_of(model, output) < 0.12
    nodes = [node.op_type for node in onnx.load(output).graph.node]
    assert ("QLinearConv" in nodes) == (case == "operators")
    assert "QuantizeLinear" in nodes


def test_nodes_and_operators_are_chosen_by_name(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "small.onnx"

    def weights(**options: Any) -> int:
        q.quantize_static(model, output, Reader(images(4)), **options)
        return sum(
            name.name.endswith("_quantized") and len(name.dims) > 1 for name in onnx.load(output).graph.initializer
        )

    assert weights() == 5
    assert weights(nodes_to_exclude=["conv1", "head"]) == 3
    assert weights(nodes_to_quantize=["conv1"]) == 1
    assert weights(op_types_to_quantize=["Conv"]) == 5
    assert weights(op_types_to_quantize=["MatMul"]) == 0


def test_dynamic_quantization_and_configurations(tmp_path: Path) -> None:
    path, output = tmp_path / "model.onnx", tmp_path / "small.onnx"
    path.write_bytes(transformer())
    q.quantize_dynamic(path, output, per_channel=True)
    kinds = [node.op_type for node in onnx.load(output).graph.node]
    assert kinds.count("MatMulInteger") == 7
    q.quantize(path, output, q.DynamicQuantConfig(weight_type=q.QuantType.QUInt8))
    kinds = [node.op_type for node in onnx.load(output).graph.node]
    assert kinds.count("MatMulInteger") == 7 and kinds.count("DynamicQuantizeLinear") == 5
    (tmp_path / "images.onnx").write_bytes(detector())
    config = q.get_qdq_config(
        tmp_path / "images.onnx", Reader(images(4)), nodes_to_exclude=lambda _, node: node.name == "head"
    )
    q.quantize(tmp_path / "images.onnx", output, config)
    assert error_of(tmp_path / "images.onnx", output) < 0.12
    with pytest.raises(TypeError, match="either StaticQuantConfig"):
        q.quantize(path, output, object())  # type: ignore[arg-type]


def test_calibraters_observe_ranges_in_several_parts(model: Path, tmp_path: Path) -> None:
    calibrater = q.create_calibrator(model, ["Conv"], str(tmp_path / "augmented.onnx"))
    calibrater.augment_graph()
    assert len(onnx.load(tmp_path / "augmented.onnx").graph.output) > 5
    samples = images(4)
    calibrater.collect_data(Reader(samples[:2]))
    calibrater.collect_data(Reader(samples[2:]))
    data = calibrater.compute_data()
    low, high = data["x"].range_value
    assert low == min(sample["x"].min() for sample in samples) and high == max(sample["x"].max() for sample in samples)
    assert {"c1", "c2", "k"} <= set(data.keys())
    q.save_tensors_data(data, tmp_path / "ranges.json")
    assert q.load_tensors_data(tmp_path / "ranges.json")["c1"].range_value == data["c1"].range_value
    for method in (q.CalibrationMethod.Entropy, q.CalibrationMethod.Percentile):
        other = q.create_calibrator(model, ["Conv"], str(tmp_path / "augmented.onnx"), method)
        other.collect_data(Reader(samples))
        assert low <= other.compute_data()["x"].range_value[0] < 0
    with pytest.raises(ValueError, match="No data is collected"):
        calibrater.collect_data(Reader([]))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("form", [q.QuantFormat.QOperator, q.QuantFormat.QDQ])
def test_matrices_of_few_bits(bits: int, form: Any, tmp_path: Path) -> None:
    model = onnx.load_model_from_string(transformer())
    next(node for node in model.graph.node if "logits" in node.output).name = "last"
    source = onnx.load_model_from_string(model.SerializeToString())
    quantizer = matmul_nbits_quantizer.MatMulNBitsQuantizer(
        model, bits, 32, quant_format=form, nodes_to_exclude=["last"]
    )
    quantizer.process()
    quantizer.model.save_model_to_file(str(tmp_path / "small.onnx"))
    kinds = [node.op_type for node in onnx.load(tmp_path / "small.onnx").graph.node]
    assert kinds.count("MatMulNBits") == (6 if form == q.QuantFormat.QOperator else 0)
    assert kinds.count("DequantizeLinear") == (0 if form == q.QuantFormat.QOperator else 6)
    tokens = {"tokens": np.arange(8, dtype=np.int64)[None]}
    expected = sardonyx.Session(source, compile="off").run(None, tokens)[0]
    actual = sardonyx.Session(tmp_path / "small.onnx", compile="off").run(None, tokens)[0]
    assert np.linalg.norm(expected - actual) < (0.35 if bits == 4 else 0.05) * np.linalg.norm(expected)


def test_errors_of_tensors_are_matched_by_name(model: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.onnx"
    q.quant_pre_process(model, tmp_path / "prepared.onnx")
    assert quant_utils.model_has_pre_process_metadata(onnx.load(tmp_path / "prepared.onnx"))
    q.quantize_static(tmp_path / "prepared.onnx", small, Reader(images(4)), per_channel=True)
    values = []
    for name in ("prepared.onnx", "small.onnx"):
        qdq_loss_debug.modify_model_output_intermediate_tensors(tmp_path / name, tmp_path / f"all_{name}")
        values.append(qdq_loss_debug.collect_activations(tmp_path / f"all_{name}", Reader(images(2, 5))))
    errors = qdq_loss_debug.compute_activation_error(qdq_loss_debug.create_activation_matching(values[1], values[0]))
    assert len(errors) >= 4 and all(row["qdq_err"] > 5 and row["xmodel_err"] > 10 for row in errors.values())
    weights = qdq_loss_debug.compute_weight_error(
        qdq_loss_debug.create_weight_matching(tmp_path / "prepared.onnx", small)
    )
    assert len(weights) == 7 and min(weights.values()) > 30


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"extra_options": {"TensorQuantOverrides": {"nowhere": [{}]}}}, "nowhere"),
        ({"extra_options": {"TensorQuantOverrides": {"x": [{"scale": 0.1}]}}}, "Must provide both 'scale'"),
        ({"activation_type": q.QuantType.QInt8, "weight_type": q.QuantType.QUInt8}, "doesn't support data format"),
        ({"calibration_cache_path": "."}, "not a file"),
    ],
)
def test_invalid_options_are_refused_by_name(model: Path, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        q.quantize_static(model, model.with_name("small.onnx"), Reader(images(2)), **options)


SCRIPT = """
import sys
import numpy as np
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.calibrate import CalibrationMethod, create_calibrator
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.quantization import quantize
from onnxruntime.quantization.quantize import quantize as same
import onnxruntime

assert callable(quantize) and quantize is same

class Reader(CalibrationDataReader):
    def __init__(self):
        rng = np.random.default_rng(0)
        self.items = iter([{"x": rng.standard_normal((1, 3, 12, 12)).astype(np.float32)} for _ in range(4)])
    def get_next(self):
        return next(self.items, None)

quant_pre_process("model.onnx", "prepared.onnx")
quantize_static("prepared.onnx", "small.onnx", Reader(), quant_format=QuantFormat.QDQ, per_channel=True)
print(quantize_static.__module__, onnxruntime.InferenceSession("small.onnx").run(None, Reader().get_next())[0].shape)
"""


def test_a_script_runs_unchanged(model: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    outcome = subprocess.run(
        [sys.executable, "-m", "sardonyx.compat.onnxruntime", "script.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert outcome.stdout.split("\n")[-2] == ("sardonyx.compat.onnxruntime.quantization.quantize (1, 6, 6, 6)"), (
        outcome.stderr
    )


def test_nncf_scripts_quantize_and_compress() -> None:
    model = onnx.load_model_from_string(detector())
    dataset = nncf.Dataset(images(6), lambda item: {"x": item["x"]})
    result = nncf.quantize(model, dataset, ignored_scope=nncf.IgnoredScope(names=["head"], patterns=["depth.*"]))
    kinds = [node.op_type for node in result.graph.node]
    assert kinds.count("QuantizeLinear") > 3
    sample = images(1, 9)[0]
    expected, actual = (sardonyx.Session(one, compile="off").run(None, sample)[0] for one in (model, result))
    assert np.linalg.norm(expected - actual) < 0.1 * np.linalg.norm(expected)
    small = nncf.compress_weights(model, nncf.CompressWeightsMode.INT8_SYM)
    assert len(small.SerializeToString()) < len(model.SerializeToString()) / 2
    with pytest.raises(OptionError, match="nothing matches nowhere"):
        nncf.quantize(model, dataset, ignored_scope=nncf.IgnoredScope(names=["nowhere"]))
    with pytest.raises(OptionError, match="advanced_parameters"):
        nncf.quantize(model, dataset, advanced_parameters=object())


def test_arithmetic_of_integers_by_the_original_names() -> None:
    zero, scale = quant_utils.compute_scale_zp(np.float32(-1), np.float32(3), np.uint8(0), np.uint8(255))
    assert zero == 64 and scale == np.float32(4 / 255)
    integers = quant_utils.quantize_nparray(onnx.TensorProto.UINT8, np.array([-1, 0, 3], np.float32), scale, zero)
    assert integers.tolist() == [0, 64, 255]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert quant_utils.get_qmin_qmax_for_qType(onnx.TensorProto.INT8, symmetric=True) == (-127, 127)
    assert q.QuantType.from_string("QInt8") is q.QuantType.QInt8 and str(q.QuantFormat.QDQ) == "QDQ"
