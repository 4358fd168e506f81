"""Law: any ``ModelProto`` that protobuf can hold survives a round trip through either text form bit for bit."""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any

import onnx
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.random_cases import cases

from sardonyx.errors import TextFormatError
from sardonyx.model import text, textproto

_NAMES = [
    "",
    "x",
    "float",
    "seq",
    "inf",
    "b",
    "base64",
    "a b",
    'q"\\',
    "é\n\t",
    "\0",
    "\r\n",
    "a.b",
    "#@ x",
    "u\u2028v",
]
_BYTES = [b"", b"abc", b"\xff\x00\xfe", b'"\\x', "é".encode(), bytes(range(256)), b"12345678"]
_FLOATS = [0.0, -0.0, 1.0, 1e-45, 16777217.0, float("inf"), -float("inf"), float("nan"), -float("nan")]
_TYPES = [0, 1, -1, 5, 7, 8, 10, 14, 16, 17, 22, 26, 99, 2**31 - 1]
_UNKNOWN_FIELD = bytes.fromhex("f8073a")
_SIGNALLING_NAN = b"\x15\x01\x00\xa0\x7f"

_SCALARS = {
    FieldDescriptor.TYPE_STRING: st.sampled_from(_NAMES) | st.text(max_size=5),
    FieldDescriptor.TYPE_BYTES: st.sampled_from(_BYTES) | st.binary(max_size=9),
    FieldDescriptor.TYPE_FLOAT: st.sampled_from([struct.unpack("f", struct.pack("f", value))[0] for value in _FLOATS])
    | st.floats(width=32),
    FieldDescriptor.TYPE_DOUBLE: st.sampled_from(_FLOATS) | st.floats(),
    FieldDescriptor.TYPE_INT64: st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)]),
    FieldDescriptor.TYPE_UINT64: st.sampled_from([0, 1, 2**64 - 1]),
    FieldDescriptor.TYPE_INT32: st.sampled_from(_TYPES),
}


def fill(draw: Any, message: Message, depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        if draw(st.integers(0, 9)) >= max(3, 6 - depth // 2):
            continue
        value = getattr(message, field.name)
        if field.message_type is not None:
            if depth > 7:
                continue
            if hasattr(value, "add"):
                for _ in range(draw(st.integers(0, 2))):
                    fill(draw, value.add(), depth + 1)
            else:
                value.SetInParent()
                fill(draw, value, depth + 1)
            continue
        if field.enum_type is not None:
            scalar = st.sampled_from([entry.number for entry in field.enum_type.values])
        else:
            scalar = _SCALARS[field.type]
        if hasattr(value, "extend"):
            value.extend(draw(st.lists(scalar, max_size=3)))
        else:
            setattr(message, field.name, draw(scalar))
    if draw(st.integers(0, 30)) == 0:
        message.MergeFromString(_UNKNOWN_FIELD)
    if isinstance(message, onnx.AttributeProto) and draw(st.integers(0, 10)) == 0:
        message.MergeFromString(_SIGNALLING_NAN)


@st.composite
def models(draw: Any) -> onnx.ModelProto:
    model = onnx.ModelProto()
    fill(draw, model, 0)
    return model


@st.composite
def parts(draw: Any) -> onnx.ModelProto:
    """Draw a model with one part filled, so that each kind of message occurs at its smallest depth."""
    model = onnx.ModelProto()
    graph = model.graph
    part = draw(
        st.sampled_from(
            [
                lambda: graph.node.add(),
                lambda: graph.node.add().attribute.add(),
                lambda: graph.node.add().attribute.add().t,
                lambda: graph.initializer.add(),
                lambda: graph.input.add(),
                lambda: graph.value_info.add().type,
                lambda: model.functions.add(),
                lambda: model.opset_import.add(),
            ]
        )
    )
    fill(draw, part(), 4)
    return model


@pytest.mark.parametrize("form", [text, textproto], ids=["onnx-text", "textproto"])
@settings(max_examples=cases(120), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(model=models() | parts())
def test_round_trip_preserves_the_message(form: ModuleType, model: onnx.ModelProto) -> None:
    again = form.parse(form.print_model(model))
    assert again.SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)


@pytest.mark.parametrize("form", [text, textproto], ids=["onnx-text", "textproto"])
@settings(max_examples=cases(200), deadline=None, derandomize=True)
@given(
    garbage=st.text() | st.from_regex(r'([<>{}()\[\]=,:@#"\\.?-]|[a-z]{1,5}|float|\d{1,3}| |\n){1,40}', fullmatch=True)
)
def test_garbage_is_parsed_or_refused_by_the_named_error(form: ModuleType, garbage: str) -> None:
    try:
        assert isinstance(form.parse(garbage), onnx.ModelProto)
    except TextFormatError as error:
        assert error.where.startswith("<text>:")
