"""Random graphs for housekeeping: dead nodes, unused and duplicate weights, equal computations, constants."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from sardonyx import model as model_io
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.rewrite_context import Settings
from tests.rewrite.fuzz import GraphMaker, generator, run_many
from tests.rewrite.rules.body_maker import BodyMaker, choose, condition


@generator("extract_constant_to_initializer")
def constants(g: GraphMaker) -> None:
    forms = {
        "value": g.pick([np.array([], np.float32), np.array(True), np.array([1, 2], np.int8), np.array(-0.0)]),
        "value_int": g.int(-3, 3),
        "value_ints": [g.int(-3, 3) for _ in range(g.int(1, 3))],
        "value_float": -0.0,
        "value_floats": [0.5, float("nan")],
        "value_string": "word",
        "value_strings": ["one", "", "é"],
    }
    for form in {g.pick(list(forms)) for _ in range(3)}:
        arguments = forms[form]
        y = g.node("Constant", **{form: onnx.numpy_helper.from_array(arguments) if form == "value" else arguments})
        match g.pick(["output", "read", "both", "unread"]):
            case "output":
                g.output(y)
            case "read":
                g.output(g.node("Identity", g.node("Unsqueeze", y, g.ints(0))))
            case "both":
                g.output(y, g.node("Shape", y))
            case _:
                pass
    _read_in_body(g)


def _read_in_body(g: GraphMaker) -> None:
    """Some graphs have a body with constants of its own."""
    x = g.input((2, 3), dynamic=False)
    if g.chance(0.6):
        g.output(g.node("Relu", x))
        return
    branches = [BodyMaker(g, [x]) for _ in range(2)]
    for body in branches:
        value = onnx.numpy_helper.from_array(g.array((3,), special=False))
        own = body.node("Constant", value=value)
        body.output(own if g.chance(0.3) else body.node("Add", x, own))
    g.output(*choose(g, condition(g), branches))


@generator("eliminate_deadend")
def unread(g: GraphMaker) -> None:
    x = g.input(g.shape())
    y = g.node("Relu", x)
    dead = g.node(g.pick(["Neg", "Abs"]), g.node("Add", y, g.weight(())))
    if g.chance(0.3):
        g.node("Identity", dead)
    parts = g.node("Split", g.weight((4,)), g.ints(2, 2), n_outputs=2)
    g.output(y if g.chance() else g.node("Neg", y))
    if g.chance():
        g.output(parts[g.int(0, 1)])
    if g.chance(0.3):
        g.loose(g.array((3,)))
    if g.chance(0.2):
        g.output(g.loose(g.array((2,))))
    if g.chance(0.3):
        body = [BodyMaker(g, [y], depth=1) for _ in range(2)]
        for item in body:
            item.some(2, 4)
            item.output(item.pool[0 if g.chance(0.3) else -1])
        g.output(*choose(g, condition(g), body))


@generator("eliminate_duplicate_initializer")
def duplicates(g: GraphMaker) -> None:
    x = g.input((2,), dynamic=False)
    quiet, payload = np.array([0x7FC00000, 0], np.uint32), np.array([0x7FC00001, 0x80000000], np.uint32)
    twins = g.pick(
        [
            [np.zeros(2, np.float32), -np.zeros(2, np.float32)],
            [quiet.view(np.float32), payload.view(np.float32)],
            [np.ones(2, np.float32), np.ones(2, np.int32), np.ones((1, 2), np.float32), np.ones(2, np.float16)],
            [np.zeros(0, np.float32), np.zeros((0, 2), np.float32)],
            [np.array(["a", "b"], object), np.array(["a", "b"], object), np.array(["ab", ""], object)],
            [np.array([True, False]), np.array([1, 0], np.uint8)],
            [np.arange(40, dtype=np.float32), np.arange(40, dtype=np.float32)],
        ]
    )
    for _ in range(g.int(2, 5)):
        array = g.pick(twins)
        if array.dtype == np.float32 and array.size and g.chance(0.15):
            value = g.overridable(array)
        else:
            value = g.loose(array)
        if g.chance(0.2):
            g.output(value)
        g.output(g.node("Identity", g.node("Reshape", value, g.ints(-1))))
    g.output(g.node("Relu", x))


@generator("eliminate_common_subexpression")
def equal_computations(g: GraphMaker) -> None:
    shape = g.shape(rank=2, zero=0)
    x, z = g.input(shape, dynamic=False), g.input(shape, dynamic=False)
    created: list[str] = []
    for _ in range(g.int(2, 4)):
        match g.pick(["unary", "binary", "axis", "drop", "topk", "norm", "cast"]):
            case "unary":
                created.append(g.node(g.pick(["Relu", "Neg"]), g.pick([x, z, *created])))
            case "binary":
                operands = [x, z] if g.chance() else [z, x]
                created.append(g.node(g.pick(["Add", "Sub", "Max"]), *operands))
            case "axis":
                created.append(g.node("Softmax", x, axis=g.pick([None, 0, 1, -1])))
            case "drop":
                outputs = g.node("Dropout", x, n_outputs=g.pick([1, 2]))
                created.append(outputs if isinstance(outputs, str) else outputs[0])
                if not isinstance(outputs, str) and g.chance():
                    g.output(outputs[1])
            case "topk":
                values, indices = g.node("TopK", x, g.ints(1), n_outputs=2, largest=g.maybe(0))
                g.output(values if g.chance() else indices)
            case "norm":
                created.append(g.node("LeakyRelu", x, alpha=g.pick([0.01, None, 0.010000001, 0.5])))
            case _:
                created.append(g.node("Cast", g.node("Cast", x, to=g.pick([1, 11])), to=1))
    for value in created:
        g.output(value if g.chance() else g.node("Abs", value))
    if created and g.chance(0.4):
        branches = [BodyMaker(g, [x, z, *created]) for _ in range(2)]
        for body in branches:
            body.some(1, 3)
            body.pool.append(body.node(g.pick(["Relu", "Neg"]), x))
            body.output(body.pool[-1])
        g.output(*choose(g, condition(g), branches))


@generator("eliminate_initializer_from_inputs")
def listed(g: GraphMaker) -> None:
    """Every weight is an input as well, by an exporter's habit, and fed with the default."""
    g.producer = "pytorch"
    x = g.input(g.shape(rank=2, zero=0), dynamic=False)
    y = x
    for _ in range(g.int(1, 3)):
        array = g.array((1,), special=False)
        value = g.overridable(array)
        g.feed(value, array)
        y = g.node(g.pick(["Add", "Mul", "Sub"]), y, value)
    g.output(y)


LABELS = [
    "extract_constant_to_initializer",
    "eliminate_deadend",
    "eliminate_duplicate_initializer",
    "eliminate_common_subexpression",
    "eliminate_initializer_from_inputs",
]


@pytest.mark.parametrize("label", LABELS)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 200)


def _transformed(text: str, *passes: str) -> tuple[Engine, onnx.ModelProto]:
    model = model_io.from_proto(onnx.parser.parse_model(text))
    engine = pipeline.transform(model, pipeline.select(passes=passes or None), Settings())
    return engine, model_io.to_proto(model)


@pytest.mark.parametrize(
    "node",
    [
        "RandomUniform <shape = [2]> ()",
        "RandomNormalLike (x)",
        "Bernoulli (x)",
        "Dropout (x, ratio, yes)",
        "acme.Twice (x)",
    ],
)
def test_draws_and_unknown_operators_are_not_shared(node: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17, "acme": 1]> g (float[2] x) => (float[2] y)
    <float ratio = {{0.5}}, bool yes = {{1}}> {{ a = {node}  b = {node}  y = Add (a, b) }}"""
    _, result = _transformed(text, "eliminate_common_subexpression", "eliminate_deadend")
    assert len(result.graph.node) == 3


def test_weights_that_nothing_reads_go_and_inputs_stay() -> None:
    _, result = _transformed(
        """<ir_version: 8, opset_import: ["": 17]> g (float[2] x, float[2] w) => (float[2] y, float[2] u)
        <float[2] w = {1, 2}, float[2] v = {1, 2}, float[2] u = {3, 4}> { y = Relu (x) }""",
        "eliminate_unused_initializer",
    )
    assert [value.name for value in result.graph.initializer] == ["w", "u"]


def test_equal_weights_of_a_graph_become_one_in_one_patch() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2] x, bool c) => (float[2] y)
        <float[2] u = {1, 2}, float[2] v = {1, 2}, float[2] w = {1, 2}, float[2] kept = {1, 2}> {
        a = Add (x, u)  b = Mul (a, v)  d = Sub (b, kept)
        y = If (c) <then_branch = t () => (float[2] p) { p = Add (d, w) },
                    else_branch = e () => (float[2] q) <float[2] own = {1, 2}> { q = Mul (d, own) }>
    }"""
    model = model_io.from_proto(onnx.parser.parse_model(text))
    selection = pipeline.select(passes=["eliminate_duplicate_initializer"])
    engine = pipeline.transform(model, selection, Settings(protected=frozenset({"kept"})))
    result = model_io.to_proto(model).graph
    assert [weight.name for weight in result.initializer] == ["u", "kept"]
    assert [node.input[1] for node in result.node[:3]] == ["u", "u", "kept"]
    branches = {attribute.name: attribute.g for attribute in result.node[3].attribute}
    assert [branch.node[0].input[1] for branch in branches.values()] == ["u", "u"]
    assert not any(branch.initializer for branch in branches.values())
    assert len(engine.applied) == 2, "one for the graph, one for the branch that has a weight"


def test_equal_nodes_of_sibling_branches_stay_in_their_branches() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <then_branch = t () => (float[2] p) { p = Relu (x) },
                    else_branch = e () => (float[2] q) { r = Relu (x)  q = Neg (r) }>
    }"""
    engine, _ = _transformed(text, "eliminate_common_subexpression")
    assert not engine.applied


def test_a_default_that_callers_may_override_is_no_constant() -> None:
    proto = helper.make_model(
        helper.make_graph(
            [helper.make_node("Add", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "v"], ["y"])],
            "g",
            [helper.make_tensor_value_info(n, 1, [2]) for n in ("x", "w")],
            [helper.make_tensor_value_info("y", 1, [2])],
            [onnx.numpy_helper.from_array(np.zeros(2, np.float32), n) for n in ("w", "v")],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    model = model_io.from_proto(proto)
    pipeline.transform(model, pipeline.select(), Settings())
    result = model_io.to_proto(model)
    assert [i.name for i in result.graph.input] == ["x", "w"]
    assert [n.input[1] for n in result.graph.node] == ["w"]
