"""``method="auto"`` states its choices, repeats them, and gives accuracy back where integers hurt."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx.compress.quantization import quantize
from sardonyx.compress.quantization.methods.table import METHODS
from sardonyx.errors import OptionError
from sardonyx.runtime.session import Session

SAMPLES = [{"x": np.random.default_rng(seed).standard_normal((16, 32)).astype(np.float32)} for seed in range(12)]


def network(outlier: float, *, row: bool = False) -> bytes:
    """Return four products with gates that no factor passes; the third product's input has a large channel, or row."""
    rng = np.random.default_rng(0)
    spread = np.ones(64)
    spread[5] = 1 if row else outlier
    rows = np.ones((16, 1))
    rows[5] = outlier if row else 1
    weights = {
        "w1": rng.standard_normal((32, 512)) / 6, "w2": rng.standard_normal((512, 64)) / 22,
        "w3": rng.standard_normal((64, 32)) / 8 / spread[:, None], "w4": rng.standard_normal((32, 8)) / 6,
        "spread": spread * rows, "rows": rows,
    }  # fmt: skip
    tensors = [onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    nodes = []
    for number in range(1, 5):
        source, result = "x" if number == 1 else f"t{number - 1}", "y" if number == 4 else f"h{number}"
        nodes.append(helper.make_node("MatMul", [source, f"w{number}"], [result], f"product{number}"))
        if number < 4:
            last = f"u{number}" if number == 2 else f"t{number}"
            nodes.append(helper.make_node("Tanh", [result], [last]))
    nodes.insert(4, helper.make_node("Mul", ["u2", "spread"], ["v2"]))
    nodes.insert(5, helper.make_node("Erf", ["v2"], ["e2"]))
    nodes.insert(6, helper.make_node("Sum", ["v2", "e2", "e2"], ["t2"]))
    nodes.insert(8, helper.make_node("Div", ["h3", "rows"], ["d3"]))
    nodes[9].input[0] = "d3"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 32])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, 8])
    graph = helper.make_graph(nodes, "net", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def int_products(result: Any) -> set[str]:
    products = [node for node in result.model.graph if node.op_type == "MatMul"]
    return {str(node.name) for node in products if node.inputs[1].producer() is not None}


def test_accurate_models_are_quantized_whole() -> None:
    result = quantize(network(1.0), SAMPLES)
    assert result.report.outputs[0].sqnr > 25
    assert int_products(result) == {f"product{number}" for number in range(1, 5)}
    assert any("No node returns to float" in note for note in result.report.notes)


def test_a_cheap_node_that_hurts_returns_to_float_and_the_report_says_so() -> None:
    result = quantize(network(3000.0, row=True), SAMPLES)
    nearest = quantize(network(3000.0, row=True), SAMPLES, method="nearest", calibration="mse")
    assert "product3" not in int_products(result) and "product1" in int_products(result)
    assert result.report.outputs[0].sqnr > nearest.report.outputs[0].sqnr + 6
    assert any("stay in float (product3)" in note for note in result.report.notes)
    again = quantize(network(3000.0, row=True), SAMPLES)
    assert sardonyx.to_proto(again.model).SerializeToString() == sardonyx.to_proto(result.model).SerializeToString()


@pytest.mark.parametrize("scheme", ["float8", "float8e5m2"])
def test_nodes_of_narrow_floats_return_by_their_measured_error(scheme: str) -> None:
    result = quantize(network(1.0), SAMPLES, scheme=scheme)
    nearest = quantize(network(1.0), SAMPLES, scheme=scheme, method="nearest")
    assert 0 < len(int_products(result)) < len(int_products(nearest)) == 4
    assert result.report.outputs[0].sqnr > nearest.report.outputs[0].sqnr + 1
    assert any("stay in float" in note for note in result.report.notes)


def test_a_large_channel_is_balanced_and_its_product_stays_on_integers() -> None:
    result = quantize(network(3000.0), SAMPLES)
    nearest = quantize(network(3000.0), SAMPLES, method="nearest", calibration="mse")
    assert int_products(result) == {f"product{number}" for number in range(1, 5)}
    assert result.report.outputs[0].sqnr > nearest.report.outputs[0].sqnr + 6
    assert any("brought to like ranges" in note for note in result.report.notes)


def test_a_budget_of_the_metric_returns_nodes_until_the_loss_is_within() -> None:
    expected = [Session(network(1.0), compile="wait").run(None, sample)[0] for sample in SAMPLES]

    def evaluate(session: Session) -> float:
        actual = [session.run(None, sample)[0] for sample in SAMPLES]
        return -float(np.mean([np.abs(a - e).max() for a, e in zip(actual, expected, strict=True)]))

    loose = quantize(network(1.0), SAMPLES, evaluate=evaluate, drop=1.0)
    change = loose.report.evidence.metric
    assert change is not None and change.comparisons == 1
    tight = quantize(network(1.0), SAMPLES, evaluate=evaluate, drop=change.loss / 4)
    after = tight.report.evidence.metric
    assert after is not None and after.loss <= change.loss / 4 and after.comparisons > 1
    assert int_products(tight) < int_products(loose)


def test_weights_of_four_bits_are_rounded_in_the_order_of_execution() -> None:
    errors = {
        method: quantize(network(1.0), SAMPLES, weights="int4", method=method).report.outputs[0].sqnr
        for method in ("nearest", "gptq", "auto")
    }
    assert errors["auto"] > errors["nearest"] + 1.5
    assert errors["auto"] > errors["gptq"] - 0.5


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_by_name_quantizes_and_is_reported(method: str) -> None:
    result = quantize(network(1.0), SAMPLES[:6], method=method, calibration="minmax")
    assert result.report.method == method
    assert result.report.outputs[0].sqnr > 25


def test_unknown_methods_are_refused() -> None:
    with pytest.raises(OptionError, match="expected 'auto' or one of nearest"):
        quantize(network(1.0), SAMPLES, method="best")
