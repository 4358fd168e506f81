"""An unchanged model is saved unchanged, field by field, including absent, empty and unknown fields."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import onnx
import pytest
from onnx.backend.test import loader

from sardonyx.model import from_proto, load, save, to_proto
from tests.model.samples import serialize
from tests.random_cases import drawn


def assert_survives(content: bytes, scratch: Path) -> None:
    original = onnx.ModelProto.FromString(content)
    expected = serialize(original)
    path = scratch / "in.onnx"
    path.write_bytes(content)
    model = load(path)
    assert serialize(to_proto(model)) == expected
    assert serialize(to_proto(load(content))) == expected
    assert serialize(to_proto(from_proto(original))) == expected
    assert serialize(original) == expected
    save(model, scratch / "out.onnx")
    assert serialize(onnx.load(scratch / "out.onnx")) == expected


def test_everything(everything: onnx.ModelProto, tmp_path: Path) -> None:
    assert_survives(everything.SerializeToString(), tmp_path)


def test_everything_after_cloning(everything: onnx.ModelProto) -> None:
    assert serialize(to_proto(load(everything.SerializeToString()).clone())) == serialize(everything)


def test_everything_through_external_data(everything: onnx.ModelProto, tmp_path: Path) -> None:
    save(from_proto(everything), tmp_path / "m.onnx", external_data=True)
    back = to_proto(load(tmp_path / "m.onnx"))
    for tensor in back.graph.initializer:
        if tensor.name == "big_typed" or tensor.name == "big_ints":
            assert len(tensor.raw_data) == 3000 * (4 if tensor.name == "big_typed" else 8)
            field = "float_data" if tensor.name == "big_typed" else "int64_data"
            getattr(tensor, field).extend(range(3000))
            tensor.ClearField("raw_data")
        if tensor.name == "weight":
            # Loading external data drops an explicit "DEFAULT" location.
            tensor.data_location = onnx.TensorProto.DEFAULT
    assert serialize(back) == serialize(everything)


def test_unknown_fields_survive(everything: onnx.ModelProto, tmp_path: Path) -> None:
    unknown = bytes([0xF8, 0x3F, 0x05])
    graph = everything.graph
    for message in (
        everything,
        everything.opset_import[0],
        everything.functions[0],
        graph,
        graph.node[1],
        graph.node[1].attribute[0],
        graph.node[0].attribute[0].g,
        graph.initializer[0],
        graph.initializer[6],
        graph.sparse_initializer[0],
        graph.input[0],
        graph.input[1].type.tensor_type,
        graph.value_info[1].type,
        graph.quantization_annotation[0],
        graph.metadata_props[0],
        everything.training_info[0],
    ):
        message.MergeFromString(unknown)
    assert_survives(everything.SerializeToString(), tmp_path)


@pytest.mark.sampled
def test_real_models(suites: Path, tmp_path: Path) -> None:
    paths = sorted((suites / "real").glob("*.onnx"))
    assert len(paths) == 26
    for path in drawn(paths):
        assert_survives(path.read_bytes(), tmp_path)


@pytest.mark.sampled
def test_skeletons_of_real_models(suites: Path, tmp_path: Path) -> None:
    paths = sorted((suites / ".." / "models").resolve().glob("*.onnx"))
    assert len(paths) == 26
    for path in drawn(paths):
        assert_survives(path.read_bytes(), tmp_path)


@pytest.mark.long
def test_materialized_models(suites: Path, tmp_path: Path) -> None:
    folder = (suites / ".." / "models").resolve()
    names = sorted(path.stem for path in folder.glob("*.onnx"))
    assert len(names) == 26
    for name in names:
        subprocess.run([sys.executable, folder / "materialize.py", tmp_path, name], check=True, capture_output=True)
        model_path = tmp_path / f"{name}.onnx"
        expected = serialize(onnx.load(model_path))
        model = load(model_path)
        save(model, model_path)
        assert serialize(onnx.load(model_path)) == expected
        assert serialize(to_proto(model)) == expected
        model_path.unlink()


def assert_all_survive(contents: Iterable[bytes], at_least: int) -> None:
    count = 0
    for content in contents:
        assert serialize(to_proto(load(content))) == serialize(onnx.ModelProto.FromString(content))
        count += 1
    assert count >= at_least


def test_models_in_the_onnx_package() -> None:
    data = Path(onnx.__file__).parent / "backend" / "test" / "data"
    assert_all_survive((path.read_bytes() for path in sorted(data.rglob("*.onnx"))), at_least=140)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_node_models_of_the_backend_suite() -> None:
    cases = loader.load_model_tests(kind="node")
    assert_all_survive((case.model.SerializeToString() for case in cases), at_least=1800)
