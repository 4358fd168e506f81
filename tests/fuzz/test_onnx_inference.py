"""No attribute value of any operator ends a process in onnx's inference, which `check` calls."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper

from sardonyx import check
from tests.fuzz.hostile_cases import declared_model
from tests.fuzz.hostile_nodes import draw_node, sources
from tests.fuzz.native_fuzzer import StorePosition, Tally, fuzz, limit_time
from tests.ops.generators.draw import Draw

FUNCTION = """
<ir_version: 8, opset_import: ["": 17, "l": 1]>
g (float[2, 3] x, int64[2, 1] i) => (y) { y = l.F <axes = -2> (x, i) }
<opset_import: ["": 17], domain: "l">
F <axes> (x, i) => (y) { y = GatherND <batch_dims: int = @axes> (x, i) }
"""

DEADLY = (
    "g (float[2, 3] x, int64[2, 1] i) => (y) { y = GatherND <batch_dims = -3> (x, i) }",
    "g (float[2, 3] x, float[3] s) => (y, a, b) { y, a, b = LayerNormalization <axis = 2147483648> (x, s) }",
    "g (float[2, 4] x) => (y, z) { y, z = Split <axis = 1, num_outputs = 1> (x) }",
    'g (float[3] x) => (y) { y = Einsum <equation = "L2"> (x) }',
)


FOUND = (("STFT-17", 7155),)
"""Nodes at which onnx's inference raised an exception of C++."""


UNTYPED = ("DictVectorizer", "EyeLike", "LabelEncoder", "RegexFullMatch", "TreeEnsemble")
"""Operators whose inference in onnx's C++ code reads the type of an operand that has none."""


def check_label(label: str, seed: int, runs: int, store_position: StorePosition) -> Tally:
    """Check nodes of one operator; see :data:`.native_fuzzer.RunVariant`."""
    tally = Tally()
    limit_time(10)
    for number in range(runs):
        store_position(number, tally.runs)
        draw = Draw(f"attributes {label} {runs * seed + number}")
        try:
            model, _, _ = declared_model(draw, draw_node(draw, sources()[label]))
        except (TypeError, ValueError, OverflowError):
            continue  # onnx cannot write this attribute.
        check(model)
        tally.runs += 1
    limit_time(0, 0)
    return tally


def check_untyped(label: str, seed: int, runs: int, store_position: StorePosition) -> Tally:
    """Check nodes whose operands have no type, or are left out; see :data:`.native_fuzzer.RunVariant`."""
    tally = Tally()
    limit_time(10)
    for number in range(runs):
        store_position(number, tally.runs)
        draw = Draw(f"untyped {label} {runs * seed + number}")
        try:
            model = declared_model(draw, draw_node(draw, sources()[label]))[0]
        except (TypeError, ValueError, OverflowError):
            continue  # onnx cannot write this attribute.
        (node,) = model.graph.node
        for index, name in enumerate(node.input):
            if name and draw.chance(0.6):
                node.input[index] = result = draw.pick("", f"{name}_untyped", f"{name}_untyped")
                if result:
                    model.graph.node.insert(0, helper.make_node("Gelu", [name], [result], domain="com.microsoft"))
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        check(model)
        tally.runs += 1
    limit_time(0, 0)
    return tally


@pytest.mark.parametrize("graph", DEADLY)
def test_values_that_end_the_process_are_reported(graph: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {graph}')
    assert "attribute-range" in [item.code for item in check(model)]


def test_values_from_callers_of_functions_are_reported() -> None:
    assert "attribute-range" in [item.code for item in check(onnx.parser.parse_model(FUNCTION))]


@pytest.mark.parametrize(("label", "seed"), FOUND)
def test_exceptions_of_the_inference_are_findings(label: str, seed: int) -> None:
    draw = Draw(f"attributes {label} {seed}")
    model, _, _ = declared_model(draw, draw_node(draw, sources()[label]))
    assert any(item.severity == "error" for item in check(model))


def test_hostile_attributes_do_not_end_the_process() -> None:
    names = list(sources())
    tally = fuzz(names, len(names), 70, 2, run_variant=check_label)
    assert tally.runs >= len(names)
    assert [str(finding) for finding in tally.findings] == []


def test_operands_without_types_do_not_end_the_process() -> None:
    names = [name for name, source in sources().items() if source.name in UNTYPED]
    tally = fuzz(names, 10 * len(names), 72, 10, run_variant=check_untyped)
    assert [str(finding) for finding in tally.findings] == []


@pytest.mark.long
def test_operands_without_types_do_not_end_the_process_at_length() -> None:
    names = list(sources())
    tally = fuzz(names, 20 * len(names), 73, 20, run_variant=check_untyped)
    assert [str(finding) for finding in tally.findings] == []


def test_operators_of_typed_operands_are_inferred() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 20]> g (float[2, 2, 2] x) => (float[a, b] y)
        { u = Relu (x)  v = EyeLike <dtype = 1> (u)  y = Relu (v) }"""
    )
    reasons = [item.reason for item in check(model) if item.code == "inference"]
    assert any("2-dimensional" in reason for reason in reasons)


@pytest.mark.long
def test_hostile_attributes_do_not_end_the_process_at_length() -> None:
    names = list(sources())
    tally = fuzz(names, 100 * len(names), 71, 100, run_variant=check_label)
    assert [str(finding) for finding in tally.findings] == []
