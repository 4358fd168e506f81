"""Small calibrations are interpreted, several samples at once, and compute what compiled code computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx.compress.quantization.calibration import Observation, product_statistics
from sardonyx.compress.quantization.interpretation import (
    InterpretedGraph,
    SampleRuns,
    are_independent,
    form_of,
    stacked,
    stacks,
)
from sardonyx.compress.quantization.placement import find_placement
from sardonyx.compress.quantization.scheme import TYPES, Affine
from sardonyx.compress.quantization.switches import CompiledSwitches, InterpretedSwitches, SwitchState
from sardonyx.errors import EvaluationError, ShapeError, UnsupportedError
from sardonyx.model.copying import copy_model
from sardonyx.rewrite.analysis.inference import infer_shapes

RNG = np.random.default_rng(0)
WEIGHTS = {
    "w1": RNG.standard_normal((8, 3, 3, 3)) / 5, "w2": RNG.standard_normal((8, 1, 3, 3)) / 3,
    "w3": RNG.standard_normal((8, 5)),
}  # fmt: skip
SAMPLES = [{"x": RNG.standard_normal((1, 3, 9, 9)).astype(np.float32)} for _ in range(7)]


def network(batch: int | str = "N", last: str = "") -> ir.Model:
    """Return convolutions and a product, with an open or a fixed number of samples."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "conv", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "w2"], ["b"], "depthwise", group=8, strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["b"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "w3"], ["m" if last else "y"], "product"),
    ]
    if last:
        nodes.append(helper.make_node(last, ["m"], ["y"], axis=0))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 9, 9])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 5])
    tensors = [onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in WEIGHTS.items()]
    graph = helper.make_graph(nodes, "net", [x], [y], tensors)
    model = sardonyx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    infer_shapes(model)
    return model


def values(runs: SampleRuns, samples: list[dict[str, Any]]) -> tuple[list[int], dict[str, np.ndarray]]:
    """Return the sizes of the groups that ran at once, and all values along the first axis."""
    groups = list(runs.run(samples))
    names = groups[0][1]
    return [len(group) for group, _ in groups], {
        name: np.concatenate([own[name] for _, own in groups]) for name in names
    }


@pytest.mark.parametrize("batch", ["N", 1])
def test_samples_run_at_once_with_the_values_of_compiled_code(batch: int | str) -> None:
    model = network(batch)
    sizes, interpreted = values(SampleRuns(model, ["r", "b", "y"]), SAMPLES)
    assert max(sizes) > 1 and sum(sizes) == len(SAMPLES)
    singly, compiled = values(SampleRuns(model, ["r", "b", "y"], most_work=0.0), SAMPLES)
    assert singly == [1] * len(SAMPLES)
    for name, array in compiled.items():
        assert np.allclose(interpreted[name], array, rtol=1e-4, atol=1e-4)


def test_compiled_code_takes_over_in_the_middle() -> None:
    model = network()
    _, whole = values(SampleRuns(model, ["y"]), SAMPLES * 100)
    sizes, parts = values(SampleRuns(model, ["y"], most_work=6e7), SAMPLES * 100)
    assert max(sizes) > 1 and sizes[-1] == 1
    assert np.allclose(whole["y"], parts["y"], rtol=1e-4, atol=1e-4)


def test_samples_of_a_model_that_mixes_rows_run_singly() -> None:
    sizes, _ = values(SampleRuns(network(last="Softmax"), ["r"]), SAMPLES)
    assert set(sizes) == {1}
    graph = InterpretedGraph(network(last="Softmax"))
    first = graph.run(SAMPLES[0], graph.outputs)
    assert first is not None and not are_independent(graph, SAMPLES, first)


def test_samples_of_other_sizes_are_apart() -> None:
    larger = {"x": np.zeros((2, 3, 9, 9), np.float32)}
    samples, form = [*SAMPLES[:3], larger, larger, *SAMPLES[3:]], form_of(SAMPLES[0])
    assert [len(part) for part in stacks(samples, 2, form)] == [2, 1, 1, 1, 2, 2]
    assert [len(part) for part in stacks(samples, 1, None)] == [1] * len(samples)
    with pytest.raises(ShapeError):
        list(SampleRuns(network(1), ["r"]).run([*SAMPLES[:3], larger, larger]))


def test_the_sample_with_nan_is_named_though_several_run_at_once() -> None:
    samples = [{"x": one["x"].copy()} for one in SAMPLES]
    samples[5]["x"][0, 1, 2, 2] = np.nan
    with pytest.raises(EvaluationError, match="sample 5"):
        Observation(network(), ["x", "r"], samples)


def test_statistics_of_stacked_samples_are_those_of_single_ones() -> None:
    model = network()
    seen = Observation(model, ["x", "r", "f"], SAMPLES).statistics
    for name, other in Observation(network(last="Softmax"), ["x", "r", "f"], SAMPLES).statistics.items():
        assert seen[name].count == other.count == len(SAMPLES)
        for method in ("minmax", "moving-average"):
            assert np.allclose(seen[name].interval(method), other.interval(method), rtol=1e-5)


def test_products_of_an_input_are_observed_beside_a_scalar_input() -> None:
    model = sardonyx.load(onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17]> n (float[N, 2] x, float s) => (float[N, 2] y) { y = Mul(x, s) }"""
    ))  # fmt: skip
    samples = [{"x": np.full((1, 2), size, np.float32), "s": np.float32(3)} for size in (-1, 2)]
    statistics = product_statistics(model, {"x": np.array([1, 4], np.float32)}, samples)
    assert statistics["x"].count == 2 and statistics["x"].interval("minmax") == (-4.0, 8.0)


def test_a_run_computes_only_what_a_change_reaches() -> None:
    model = network()
    switches = InterpretedSwitches(*state_of(model))
    settings = [(), ("product",), ("conv",)]
    runs = list(switches.all_outputs(SAMPLES[:4], settings))
    for row, number, (output,) in runs:
        assert np.allclose(output, switches.outputs(SAMPLES[row], settings[number])[0], rtol=1e-4, atol=1e-5)
    graph = InterpretedGraph(model)
    feeds = stacked(SAMPLES)
    base = graph.run(feeds, graph.outputs, token=0, keeps=True, stacked=True)
    assert base is not None
    work = graph.work
    again = graph.run(feeds, graph.outputs, bases=[base], token=0, stacked=True)
    assert again is not None and graph.work == work
    assert np.array_equal(again.array(graph.outputs[0]), base.array(graph.outputs[0]))


def state_of(model: ir.Model, kind: str = "uint8") -> tuple[ir.Model, Any, SwitchState]:
    copied = copy_model(model)
    placement = find_placement(copied)
    maps = {str(value.name): Affine.of(-3.0, 3.0, TYPES[kind]) for value in placement.reads}
    weights = {site.label: np.round(site.weight * 8) / 8 for site in placement.sites}
    corrections = {site.label: np.full(site.channels, 0.125) for site in placement.sites}
    return copied, placement, SwitchState.of(placement, maps, weights, corrections)


@pytest.mark.parametrize("quantized", [(), ("conv",), ("depthwise", "product"), ("conv", "depthwise", "product")])
@pytest.mark.parametrize("kind", ["uint8", "float8e4m3", "float8e5m2"])
def test_both_engines_of_switches_agree(kind: str, quantized: tuple[str, ...]) -> None:
    model = network()
    if TYPES[kind].is_float:
        model.opset_imports[""] = TYPES[kind].opset
    interpreted, compiled = InterpretedSwitches(*state_of(model, kind)), CompiledSwitches(*state_of(model, kind))
    assert interpreted.kinds == compiled.kinds
    for feeds in SAMPLES[:2]:
        (first,), (second,) = (engine.outputs(feeds, quantized) for engine in (interpreted, compiled))
        assert np.allclose(first, second, rtol=1e-3, atol=1e-3 * np.abs(second).max())
        own, others = (engine.site_inputs(feeds, quantized) for engine in (interpreted, compiled))
        for label, array in own.items():
            assert np.allclose(array, others[label], rtol=1e-3, atol=1e-3 * np.abs(array).max())


def test_recurrent_layers_are_compiled() -> None:
    text = """<ir_version: 9, opset_import: ["": 17]> n (float[4, N, 8] x) => (float[4, 1, N, 6] y)
    { y, h = GRU<hidden_size = 6>(x, w, r) }"""
    proto = onnx.parser.parse_model(text)
    for name, width in (("w", 8), ("r", 6)):
        array = RNG.standard_normal((1, 18, width)).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    with pytest.raises(UnsupportedError):
        InterpretedGraph(sardonyx.load(proto))


def test_the_work_of_a_sample_is_measured_unless_it_is_much() -> None:
    runs, many = SampleRuns(network(), ["y"]), SampleRuns(network(), ["y"], most_work=1e6)
    for one in (runs, many):
        assert len(list(one.run(SAMPLES[:2]))) == (1 if one is runs else 2)
    assert 1e6 < runs.sample_work < 1e7 and many.sample_work == float("inf")


def test_a_number_of_runs_decides_between_the_engines() -> None:
    switches = InterpretedSwitches(*state_of(network()))
    assert switches.is_suited(SAMPLES, 4) and not switches.is_suited(SAMPLES, 100_000)
