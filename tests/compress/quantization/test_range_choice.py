"""Ranges have the least measured error, and single tensors have others where that gains more than chance."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx.compress.quantization.placement import find_placement
from sardonyx.compress.quantization.range_choice import choose_ranges
from sardonyx.compress.quantization.scheme import Affine
from sardonyx.compress.quantization.sensitivity import Probe
from sardonyx.rewrite.analysis.inference import infer_shapes

RNG = np.random.default_rng(0)
SAMPLES = [{"x": RNG.standard_normal((16, 8)).astype(np.float32)} for _ in range(6)]


def chain(last: str = "") -> ir.Model:
    """Return two products with a Relu between, and perhaps a last operator."""
    weights = {f"w{n}": RNG.standard_normal((8, 8)).astype(np.float32) for n in (1, 2)}
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["m" if last else "y"], "second"),
    ]
    if last:
        nodes.append(helper.make_node(last, ["m"], ["y"]))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [16, 8]) for name in "xy"]
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    loaded = sardonyx.load(model.SerializeToString())
    infer_shapes(loaded)
    return loaded


def maps(x: float, r: float) -> dict[str, Affine]:
    return {"x": Affine.of(-x, x), "r": Affine.of(0.0, r)}


def probe_of(model: ir.Model) -> Probe:
    weights = {site.label: site.weight for site in find_placement(model).sites}
    return Probe(model, maps(1, 1), weights)


@pytest.mark.parametrize("most_runs", [0, 1000])
def test_the_best_method_is_chosen_and_single_tensors_differ_if_runs_permit(most_runs: int) -> None:
    probe = probe_of(chain())
    references = probe.references(SAMPLES)
    largest = max(float(np.abs(sample["x"]).max()) for sample in SAMPLES)
    candidates = {"wide": maps(largest, 200.0), "clipped": maps(largest / 8, 12.0), "mixed": maps(largest, 100.0)}
    choice = choose_ranges(probe, SAMPLES, references, candidates, most_runs)
    assert choice.method == "mixed"
    assert choice.methods["x"] in ("wide", "mixed")
    assert (choice.methods["r"] == "clipped") == (most_runs > 0)
    assert choice.after > choice.before if most_runs else choice.after == choice.before
    again = float(probe.noise(SAMPLES, references, probe.nodes).max())
    assert choice.after == pytest.approx(-10 * np.log10(again))


def test_noise_of_probabilities_is_measured_ahead_of_the_softmax() -> None:
    plain, softmax = (probe_of(chain(last)) for last in ("", "Softmax"))
    for sample in SAMPLES[:2]:
        assert np.abs(softmax.run(sample, ())[0].sum(1) - 1).max() > 0.1
        assert softmax.run(sample, ())[0].shape == plain.run(sample, ())[0].shape
