"""Dynamic quantization computes products and convolutions in integers where an input's codes are used often enough."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.compiler.target.description import NAMED
from sardonyx.compress.quantization import Quantized, dynamic_products, quantize

Nodes = list[onnx.NodeProto]


@pytest.fixture(autouse=True)
def processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decide by the costs of one processor, on every machine."""
    monkeypatch.setattr(dynamic_products, "host", lambda: NAMED["avx512vnni"])


def model(nodes: Nodes, weights: dict[str, np.ndarray], shape: list[Any], outputs: tuple[str, ...] = ("y",)) -> bytes:
    """Return a network of an image `x`."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    arrays = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "net", [x], results, arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
    return np.asarray(values, np.float32)


def operators(result: Quantized) -> Counter[str]:
    return Counter(node.op_type for node in result.model.graph.all_nodes())


def ratios(source: bytes, result: Quantized, x: np.ndarray) -> list[float]:
    """Return the decibels of the worst output of ONNX Runtime and of the native engine."""
    proto = sardonyx.to_proto(result.model)
    onnx.checker.check_model(proto, full_check=True)
    expected = onnxruntime.InferenceSession(source).run(None, {"x": x})
    results = [
        onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x}),
        sardonyx.Session(result.model, compile="wait").run(None, {"x": x}),
    ]
    return [
        min(
            float(10 * np.log10(np.square(a).sum() / max(np.square(a - b).sum(), 1e-30)))
            for a, b in zip(expected, actual, strict=True)
        )
        for actual in results
    ]


ATTRIBUTES: dict[str, tuple[dict[str, Any], tuple[int, ...], list[Any]]] = {
    "padded": ({"pads": [1, 1, 1, 1]}, (24, 8, 3, 3), ["N", 8, 12, 12]),
    "strided and unevenly padded": ({"strides": [2, 2], "pads": [0, 1, 2, 1]}, (64, 8, 3, 3), ["N", 8, 12, "W"]),
    "dilated": ({"dilations": [2, 1]}, (24, 8, 3, 3), [2, 8, 12, 12]),
    "groups": ({"group": 2, "pads": [1, 1, 1, 1]}, (32, 4, 3, 3), [1, 8, 12, 12]),
    "sizes by auto_pad": ({"auto_pad": "SAME_UPPER", "kernel_shape": [3, 3]}, (24, 8, 3, 3), [1, 8, 11, 13]),
    "one pixel": ({}, (64, 32, 1, 1), ["N", 32, 15, 17]),
    "one axis": ({"pads": [2, 2], "strides": [2]}, (64, 24, 5), ["N", 24, 80]),
    "three axes": ({"pads": [1] * 6}, (16, 4, 3, 3, 3), [1, 4, 6, 7, 8]),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_convolutions_of_each_form_are_integers_on_all_engines(name: str) -> None:
    attributes, filters, shape = ATTRIBUTES[name]
    weights = {"w": drawn(*filters), "b": drawn(filters[0], seed=1)}
    source = model([helper.make_node("Conv", ["x", "w", "b"], ["y"], "conv", **attributes)], weights, shape)
    result = quantize(source, target="native")
    assert operators(result)["ConvInteger"] == 1
    sizes = [size if isinstance(size, int) else 14 for size in shape]
    x = np.random.default_rng(2).standard_normal(sizes).astype(np.float32) + np.float32(0.5)
    assert min(ratios(source, result, x)) > 30


@pytest.mark.parametrize("granularity", ["tensor", "channel"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_convolutions_have_one_zero_point_in_each_scheme(symmetric: bool, granularity: Any) -> None:
    source = model([helper.make_node("Conv", ["x", "w"], ["y"])], {"w": drawn(24, 8, 3, 3)}, [1, 8, 9, 9])
    result = quantize(source, target="native", symmetric=symmetric, granularity=granularity)
    assert operators(result)["ConvInteger"] == 1
    assert min(ratios(source, result, drawn(1, 8, 9, 9, seed=3))) > 28


def test_readers_of_one_image_share_its_codes_and_rare_products_stay_in_float() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "wide", pads=[1] * 4),
        helper.make_node("Conv", ["x", "w2"], ["b"], "narrow"),
        helper.make_node("Conv", ["a", "w3"], ["c"], "depthwise", pads=[1] * 4, group=24),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("Conv", ["d", "w4"], ["y"], "few filters"),
    ]
    weights = {
        "w1": drawn(24, 8, 3, 3), "w2": drawn(2, 8, 1, 1), "w3": drawn(24, 1, 3, 3), "w4": drawn(3, 24, 1, 1)
    }  # fmt: skip
    source = model(nodes, weights, [1, 8, 10, 10], ("y", "b"))
    result = quantize(source, target="native")
    counts = operators(result)
    assert (counts["DynamicQuantizeLinear"], counts["ConvInteger"], counts["Conv"]) == (1, 2, 2)
    assert any("2 products or convolutions are quantized in each call" in note for note in result.report.notes)
    assert min(ratios(source, result, drawn(1, 8, 10, 10, seed=4))) > 28


@pytest.mark.parametrize(
    ("name", "target", "count"),
    [
        ("avx512vnni", "native", 1),
        ("avx2", "native", 0),
        ("avx512vnni", "portable", 0),
        ("avx512vnni", "onnxruntime", 0),
        ("avx512vnni", "openvino", 0),
    ],
)
def test_processor_and_target_decide(name: str, target: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without VNNI, Winograd's algorithm in float32 is faster; other engines compute integer convolutions slowly."""
    monkeypatch.setattr(dynamic_products, "host", lambda: NAMED[name])
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)]
    source = model(nodes, {"w": drawn(32, 32, 3, 3)}, [1, 32, 28, 28])
    result = quantize(source, target=target)
    assert operators(result)["ConvInteger"] == count


@pytest.mark.parametrize("target", ["portable", "onnxruntime"])
def test_a_file_for_other_engines_does_not_depend_on_the_processor(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    source = model(nodes, {"w": drawn(256, 512)}, ["N", 256])
    files = []
    for name in NAMED:
        monkeypatch.setattr(dynamic_products, "host", lambda name=name: NAMED[name])
        result = quantize(source, target=target)
        files.append(operators(result))
    assert all(counts == files[0] and counts["MatMulInteger"] == 1 for counts in files)


def test_tiny_products_stay_in_float_and_large_ones_do_not() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w1"], ["h"], "large"), helper.make_node("MatMul", ["h", "w2"], ["y"])]
    weights = {"w1": drawn(256, 512), "w2": drawn(512, 4)}
    counts = operators(quantize(model(nodes, weights, ["N", 256]), target="native"))
    assert (counts["MatMulInteger"], counts["MatMul"]) == (1, 1)


@pytest.mark.parametrize("kind", ["Conv", "MatMul"])
def test_a_dynamic_product_reads_another_one(kind: str) -> None:
    """Bottlenecks have no activation between two layers."""
    is_image = kind == "Conv"
    attributes: dict[str, Any] = (
        {"strides": [2, 2]} if is_image else {}
    )  # Winograd's algorithm in float32 takes no strides.
    nodes = [
        helper.make_node(kind, pair, [end], **attributes) for pair, end in ((["x", "w1"], "h"), (["h", "w2"], "y"))
    ]
    window = (3, 3) if is_image else ()
    weights = {"w1": drawn(64, 64, *window), "w2": drawn(64, 64, *window, seed=1)}
    shape = [1, 64, 40, 40] if is_image else [1, 40, 64]
    source = model(nodes, weights, shape)
    result = quantize(source, target="native")
    assert operators(result)[f"{kind}Integer"] == 2
    assert min(ratios(source, result, drawn(*shape, seed=2))) > 28


def test_a_bias_of_the_call_leaves_the_convolution_in_float() -> None:
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[0, 2, 3], keepdims=0),
        helper.make_node("Conv", ["x", "w", "m"], ["y"], pads=[1] * 4),
    ]
    source = model(nodes, {"w": drawn(8, 8, 3, 3)}, [1, 8, 9, 9])
    result = quantize(source, target="native")
    assert operators(result)["ConvInteger"] == 0
    assert min(ratios(source, result, drawn(1, 8, 9, 9, seed=5))) > 30


def test_convolutions_of_bodies_read_codes_of_their_own_body() -> None:
    def branch(name: str, weight: str) -> onnx.GraphProto:
        y = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node("Conv", ["x", weight], [name], pads=[1] * 4)], name, [], [y])

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["condition"]),
        helper.make_node("If", ["condition"], ["y"], then_branch=branch("t", "w1"), else_branch=branch("e", "w2")),
    ]
    weights = {"w1": drawn(24, 8, 3, 3), "w2": drawn(24, 8, 3, 3, seed=1), "zero": np.zeros((), np.float32)}
    source = model(nodes, weights, [1, 8, 9, 9])
    result = quantize(source, target="native")
    assert operators(result)["ConvInteger"] == 2
    for sign in (1, -1):
        x = np.abs(drawn(1, 8, 9, 9, seed=6)) * np.float32(sign)
        assert min(ratios(source, result, x)) > 28
