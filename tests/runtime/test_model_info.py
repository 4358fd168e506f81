"""What a session says of its model: metadata, and inputs that need not be fed."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, parser

from sardonyx import Session


def scaled() -> onnx.ModelProto:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        scaled (float[2] x, float[2] by = {2, 3}) => (float[2] y) { y = Mul(x, by) }"""
    )
    model.producer_name, model.model_version, model.domain = "tests", 7, "org.example"
    model.graph.doc_string = "scales"
    helper.set_model_props(model, {"author": "somebody"})
    return model


def test_a_session_says_what_its_model_says_of_itself() -> None:
    said = Session(scaled(), compile="off").metadata
    assert (said.graph_name, said.graph_description, said.producer_name) == ("scaled", "scales", "tests")
    assert (said.version, said.domain, said.description) == (7, "org.example", "")
    assert said.custom == {"author": "somebody"}


def test_an_input_with_a_value_need_not_be_fed_and_may_be() -> None:
    session = Session(scaled(), compile="off")
    assert [item.name for item in session.get_inputs()] == ["x"]
    assert [(item.name, item.shape) for item in session.get_overridable_initializers()] == [("by", [2])]
    x = np.array([1, 1], np.float32)
    assert session.run(None, {"x": x})[0].tolist() == [2, 3]
    assert session.run(None, {"x": x, "by": np.array([5, 6], np.float32)})[0].tolist() == [5, 6]


def test_metadata_follows_a_reload() -> None:
    session = Session(scaled(), compile="off")
    other = scaled()
    other.model_version = 8
    session.reload(other)
    assert session.metadata.version == 8
