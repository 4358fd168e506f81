"""Random model-local functions: attributes passed, referred to and defaulted, calls in bodies and functions."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper

from sardonyx import model as model_io
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.rewrite_context import Settings
from tests.rewrite.fuzz import GraphMaker, generator, run_many
from tests.rewrite.rules.body_maker import BodyMaker, choose, condition

DOMAIN = "local"


def add_function(g: GraphMaker, name: str, nodes: list[onnx.NodeProto], outputs: list[str], **defaults: float) -> str:
    imports = [helper.make_opsetid("", g.opset), helper.make_opsetid(DOMAIN, 1)]
    attributes = ["slope"] if "slope" not in defaults else []
    g.functions.append(
        helper.make_function(
            DOMAIN,
            name,
            ["a", "b"],
            outputs,
            nodes,
            imports,
            attributes,
            [helper.make_attribute(key, value) for key, value in defaults.items()],
        )
    )
    return name


def random_function(g: GraphMaker, name: str, callee: str | None = None) -> str:
    nodes = [helper.make_node("LeakyRelu", ["a"], ["t0"])]
    if g.chance(0.6):
        reference = onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
        nodes[0].attribute.append(reference)
    values = ["a", "b", "t0"]
    for index in range(1, g.int(1, 3)):
        op = g.pick(["Relu", "Neg", "Add", "Mul"])
        inputs = [g.pick(values) for _ in range(1 if op in ("Relu", "Neg") else 2)]
        values.append(f"t{index}")
        nodes.append(helper.make_node(op, inputs, [values[-1]]))
    if callee is not None and g.chance():
        call = helper.make_node(callee, [g.pick(values), "b"], ["called"], domain=DOMAIN)
        call.attribute.append(
            onnx.AttributeProto(name="slope", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
            if g.chance()
            else helper.make_attribute("slope", 0.25)
        )
        nodes.append(call)
        values.append("called")
    defaults = {"slope": 0.5} if g.chance() else {}
    return add_function(g, name, nodes, [values[-1] if g.chance(0.8) else "t0"], **defaults)


@generator(
    "inline_functions",
    "inline_small_functions",
)
def calls(g: GraphMaker) -> None:
    g.domains[DOMAIN] = 1
    shape = g.shape(g.int(1, 2), zero=0)
    x, y = g.input(shape, dynamic=False), g.input(shape, dynamic=False)
    names = [random_function(g, "first")]
    names.append(random_function(g, "second", names[0]))
    value = x
    for _ in range(g.int(1, 3)):
        value = g.node(g.pick(names), value, g.pick([x, y]), domain=DOMAIN, slope=g.maybe(0.125))
    if g.chance(0.3):
        branches = [BodyMaker(g, [x, y]) for _ in range(2)]
        for branch in branches:
            branch.output(branch.node(names[0], x, y, domain=DOMAIN, slope=0.3))
        value = g.node("Add", value, choose(g, condition(g), branches)[0])
    g.output(g.node("Reshape", value, g.ints(-1)))


@generator("eliminate_duplicate_function")
def twins(g: GraphMaker) -> None:
    g.domains[DOMAIN] = 1
    x = g.input(g.shape(2, zero=0), dynamic=False)
    op = g.pick(["Relu", "Neg"])
    for name in ("first", "second"):
        nodes = [
            helper.make_node(op, ["a"], ["t0"]),
            helper.make_node("Mul" if g.chance(0.9) else "Add", ["t0", "b"], ["t1"]),
            helper.make_node("Abs", ["t1"], [f"{name}_out"]),
        ]
        add_function(g, name, nodes, [f"{name}_out"])
    value = x
    for name in ("first", "second", "second", "first"):
        value = g.node(name, value, x, domain=DOMAIN)
    g.output(g.node("Reshape", value, g.ints(-1)))


LABELS = ["eliminate_duplicate_function", "inline_functions", "inline_small_functions"]


@pytest.mark.parametrize("label", LABELS)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 80)


def _transformed(text: str, *passes: str) -> onnx.ModelProto:
    model = model_io.from_proto(onnx.parser.parse_model(text))
    pipeline.transform(model, pipeline.select(passes=passes or None), Settings())
    return model_io.to_proto(model)


UNUSED = """<ir_version: 8, opset_import: ["": 17, "local": 1, "elsewhere": 3]>
    g (float[2] x) => (float[2] y) { y = Relu (x) }
    <domain: "local", opset_import: ["": 17, "local": 1]> outer (a) => (b) { b = local.inner (a) }
    <domain: "local", opset_import: ["": 17]> inner (a) => (b) { b = Sin (a) }"""


def test_unused_functions_and_imports_go() -> None:
    result = _transformed(UNUSED)
    assert not result.functions
    assert [entry.domain for entry in result.opset_import] == [""]


def test_functions_go_only_where_the_pass_is_named() -> None:
    result = _transformed(UNUSED, "eliminate_identity")
    assert len(result.functions) == 2
    assert len(result.opset_import) == 3


def test_function_written_for_another_operator_set_stays() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "local": 1]>
        g (float[2, 3] x) => (float[2, 3] y) { y = local.f (x) }
        <domain: "local", opset_import: ["": 11]> f (a) => (b) { b = Softmax (a) }"""
    result = _transformed(text, "inline_functions")
    assert [node.op_type for node in result.graph.node] == ["f"]
    result = _transformed(text.replace("Softmax", "Abs"), "inline_functions")
    assert [node.op_type for node in result.graph.node] == ["f"]
    result = _transformed(text.replace("Softmax", "Sin"), "inline_functions")
    assert [node.op_type for node in result.graph.node] == ["Sin"]
