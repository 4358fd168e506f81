"""The engine: fixed point, numbered patches, names and provenance, bounds, bodies and functions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

import sardonyx
from sardonyx import model as model_io
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.engine.engine import Engine, LimitReached, RulesUndoEachOther
from sardonyx.rewrite.language import EXACT, REGISTRY, Op, Refusal, Result, Rule
from sardonyx.rewrite.rewrite_context import Settings
from sardonyx.rewrite.site import Site
from tests.rewrite.models import BOOL, info, model, node


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Remove the rules registered by a test afterwards."""
    before = {name: list(rules) for name, rules in REGISTRY.items()}
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


def drop(op: str = "Identity", opset: int = 1) -> Rule:
    @sardonyx.rule(f"drop_{op}", on=op, exactness=EXACT, opset=opset)
    def dropped(s: Site) -> Result:
        "The operator is its operand."
        return s.input(0)

    return dropped


def run(proto: onnx.ModelProto, *rules: Rule, **settings: object) -> tuple[ir.Model, Engine]:
    loaded = model_io.from_proto(proto)
    engine = Engine(loaded, Settings(**settings))  # type: ignore[arg-type]
    with contextlib.suppress(LimitReached):
        engine.run(rules)
    return loaded, engine


def chain(*ops: str) -> onnx.ModelProto:
    names = ["x", *(f"t{i}" for i in range(1, len(ops))), "y"]
    nodes = [node(op, [a], [b], name=f"n{i}") for i, (op, a, b) in enumerate(zip(ops, names, names[1:], strict=False))]
    return model(nodes, [info("x", ["n"])], [info("y", ["n"])])


def operators(graph: ir.Graph) -> list[str]:
    return [n.op_type for n in graph]


def test_a_selection_follows_the_registry() -> None:
    before = pipeline.select()
    assert pipeline.select() is before, "it is made once"
    first = drop("Neg")
    assert first not in before.rules
    assert first in pipeline.select().rules
    again = drop("Neg")
    assert first not in pipeline.select().rules
    assert again in pipeline.select().rules
    del REGISTRY["drop_Neg"]
    assert pipeline.select().rules == before.rules


def test_rules_run_to_a_fixed_point() -> None:
    loaded, engine = run(chain("Identity", "Tanh", "Identity", "Identity"), drop())
    assert operators(loaded.graph) == ["Tanh"]
    assert [a.number for a in engine.applied] == [1, 2, 3]


def test_graph_outputs_keep_their_names() -> None:
    proto = chain("Tanh", "Identity")
    proto.graph.output.append(info("t1", ["n"]))
    loaded, _ = run(proto, drop())
    assert [v.name for v in loaded.graph.outputs] == ["y", "t1"]
    onnx.checker.check_model(model_io.to_proto(loaded))


def test_a_limit_stops_after_a_prefix_of_the_patches() -> None:
    proto = chain("Identity", "Tanh", "Identity", "Neg", "Identity")
    _, everything = run(proto, drop())
    loaded, engine = run(proto, drop(), limit=2)
    assert engine.applied == everything.applied[:2]
    assert operators(loaded.graph) == ["Tanh", "Neg", "Identity"]


def test_a_banned_patch_fires_at_other_sites_only() -> None:
    proto = chain("Identity", "Tanh", "Identity")
    loaded, engine = run(proto, drop(), banned=frozenset({("drop_Identity/dropped", "t1")}))
    assert operators(loaded.graph) == ["Identity", "Tanh"]
    assert "disabled" in engine.refused["drop_Identity/dropped", "t1"]


def test_a_rule_that_is_off_does_not_fire() -> None:
    _, engine = run(chain("Identity", "Tanh"), drop(), off=frozenset({"drop_Identity/dropped"}))
    assert engine.applied == []


def test_a_newer_operator_is_refused_with_the_opset_it_needs() -> None:
    _, engine = run(chain("Identity", "Tanh"), drop(opset=23))
    assert engine.refused == {("drop_Identity/dropped", "t1"): "needs opset 23"}


def test_refusals_are_recorded_with_their_reason() -> None:
    @sardonyx.rule("nearly", on="Tanh", exactness=EXACT)
    def nearly(s: Site) -> Result:
        "Never."
        return Refusal("it is Tuesday")

    _, engine = run(chain("Tanh"), nearly)
    assert engine.refused == {("nearly", "y"): "it is Tuesday"}


def test_new_nodes_record_their_origin() -> None:
    @sardonyx.rule("merge", on="Neg", exactness=EXACT)
    def merge(s: Site) -> Result:
        "Neg of Tanh as Tanh of Neg."
        tanh = s.producer(0, "Tanh")
        return None if tanh is None else Op(("Tanh",))(Op(("Sign",))(tanh.inputs[0]))

    loaded, engine = run(chain("Tanh", "Neg"), merge)
    assert {engine.origin[n] for n in loaded.graph} == {("n1", "n0")}
    assert engine.applied[0].removed == ("n1", "n0")
    assert len(engine.applied[0].added) == 2


def test_a_patch_that_adds_more_weights_than_allowed_is_refused() -> None:
    @sardonyx.rule("bulky", on="Tanh", exactness=EXACT)
    def bulky(s: Site) -> Result:
        "A large constant."
        return Op(("Add",))(s.input(0), np.zeros(1000, np.float32))

    loaded, engine = run(chain("Tanh"), bulky, growth=3000)
    assert operators(loaded.graph) == ["Tanh"]
    assert engine.refused["bulky", "y"] == "it would add 4000 bytes of weights"
    assert operators(run(chain("Tanh"), bulky, growth=4000)[0].graph) == ["Add"]


def test_bodies_and_functions_are_rewritten_too() -> None:
    then = helper.make_graph([node("Identity", ["x"], ["a"]), node("Tanh", ["a"], ["b"])], "t", [], [info("b", ["n"])])
    other = helper.make_graph([node("Neg", ["x"], ["e"])], "e", [], [info("e", ["n"])])
    body = [node("Identity", ["p"], ["q"]), node("Abs", ["q"], ["r"])]
    function = helper.make_function("f", "F", ["p"], ["r"], body, [helper.make_opsetid("", 18)])
    nodes = [node("If", ["c"], ["z"], then_branch=then, else_branch=other), node("F", ["z"], ["y"], domain="f")]
    inputs = [info("c", [], BOOL), info("x", ["n"])]
    loaded, _ = run(model(nodes, inputs, [info("y", ["n"])], functions=[function], domains=["f"]), drop())
    assert operators(loaded.graph.node(0).attributes["then_branch"].as_graph()) == ["Tanh"]
    assert [n.op_type for f in loaded.functions.values() for n in f] == ["Abs"]


def test_rules_that_undo_each_other_are_an_error_that_names_them() -> None:
    def swap(old: str, new: str) -> Rule:
        @sardonyx.rule(f"to_{new}", on=old, exactness=EXACT)
        def swapped(s: Site) -> Result:
            "Another operator."
            return Op((new,))(s.input(0))

        return swapped

    with pytest.raises(RulesUndoEachOther, match="to_Elu/swapped, to_Relu/swapped"):
        run(chain("Relu"), swap("Relu", "Elu"), swap("Elu", "Relu"))


def test_shared_values_are_replaced_for_every_reader() -> None:
    nodes = [node("Identity", ["x"], ["a"]), node("Tanh", ["a"], ["b"]), node("Add", ["a", "b"], ["y"])]
    loaded, _ = run(model(nodes, [info("x", ["n"])], [info("y", ["n"])]), drop())
    assert [v.name for n in loaded.graph for v in n.inputs if v] == ["x", "x", "b"]


def test_a_transform_declares_inputs_and_outputs_as_before() -> None:
    proto = chain("Identity", "Tanh")
    loaded = model_io.from_proto(proto)
    pipeline.transform(loaded, pipeline.select(), Settings())
    result = model_io.to_proto(loaded)
    assert (list(result.graph.input), list(result.graph.output)) == (list(proto.graph.input), list(proto.graph.output))
