"""Extraction and insertion of contents in serialized models, compared with protobuf's own parser."""

from __future__ import annotations

import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from sardonyx.errors import ModelFileError
from sardonyx.model import wire
from tests.model.samples import everything

TOKEN = "sardonyx:test"
CONTENT_NAMES = {wire.RAW_DATA: "raw_data", wire.FLOAT_DATA: "float_data", wire.DOUBLE_DATA: "double_data"}


def tensors(*, least: int = 0) -> st.SearchStrategy[onnx.TensorProto]:
    return st.builds(
        onnx.TensorProto,
        name=st.text(max_size=3),
        dims=st.lists(st.integers(0, 300), max_size=3),
        raw_data=st.none() | st.binary(min_size=least, max_size=60),
        float_data=st.lists(st.floats(width=32, allow_nan=False), max_size=20),
        double_data=st.lists(st.floats(allow_nan=False), max_size=10),
        int64_data=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=10),
        string_data=st.lists(st.binary(max_size=30), max_size=2),
    )


def graphs() -> st.SearchStrategy[onnx.GraphProto]:
    sparse = st.builds(onnx.SparseTensorProto, values=tensors(), indices=tensors())

    def around(graph: st.SearchStrategy[onnx.GraphProto]) -> st.SearchStrategy[onnx.GraphProto]:
        attributes = st.builds(
            onnx.AttributeProto,
            t=st.none() | tensors(),
            g=st.none() | graph,
            tensors=st.lists(tensors(), max_size=2),
            graphs=st.lists(graph, max_size=2),
            sparse_tensor=st.none() | sparse,
        )
        nodes = st.builds(
            onnx.NodeProto, input=st.lists(st.text(max_size=3)), attribute=st.lists(attributes, max_size=2)
        )
        return st.builds(
            onnx.GraphProto,
            node=st.lists(nodes, max_size=2),
            initializer=st.lists(tensors(), max_size=3),
            sparse_initializer=st.lists(sparse, max_size=1),
        )

    return st.recursive(st.builds(onnx.GraphProto, initializer=st.lists(tensors(), max_size=2)), around, max_leaves=4)


def models() -> st.SearchStrategy[onnx.ModelProto]:
    return st.builds(onnx.ModelProto, ir_version=st.integers(-(2**63), 2**63 - 1), graph=graphs())


def refill(message: object, serialized: bytes, payloads: list[wire.Payload]) -> None:
    """Restore the contents of every marked tensor in a message with protobuf's own parser."""
    if isinstance(message, onnx.TensorProto):
        if message.external_data and message.external_data[-1].key == TOKEN:
            payload = payloads[int(message.external_data[-1].value)]
            del message.external_data[-1]
            contents = serialized[payload.start : payload.start + payload.length]
            message.MergeFromString(wire.length_field(payload.field, contents))
        return
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        if field.message_type is not None:
            for child in value if hasattr(value, "add") else (value,):
                refill(child, serialized, payloads)


@given(models(), st.integers(1, 40))
def test_skeleton_and_contents_restore_the_model(model: onnx.ModelProto, least: int) -> None:
    serialized = model.SerializeToString()
    skeleton, payloads = wire.extract_payloads(serialized, least, TOKEN)
    read = onnx.ModelProto.FromString(skeleton)
    refill(read, serialized, payloads)
    assert read == model


@given(models(), st.integers(1, 40))
def test_all_contents_in_a_single_field_are_extracted(model: onnx.ModelProto, least: int) -> None:
    skeleton, payloads = wire.extract_payloads(model.SerializeToString(), least, TOKEN)
    for tensor in onnx.ModelProto.FromString(skeleton).graph.initializer:
        held = [name for name in CONTENT_NAMES.values() if len(getattr(tensor, name))]
        if len(held) == 1 and held[0] == "raw_data":
            assert len(tensor.raw_data) < least
    assert all(payload.length >= least for payload in payloads)


@given(models())
def test_markers_are_replaced_by_contents(model: onnx.ModelProto) -> None:
    marker = b"<-marker->"
    contents: list[bytes] = []
    marked = onnx.ModelProto.FromString(model.SerializeToString())
    for tensor in marked.graph.initializer:
        contents.append(tensor.raw_data * 100)
        tensor.raw_data = marker + bytes([len(contents)])
    serialized = marked.SerializeToString()
    markers = []
    at = serialized.find(marker)
    while at >= 0:
        index = serialized[at + len(marker)] - 1
        markers.append((at, len(marker) + 1, wire.Payload(index, len(contents[index]), wire.RAW_DATA)))
        at = serialized.find(marker, at + 1)
    pieces = wire.insert_payloads(serialized, markers)
    joined = b"".join(contents[piece.start] if isinstance(piece, wire.Payload) else piece for piece in pieces)
    for tensor, content in zip(marked.graph.initializer, contents, strict=True):
        tensor.raw_data = content
    assert joined == marked.SerializeToString()


def test_a_repeated_singular_field_is_left_to_protobuf() -> None:
    first = onnx.TensorProto(name="w", dims=[50], data_type=1, raw_data=b"a" * 200).SerializeToString()
    second = onnx.TensorProto(raw_data=b"b" * 100).SerializeToString()
    attribute = wire.length_field(5, first) + wire.length_field(5, second)
    model = wire.length_field(7, wire.length_field(1, wire.length_field(5, attribute)))
    skeleton, payloads = wire.extract_payloads(model, 64, TOKEN)
    assert skeleton == model
    assert payloads == []


def test_repeated_contents_are_left_to_protobuf() -> None:
    tensor = wire.length_field(9, b"a" * 200) + wire.length_field(9, b"b" * 100)
    model = wire.length_field(7, wire.length_field(5, tensor))
    assert wire.extract_payloads(model, 64, TOKEN) == (model, [])


def test_unpacked_contents_are_left_to_protobuf() -> None:
    tensor = wire.length_field(4, bytes(200)) + bytes([4 << 3 | 5]) + bytes(4)
    model = wire.length_field(7, wire.length_field(5, tensor))
    skeleton, payloads = wire.extract_payloads(model, 64, TOKEN)
    assert payloads == []
    assert len(onnx.ModelProto.FromString(skeleton).graph.initializer[0].float_data) == 51


@pytest.mark.parametrize("kind", [onnx.AttributeProto.FLOATS, onnx.AttributeProto.INTS, onnx.AttributeProto.STRINGS])
def test_list_attributes_are_left_to_protobuf(kind: int) -> None:
    """List attributes are not scanned: each element of a list is a field."""
    tensor = onnx.TensorProto(raw_data=bytes(200))
    attribute = onnx.AttributeProto(name="a", t=tensor, ints=range(300), type=kind)
    model = onnx.ModelProto(graph=onnx.GraphProto(node=[onnx.NodeProto(attribute=[attribute])])).SerializeToString()
    assert wire.extract_payloads(model, 64, TOKEN) == (model, [])


def test_unknown_groups_are_skipped() -> None:
    group = bytes([0x7B, 0x08, 0x01, 0x7C])
    model = group + wire.length_field(7, group + wire.length_field(5, wire.length_field(9, bytes(200))))
    _, payloads = wire.extract_payloads(model, 64, TOKEN)
    assert [payload.length for payload in payloads] == [200]


@pytest.mark.parametrize(
    "damaged",
    [
        b"\x3a\xff\xff\xff\xff\x0f",
        b"\x3a\x05ab",
        b"\x3a",
        b"\xff" * 12,
        b"\x03\x08\x01",
        b"\x04",
        b"\x07\x01",
        b"\x02\x01",
        b"\x09\x00",
    ],
    ids=[
        "huge length",
        "short",
        "no length",
        "endless number",
        "open group",
        "closed group",
        "type 7",
        "field 0",
        "short fixed",
    ],
)
def test_malformed_data_is_refused_with_its_offset(damaged: bytes) -> None:
    with pytest.raises(ModelFileError, match=r"at byte"):
        wire.extract_payloads(damaged, 1, TOKEN)


def test_every_truncation_is_refused_or_read_as_by_protobuf() -> None:
    serialized = everything().SerializeToString()
    for length in range(0, len(serialized), 97):
        cut = serialized[:length]
        try:
            skeleton, payloads = wire.extract_payloads(cut, 64, TOKEN)
        except ModelFileError:
            with pytest.raises(DecodeError):
                onnx.ModelProto.FromString(cut)
            continue
        try:
            read = onnx.ModelProto.FromString(skeleton)
        except DecodeError:
            with pytest.raises(DecodeError):
                onnx.ModelProto.FromString(cut)
            continue
        refill(read, cut, payloads)
        assert read == onnx.ModelProto.FromString(cut)
