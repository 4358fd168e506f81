"""Files on disk: external data, weights left in the file, sizes beyond protobuf's limit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.errors import ModelFileError
from sardonyx.model.check import Finding, check


def model_with(tensor: onnx.TensorProto) -> onnx.ModelProto:
    size = list(tensor.dims)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, size)],
        [tensor],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def saved(folder: Path, count: int = 4, **entries: str) -> Path:
    folder.mkdir(exist_ok=True)
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[count], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "w.bin", **entries}.items():
        tensor.external_data.add(key=key, value=value)
    onnx.save(model_with(tensor), folder / "m.onnx")
    return folder / "m.onnx"


def codes(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(item.code, item.where.tensor) for item in findings]


def test_matching_data_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(32))
    assert check(saved(tmp_path, offset="16", length="16"), lint=True) == []


def test_missing_file_is_reported(tmp_path: Path) -> None:
    assert codes(check(saved(tmp_path))) == [("external-file", "w")]


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "a/../../w.bin", ""])
def test_locations_outside_of_the_folder_are_reported(tmp_path: Path, location: str) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(16))
    findings = check(saved(tmp_path / "inner", location=location))
    assert codes(findings) == [("external-file", "w")]


def test_link_out_of_the_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(16))
    path = saved(tmp_path / "inner")
    (tmp_path / "inner" / "w.bin").symlink_to(tmp_path / "secret")
    assert codes(check(path)) == [("external-file", "w")]


def test_link_inside_the_folder_is_followed(tmp_path: Path) -> None:
    path = saved(tmp_path)
    (tmp_path / "blob").write_bytes(bytes(16))
    (tmp_path / "w.bin").symlink_to("blob")
    assert check(path) == []


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": "8", "length": "16"},
        {"length": "12"},
        {"offset": "-1"},
        {"length": "x"},
        {"offset": "9223372036854775807", "length": "16"},
        {"offset": "99999999999999999999999"},
    ],
)
def test_spans_outside_of_the_file_or_the_shape_are_reported(tmp_path: Path, entries: dict[str, str]) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(16))
    assert ("external-range", "w") in codes(check(saved(tmp_path, **entries)))


def test_data_of_a_message_without_a_path_is_not_checked(tmp_path: Path) -> None:
    assert check(onnx.load(saved(tmp_path), load_external_data=False)) == []


def test_wrong_size_of_a_weight_left_in_the_file_is_reported(tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(np.zeros(1 << 18, np.float32), "w")
    tensor.dims[0] += 1
    onnx.save(model_with(tensor), tmp_path / "m.onnx")
    assert codes(check(tmp_path / "m.onnx")) == [("tensor-size", "w")]


def test_large_weights_are_read_for_lint_from_path_message_and_model(tmp_path: Path) -> None:
    array = np.zeros(1 << 18, np.float32)
    array[-1] = np.nan
    onnx.save(model_with(numpy_helper.from_array(array, "w")), tmp_path / "m.onnx")
    for source in (tmp_path / "m.onnx", onnx.load(tmp_path / "m.onnx"), sardonyx.load(tmp_path / "m.onnx")):
        assert ("weight-nan", "w") in codes(check(source, lint=True))
    assert ("weight-nan", "w") in codes(check((tmp_path / "m.onnx").read_bytes(), lint=True))


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def test_file_beyond_two_gigabytes_is_checked_and_reported(tmp_path: Path) -> None:
    size = 5 << 29
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[size // 4]).SerializeToString()
    tensor += b"\x4a" + varint(size)
    model = model_with(TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[size // 4]))
    del model.graph.initializer[:]
    graph = model.graph.SerializeToString() + b"\x2a" + varint(len(tensor) + size) + tensor
    model.ClearField("graph")
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        file.write(model.SerializeToString() + b"\x3a" + varint(len(graph) + size) + graph)
        file.truncate(file.tell() + size)
    assert [item.code for item in check(path)] == ["message-too-large"]


def test_file_without_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\xff" * 100)
    with pytest.raises(ModelFileError):
        check(tmp_path / "m.onnx")
    with pytest.raises(ModelFileError):
        check(tmp_path / "absent.onnx")
