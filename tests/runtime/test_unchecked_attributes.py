"""Sessions and `check` treat unknown attributes as onnx's checker and ONNX Runtime do."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import pytest
from onnx import helper

from sardonyx import Session, check
from sardonyx.errors import InvalidModelError
from sardonyx.model.contributed_attributes import CONTRIBUTED_ATTRIBUTES
from sardonyx.model.unchecked_attributes import UNCHECKED
from sardonyx.ops.registry import all_operators, load

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def normalization(opset: int, **attributes: float) -> onnx.ModelProto:
    node = helper.make_node("LayerNormalization", ["x", "scale"], ["y"], **attributes)
    info = helper.make_tensor_value_info
    inputs = [info("x", 1, [2, 4]), info("scale", 1, [4])]
    graph = helper.make_graph([node], "net", inputs, [info("y", 1, [2, 4])])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])


@pytest.mark.parametrize("opset", [12, 17])
def test_an_attribute_that_engines_ignore_is_a_warning(opset: int, caplog: pytest.LogCaptureFixture) -> None:
    feeds = {"x": X, "scale": np.ones(4, np.float32)}
    with caplog.at_level(logging.WARNING, "sardonyx"):
        (actual,) = Session(normalization(opset, epsion=0.5), compile="off").run(None, feeds)
    assert "LayerNormalization has no attribute 'epsion'" in caplog.text
    (expected,) = Session(normalization(opset), compile="off").run(None, feeds)
    assert np.array_equal(actual, expected)
    findings = check(normalization(opset, epsion=0.5))
    assert [(entry.code, entry.severity) for entry in findings if "epsion" in entry.reason] == [
        ("attribute-ignored", "warning")
    ]


def test_other_operators_refuse_unknown_attributes() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> n (float[2] x) => (float[2] y) { y = Relu <epsion = 0.5> (x) }'
    )
    with pytest.raises(InvalidModelError, match="Relu has no attribute 'epsion'"):
        Session(model, compile="off")
    assert "attribute-unknown" in [entry.code for entry in check(model)]


def test_onnx_ignores_unknown_attributes_of_the_listed_operators_only() -> None:
    """onnx has a switch per schema that Python cannot read: its checker answers for each operator."""
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = 10, {"": 23}
    ignoring = set()
    for schema in onnx.defs.get_all_schemas():
        if schema.domain or schema.deprecated:
            continue
        node = helper.make_node(schema.name, ["x"] * schema.min_input, ["y"] * schema.min_output, unknown_name=1)
        try:
            onnx.checker.check_node(node, context)
        except onnx.checker.ValidationError as error:
            if "Unrecognized attribute" in str(error):
                continue
            assert "No Op registered" in str(error) or "required attribute" in str(error).lower(), error
            continue
        ignoring.add(schema.name)
    assert ignoring == set(UNCHECKED) - {"SimplifiedLayerNormalization"}


@pytest.mark.parametrize("op_type", sorted(CONTRIBUTED_ATTRIBUTES))
def test_check_refuses_an_unknown_attribute_of_a_contributed_operator_as_sessions_do(op_type: str) -> None:
    value = helper.make_tensor_value_info("x", 1, [2, 4])
    node = helper.make_node(op_type, ["x"], ["y"], domain="com.microsoft", bogus=1)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "net", [value], [helper.make_tensor_value_info("y", 1, [2, 4])])
    model = helper.make_model(graph, ir_version=8, opset_imports=imports)
    findings = [(entry.code, entry.severity) for entry in check(model) if "bogus" in entry.reason]
    assert findings == [("attribute-unknown", "error")]
    definition = next(entry for entry in all_operators() if (entry.domain, entry.name) == ("com.microsoft", op_type))
    with pytest.raises(InvalidModelError, match="bogus"):
        definition.check_attributes({"bogus": 1})


def test_the_table_of_attributes_is_current() -> None:
    load()
    known: dict[str, set[str]] = {}
    for entry in all_operators():
        if entry.domain == "com.microsoft" and not entry.is_user_defined:
            known.setdefault(entry.name, set()).update(entry.attributes)
    assert {name: set(words.split()) for name, words in CONTRIBUTED_ATTRIBUTES.items()} == known, (
        "run python tools/generate.py"
    )
