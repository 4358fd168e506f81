"""Quantized models have the nodes, names and numbers of those that ONNX Runtime writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.compress.quantization.networks import Sample, detector, images, transformer

from sardonyx.compat.onnxruntime import quantization as ours

theirs = pytest.importorskip("onnxruntime.quantization")

Options = dict[str, Any]


class Reader:
    def __init__(self, samples: list[Sample]) -> None:
        self._samples: Iterator[Sample] = iter(samples)

    def get_next(self) -> Any:
        return next(self._samples, None)


def recurrent() -> bytes:
    """Return a network with an LSTM, a Gemm whose weight is transposed, and a table."""
    rng = np.random.default_rng(3)

    def weight(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["embedded"], "embed"),
        helper.make_node("LSTM", ["embedded", "w", "r", "b"], ["", "last"], "lstm", hidden_size=6),
        helper.make_node("Squeeze", ["last", "axes"], ["state"], "squeeze"),
        helper.make_node("Gemm", ["state", "dense", "bias"], ["y"], "dense", transB=1),
    ]
    tensors = [weight("table", 11, 5), weight("w", 1, 24, 5), weight("r", 1, 24, 6), weight("b", 1, 48)]
    tensors += [weight("dense", 3, 6), weight("bias", 3), numpy_helper.from_array(np.array([0]), "axes")]
    inputs = [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["length", "batch"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])]
    graph = helper.make_graph(nodes, "recurrent", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def described(path: Path) -> tuple[dict[tuple[str, ...], Any], dict[str, np.ndarray]]:
    """Return the nodes with their attributes by operator, inputs and outputs, and the initializers by name."""
    model = onnx.load(path)
    nodes = {
        (node.domain, node.op_type, node.name, *node.input, "->", *node.output): {
            attribute.name: str(helper.get_attribute_value(attribute)) for attribute in node.attribute
        }
        for node in model.graph.node
    }
    return nodes, {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def assert_alike(write: Callable[[Any, Path], None], path: Path) -> None:
    results = []
    for module in (theirs, ours):
        output = path.with_name(f"{module.__name__}.onnx")
        write(module, output)
        results.append(described(output))
    (expected_nodes, expected), (nodes, actual) = results
    assert nodes == expected_nodes
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        other = actual[name]
        assert other.dtype == array.dtype and other.shape == array.shape, name
        if array.dtype.kind == "f":
            np.testing.assert_allclose(other, array, rtol=2e-6, atol=1e-9, err_msg=name)
        else:  # A sum in another order may round to the next integer.
            distance = np.abs(other.astype(np.float64) - array.astype(np.float64))
            assert distance.max(initial=0) <= 1 and (distance > 0).mean() < 0.01, name


STATIC: dict[str, Callable[[Any], Options]] = {
    "defaults": lambda m: {},
    "channels": lambda m: {"per_channel": True, "activation_type": m.QuantType.QUInt8, "reduce_range": True},
    "operators": lambda m: {"quant_format": m.QuantFormat.QOperator, "activation_type": m.QuantType.QUInt8},
    "operators by channels": lambda m: {
        "quant_format": m.QuantFormat.QOperator, "activation_type": m.QuantType.QUInt8, "per_channel": True,
    },
    "16 bits": lambda m: {"activation_type": m.QuantType.QUInt16, "weight_type": m.QuantType.QInt8},
    "4 bits": lambda m: {"activation_type": m.QuantType.QUInt8, "weight_type": m.QuantType.QInt4},
    "symmetric": lambda m: {"extra_options": {"ActivationSymmetric": True, "WeightSymmetric": True}},
    "pairs of weights": lambda m: {"extra_options": {"AddQDQPairToWeight": True, "DedicatedQDQPair": True}},
    "own domain": lambda m: {"extra_options": {"UseQDQContribOps": True, "QDQKeepRemovableActivations": True}},
    "forced": lambda m: {"extra_options": {"ForceQuantizeNoInputCheck": True, "QuantizeBias": False}},
    "chosen": lambda m: {"op_types_to_quantize": ["Conv", "Relu"], "nodes_to_exclude": ["head"]},
    "percentile": lambda m: {"calibrate_method": m.CalibrationMethod.Percentile},
    "entropy": lambda m: {"calibrate_method": m.CalibrationMethod.Entropy},
    "moving average": lambda m: {"extra_options": {"CalibMovingAverage": True}},
    "overrides": lambda m: {
        "activation_type": m.QuantType.QUInt8,
        "extra_options": {
            "TensorQuantOverrides": {
                "c3": [{"quant_type": m.QuantType.QUInt8, "convert": {"quant_type": m.QuantType.QUInt16}}],
                "c2": [{"rmin": np.float32(-2.5), "rmax": np.float32(3.0)}],
            }
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("case", STATIC)
def test_static_models_of_a_detector(case: str, tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    source.write_bytes(detector())

    def write(module: Any, output: Path) -> None:
        module.quantize_static(source, output, Reader(images(3)), **STATIC[case](module))

    assert_alike(write, source)


@pytest.mark.parametrize("network", [transformer, detector, recurrent])
@pytest.mark.parametrize("options", [{}, {"per_channel": True, "reduce_range": True}], ids=["tensor", "channel"])
def test_dynamic_models(network: Callable[[], bytes], options: Options, tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    source.write_bytes(network())
    for kind in ("QInt8", "QUInt8"):

        def write(module: Any, output: Path, kind: str = kind) -> None:
            module.quantize_dynamic(source, output, weight_type=module.QuantType[kind], **options)

        assert_alike(write, source)


@pytest.mark.parametrize("form", ["QOperator", "QDQ"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_matrices_of_few_bits(form: str, symmetric: bool, tmp_path: Path) -> None:
    def write(module: Any, output: Path) -> None:
        import importlib

        quantizers = importlib.import_module(f"{module.__name__}.matmul_nbits_quantizer")
        quantizer = quantizers.MatMulNBitsQuantizer(
            onnx.load_model_from_string(transformer()), 4, 32, symmetric, quant_format=module.QuantFormat[form]
        )
        quantizer.process()
        quantizer.model.save_model_to_file(str(output))

    assert_alike(write, tmp_path / "model.onnx")


def test_ranges_of_a_file_replace_samples(tmp_path: Path) -> None:
    source, ranges = tmp_path / "model.onnx", tmp_path / "ranges.json"
    source.write_bytes(detector())
    theirs.quantize_static(source, tmp_path / "first.onnx", Reader(images(3)), calibration_cache_path=ranges)

    def write(module: Any, output: Path) -> None:
        module.quantize_static(source, output, calibration_cache_path=ranges)

    assert_alike(write, source)
    assert described(tmp_path / "first.onnx")[0] == described(tmp_path / f"{ours.__name__}.onnx")[0]
