"""Portable results stay loadable: where ONNX Runtime loads the original, it loads the result."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import parser

from sardonyx import model as model_io
from sardonyx.model.check.targets import find_target
from sardonyx.rewrite import rules
from sardonyx.rewrite.analysis import inference
from sardonyx.rewrite.analysis.loadable import describe_types, unloadable_nodes
from sardonyx.rewrite.language import EXACT, REASSOCIATES, REGISTRY, Patch, Result, Rewrite, V, rule
from sardonyx.rewrite.notation import Relu, Softplus
from sardonyx.rewrite.optimize import optimize
from sardonyx.rewrite.site import Site
from tests.rewrite.case_files import files, read, rewrite

assert rules.__name__  # importing the package registers every rule

NEWEST = find_target("onnxruntime")
assert NEWEST is not None
needs_same_runtime = pytest.mark.skipif(
    not onnxruntime.__version__.startswith(f"{NEWEST.version}."),
    reason=f"the newest table is of onnxruntime {NEWEST.version}, installed is {onnxruntime.__version__}",
)


@pytest.fixture(autouse=True)
def _no_rules_left() -> Iterator[None]:
    known = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(known)


FILL = """<ir_version: 9, opset_import: ["" : 18]>
g (int64[2] shape, float[3] x) => (bfloat16[N, M] y, float[3] z) {
    z = Neg (x)
    f = ConstantOfShape <value: tensor = float[1] {2.5}> (shape)
    i = Identity (f)
    y = Cast <to: int = 16> (i)
}"""


def refusal(proto: onnx.ModelProto) -> str:
    """Return the error of ONNX Runtime's processor provider at load; empty if the model loads."""
    onnxruntime.set_default_logger_severity(4)
    try:
        onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception as error:  # the binding raises a dozen unrelated classes
        return str(error)
    return ""


def typed(text: str) -> onnx.ModelProto:
    return parser.parse_model(text)


def unloadable(proto: onnx.ModelProto) -> list[str]:
    model = model_io.from_proto(proto)
    inference.infer_shapes(model, strict=False)
    return [describe_types(node) for node in unloadable_nodes(model, "onnxruntime")]


@pytest.mark.parametrize("target", ["portable", "onnxruntime"])
def test_a_fill_of_bfloat16_stays_a_cast(target: str) -> None:
    """ONNX Runtime has Expand of float, and none of bfloat16."""
    assert refusal(typed(FILL)) == ""
    result = optimize(typed(FILL), target=target)
    assert result.report.after.operators == {"ConstantOfShape": 1, "Cast": 1, "Neg": 1}
    assert refusal(result.proto) == ""
    (dropped,) = result.report.dropped
    assert dropped.reason == "onnxruntime loads the original, and no Expand of bfloat16, int64"
    assert result.report.verdict.status == "proved"


def test_another_target_moves_the_cast() -> None:
    assert optimize(typed(FILL), target="native").report.dropped == []


def test_a_model_that_the_engine_does_not_load_is_rewritten_freely() -> None:
    text = FILL.replace("y = Cast <to: int = 16> (i)", "c = Cast <to: int = 16> (i)  y = Mul (c, c)")
    assert refusal(typed(text)) and unloadable(typed(text)) == ["Mul of bfloat16"]
    assert optimize(typed(text)).report.dropped == []


def test_all_sites_of_a_rule_are_dropped_and_others_kept() -> None:
    @rule("fuse_into_softplus", exactness=REASSOCIATES)
    def softplus(x: V) -> Rewrite:
        """Relu as another function, of which ONNX Runtime has no double at this operator set."""
        return Relu(x) >> Softplus(x)

    text = """<ir_version: 9, opset_import: ["" : 19]>
    g (float[4] x, double[4] a, double[4] b) => (float[4] y, double[4] c, double[4] d) {
        y = Relu (x)
        c = Relu (a)
        d = Relu (b)
    }"""
    report = optimize(typed(text), passes=["fuse_into_softplus"], rules=[softplus], verify=False).report
    assert report.after.operators == {"Softplus": 1, "Relu": 2}
    assert {dropped.site for dropped in report.dropped} == {"c", "d"}


def test_a_node_changed_in_place_is_traced_by_bisection() -> None:
    @rule("rewrite_in_place", on="Relu", exactness=EXACT)
    def in_place(s: Site) -> Result:
        """A patch that changes the operator of the node itself, so that the report lists no added node."""

        def edit() -> list[ir.Node]:
            s.node.op_type = "Sigmoid"
            return [s.node]

        return Patch({}, edit=edit) if s.node.op_type == "Relu" else None

    text = """<ir_version: 9, opset_import: ["" : 18]>
    g (int32[4] x) => (int32[4] y) { y = Relu (x) }"""
    report = optimize(typed(text), passes=["rewrite_in_place"], rules=[in_place], verify=False).report
    assert report.after.operators == {"Relu": 1}


@needs_same_runtime
@pytest.mark.parametrize("kind", ["double", "float16", "bfloat16", "int32", "int64", "int8", "uint8"])
def test_the_table_is_onnxruntimes_answer(kind: str) -> None:
    """One node an operator: what the table refuses, the engine refuses, and the reverse."""
    unary = "Abs Ceil Erf Exp Floor Identity LeakyRelu Mish Neg Relu Sigmoid Sign Softplus Softsign Sqrt Tanh Gelu"
    for operator in unary.split():
        proto = typed(
            f'<ir_version: 9, opset_import: ["" : 20]> g ({kind}[2] x) => ({kind}[2] y) {{ y = {operator} (x) }}'
        )
        error = refusal(proto)
        if "Type Error" in error:
            continue  # the operator has no such type in the standard
        assert bool(unloadable(proto)) == bool(error), (operator, error)


@needs_same_runtime
@pytest.mark.parametrize("kind", ["double", "float16", "bfloat16", "int32", "int64", "int8", "uint8"])
def test_rules_keep_their_cases_loadable(kind: str) -> None:
    """The filetests of every rule, with another element type: the table knows what the engine does not load."""
    lost, count = [], 0
    for file in map(read, files()):
        for case in file.cases:
            if case.after in (None, case.before) or case.target == "native":
                continue
            text = re.sub(r"\bfloat\b", kind, case.before)
            if text == case.before:
                continue
            try:
                before, engine, after = rewrite(dataclasses.replace(case, before=text, after=None))
            except Exception:  # the graph is invalid with this type
                continue
            if not engine.applied or refusal(before):
                continue
            count += 1
            if refusal(after) and not unloadable(after):
                lost.append(f"{case.rule}:{case.line}")
    assert count >= 20
    assert set(lost) <= {"legalize_shrink:5"}, "the standard's function of Shrink is invalid for unsigned integers"
