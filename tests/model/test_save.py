"""Files are written atomically, deterministically, and without loading the weights."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from sardonyx.errors import InvalidModelError, ModelFileError, ModelTooLargeError, OptionError
from sardonyx.model import SKELETON_LOCATION, from_proto, load, save, to_proto, write_text
from tests.model.samples import serialize, small


class Failing(ir.LazyTensor):
    """A weight that cannot be read."""

    def __init__(self) -> None:
        super().__init__(self._fail, dtype=ir.DataType.FLOAT, shape=ir.Shape([3000]), name="w")

    def _fail(self) -> ir.Tensor:
        raise OSError(5, "Input/output error")


def test_a_message_is_made_of_all_that_can_be_loaded(tmp_path: Path) -> None:
    save(small(), tmp_path / "m.onnx")
    for source in (tmp_path / "m.onnx", str(tmp_path / "m.onnx"), serialize(small()), small(), load(small())):
        assert serialize(to_proto(source)) == serialize(small())


@pytest.mark.parametrize("external", [False, True])
def test_equal_models_give_equal_bytes(external: bool, everything: onnx.ModelProto, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        save(load(everything.SerializeToString()), tmp_path / name / "m.onnx", external_data=external)
    assert (tmp_path / "a" / "m.onnx").read_bytes() == (tmp_path / "b" / "m.onnx").read_bytes()
    if external:
        assert (tmp_path / "a" / "m.onnx.data").read_bytes() == (tmp_path / "b" / "m.onnx.data").read_bytes()


def test_the_file_equals_protobuf_serialization(small: onnx.ModelProto, tmp_path: Path) -> None:
    save(from_proto(small), tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == serialize(small)


def test_a_message_is_saved_as_its_model_and_anything_else_is_refused(tmp_path: Path) -> None:
    save(small(), tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == serialize(small())
    with pytest.raises(OptionError, match="expected a Model or a ModelProto, got str"):
        save("m.onnx", tmp_path / "other.onnx")  # type: ignore[arg-type]
    assert not (tmp_path / "other.onnx").exists()


@pytest.mark.parametrize("external", [False, True])
def test_a_model_is_saved_over_the_files_it_is_mapped_from(external: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(from_proto(small()), path, external_data=external)
    model = load(path)
    for _ in range(2):
        save(model, path, external_data=external)
        weight = model.graph.initializers["w"].const_value
        assert weight is not None
        np.testing.assert_array_equal(weight.numpy(), np.arange(3000, dtype=np.float32))
        assert serialize(to_proto(load(path))) == serialize(small())


@pytest.mark.parametrize("external", [False, True])
def test_a_failure_leaves_only_the_old_files(external: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(from_proto(small()), path, external_data=external)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    model = from_proto(small())
    model.graph.initializers["w"].const_value = Failing()
    with pytest.raises(ModelFileError, match=r"m\.onnx.*Input/output error"):
        save(model, path, external_data=external)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("existed", [False, True])
def test_a_failed_rename_of_the_model_restores_the_data_file(
    existed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    if existed:
        save(from_proto(small(4000)), path, external_data=True)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    replace = Path.replace

    def refuse(self: Path, target: Path) -> Path:
        if target == path:
            raise OSError(28, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(ModelFileError, match="No space left"):
        save(from_proto(small()), path, external_data=True)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_external_data_is_one_aligned_file_readable_by_runtimes(tmp_path: Path) -> None:
    model = small(300_000)
    model.graph.initializer.add(name="unused", dims=[300_001], data_type=1, raw_data=bytes(1_200_004))
    model.graph.initializer.add(name="little", dims=[2], data_type=1, raw_data=bytes(8))
    save(from_proto(model), tmp_path / "m.onnx", external_data=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    entries = [{entry.key: entry.value for entry in tensor.external_data} for tensor in proto.graph.initializer]
    assert [int(entry["offset"]) % 4096 for entry in entries[:2]] == [0, 0]
    assert {entry["location"] for entry in entries[:2]} == {"m.onnx.data"}
    assert entries[2] == {}
    assert serialize(onnx.load(tmp_path / "m.onnx").graph.node[0]) == serialize(model.graph.node[0])
    x = np.ones((1, 300_000), dtype=np.float32)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + np.arange(300_000, dtype=np.float32))
    assert serialize(to_proto(load(tmp_path / "m.onnx"))) == serialize(model)


def test_the_threshold_selects_tensors_for_the_data_file(tmp_path: Path) -> None:
    for threshold, external in ((12_000, True), (12_001, False)):
        save(from_proto(small()), tmp_path / "m.onnx", external_data=True, external_threshold=threshold)
        proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
        assert bool(proto.graph.initializer[0].external_data) is external
        assert serialize(to_proto(load(tmp_path / "m.onnx"))) == serialize(small())


def test_a_link_is_replaced_and_its_target_unchanged(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"blob")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "m.onnx").symlink_to("blob")
    (tmp_path / "m.onnx.data").symlink_to("secret")
    save(from_proto(small()), tmp_path / "m.onnx", external_data=True)
    assert (tmp_path / "blob").read_bytes() == b"blob"
    assert (tmp_path / "secret").read_bytes() == b"secret"
    assert serialize(to_proto(load(tmp_path / "m.onnx"))) == serialize(small())


def test_permissions_follow_the_old_file_or_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    mask = os.umask(0o027)
    try:
        save(from_proto(small()), path)
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o604)
    save(from_proto(small()), path)
    assert path.stat().st_mode & 0o777 == 0o604


def test_unwritable_paths_and_options_are_refused(tmp_path: Path) -> None:
    model = from_proto(small())
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", tmp_path / "missing" / "m.onnx", Path("/dev/null")):
        with pytest.raises(ModelFileError, match=path.name):
            save(model, path)
    with pytest.raises(OptionError, match="yaml"):
        save(model, tmp_path / "m.onnx", format="yaml")
    with pytest.raises(OptionError, match="external_threshold"):
        save(model, tmp_path / "m.onnx", external_threshold=-1)


def test_a_skeleton_has_shapes_and_no_weights(everything: onnx.ModelProto) -> None:
    skeleton = to_proto(load(everything.SerializeToString()), weights=False)
    assert skeleton.training_info == everything.training_info
    del skeleton.training_info[:]
    assert skeleton.ByteSize() < 4_000
    for placeholder, tensor in zip(skeleton.graph.initializer, everything.graph.initializer, strict=True):
        assert placeholder.name == tensor.name
        assert placeholder.dims == tensor.dims
        if tensor.ByteSize() > 2000 and tensor.data_type != onnx.TensorProto.STRING:
            assert placeholder.external_data[0].value == SKELETON_LOCATION
    inferred = onnx.shape_inference.infer_shapes(to_proto(from_proto(small()), weights=False))
    assert inferred.graph.output[0].type.tensor_type.shape.dim[1].dim_value == 3000


def test_unrepresentable_parts_are_refused_by_name() -> None:
    model = from_proto(small())
    model.graph[0].attributes["bad"] = ir.Attr("bad", ir.AttributeType.TENSOR, "no tensor")
    with pytest.raises(InvalidModelError, match="'add'"):
        to_proto(model)
    model = from_proto(small())
    model.graph.initializers["w"].const_value = None
    with pytest.raises(InvalidModelError, match="'w'"):
        to_proto(model)


def test_bodies_beyond_protobuf_nesting_limit_are_refused() -> None:
    graph = ir.Graph([], [], nodes=[], name="innermost")
    for _ in range(5000):
        node = ir.Node("", "If", [], [ir.AttrGraph("then_branch", graph)], num_outputs=0, name="if")
        graph = ir.Graph([], [], nodes=[node], name="outer")
    with pytest.raises(Exception, match="33 deep"):
        to_proto(ir.Model(graph, ir_version=8))


def large_model(folder: Path, size: int) -> ir.Model:
    """Return a model with two weights of zeros in a sparse file."""
    (folder / "zeros").touch()
    os.truncate(folder / "zeros", size)
    model = from_proto(small(4))
    for index in range(2):
        tensor = ir.ExternalTensor(
            "zeros", 0, size // 2, ir.DataType.FLOAT, shape=ir.Shape([size // 8]), name=f"z{index}", base_dir=folder
        )
        value = ir.Value(
            name=f"z{index}", type=ir.TensorType(ir.DataType.FLOAT), shape=tensor.shape, const_value=tensor
        )
        model.graph.register_initializer(value)
    return model


def test_a_message_above_two_gigabytes_is_refused(tmp_path: Path) -> None:
    model = large_model(tmp_path, 3 << 30)
    with pytest.raises(ModelTooLargeError, match="2,147,483,647"):
        to_proto(model)
    with pytest.raises(ModelTooLargeError, match=r"m\.onnx"):
        save(model, tmp_path / "m.onnx", external_data=False)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["zeros"]
    assert to_proto(model, weights=False).ByteSize() < 1000


@pytest.mark.long
def test_a_model_above_two_gigabytes_is_saved_and_loaded(tmp_path: Path) -> None:
    size = 5 << 29
    model = large_model(tmp_path, size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    save(model, tmp_path / "m.onnx")
    (tmp_path / "zeros").unlink()
    assert (tmp_path / "m.onnx.data").stat().st_size == size
    again = load(tmp_path / "m.onnx")
    save(again, tmp_path / "m.onnx")
    last = load(tmp_path / "m.onnx")
    weight = last.graph.initializers["z1"].const_value
    assert weight is not None
    assert weight.shape.numpy() == (size // 8,)
    assert not weight.numpy()[-1000:].any()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


def test_a_text_that_cannot_be_written_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    write_text(path, "first")

    def full(descriptor: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(ModelFileError, match="No space left"):
            write_text(path, "second")
    assert path.read_text() == "first"
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
    write_text(path, "second")
    assert path.read_text() == "second"


@pytest.mark.parametrize("where", ["absent/page.html", "."])
def test_a_text_at_an_unwritable_path_is_refused(tmp_path: Path, where: str) -> None:
    with pytest.raises(ModelFileError):
        write_text(tmp_path / where, "text")
