"""Files of drawn types, granularities and forms are refused by name, or load and run where ``check --target`` says."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.compress.quantization.scheme import ACTIVATION_TYPES, WEIGHT_TYPES
from sardonyx.compress.quantization.targets import TARGETS
from sardonyx.errors import OptionError, UnsupportedError
from sardonyx.model.check import check

LEAST_DECIBELS = 30
"""Of an engine's outputs to the reference's, of the same file: engines round elsewhere, and codes near ties differ."""


def network(kind: str, seed: int, channels: int) -> onnx.ModelProto:
    """Return a model of two products, or of convolutions whose results are joined."""
    rng = np.random.default_rng(seed)

    def weight(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array((rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32), name)

    if kind == "products":
        shape = [2, channels]
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("Gemm", ["b", "v", "c"], ["y"], transB=1),
        ]  # fmt: skip
        weights = [weight("w", channels, 40), weight("v", 24, 40), weight("c", 24)]
    else:
        shape = [1, channels, 7, 7]
        nodes = [
            helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4), helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("Concat", ["b", "x"], ["j"], axis=1), helper.make_node("Conv", ["j", "v", "c"], ["d"]),
            helper.make_node("ConvTranspose", ["d", "u"], ["y"], strides=[2, 2]),
        ]  # fmt: skip
        weights = [weight("w", 12, channels, 3, 3), weight("v", 16, 12 + channels, 1, 1), weight("c", 16)]
        weights.append(weight("u", 16, 8, 2, 2))
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], weights,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def engines(target: str) -> list[str]:
    """Return the engines of a target that are installed."""
    own = {"openvino": "openvino", "onnxruntime": "onnxruntime"}.get(target)
    return ["native"] + ([own] if own is not None and find_spec(own) is not None else [])


def answer(engine: str, model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    if engine == "onnxruntime":
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        (y,) = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})
    elif engine == "openvino":
        import openvino

        core = openvino.Core()
        compiled = core.compile_model(
            core.read_model(model.SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
        )
        y = np.asarray(next(iter(compiled({"x": x}).values())))
    elif engine == "native":
        (y,) = sardonyx.Session(model, compile="wait", providers=["native"]).run(None, {"x": x})
    else:
        (y,) = sardonyx.Session(model, compile="off").run(None, {"x": x})
    return np.asarray(y, np.float64)


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=12, deadline=None)
@given(
    kind=st.sampled_from(["products", "convolutions"]), seed=st.integers(0, 9), channels=st.sampled_from([6, 32, 48]),
    weights=st.sampled_from(WEIGHT_TYPES), activations=st.sampled_from([None, *ACTIVATION_TYPES]),
    granularity=st.sampled_from(["tensor", "channel", "block"]), symmetric=st.sampled_from([None, True, False]),
    form=st.sampled_from(["qdq", "qoperator"]), mode=st.sampled_from(["static", "dynamic", "weights"]),
)  # fmt: skip
def test_drawn_files_load_where_the_check_says(
    target: str, kind: str, seed: int, channels: int, weights: str, activations: str | None, granularity: Any,
    symmetric: bool | None, form: Any, mode: Any,
) -> None:  # fmt: skip
    source = network(kind, seed, channels)
    rng = np.random.default_rng(seed)
    shape = [d.dim_value for d in source.graph.input[0].type.tensor_type.shape.dim]
    samples = [rng.normal(size=shape).astype(np.float32) for _ in range(5)]
    options: dict[str, Any] = {} if activations is None or mode != "static" else {"activations": activations}
    try:
        result = sardonyx.quantize(
            source, None if mode == "dynamic" else samples, weights=weights, granularity=granularity, mode=mode,
            symmetric=symmetric, form=form, target=target, method="nearest", calibration="minmax", block=16,
            reduce_range=True if weights == "int8" else None, **options,
        )  # fmt: skip
    except (OptionError, UnsupportedError):
        return
    model = sardonyx.to_proto(result.model)
    onnx.checker.check_model(model, full_check=target == "portable")
    assert not [finding for finding in check(model, target=target) if finding.severity == "error"]
    expected = answer("reference", model, samples[-1])
    assert np.isfinite(expected).all()
    for engine in engines(target):
        noise = np.square(answer(engine, model, samples[-1]) - expected).sum()
        decibels = 10 * np.log10(np.square(expected).sum() / max(noise, 1e-30))
        assert decibels > LEAST_DECIBELS, (engine, decibels)
