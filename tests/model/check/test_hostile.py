"""Each hostile model gives a finding, quickly, and none ends the process."""

from __future__ import annotations

import contextlib
import random
from importlib import resources

import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, parser
from tests.random_cases import cases

from sardonyx.errors import SardonyxError
from sardonyx.model.check import check
from sardonyx.model.check.digraph import strongly_connected


def errors(model: onnx.ModelProto | ir.Model) -> set[str]:
    return {item.code for item in check(model) if item.severity == "error"}


def nested_model(depth: int) -> ir.Model:
    node = ir.Node("", "Constant", [], [ir.AttrFloat32("value_float", 1.0)], num_outputs=1)
    graph = ir.Graph([], [node.outputs[0]], nodes=[node], name="innermost")
    for level in range(depth):
        condition = ir.Node("", "Constant", [], [ir.AttrInt64("value_int", 1)], num_outputs=1)
        node = ir.Node("", "If", [condition.outputs[0]], [ir.AttrGraph("then_branch", graph)], num_outputs=1)
        graph = ir.Graph([], [node.outputs[0]], nodes=[condition, node], name=f"level{level}")
    graph.opset_imports[""] = 21
    return ir.Model(graph, ir_version=10)


def test_bodies_nested_5000_deep_are_reported() -> None:
    assert errors(nested_model(5000)) == {"nesting-too-deep"}


def test_types_nested_5000_deep_are_reported() -> None:
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) { y = Relu (x) }'
    )
    kind = model.graph.input[0].type
    for _ in range(5000):
        kind = kind.sequence_type.elem_type
    kind.tensor_type.elem_type = onnx.TensorProto.FLOAT
    assert "nesting-too-deep" in errors(model)


def test_cycle_through_a_body_is_reported() -> None:
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]> g (float[2] x, bool c) => (float[2] y) {
            y = If (c) <then_branch = t () => (float[2] p) { p = Relu (z) },
                        else_branch = e () => (float[2] q) { q = Abs (x) }>
            z = Neg (y) }"""
    )
    assert errors(model) == {"graph-cycle"}


def test_recursion_through_a_body_of_a_function_is_reported() -> None:
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21, "l" : 1]> g (float[2] x, bool c) => (float[2] y) { y = l.F (x, c) }
        <domain: "l", opset_import: ["" : 21, "l" : 1]> F (x, c) => (y) {
            y = If (c) <then_branch = t () => (float[2] p) { p = l.G (x, c) },
                        else_branch = e () => (float[2] q) { q = Abs (x) }> }
        <domain: "l", opset_import: ["" : 21, "l" : 1]> G (x, c) => (y) { y = l.F (x, c) }"""
    )
    (finding,) = [item for item in check(model) if item.code == "function-recursive"]
    assert "l::F, l::G" in finding.reason


def test_long_unsorted_graph_is_reported() -> None:
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(20000)]
    ends = [helper.make_tensor_value_info(name, 1, [2]) for name in ("v0", "v20000")]
    graph = helper.make_graph([*nodes[1:], nodes[0]], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    assert errors(model) >= {"graph-unsorted"}


def test_empty_message_is_reported() -> None:
    assert "ir-version" in errors(onnx.ModelProto())


edges = st.integers(1, 9).flatmap(
    lambda count: st.tuples(st.just(count), st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))))
)


@given(edges)
def test_strongly_connected_components_are_classes_of_mutual_reachability(
    case: tuple[int, set[tuple[int, int]]],
) -> None:
    count, pairs = case
    reach = [[i == j or (i, j) in pairs for j in range(count)] for i in range(count)]
    for k in range(count):
        for i in range(count):
            for j in range(count):
                reach[i][j] |= reach[i][k] and reach[k][j]
    classes = {frozenset(j for j in range(count) if reach[i][j] and reach[j][i]) for i in range(count)}
    parts = strongly_connected([{j for i, j in pairs if i == vertex} for vertex in range(count)])
    assert sorted(map(sorted, parts)) == sorted(map(sorted, classes))
    position = {vertex: index for index, part in enumerate(parts) for vertex in part}
    assert all(position[j] <= position[i] for i, j in pairs)


@settings(deadline=None, max_examples=cases(50))
@given(st.permutations(range(8)), st.booleans())
def test_cycles_are_distinguished_from_unsorted_nodes(order: list[int], cycle: bool) -> None:
    nodes = [helper.make_node("Add", [f"v{i}", "x"], [f"v{i + 1}"]) for i in range(8)]
    if cycle:
        nodes[0].input[1] = "v8"
    ends = [helper.make_tensor_value_info(name, 1, [2]) for name in ("v0", "x", "v8")]
    graph = helper.make_graph([nodes[i] for i in order], "g", ends[:2], ends[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    expected = "graph-cycle" if cycle else "graph-unsorted" if order != sorted(order) else None
    assert errors(model) & {"graph-cycle", "graph-unsorted"} == ({expected} - {None})


def check_mutants(count: int) -> None:
    original = (resources.files("sardonyx.demo") / "digits_detector.onnx").read_bytes()
    draw = random.Random(0)
    for _ in range(count):
        content = bytearray(original)
        if draw.random() < 0.2:
            del content[draw.randrange(len(content)) :]
        for _ in range(draw.choice([1, 1, 2, 8])):
            if content:
                content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        with contextlib.suppress(SardonyxError):
            check(bytes(content), lint=True, target="onnxruntime")


def test_flipped_bits_and_truncation_give_findings_or_a_named_error() -> None:
    check_mutants(50)


@pytest.mark.long
def test_many_flipped_bits_and_truncations() -> None:
    check_mutants(10_000)
