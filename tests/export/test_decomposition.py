"""Operators that a converter lacks are written by their definitions, and the answers stay."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper, parser

import sardonyx
from sardonyx.export.artifact import Refusal
from sardonyx.export.decomposition import converted, notes_of
from sardonyx.export.targets import missing_packages, target_of
from sardonyx.rewrite.evaluate import evaluate

NODES = {
    "Mish": "y = Mish(x)",
    "RMSNormalization": "y = RMSNormalization(x, s)",
    "CumSum": "y = CumSum(x, one)",
    "Hardmax": "y = Hardmax(x)",
    "GroupNormalization": "y = GroupNormalization<num_groups: int = 1>(x, s, s)",
}


def model_of(node: str) -> ir.Model:
    constants = "<float[4] s = {1.0, 2.0, 3.0, 4.0}, int64 one = {1}>"
    graph = parser.parse_graph(f"agraph (float[N,4] x) => (float[N,4] y) {constants} {{ {node} }}")
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    return sardonyx.load(proto)


def lacking(*names: str):  # type: ignore[no-untyped-def]
    """Return a converter that refuses operators, and names those that it meets."""

    def convert(model: ir.Model) -> tuple[ir.Model, list[Refusal], frozenset[str]]:
        met = frozenset(node.op_type for node in model.graph if node.op_type in names)
        return model, [Refusal("node", name, f"no form for {name}") for name in sorted(met)], met

    return convert


@pytest.mark.parametrize("operator", NODES)
def test_a_lacking_operator_is_written_by_its_definition(operator: str) -> None:
    model = model_of(NODES[operator])
    whole, result, refused, replaced = converted(model, lacking(operator))
    assert not refused and replaced == [operator] and whole is result
    assert operator not in {node.op_type for node in result.graph}
    assert notes_of(replaced) == [f"written by their definitions, because the engine lacks them: {operator}"]
    feeds = {"x": np.linspace(-2, 3, 12, dtype=np.float32).reshape(3, 4)}
    ours, expected = (evaluate(sardonyx.to_proto(one), feeds)["y"] for one in (result, model))
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_refusals_name_the_operators_of_the_model_as_given() -> None:
    model = model_of("a = Mish(x) b = Exp(a) y = Abs(b)")
    whole, _, refused, replaced = converted(model, lacking("Mish", "Exp", "Log"))
    assert whole is model and not replaced
    assert [one.operator for one in refused] == ["Exp", "Mish"]


def test_mnn_runs_operators_that_its_converter_lacks() -> None:
    if missing := missing_packages(target_of("mnn")):
        pytest.skip(f"needs {', '.join(missing)} (sardonyx[mnn])")
    report = sardonyx.convert_to(model_of(NODES["Mish"]), "mnn").report
    assert report.verdict.status == "proved", report.verdict
    assert list(report.notes) == notes_of(["Mish"])


def test_mnn_holds_tensors_of_a_few_types_alone() -> None:
    if missing := missing_packages(target_of("mnn")):
        pytest.skip(f"needs {', '.join(missing)} (sardonyx[mnn])")
    graph = parser.parse_graph("agraph (uint32[N] x) => (uint32[N] y) { y = Add(x, x) }")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (first, second) = sardonyx.check(model, target="mnn")
    assert "no tensors of uint32" in first.reason and second.where.tensor == "y"
