"""The nodes whose integers hurt most return to float, by measured errors of a model with switches."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx.compress.quantization.calibration import Observation
from sardonyx.compress.quantization.measured_values import measure_parts
from sardonyx.compress.quantization.placement import find_placement
from sardonyx.compress.quantization.scheme import Affine, Scheme
from sardonyx.compress.quantization.sensitivity import Probe, decibels, give_back
from sardonyx.compress.quantization.weights import quantize_weight
from sardonyx.rewrite.analysis.inference import infer_shapes
from tests.compress.quantization.networks import detector


def network() -> ir.Model:
    """Return four products; the input of the third has an outlier, which leaves few integers for the other elements."""
    rng = np.random.default_rng(0)
    spread = np.ones(16)
    spread[3] = 300
    weights = {
        "w1": rng.standard_normal((8, 16)), "w2": rng.standard_normal((16, 16)) * spread,
        "w3": rng.standard_normal((16, 32)) / spread[:, None], "w4": rng.standard_normal((32, 4)),
    }  # fmt: skip
    tensors = [onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    nodes = []
    for number in range(1, 5):
        source, result = "x" if number == 1 else f"t{number - 1}", "y" if number == 4 else f"h{number}"
        nodes.append(helper.make_node("MatMul", [source, f"w{number}"], [result], f"product{number}"))
        if number < 4:
            nodes.append(helper.make_node("Relu", [result], [f"t{number}"]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 4])
    graph = helper.make_graph(nodes, "net", [x], [y], tensors)
    model = sardonyx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    infer_shapes(model)
    return model


SAMPLES = [{"x": np.random.default_rng(seed).standard_normal((5, 8)).astype(np.float32)} for seed in range(6)]


@pytest.fixture(scope="module")
def probe() -> Probe:
    model = network()
    placement = find_placement(model)
    seen = Observation(model, [str(value.name) for value in placement.reads], SAMPLES).statistics
    maps = {name: Affine.of(*statistics.interval("minmax")) for name, statistics in seen.items()}
    weights = {
        site.label: quantize_weight(site.weight, site.channel_axis, site.sum_axis, Scheme()).dequantized()
        for site in placement.sites
    }
    return Probe(model, maps, weights)


def test_switched_off_the_probe_is_the_float_model(probe: Probe) -> None:
    expected = sardonyx.Session(network(), compile="wait").run(None, SAMPLES[0])[0]
    (actual,) = probe.run(SAMPLES[0], ())
    assert np.allclose(actual, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_switched_on_the_probe_has_the_error_of_the_quantized_model(probe: Probe) -> None:
    references = probe.references(SAMPLES)
    probed = decibels(probe.noise(SAMPLES, references, set(probe.nodes))[0])
    result = sardonyx.quantize(
        sardonyx.to_proto(network()), SAMPLES[:3], method="nearest", calibration="minmax", bias_correction=False
    )
    session = sardonyx.Session(result.model, compile="wait")
    actual = [session.run(None, sample)[0] for sample in SAMPLES]
    noise = sum(float(np.square(x[0] - y).sum()) for x, y in zip(references, actual, strict=True))
    assert abs(probed - decibels(noise / sum(float(np.square(x[0]).sum()) for x in references))) < 3


def test_the_node_with_an_outlier_returns_first(probe: Probe) -> None:
    references = probe.references(SAMPLES)
    errors = probe.errors(SAMPLES, references)
    ranking = probe.ranking(errors)
    assert ranking[0].name == "product3" and ranking[0].sqnr < ranking[1].sqnr - 6
    assert sum(node.cost for node in ranking) == pytest.approx(1)
    returned = give_back(
        probe,
        SAMPLES,
        references,
        functools.partial(probe.errors, SAMPLES, references),
        target=ranking[0].sqnr + 3,
        most_cost=1.0,
    )
    assert returned.nodes == ("product3",)
    assert returned.after > returned.before + 3
    measured = probe.noise(SAMPLES, references, set(probe.nodes) - {"product3"})
    assert returned.after == pytest.approx(decibels(measured.max()))


def test_the_permitted_work_limits_the_return(probe: Probe) -> None:
    references = probe.references(SAMPLES)
    errors = functools.partial(probe.errors, SAMPLES, references)
    assert give_back(probe, SAMPLES, references, errors, target=200.0, most_cost=0.0).nodes == ()
    everything = give_back(probe, SAMPLES, references, errors, target=200.0, most_cost=1.0)
    assert set(everything.nodes) == set(probe.nodes) and everything.after > 100
    assert everything == give_back(probe, SAMPLES, references, errors, target=200.0, most_cost=1.0)
    few = give_back(probe, SAMPLES, references, errors, target=200.0, most_cost=0.9, least_share=0.5)
    assert few.nodes == ("product3",)


def test_joined_outputs_are_measured_in_parts() -> None:
    model = sardonyx.load(detector())
    infer_shapes(model)
    kinds = measure_parts(model)
    assert kinds == [0, 1]
    assert [value.name for value in model.graph.outputs] == ["boxes", "scores"]


def test_nodes_whose_return_does_not_reduce_the_error_stay() -> None:
    class Cancelling:
        """Nodes whose noise cancels: without the first, the error is larger."""

        nodes = ("first", "second")

        def cost(self, node: str) -> float:
            return {"first": 0.1, "second": 0.9}[node]

        def has_weight(self, node: str) -> bool:
            return bool(node)

        def noise(self, samples: object, references: object, quantized: set[str]) -> np.ndarray:
            return np.array([1e-3 if len(quantized) == 2 else 2e-3 * len(quantized)])

    noises = {"first": np.array([2e-3]), "second": np.array([2e-3])}
    cancelling: Any = Cancelling()
    returned = give_back(
        cancelling, [], [], lambda nodes: {node: noises[node] for node in nodes}, target=60.0, most_cost=0.5
    )
    assert returned.nodes == () and returned.after == returned.before and returned.cost == 0
