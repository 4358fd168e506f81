"""Protobuf text: losses of ``text_format`` are preserved, slow fields are exact, errors are translated."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto

from sardonyx.errors import TextFormatError
from sardonyx.model import textproto


def tensor_model(**fields: object) -> ModelProto:
    model = ModelProto(ir_version=8)
    model.graph.initializer.append(TensorProto(name="w", **fields))
    return model


def test_unknown_fields_survive_and_other_readers_skip_them() -> None:
    model = tensor_model(raw_data=b"x")
    model.graph.initializer[0].MergeFromString(bytes.fromhex("f8073a"))
    printed = textproto.print_model(model)
    assert '#@ wire graph.initializer[0]: "+Ac6"' in printed
    assert textproto.parse(printed).SerializeToString() == model.SerializeToString()
    assert text_format.Parse(printed, ModelProto()).graph.initializer[0].raw_data == b"x"


def test_payload_and_sign_of_nans_survive() -> None:
    model = tensor_model()
    model.graph.initializer[0].MergeFromString(b"\x22\x08" + bytes.fromhex("010080ff0000c0ff"))
    assert textproto.parse(textproto.print_model(model)).SerializeToString() == model.SerializeToString()


@given(st.binary(min_size=200, max_size=2000))
def test_long_bytes_are_exact(data: bytes) -> None:
    model = tensor_model(raw_data=data)
    assert textproto.parse(textproto.print_model(model)) == model
    assert textproto.parse(text_format.MessageToString(model)) == model


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("float_data", np.geomspace(1e-40, 1e38, 500, dtype=np.float32).tolist()),
        ("float_data", [float("inf"), -0.0, float("nan")] * 100),
        ("double_data", np.geomspace(1e-300, 1e300, 500).tolist()),
        ("int32_data", list(range(-250, 250))),
        ("int64_data", [2**63 - 1, -(2**63)] * 50),
        ("uint64_data", [2**64 - 1, 0] * 50),
    ],
)
def test_long_lists_are_exact(field: str, values: list[float], short: bool) -> None:
    model = tensor_model(**{field: values})
    expected = model.SerializeToString()
    assert textproto.parse(textproto.print_model(model)).SerializeToString() == expected
    theirs = text_format.MessageToString(model, use_short_repeated_primitives=short)
    assert textproto.parse(theirs).SerializeToString() == expected


LIKE_TEXT_FORMAT = {
    "values apart": "graph { initializer { float_data: [1, 2] dims: 2 float_data: 3 float_data: [4] } }",
    "octal and hexadecimal": "graph { initializer { int32_data: [017, 0x1F, 9] int64_data: -0x2 } }",
    "float suffix": "graph { initializer { float_data: [1f, 2.5F, inf, -infinity, nan] } }",
    "adjacent strings": "graph { initializer { raw_data: '" + "a" * 300 + "' \"" + "b" * 300 + '" } }',
    "hexadecimal escapes": 'graph { initializer { raw_data: "' + "\\x1\\xff\\xFFa\\101\\7" * 60 + '" } }',
    "escaped backslashes": 'graph { initializer { raw_data: "' + "\\\\u\\\\N\\\\x\\'" * 60 + '" } }',
    "data in a string": "doc_string: 'raw_data: \"" + "a" * 300 + "\"' graph { name: '#' } # float_data: [1, 2]",
    "angle brackets": "graph < initializer < float_data: [1, 2]; dims: 2, > >",
}


@pytest.mark.parametrize("source", LIKE_TEXT_FORMAT.values(), ids=LIKE_TEXT_FORMAT.keys())
def test_reads_what_text_format_reads(source: str) -> None:
    assert textproto.parse(source).SerializeToString() == text_format.Parse(source, ModelProto()).SerializeToString()


WRONG = {
    "another framework": ('name: "net"\nlayer { }', "1:1", 'no field named "name"'),
    "unclosed string": ('graph {\n  name: "abc', "2:9", "missing ending quote"),
    "long integer": ("ir_version: " + "9" * 100_000, "1:13", "parse integer"),
    "out of range": ("ir_version: 99999999999999999999", "1:13", "out of range"),
    "bulk out of range": ("graph { initializer { int32_data: [1, 3000000000] } }", "1:23", "is not between"),
    "deep": ("graph { node { attribute { g {" * 10_000, "1:720", "nested too deeply"),
    "data in a node": ('graph { node { raw_data: "' + "a" * 300 + '" } }', "1:16", 'no field named "raw_data"'),
    "data twice": ('graph { initializer { raw_data: "' + 'a" raw_data: "' * 2 + '" } }', "1:47", "multiple"),
    "long data twice": (
        "graph { initializer { " + ('raw_data: "' + "a" * 300 + '"\n') * 2 + "} }",
        "2:11",
        "multiple",
    ),
    "wire to nowhere": ('ir_version: 8\n#@ wire graph.node[3]: "+Ac6"', "2:1", "cannot restore"),
    "surrogate": ('doc_string: "\ud800"', "1:14", "surrogate"),
}


@pytest.mark.parametrize(("source", "position", "problem"), WRONG.values(), ids=WRONG.keys())
def test_error_names_position(source: str, position: str, problem: str) -> None:
    with pytest.raises(TextFormatError, match=problem) as caught:
        textproto.parse(source, source="m.textproto")
    assert caught.value.where == f"m.textproto:{position}"
    assert len(str(caught.value)) < 500


def test_string_that_is_not_utf8_is_refused_by_path() -> None:
    model = ModelProto()
    model.graph.node.add().MergeFromString(b"\x1a\x02\xff\xfe")
    with pytest.raises(TextFormatError, match="expected a UTF-8 string") as caught:
        textproto.print_model(model)
    assert caught.value.where == "graph.node[0].name"
