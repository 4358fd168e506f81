"""The form of a file is detected from its content."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper

from sardonyx.model.text import sniff


@pytest.mark.parametrize(
    ("head", "form"),
    [
        ("<\n   ir_version: 8\n>", "onnx-text"),
        ("#@ defaults raw\n<", "onnx-text"),
        ("# comment\n\n  agraph (float x) =>", "onnx-text"),
        ('"my graph" (', "onnx-text"),
        ("ir_version: 8\ngraph {", "textproto"),
        ("# comment\ngraph {", "textproto"),
        ("graph <", "textproto"),
        ("\ufeff\r\n ir_version : 8", "textproto"),
        ('name: "caffe"\nlayer {', "textproto"),
        ("", "binary"),
        ("PK\x03\x04", "binary"),
    ],
)
def test_form_is_detected_from_the_first_characters(head: str, form: str) -> None:
    assert sniff(head) == form
    assert sniff(head.encode()) == form


def test_truncated_last_character_is_ignored() -> None:
    assert sniff("g (float é".encode()[:-1]) == "onnx-text"
    assert sniff(b"\xff\xfeg") == "binary"


@pytest.mark.parametrize("first", ["ir_version", "producer_name", "graph", "opset_import", "metadata_props", "domain"])
def test_binary_model_is_detected_with_any_first_field(first: str) -> None:
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [], [])
    model = helper.make_model(graph, producer_name="p", domain="some.domain")
    model.metadata_props.add(key="k", value="v")
    part, rest = onnx.ModelProto(), onnx.ModelProto()
    for field, value in model.ListFields():
        target = part if field.name == first else rest
        if hasattr(value, "MergeFrom"):
            getattr(target, field.name).MergeFrom(value)
        else:
            setattr(target, field.name, value)
    assert sniff(part.SerializeToString() + rest.SerializeToString()) == "binary"
