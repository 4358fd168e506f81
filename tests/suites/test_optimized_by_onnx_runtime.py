"""Models as ONNX Runtime's optimizer and quantizer leave them, on the reference session: as ONNX Runtime runs them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization as ort_quantization

from sardonyx import Session
from sardonyx.compiler.target.description import host

FUSED = {
    "ultraface_rfb320_simplified": {"FusedConv"},
    "ort_tfbert_qa": {"FusedMatMul"},
    "cnn_mnist_pytorch": {"FusedGemm"},
    "yolox_nano": {"FusedConv", "QuickGelu"},
    "mobilenet_qdq": {"QLinearAdd", "QLinearGlobalAveragePool", "QGemm"},
}


def optimized(source: Path | bytes, folder: Path, exact: bool = False) -> tuple[ort.InferenceSession, Path]:
    """A session of ONNX Runtime with the fusions that suit every processor, and the model as it runs it.

    Without VNNI it adds products of bytes in pairs, in 16 bits, and cuts them off, unless it is to be ``exact``.
    """
    options, path = ort.SessionOptions(), folder / "optimized.onnx"
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    options.intra_op_num_threads = 1
    if exact:
        options.add_session_config_entry("session.x64quantprecision", "1")
    options.log_severity_level = 3
    model = source if isinstance(source, bytes) else str(source)
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]), path


def contributed(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node if node.domain == "com.microsoft"}


def assert_close(actual: list[Any], expected: list[Any], step: float = 0.0) -> None:
    """Equal but for rounding; of quantized results, to a step of their scale."""
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=step + 1e-4 * max(1.0, float(np.abs(b).max(initial=0))))


@pytest.mark.parametrize("name", FUSED)
def test_fused_models(name: str, tmp_path: Path) -> None:
    suites = os.environ.get("SARDONYX_SUITES")
    if not suites:
        pytest.skip("SARDONYX_SUITES does not name the folder of public test models")
    source = Path(suites) / "real" / f"{name}.onnx"
    session, path = optimized(source, tmp_path)
    assert contributed(path) == FUSED[name]
    with np.load(source.with_suffix(".npz")) as stored:
        feeds = {i.name: stored[f"in::{i.name}"] for i in session.get_inputs()}
    expected, step = session.run(None, feeds), 0.0
    if name == "mobilenet_qdq" and host().saturates:
        # It cannot be exact here (it refuses the model then). In floats each layer may round to another step.
        plain = ort.SessionOptions()
        plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        expected, step = ort.InferenceSession(str(source), plain).run(None, feeds), 5 * 0.1531
    assert_close(Session(path).run(None, feeds), expected, step)


def network(rng: np.random.Generator) -> onnx.ModelProto:
    """Two convolutions with a residual, a pool and a classifier."""
    names = ["w1", "b1", "w2", "b2", "w3", "b3"]
    shapes = [(8, 3, 3, 3), (8,), (8, 8, 3, 3), (8,), (8, 5), (5,)]
    weights = [
        numpy_helper.from_array((rng.standard_normal(shape) * 0.3).astype(np.float32), name)
        for name, shape in zip(names, shapes, strict=True)
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], pads=[1, 1, 1, 1]),
        helper.make_node("LeakyRelu", ["c2"], ["r2"], alpha=0.1),
        helper.make_node("Add", ["r1", "r2"], ["a"]),
        helper.make_node("Concat", ["a", "r1"], ["two"], axis=2),
        helper.make_node("GlobalAveragePool", ["two"], ["g"]),
        helper.make_node("Flatten", ["g"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w3", "b3"], ["s"]),
        helper.make_node("Softmax", ["s"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "network", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 5])], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Calibration(ort_quantization.CalibrationDataReader):  # type: ignore[misc]
    """Two batches of images."""

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self.batches = iter([{"x": rng.standard_normal((2, 3, 12, 12)).astype(np.float32)} for _ in range(2)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.batches, None)


QUANTIZED = {
    ("QOperator", "QUInt8"): {"QLinearAdd", "QLinearConcat", "QLinearGlobalAveragePool", "QLinearLeakyRelu",
                              "QLinearSoftmax", "QGemm"},
    ("QDQ", "QUInt8"): {"QLinearAdd", "QLinearConcat", "QLinearGlobalAveragePool", "QLinearLeakyRelu",
                       "QLinearSoftmax", "QGemm"},
    ("dynamic", "QUInt8"): set(),
}  # fmt: skip


@pytest.mark.parametrize(("form", "kind"), QUANTIZED)
def test_quantized_models(form: str, kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    plain, quantized = tmp_path / "plain.onnx", tmp_path / "quantized.onnx"
    onnx.save(network(rng), plain)
    activations = ort_quantization.QuantType[kind]
    if form == "dynamic":
        ort_quantization.quantize_dynamic(plain, quantized, weight_type=activations)
    else:
        ort_quantization.quantize_static(
            plain, quantized, Calibration(), quant_format=ort_quantization.QuantFormat[form],
            activation_type=activations, weight_type=ort_quantization.QuantType.QInt8,
        )  # fmt: skip
    session, path = optimized(quantized, tmp_path, exact=True)
    assert contributed(path) >= QUANTIZED[form, kind]
    feeds = {"x": rng.standard_normal((4, 3, 12, 12)).astype(np.float32)}
    for model in (quantized, path):
        assert_close(Session(model).run(None, feeds), session.run(None, feeds), step=1 / 256)
