"""Sources of models, and weights that stay at the source."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import sardonyx
from sardonyx.base.gc_pause import collector_paused
from sardonyx.errors import ExternalDataError, InvalidModelError, ModelFileError, OptionError
from sardonyx.model import SparseTensor, from_proto, load, save, to_proto, wire
from tests.model.samples import serialize, small, sparse


def constant(model: ir.Model, name: str) -> ir.TensorProtocol:
    tensor = model.graph.initializers[name].const_value
    assert tensor is not None
    return tensor


def test_path_bytes_and_message_give_the_same_model(small: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(small.SerializeToString())
    for source in (path, str(path), path.read_bytes(), small):
        model = load(source)
        assert serialize(to_proto(model)) == serialize(small)
        np.testing.assert_array_equal(constant(model, "w").numpy(), np.arange(3000, dtype=np.float32))


def test_a_model_is_returned_unchanged(small: onnx.ModelProto) -> None:
    model = from_proto(small)
    assert load(model) is model


def test_large_weights_are_external_tensors_on_the_model_file(small: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(small.SerializeToString())
    weight = constant(load(path), "w")
    assert isinstance(weight, ir.ExternalTensor)
    assert weight.path == str(path)
    assert (
        path.read_bytes()[weight.offset or 0 :][: weight.length]
        == numpy_helper.to_array(small.graph.initializer[0]).tobytes()
    )
    assert weight.tobytes() == small.graph.initializer[0].raw_data


def test_weights_in_bytes_are_views(small: onnx.ModelProto) -> None:
    array = constant(load(small.SerializeToString()), "w").numpy()
    assert not array.flags.owndata
    assert not array.flags.writeable


@pytest.mark.parametrize("dtype", [d for d in ir.DataType if d not in (ir.DataType.STRING, ir.DataType.UNDEFINED)])
def test_mapped_weights_of_every_type_equal_those_read_by_onnx(dtype: ir.DataType, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    content = generator.integers(0, 64, -(-20001 * dtype.bitwidth // 8), dtype=np.uint8)
    if dtype in (ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.FLOAT4E2M1):
        content[-1] &= 0x0F
    if dtype.bitwidth in (2, 6):
        content[-1] &= 0x03 if dtype.bitwidth == 2 else 0x3F
    if dtype is ir.DataType.BOOL:
        content &= 1
    proto = onnx.TensorProto(name="w", dims=[3, 6667], data_type=int(dtype), raw_data=content.tobytes())
    model = small()
    model.graph.initializer[0].CopyFrom(proto)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    expected = ir.from_proto(proto).numpy()
    for source in (path, path.read_bytes(), model):
        array = constant(load(source), "w").numpy()
        assert array.dtype == expected.dtype
        assert array.tobytes() == expected.tobytes()


def test_weights_in_float_data_are_mapped(tmp_path: Path) -> None:
    values = np.arange(3000, dtype=np.float32)
    model = small()
    model.graph.initializer[0].CopyFrom(onnx.TensorProto(name="w", dims=[3000], data_type=1, float_data=values))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    weight = constant(load(tmp_path / "m.onnx"), "w")
    assert isinstance(weight, ir.ExternalTensor)
    np.testing.assert_array_equal(weight.numpy(), values)


def test_weights_in_bodies_and_attributes_are_mapped(everything: onnx.ModelProto, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(everything.SerializeToString())
    model = load(tmp_path / "m.onnx")
    branch = model.graph.node("branch").attributes["then_branch"].as_graph()
    assert isinstance(constant(ir.Model(branch, ir_version=8), "then_w"), ir.ExternalTensor)
    assert isinstance(model.graph.node("custom").attributes["tensors"].as_tensors()[0], ir.ExternalTensor)
    assert isinstance(model.graph.node("sparse").attributes["sparse_value"].value.values, ir.ExternalTensor)


def test_a_sparse_initializer_reads_as_its_dense_tensor() -> None:
    model = small()
    model.graph.sparse_initializer.append(sparse("s", 3))
    tensor = constant(from_proto(model), "s")
    assert isinstance(tensor, SparseTensor)
    np.testing.assert_array_equal(tensor.numpy(), [[1, 0, 2], [0, 3, 0]])


def test_sparse_indices_outside_the_shape_are_refused_when_read() -> None:
    model = small()
    model.graph.sparse_initializer.append(sparse("s", 3))
    model.graph.sparse_initializer[0].dims[:] = [1, 1]
    with pytest.raises(ModelFileError, match="'s'"):
        constant(from_proto(model), "s").numpy()


def test_a_sparse_tensor_of_terabytes_when_dense_is_refused() -> None:
    model = small()
    model.graph.sparse_initializer.append(sparse("s", 3))
    model.graph.sparse_initializer[0].dims[:] = [2**40]
    with pytest.raises(Exception, match="elements when dense"):
        constant(from_proto(model), "s").numpy()


def test_a_weight_without_contents_is_refused_when_read() -> None:
    model = small()
    model.graph.initializer[0].ClearField("raw_data")
    weight = constant(from_proto(model), "w")
    with pytest.raises(ModelFileError, match=r"'w'.*no contents"):
        weight.numpy()


def test_renaming_a_shared_tensor_does_not_change_the_callers_message(small: onnx.ModelProto) -> None:
    before = serialize(small)
    model = from_proto(small)
    model.graph.initializers["w"].name = "renamed"
    assert to_proto(model).graph.initializer[0].name == "renamed"
    assert serialize(small) == before


def test_text_forms_are_detected_by_content_and_suffix(small: onnx.ModelProto, tmp_path: Path) -> None:
    for name in ("m.onnxtxt", "m.textproto", "m.prototxt"):
        save(from_proto(small), tmp_path / name)
        assert serialize(to_proto(load(tmp_path / name))) == serialize(small)
        assert serialize(to_proto(load((tmp_path / name).read_bytes()))) == serialize(small)
    (tmp_path / "m.onnxtxt").rename(tmp_path / "other.prototxt")
    assert serialize(to_proto(load(tmp_path / "other.prototxt"))) == serialize(small)


@pytest.mark.parametrize(
    "make", [lambda path: None, lambda path: path.mkdir(), lambda path: os.mkfifo(path), lambda path: path.touch()]
)
def test_paths_without_a_file_are_refused_by_name(make: object, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    make(path)  # type: ignore[operator]
    with pytest.raises(ModelFileError, match=r"m\.onnx"):
        load(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    for content in (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
        b"PK\3\4" + bytes(100),
        b"\x00",
    ):
        (tmp_path / "m.onnx").write_bytes(content)
        with pytest.raises(ModelFileError, match=r"m\.onnx"):
            load(tmp_path / "m.onnx")


def test_duplicate_names_are_refused(small: onnx.ModelProto) -> None:
    small.graph.initializer.add().CopyFrom(small.graph.initializer[0])
    with pytest.raises(InvalidModelError, match="'w'"):
        from_proto(small)
    del small.graph.initializer[1]
    small.graph.node.append(helper.make_node("Neg", ["x"], ["w"], name="again"))
    with pytest.raises(InvalidModelError, match="'again'"):
        from_proto(small)


def test_a_change_of_the_file_in_place_is_detected(small: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(small.SerializeToString())
    model = load(path)
    constant(model, "w").numpy()
    path.write_bytes(b"short")
    for read in (constant(model, "w").numpy, constant(model, "w").tobytes, lambda: to_proto(model)):
        with pytest.raises(ModelFileError, match="was changed"):
            read()  # type: ignore[operator]


def test_data_of_a_model_without_a_folder_stays_a_reference(small: onnx.ModelProto, tmp_path: Path) -> None:
    save(from_proto(small), tmp_path / "m.onnx", external_data=True)
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    model = from_proto(proto)
    assert serialize(to_proto(model)) == serialize(proto)
    weight = constant(model, "w")
    with pytest.raises(ExternalDataError, match="Load the model by its path"):
        weight.numpy()
    with pytest.raises(ExternalDataError, match="'w'"):
        save(model, tmp_path / "other.onnx")
    weight.base_dir = tmp_path  # type: ignore[attr-defined]
    np.testing.assert_array_equal(weight.numpy(), np.arange(3000, dtype=np.float32))
    save(model, tmp_path / "other.onnx")
    assert serialize(onnx.load(tmp_path / "other.onnx")) == serialize(small)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    length = 400 << 20
    model = small()
    model.graph.initializer[0].ClearField("raw_data")
    model.graph.initializer[0].dims[:] = [length // 4]
    marker = b"-" * 32
    model.graph.initializer[0].raw_data = marker
    serialized = model.SerializeToString()
    markers = [(serialized.index(marker), len(marker), wire.Payload(0, length, wire.RAW_DATA))]
    with (tmp_path / "m.onnx").open("wb") as file:
        for piece in wire.insert_payloads(serialized, markers):
            if isinstance(piece, wire.Payload):
                file.seek(piece.length, os.SEEK_CUR)
            else:
                file.write(piece)
    program = (
        "import resource, sys; from sardonyx.model import load, save\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "model = load(sys.argv[1] + '/m.onnx'); save(model, sys.argv[1] + '/n.onnx')\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 40
    assert (tmp_path / "n.onnx").stat().st_size == (tmp_path / "m.onnx").stat().st_size


def test_the_collector_stays_enabled_after_concurrent_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread queries the collector's state while another, which had disabled the collector, enables it again."""
    other, is_enabled = collector_paused(), gc.isenabled

    def query() -> bool:
        enabled = is_enabled()
        other.__exit__(None, None, None)
        return enabled

    other.__enter__()
    monkeypatch.setattr(gc, "isenabled", query)
    try:
        with collector_paused():
            pass
        assert is_enabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("source", [None, 5, ["m.onnx"]])
@pytest.mark.parametrize("function", [load, sardonyx.check, sardonyx.Session])
def test_what_is_no_model_is_named(function: Callable[[Any], object], source: Any) -> None:
    with pytest.raises(OptionError, match="model: expected a path, bytes,"):
        function(source)
