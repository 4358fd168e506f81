"""Balancing leaves the float function equal to the bit, and the channels of an activation with like ranges."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from sardonyx.compress.quantization.calibration import Observation, product_statistics
from sardonyx.compress.quantization.methods.balancing import find_balances, insert
from sardonyx.compress.quantization.placement import find_placement
from sardonyx.compress.quantization.ranges import Statistics
from sardonyx.compress.quantization.scheme import Granularity, Scheme
from sardonyx.compress.quantization.site_inputs import Needs
from sardonyx.compress.quantization.weights import quantize_weight
from sardonyx.model import load
from sardonyx.model.copying import copy_model
from sardonyx.rewrite.analysis.inference import infer_shapes
from sardonyx.runtime.session import Session

NEEDS = Needs(means=True, maxima=True, second_moments=True)
SIZES = np.exp2(np.linspace(-6, 6, 16)).astype(np.float32)
SAMPLES = [
    {"x": np.random.default_rng(seed).standard_normal((1, 16, 6, 6)).astype(np.float32)} for seed in range(4)
]  # fmt: skip


def network(activation: str, group: int) -> ir.Model:
    """Return a convolution with channels of different sizes, an activation, and a convolution that reads these."""
    rng = np.random.default_rng(3)
    first = rng.standard_normal((16, 16, 1, 1)) * SIZES[:, None, None, None] / 4
    second = rng.standard_normal((16, 16 // group, 3, 3)) / 3
    if group == 1:
        second = second / SIZES[None, :, None, None]
    weights = {"w1": first, "w2": second, "scale": np.ones((1, 16, 1, 1))}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["h"], "first"),
        helper.make_node("Conv", ["t", "w2"], ["y"], "second", pads=[1] * 4, group=group),
    ]
    if activation == "SiLU":
        middle = [helper.make_node("Sigmoid", ["h"], ["g"]), helper.make_node("Mul", ["h", "g"], ["t"], "gated")]
    else:
        middle = [helper.make_node(activation, ["h"], ["t"], "activation")]
    tensors = [onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 6, 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, 6, 6])
    graph = helper.make_graph([nodes[0], *middle, nodes[1]], "net", [x], [y], tensors[:2])
    model = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    infer_shapes(model)
    return model


def answers(model: ir.Model) -> list[np.ndarray]:
    session = Session(copy_model(model), compile="off")
    return [session.run(None, sample)[0] for sample in SAMPLES]


@pytest.mark.parametrize("group", [1, 16])
@pytest.mark.parametrize("activation", ["SiLU", "Relu"])
def test_the_float_function_stays_equal_to_the_bit(activation: str, group: int) -> None:
    model = network(activation, group)
    before = answers(model)
    placement = find_placement(model)
    observation = Observation(model, ["t"], SAMPLES, placement.sites, NEEDS)
    balances = find_balances(model, placement, observation.inputs)
    (balance,) = balances
    products = product_statistics(model, {"t": balance.shaped}, SAMPLES)
    weights = {site.label: site.weight.copy() for site in placement.sites}
    name = insert(model, balance)
    observation.rescale("t", name, balance.factors, products["t"])
    assert ("Mul" in [node.op_type for node in model.graph if "balanced" in str(node.name)]) == (activation == "SiLU")
    for first, second in zip(before, answers(model), strict=True):
        np.testing.assert_array_equal(first, second)
    present = {site.label: site.weight for site in find_placement(model).sites}
    assert {label for label, weight in weights.items() if (present[label] != weight).any()} == balance.changed_weights
    infer_shapes(model)
    again = Observation(model, [name], SAMPLES, find_placement(model).sites, NEEDS)
    seen, expected = observation.inputs["second"], again.inputs["second"]
    for attribute in ("maxima", "means", "squares", "second_moment", "lows", "highs"):
        np.testing.assert_allclose(getattr(seen, attribute), getattr(expected, attribute), rtol=1e-5, atol=1e-6)
    assert observation.statistics[name].high == again.statistics[name].high
    largest = seen.maxima
    assert largest is not None and largest.max() / largest.min() < 40


@pytest.mark.parametrize("granularity", ["tensor", "channel"])
@pytest.mark.parametrize("activation", ["SiLU", "Relu"])
def test_requantized_nodes_are_those_whose_integers_change(activation: str, granularity: Granularity) -> None:
    model = network(activation, 1)
    scheme = Scheme(granularity=granularity)

    def integers() -> dict[str, np.ndarray]:
        sites = find_placement(model).sites
        return {site.label: quantize_weight(site.weight, site.channel_axis, None, scheme).values for site in sites}

    placement, before = find_placement(model), integers()
    (balance,) = find_balances(model, placement, Observation(model, ["t"], SAMPLES, placement.sites, NEEDS).inputs)
    insert(model, balance)
    changed = {label for label, values in integers().items() if (values != before[label]).any()}
    assert changed == balance.requantized(granularity)
    assert ("first" in changed) == (activation == "Relu" and granularity == "tensor")


def test_channels_of_like_ranges_stay() -> None:
    model = network("Sigmoid", 16)
    placement = find_placement(model)
    assert find_balances(model, placement, Observation(model, ["t"], SAMPLES, placement.sites, NEEDS).inputs) == []


def test_extremes_of_other_samples_widen_a_range() -> None:
    statistics = Statistics()
    statistics.add(np.array([-1.0, 2.0], np.float32))
    statistics.widen(-3.0, 1.0)
    assert statistics.interval("minmax") == (-3.0, 2.0)


def test_weights_with_other_readers_are_not_divided() -> None:
    model = network("SiLU", 16)
    second = next(node for node in model.graph if node.name == "second")
    weight = second.inputs[1]
    assert weight is not None
    other = ir.node("Identity", [weight])
    copy = other.outputs[0]
    copy.name, copy.type, copy.shape = "copy", weight.type, weight.shape
    model.graph.append(other)
    model.graph.outputs.append(copy)
    placement = find_placement(model)
    observation = Observation(model, ["t"], SAMPLES, placement.sites, NEEDS)
    assert find_balances(model, placement, observation.inputs) == []
