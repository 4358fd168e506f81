"""Unsorted nodes: sessions and ``optimize`` sort them, and ``check`` reports them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from sardonyx import Session, check, optimize
from sardonyx.errors import InvalidModelError
from sardonyx.model import load
from sardonyx.model.node_order import is_sorted, load_sorted, sort_nodes

CHAIN = """<ir_version: 8, opset_import: ["": 18]>
g (float[2] x) => (float[2] y) { a = Exp (x)  b = Sin (a)  y = Cos (b) }"""

BODY = """<ir_version: 8, opset_import: ["": 18]>
g (float[2] x, bool c) => (float[2] y) {
   y = If (c) <then_branch = t () => (float[2] o) { q = Exp (x)  o = Sin (q) },
               else_branch = e () => (float[2] p) { p = Exp (x) }>
}"""

OUTER = """<ir_version: 8, opset_import: ["": 18]>
g (float[2] x, bool c) => (float[2] y) {
   a = Exp (x)
   y = If (c) <then_branch = t () => (float[2] o) { o = Sin (a) }, else_branch = e () => (float[2] p) { p = Exp (x) }>
}"""

FUNCTION = """<ir_version: 8, opset_import: ["": 18, "local": 1]>
g (float[2] x) => (float[2] y) { y = local.F (x) }
<domain: "local", opset_import: ["": 18]> F (x) => (y) { a = Exp (x)  y = Sin (a) }"""


def reorder(nodes: Sequence[onnx.NodeProto], order: Sequence[int]) -> None:
    copies = [nodes[index] for index in order]
    del nodes[:]  # type: ignore[attr-defined]
    nodes.extend(copies)  # type: ignore[attr-defined]


def unsorted(text: str) -> onnx.ModelProto:
    """Return the model with the nodes reversed: of the function, else of the first body, else of the graph."""
    model = onnx.parser.parse_model(text)
    bodies = [a.g for node in model.graph.node for a in node.attribute if a.HasField("g") and len(a.g.node) > 1]
    nodes = model.functions[0].node if model.functions else bodies[0].node if bodies else model.graph.node
    reorder(nodes, range(len(nodes))[::-1])
    return model


MODELS = {"chain": CHAIN, "body": BODY, "outer": OUTER, "function": FUNCTION}


def feeds_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    feeds: dict[str, np.ndarray] = {"x": np.array([0.5, -1], np.float32)}
    return feeds | ({"c": np.array(True)} if len(model.graph.input) > 1 else {})


@pytest.mark.parametrize("compile", ["off", "wait"])
@pytest.mark.parametrize("name", MODELS)
def test_a_session_sorts_nodes(name: str, compile: str) -> None:
    model = unsorted(MODELS[name])
    feeds = feeds_of(model)
    expected = Session(onnx.parser.parse_model(MODELS[name]), compile="off").run(None, feeds)
    (result,) = Session(model, compile=compile).run(None, feeds)
    np.testing.assert_allclose(result, expected[0], rtol=1e-6)


def test_a_session_leaves_the_order_of_a_passed_model() -> None:
    model = load(unsorted(CHAIN))
    before = [node.op_type for node in model.graph]
    assert Session(model, compile="off").run(None, feeds_of(unsorted(CHAIN)))[0].shape == (2,)
    assert [node.op_type for node in model.graph] == before
    assert load_sorted(model) is not model


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_only_unsorted_nodes_are_moved(order: tuple[int, ...]) -> None:
    proto = onnx.parser.parse_model(CHAIN)
    reorder(proto.graph.node, order)
    model = load(proto)
    assert is_sorted(model) == (order == (0, 1, 2))
    assert sort_nodes(model) == (order != (0, 1, 2))
    assert [node.op_type for node in model.graph] == ["Exp", "Sin", "Cos"]


def test_a_cycle_is_an_error_with_a_remedy() -> None:
    proto = onnx.parser.parse_model(CHAIN)
    proto.graph.node[0].input[0] = "b"
    with pytest.raises(InvalidModelError, match=r"cycle.*sardonyx check"):
        Session(proto, compile="off")


@pytest.mark.parametrize("name", MODELS)
def test_check_reports_unsorted_nodes_with_the_repair(name: str) -> None:
    (finding,) = [finding for finding in check(unsorted(MODELS[name])) if finding.code == "graph-unsorted"]
    assert "sardonyx optimize" in finding.remedy


@pytest.mark.parametrize("name", MODELS)
def test_optimize_writes_sorted_nodes(name: str, tmp_path: Path) -> None:
    path = tmp_path / "sorted.onnx"
    result = optimize(unsorted(MODELS[name]))
    assert "nodes sorted" in result.report.gate
    result.save(path)
    onnx.checker.check_model(path, full_check=True)
    assert result.report.verdict.status.startswith("proved")


def test_an_invalid_result_is_not_written(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(CHAIN)
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 3
    path = tmp_path / "invalid.onnx"
    result = optimize(proto, verify=False)
    with pytest.raises(InvalidModelError, match="violates the standard"):
        result.save(path)
    assert not path.exists()


def test_a_name_that_two_nodes_define_is_an_error_with_a_remedy() -> None:
    proto = onnx.parser.parse_model(CHAIN)
    proto.graph.node[1].output[0] = "a"
    with pytest.raises(InvalidModelError, match=r"already used.*Rename one of them"):
        Session(proto, compile="off")


@pytest.mark.parametrize("name", ["no imports", "dead branch"])
def test_waiting_for_compiled_code_accepts_what_the_default_accepts(name: str) -> None:
    text = {
        "no imports": CHAIN.replace("Sin", "Neg").replace("Cos", "Relu"),
        "dead branch": BODY.replace(
            "(float[2] p) { p = Exp (x) }", "(float[2] p) <float[3] w = {1, 2, 3}> { p = Add (x, w) }"
        ),
    }[name]
    model = onnx.parser.parse_model(text)
    if name == "no imports":
        del model.opset_import[:]
    expected = Session(model, compile="off").run(None, feeds_of(model))
    session = Session(model, compile="wait")
    np.testing.assert_allclose(session.run(None, feeds_of(model))[0], expected[0], rtol=1e-6)
    assert {node.provider for node in session.placement} == {"reference"}


def test_models_share_tensors_with_the_sorted_copy() -> None:
    model = load(unsorted(CHAIN))
    weight = ir.Value(name="w", const_value=ir.tensor(np.ones(2, np.float32), name="w"))
    model.graph.register_initializer(weight)
    assert load_sorted(model).graph.initializers["w"].const_value is weight.const_value
