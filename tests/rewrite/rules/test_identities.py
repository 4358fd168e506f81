"""Random graphs for the rules that remove operators without effect."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, parser

import sardonyx
from tests.rewrite.fuzz import GraphMaker, generator, run_many


@generator("eliminate_identity")
def identities(g: GraphMaker) -> None:
    x = g.input(g.shape())
    y = g.node("Identity", x)
    g.read_again(y)
    g.output(g.node("Identity", g.node("Relu", y)) if g.chance() else y)


@generator("eliminate_identity_of_constant/identity_of_constant")
def constant_outputs(g: GraphMaker) -> None:
    g.output(g.node("Relu", g.input(g.shape())))
    weight = g.weight(g.shape())
    for _ in range(g.int(1, 3)):
        y = g.node("Identity", weight)
        if g.chance(0.3):
            g.output(g.node("Neg", y))
        g.output(y)
    if g.chance(0.3):
        g.output(g.node("Abs", weight))
    if g.chance(0.2):
        g.output(weight)


@generator("eliminate_nop_dropout")
def dropouts(g: GraphMaker) -> None:
    x = g.input(g.shape())
    ratio = g.const(0.5, "float32") if g.chance() else None
    training = g.const(False) if g.chance() else None
    if g.chance(0.3):  # in training, or maybe: what is drawn at random is not compared, so that nothing is dropped
        ratio = g.const(0.0, "float32")
        training = g.const(True) if g.chance() else g.input((), "bool")
    y, mask = g.node("Dropout", x, ratio, training, n_outputs=2)
    if g.chance(0.2):
        g.output(mask)
    g.output(g.node("Relu", y))


@generator("eliminate_nop_cast")
def casts(g: GraphMaker) -> None:
    x = g.input(g.shape(), g.pick(["float32", "int64", "bool"]))
    y = g.node("Cast", x, to=g.pick([1, 1, 7, 9]))
    g.read_again(y)
    g.output(g.node("Identity", y))


@generator("eliminate_nop_transpose", "fuse_consecutive_transposes")
def transposes(g: GraphMaker) -> None:
    x = g.input(g.shape())
    n = g.rank(x)
    y = g.node("Transpose", x, perm=g.maybe(g.permutation(n)))
    g.read_again(y)
    g.output(g.node("Transpose", y, perm=g.maybe(g.permutation(n))))


@pytest.mark.parametrize(
    "label",
    [
        "eliminate_identity",
        "eliminate_identity_of_constant/identity_of_constant",
        "eliminate_nop_dropout",
        "eliminate_nop_cast",
        "eliminate_nop_transpose",
        "fuse_consecutive_transposes",
    ],
)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 200)


@pytest.mark.parametrize("ir_version", [3, 8])
def test_an_output_that_is_a_constant_leaves_no_node(ir_version: int) -> None:
    graph = parser.parse_graph("g (float[2] x, float[2] c) => (float[2] y, float[2] z) { y = Neg(x) z = Abs(c) }")
    graph.initializer.append(onnx.numpy_helper.from_array(np.float32([-1, 2]), "c"))
    if ir_version > 3:
        del graph.input[1]
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 7)], ir_version=ir_version)
    result = sardonyx.optimize(proto)
    assert result.report.verdict.status == "proved"
    written = result.proto
    onnx.checker.check_model(written, full_check=True)
    assert [node.op_type for node in written.graph.node] == ["Neg"]
    session = onnxruntime.InferenceSession(written.SerializeToString())
    assert session.run(["z"], {"x": np.zeros(2, np.float32)})[0].tolist() == [1, 2]
