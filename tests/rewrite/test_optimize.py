"""``optimize`` as a whole, with correct and with incorrect rules."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import sardonyx
from sardonyx.errors import InvalidModelError, OptionError
from sardonyx.rewrite.language import EXACT, REGISTRY, Op, Result, Rewrite, Rule, V
from sardonyx.rewrite.site import Site
from tests.rewrite.models import BOOL, info, model, node


@pytest.fixture
def registry() -> Iterator[None]:
    """Remove the rules registered by a test afterwards."""
    before = {name: list(rules) for name, rules in REGISTRY.items()}
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


def chain(*ops: str, shape: tuple[int | str, ...] = ("n", 4)) -> onnx.ModelProto:
    names = ["x", *(f"t{i}" for i in range(1, len(ops))), "y"]
    nodes = [
        node(op, [a], [b], name=f"{op}{i}") for i, (op, a, b) in enumerate(zip(ops, names, names[1:], strict=False))
    ]
    return model(nodes, [info("x", shape)], [info("y", shape)])


def operators(result: sardonyx.Optimized) -> list[str]:
    return [n.op_type for n in result.model.graph]


def only(rule: Rule, proto: onnx.ModelProto, *more: Rule) -> sardonyx.Optimized:
    return sardonyx.optimize(proto, passes=[], rules=[rule, *more])


def swap(old: str, new: str, *, name: str = "", exactness: object = EXACT) -> Rule:
    """Return a rule that replaces one operator by another."""

    @sardonyx.rule(name or f"{old}_to_{new}", on=old, exactness=exactness)  # type: ignore[arg-type]
    def swapped(s: Site) -> Result:
        "Another operator."
        return Op((new,))(s.input(0))

    return swapped


# -- wrong rules -------------------------------------------------------------------------------


@pytest.mark.usefixtures("registry")
def test_a_wrong_patch_among_many_is_dropped_and_reported() -> None:
    @sardonyx.rule("drop_identity", on="Identity", exactness=EXACT)
    def right(s: Site) -> Result:
        "Identity is its operand."
        return s.input(0)

    wrong = swap("Sin", "Cos")
    proto = chain("Identity", "Tanh", "Identity", "Sin", "Identity", "Neg", "Identity", "Tanh")
    result = only(right, proto, wrong)
    assert result.report.verdict.status == "proved"
    assert [(d.rule, d.site) for d in result.report.dropped] == [("Sin_to_Cos/swapped", "t4")]
    assert "differs" in result.report.dropped[0].reason
    assert operators(result) == ["Tanh", "Sin", "Neg", "Tanh"]


@pytest.mark.usefixtures("registry")
def test_two_wrong_rules_are_both_found() -> None:
    result = only(swap("Sin", "Cos"), chain("Sin", "Tanh", "Exp", "Tanh"), swap("Exp", "Abs"))
    assert {d.rule for d in result.report.dropped} == {"Sin_to_Cos/swapped", "Exp_to_Abs/swapped"}
    assert operators(result) == ["Sin", "Tanh", "Exp", "Tanh"]
    assert result.report.verdict.status == "proved"


@pytest.mark.usefixtures("registry")
def test_a_wrong_rule_is_dropped_only_where_it_is_wrong() -> None:
    """Abs after Relu is an identity, after Neg it is not."""

    @sardonyx.rule("drop_abs", on="Abs", exactness=EXACT)
    def careless(s: Site) -> Result:
        "Abs is taken for its operand."
        return s.input(0)

    result = only(careless, chain("Relu", "Abs", "Neg", "Abs", "Tanh"))
    assert operators(result) == ["Relu", "Neg", "Abs", "Tanh"]
    assert len(result.report.dropped) == 1


@pytest.mark.usefixtures("registry")
def test_a_rule_with_rounding_errors_is_not_exact() -> None:
    @sardonyx.rule("reassociated", exactness=EXACT)
    def claimed(x: V, a: V, b: V) -> Rewrite:
        "Not the same bits."
        return Op(("Div",))(Op(("Div",))(x, a), b) >> Op(("Div",))(x, Op(("Mul",))(a, b))

    nodes = [node("Div", ["x", "a"], ["t"]), node("Div", ["t", "b"], ["y"])]
    weights = {"a": np.float32(1.1), "b": np.float32(0.7)}
    proto = model(nodes, [info("x", ["n", 99])], [info("y", ["n", 99])], weights)
    (dropped,) = only(claimed, proto).report.dropped
    assert dropped.rule == "reassociated/claimed" and "differs" in dropped.reason


@pytest.mark.usefixtures("registry")
def test_a_rule_wrong_at_size_one_alone_is_found() -> None:
    @sardonyx.rule("squeeze_all", on="Squeeze", exactness=EXACT)
    def careless(s: Site) -> Result:
        "Squeeze of every axis of one element, as if the others never were."
        return Op(("Squeeze",))(s.input(0)) if s.input(1) is not None else None

    proto = model(
        [node("Squeeze", ["x", "axes"], ["t"]), node("Tanh", ["t"], ["y"])],
        [info("x", ["n", 1, 3])],
        [info("y", ["n", 3])],
        {"axes": np.array([1])},
    )
    result = only(careless, proto)
    assert [d.rule for d in result.report.dropped] == ["squeeze_all/careless"]


# -- rules that fail ---------------------------------------------------------------------------


@pytest.mark.usefixtures("registry")
def test_a_rule_that_raises_is_reported_and_others_continue() -> None:
    @sardonyx.rule("breaks", on="Tanh", exactness=EXACT)
    def breaks(s: Site) -> Result:
        "Raises."
        raise KeyError("no such thing")

    @sardonyx.rule("drop_identity", on="Identity", exactness=EXACT)
    def right(s: Site) -> Result:
        "Identity is its operand."
        return s.input(0)

    result = only(breaks, chain("Identity", "Tanh"), right)
    assert operators(result) == ["Tanh"]
    (dropped,) = result.report.dropped
    assert dropped.rule == "breaks" and dropped.site == "y"
    assert "KeyError" in dropped.reason and "breaks" in dropped.reason


@pytest.mark.usefixtures("registry")
def test_a_result_that_cannot_be_inserted_is_dropped() -> None:
    @sardonyx.rule("nonsense", on="Tanh", exactness=EXACT)
    def nonsense(s: Site) -> Result:
        "An operand that is none."
        return Op(("Neg",))(object())  # type: ignore[arg-type]

    result = only(nonsense, chain("Tanh", "Neg"))
    assert operators(result) == ["Tanh", "Neg"]
    assert [d.rule for d in result.report.dropped] == ["nonsense"]


@pytest.mark.usefixtures("registry")
def test_rules_that_undo_each_other_are_switched_off() -> None:
    there, back = swap("Relu", "Elu", name="there"), swap("Elu", "Relu", name="back")
    result = only(there, chain("Relu", "Tanh"), back)
    assert {d.rule for d in result.report.dropped} == {"there/swapped", "back/swapped"}
    assert operators(result) == ["Relu", "Tanh"]
    assert result.report.verdict.status == "proved"


# -- what stays --------------------------------------------------------------------------------


def test_the_declared_interface_is_unchanged() -> None:
    nodes = [node("Identity", ["b"], ["p"]), node("Add", ["a", "p"], ["q"]), node("Identity", ["q"], ["r"])]
    proto = model(nodes, [info("b", ["n", None]), info("a", [2, 3])], [info("r", [None, None]), info("p", [2, "k"])])
    result = sardonyx.optimize(proto)
    assert result.proto.graph.input == proto.graph.input
    assert [o.name for o in result.proto.graph.output] == ["r", "p"]
    assert list(result.proto.graph.output) == list(proto.graph.output)


def test_an_output_without_a_shape_gets_the_inferred_one(tmp_path: Path) -> None:
    original = chain("Neg", "Neg", "Relu")
    original.graph.output[0].type.tensor_type.ClearField("shape")
    result = sardonyx.optimize(original)
    assert result.report.verdict.status == "proved"
    result.save(tmp_path / "result.onnx")
    sizes = onnx.load(tmp_path / "result.onnx").graph.output[0].type.tensor_type.shape.dim
    assert [size.dim_param or size.dim_value for size in sizes] == ["n", 4]


def test_the_original_is_unchanged() -> None:
    proto = chain("Identity", "Tanh")
    before = proto.SerializeToString(deterministic=True)
    loaded = sardonyx.load(proto)
    for source in (proto, loaded):
        assert operators(sardonyx.optimize(source)) == ["Tanh"]
    assert proto.SerializeToString(deterministic=True) == before
    assert [n.op_type for n in loaded.graph] == ["Identity", "Tanh"]


def test_an_overridable_weight_stays_an_input() -> None:
    proto = model(
        [node("Add", ["x", "bias"], ["t"]), node("Mul", ["t", "k"], ["y"])],
        [info("x", [3]), info("bias", [3])],
        [info("y", [3])],
        {"bias": np.zeros(3, np.float32), "k": np.full(3, 2, np.float32)},
    )
    result = sardonyx.optimize(proto)
    assert [v.name for v in result.model.graph.inputs] == ["x", "bias"]
    assert result.report.verdict.status == "proved"


@pytest.mark.parametrize("options", [{"freeze_defaults": True}, {"passes": ["freeze_initializers"]}])
@pytest.mark.parametrize("also_listed", [[], ["k"]], ids=["some weights listed", "all weights listed"])
@pytest.mark.parametrize("version", [3, 8])
def test_an_overridable_weight_is_frozen_on_request(
    options: dict[str, Any], also_listed: list[str], version: int
) -> None:
    proto = model(
        [node("Neg", ["bias"], ["n"]), node("Add", ["x", "n"], ["t"]), node("Mul", ["t", "k"], ["y"])],
        [info(name, [3]) for name in ["x", "bias", *also_listed]],
        [info("y", [3])],
        {"bias": np.ones(3, np.float32), "k": np.full(3, 2, np.float32)},
    )
    proto.ir_version = version
    result = sardonyx.optimize(proto, **options)
    weights = {value.name for value in result.model.graph.initializers.values()}
    assert [v.name for v in result.model.graph.inputs if v.name not in weights] == ["x"]
    assert version == 3 or [v.name for v in result.model.graph.inputs] == ["x"]
    assert result.report.verdict.status == "proved"
    assert result.report.gate.startswith("frozen defaults")
    assert ("Neg" in operators(result)) == ("passes" in options)


@pytest.mark.parametrize(("producer", "inputs"), [("", ["x", "bias"]), ("pytorch", ["x"]), ("OnnxMLTools", ["x"])])
def test_weights_all_listed_as_inputs_are_constants_for_known_exporters_only(producer: str, inputs: list[str]) -> None:
    proto = model(
        [node("Add", ["x", "bias"], ["y"])],
        [info("x", [3]), info("bias", [3])],
        [info("y", [3])],
        {"bias": np.zeros(3, np.float32)},
    )
    proto.producer_name = producer
    result = sardonyx.optimize(proto)
    assert [v.name for v in result.model.graph.inputs] == inputs
    assert (operators(result) == ["Add"]) == (not producer)


def test_before_ir_version_4_weights_listed_as_inputs_are_constants() -> None:
    proto = model(
        [node("Add", ["x", "bias"], ["y"])],
        [info("x", [3]), info("bias", [3])],
        [info("y", [3])],
        {"bias": np.ones(3, np.float32)},
        opset=7,
        ir_version=3,
    )
    result = sardonyx.optimize(proto)
    assert [v.name for v in result.model.graph.inputs] == ["x"]
    assert result.model.ir_version == 4
    assert result.report.verdict.status == "proved"


@pytest.mark.parametrize("ir_version", [3, 8])
def test_weights_listed_as_inputs_are_constants_at_a_newer_opset_too(ir_version: int) -> None:
    proto = model(
        [node("Mul", ["x", "k"], ["t"]), node("Mul", ["t", "k"], ["u"]), node("Squeeze", ["u"], ["y"], axes=[0])],
        [info("x", [1, 3]), info("k", [])],
        [info("y", [3])],
        {"k": np.array(2, np.float32)},
        opset=8,
        ir_version=ir_version,
    )
    proto.producer_name = "pytorch"
    own, newer = sardonyx.optimize(proto), sardonyx.optimize(proto, opset=20)
    assert [v.name for v in newer.model.graph.inputs] == ["x"]
    assert newer.report.after.operators == own.report.after.operators == {"Mul": 1, "Squeeze": 1}
    assert newer.report.verdict.status == "proved"
    listed = sardonyx.optimize(proto, opset=20, skip=["eliminate_initializer_from_inputs"])
    assert len(listed.model.graph.inputs) == (1 if ir_version < 4 else 2)


@pytest.mark.long
def test_a_newer_opset_never_leaves_more_nodes(suites: Path) -> None:
    for path in sorted((suites / "real").glob("*.onnx")):
        own = sardonyx.optimize(path, verify=False)
        version = own.model.opset_imports[""]
        for opset in (20, 23, 25):
            nodes = sardonyx.optimize(path, opset=opset, verify=False).report.after.nodes
            assert opset < version or nodes <= own.report.after.nodes, (path.name, opset)


def test_unknown_inputs_are_an_error() -> None:
    with pytest.raises(OptionError, match="z"):
        sardonyx.optimize(chain("Tanh"), inputs={"z": np.ones((1, 4), np.float32)})


def test_inputs_of_another_type_are_an_error_that_names_the_expected_type() -> None:
    model = chain("Tanh")
    name = model.graph.input[0].name
    with pytest.raises(OptionError, match=r"Convert the array to float32\."):
        sardonyx.optimize(model, inputs={name: np.ones((1, 4), np.float64)})


def test_a_model_around_a_custom_operator_is_optimized_and_proved_by_parts() -> None:
    nodes = [
        node("Identity", ["x"], ["a"]),
        node("Sharpen", ["a"], ["b"], domain="vendor", name="sharpen"),
        node("Identity", ["b"], ["c"]),
        node("Tanh", ["c"], ["y"]),
    ]
    proto = model(nodes, [info("x", ["n", 4])], [info("y", ["n", 4])], domains=["vendor"])
    result = sardonyx.optimize(proto)
    assert operators(result) == ["Sharpen", "Tanh"]
    assert result.report.verdict.status == "proved by parts"


def test_declared_sizes_of_a_custom_operator_decide_nothing() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18, "vendor": 1]>
        g (float[2, 3] x) => (float[2, 3] y, int64[2] n)
        <int64[2] shape = {2, 3}, float[2, 3] z> {
            z = vendor.Sharpen (x)
            y = Reshape (z, shape)
            n = Shape (z)
        }
    """)
    result = sardonyx.optimize(proto, verify=False)
    assert operators(result) == ["Sharpen", "Reshape", "Shape"]
    assert [value.name for value in result.proto.graph.value_info] == ["z"]
    assert [dim.dim_value for dim in result.proto.graph.value_info[0].type.tensor_type.shape.dim] == [2, 3]


def test_without_verification_no_proof_is_claimed() -> None:
    assert sardonyx.optimize(chain("Tanh"), verify=False).report.verdict.status == "not proved"


# -- hostile -----------------------------------------------------------------------------------


def nested(depth: int) -> onnx.ModelProto:
    proto = model([], [info("x", [2]), info("c", [], BOOL)], [info("y", [2])])
    graph = proto.graph
    for level in range(depth):
        inner = graph.node.add(op_type="If", input=["c"], output=["y" if level == 0 else f"o{level}"])
        if level:
            graph.output.add().CopyFrom(info(f"o{level}", [2]))
        graph = inner.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g
    return proto


def calling(*calls: tuple[str, list[str]]) -> onnx.ModelProto:
    functions = []
    for name, callees in calls:
        names = ["x", *(f"t{i}" for i in range(1, len(callees))), "y"]
        body = [node(c, [a], [b], domain="f") for c, a, b in zip(callees, names, names[1:], strict=False)]
        functions.append(helper.make_function("f", name, ["x"], ["y"], body, [helper.make_opsetid("f", 1)]))
    return model(
        [node(calls[0][0], ["x"], ["y"], domain="f")],
        [info("x", [2])],
        [info("y", [2])],
        functions=functions,
        domains=["f"],
    )


@pytest.mark.parametrize(
    ("proto", "location"),
    [
        (
            model([node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"])], [info("x", [2])], [info("b", [2])]),
            "Add",
        ),
        (model([node("Add", ["x", "nobody"], ["y"])], [info("x", [2])], [info("y", [2])]), "nobody"),
        (calling(("F", ["F"])), "f::F"),
        (calling(("F", ["G"]), ("G", ["F"])), "f::F"),
        (calling(*[(f"F{i}", [f"F{i + 1}"] * 2) for i in range(40)], ("F40", [])), "f::F"),
        (nested(5000), "If"),
        (model([node("Conv", ["x"], ["y"], name="c")], [info("x", [2])], [info("y", [2])]), "'c' (Conv)"),
        (model([node("Neg", ["x"], ["y"])], [info("x", [2])], [info("y", [2], 120)]), "'y'"),
    ],
    ids=["cycle", "undefined", "recursive", "mutually recursive", "exploding", "deep", "inputs", "element type"],
)
def test_a_hostile_model_is_an_error_that_names_the_location(proto: onnx.ModelProto, location: str) -> None:
    with pytest.raises(InvalidModelError) as caught:
        sardonyx.optimize(proto)
    assert location in caught.value.where


def test_a_constant_of_terabytes_is_not_folded() -> None:
    nodes = [
        node("ConstantOfShape", ["s"], ["c"]),
        node("Relu", ["c"], ["r"]),
        node("ReduceMax", ["r"], ["m"], keepdims=0),
        node("Add", ["x", "m"], ["y"]),
    ]
    proto = model(nodes, [info("x", [2])], [info("y", [2])], {"s": np.array([1 << 20, 1 << 20])})
    result = sardonyx.optimize(proto)
    assert result.report.verdict.status == "not proved"
    assert sum(v.const_value.nbytes for v in result.model.graph.initializers.values() if v.const_value) < 1000


# -- public models -----------------------------------------------------------------------------

QUICK = ("basic_pitch", "gtcrn_simple", "magika_v3_3", "silero_vad", "voicevox_sing_consonant", "yunet_n_dynamic")

DIGESTS = """
import hashlib, sys, sardonyx
for path in sys.argv[1:]:
    result = sardonyx.optimize(path, verify=False)
    steps = repr([(a.rule, a.site, a.removed, a.added) for a in result.report.applied])
    print(hashlib.sha256(steps.encode() + result.proto.SerializeToString()).hexdigest())
"""


def digests(paths: list[Path], seed: str) -> list[str]:
    environment = dict(os.environ, PYTHONHASHSEED=seed, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    command = [sys.executable, "-c", DIGESTS, *map(str, paths)]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()


def test_patches_and_bytes_are_the_same_in_every_process(suites: Path) -> None:
    paths = [suites / "real" / f"{name}.onnx" for name in QUICK]
    first = digests(paths, "1")
    assert len(first) == len(QUICK) and first == digests(paths, "2")


@pytest.mark.parametrize("name", QUICK)
def test_a_second_run_changes_nothing(suites: Path, tmp_path: Path, name: str) -> None:
    once, twice = tmp_path / "once.onnx", tmp_path / "twice.onnx"
    sardonyx.optimize(suites / "real" / f"{name}.onnx", verify=False).save(once)
    again = sardonyx.optimize(once, verify=False)
    again.save(twice)
    assert again.report.applied == []
    assert once.read_bytes() == twice.read_bytes()


@pytest.mark.long
def test_every_public_model_is_proved_and_at_a_fixed_point(suites: Path, tmp_path: Path) -> None:
    for path in sorted((suites / "real").glob("*.onnx")):
        once, twice = tmp_path / "once.onnx", tmp_path / "twice.onnx"
        result = sardonyx.optimize(path)
        assert result.report.verdict.status == "proved", (path.name, result.report.verdict)
        assert result.report.dropped == [], path.name
        result.save(once)
        again = sardonyx.optimize(once, verify=False)
        again.save(twice)
        assert again.report.applied == [], path.name
        assert once.read_bytes() == twice.read_bytes(), path.name


@pytest.mark.parametrize("name", ["silero_vad", "yunet_n_dynamic"])
def test_a_public_model_is_proved_with_drawn_inputs(suites: Path, name: str) -> None:
    verdict = sardonyx.optimize(suites / "real" / f"{name}.onnx").report.verdict
    assert verdict.status == "proved" and verdict.samples >= 3
    assert len({tuple(sorted(sizes.items())) for sizes in verdict.sizes}) > 1
