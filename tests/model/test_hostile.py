"""Damaged and hostile files raise an error that names the file, without a crash or large allocations."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError

from sardonyx.errors import ModelFileError, SardonyxError
from sardonyx.model import load, save, to_proto
from sardonyx.model.wire import length_field
from tests.model.samples import everything, small


def assert_read_or_refused(content: bytes, path: Path) -> bool:
    """Load, read and save loadable contents; return True if loaded."""
    path.write_bytes(content)
    try:
        model = load(path)
        for value in model.graph.initializers.values():
            assert value.const_value is not None
            value.const_value.numpy()
        save(model, path.with_name("out.onnx"))
    except SardonyxError as error:
        assert str(error)
        return False
    try:
        expected = onnx.ModelProto.FromString(content)
    except DecodeError:
        raise AssertionError("a model that protobuf refuses was loaded") from None
    assert to_proto(model).SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)
    return True


def damage_all(contents: list[bytes], count: int, path: Path) -> None:
    generator = random.Random(0)
    read = 0
    for index in range(count):
        content = bytearray(contents[index % len(contents)])
        if index % 3 == 0:
            del content[generator.randrange(len(content)) :]
        else:
            for _ in range(generator.choice((1, 1, 2, 8))):
                content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
        read += assert_read_or_refused(bytes(content), path)
    assert 0 < read < count


def test_truncated_and_bit_flipped_files(tmp_path: Path) -> None:
    damage_all(
        [everything().SerializeToString(), small().SerializeToString(), small(2).SerializeToString()],
        400,
        tmp_path / "m.onnx",
    )


@pytest.mark.long
def test_ten_thousand_truncated_and_bit_flipped_files(suites: Path, tmp_path: Path) -> None:
    names = (
        "xgb_regressor",
        "voicevox_intonation",
        "gtcrn",
        "yolov3_post",
        "cnn_mnist_pytorch",
        "sklearn_randomforest",
    )
    contents = [(suites / "real" / f"{name}.onnx").read_bytes() for name in names]
    damage_all([*contents, everything().SerializeToString(), small(2).SerializeToString()], 10_000, tmp_path / "m.onnx")


def nested(depth: int) -> bytes:
    graph = b""
    for _ in range(depth):
        graph = length_field(1, length_field(5, length_field(6, graph)))
    return b"\x08\x08" + length_field(7, graph)


def test_nesting_beyond_protobuf_limit_is_refused(tmp_path: Path) -> None:
    assert assert_read_or_refused(nested(32), tmp_path / "m.onnx")
    for depth in (34, 100, 5000):
        (tmp_path / "m.onnx").write_bytes(nested(depth))
        with pytest.raises(ModelFileError, match=r"m\.onnx"):
            load(tmp_path / "m.onnx")


def test_deeply_nested_types_are_refused(tmp_path: Path) -> None:
    kind = b""
    for _ in range(5000):
        kind = length_field(4, length_field(1, kind))
    (tmp_path / "m.onnx").write_bytes(b"\x08\x08" + length_field(7, length_field(11, length_field(2, kind))))
    with pytest.raises(ModelFileError, match=r"m\.onnx"):
        load(tmp_path / "m.onnx")


@pytest.mark.parametrize("dims", [(-3000,), (-1, -3000), (2**62, 4), (3000, 2**62), (2999,), (0,)])
@pytest.mark.parametrize("weights", [3000, 3])
def test_shapes_that_contradict_the_contents_are_refused(dims: tuple[int, ...], weights: int, tmp_path: Path) -> None:
    model = small(weights)
    model.graph.initializer[0].dims[:] = dims
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    for source in (tmp_path / "m.onnx", model.SerializeToString(), model):
        with pytest.raises(ModelFileError, match="'w'"):
            load(source)


def test_contents_in_a_field_of_another_type_are_refused() -> None:
    model = small()
    for tensor in (
        onnx.TensorProto(name="w", dims=[3000], data_type=onnx.TensorProto.INT32, float_data=np.zeros(3000)),
        onnx.TensorProto(name="w", dims=[3], data_type=onnx.TensorProto.INT32, int64_data=[1, 2, 3]),
        onnx.TensorProto(name="w", dims=[3], data_type=onnx.TensorProto.STRING, raw_data=b"abc"),
        onnx.TensorProto(name="w", dims=[4], data_type=onnx.TensorProto.FLOAT, float_data=[1, 2, 3]),
        onnx.TensorProto(name="w", dims=[2], data_type=99, float_data=[1, 2]),
    ):
        model.graph.initializer[0].CopyFrom(tensor)
        with pytest.raises(SardonyxError, match="'w'"):
            load(model.SerializeToString())


def test_errors_in_attributes_name_the_node() -> None:
    model = small()
    model.graph.node[0].attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(
        onnx.TensorProto(dims=[2], data_type=1, raw_data=b"abc")
    )
    with pytest.raises(ModelFileError, match=r"'add' \(Add\)"):
        load(model.SerializeToString())


def test_declared_sizes_allocate_no_memory(tmp_path: Path) -> None:
    claims = tmp_path / "claims"
    claims.mkdir()
    for index, (dims, content) in enumerate([((2**40,), b""), ((2**31 - 1, 2**31 - 1), b""), ((2**40,), bytes(8000))]):
        model = small()
        model.graph.initializer[0].dims[:] = dims
        model.graph.initializer[0].ClearField("raw_data")
        if content:
            model.graph.initializer[0].raw_data = content
        (claims / f"{index}.onnx").write_bytes(model.SerializeToString())
    program = (
        "import pathlib, resource, sys\n"
        "import numpy as np\n"
        "from sardonyx.errors import SardonyxError\n"
        "from sardonyx.model import load\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):\n"
        "    try:\n"
        "        load(path).graph.initializers['w'].const_value.numpy()\n"
        "    except SardonyxError as error:\n"
        "        print(path.name, error)\n"
        "status = pathlib.Path('/proc/self/status').read_text()\n"
        "print(next(line.split()[1] for line in status.splitlines() if line.startswith('VmHWM')))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, claims], check=True, capture_output=True, text=True)
    *refused, peak = done.stdout.splitlines()
    assert len(refused) == 3
    assert int(peak) < 1 << 20
