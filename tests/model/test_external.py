"""Rules for the data files that a model may name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sardonyx.errors import ExternalDataError
from sardonyx.model import from_proto, load, save, to_proto
from tests.model.samples import serialize, small

CONTENT = np.arange(3000, dtype=np.float32).tobytes()


def referring(*entries: tuple[str, str], dims: tuple[int, ...] = (3000,)) -> bytes:
    model = small()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.dims[:] = dims
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in entries:
        tensor.external_data.add(key=key, value=value)
    content: bytes = model.SerializeToString()
    return content


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with a data file, in a folder with a secret."""
    (tmp_path / "secret").write_bytes(CONTENT)
    inner = tmp_path / "model"
    (inner / "sub").mkdir(parents=True)
    (inner / "data").write_bytes(CONTENT)
    (inner / "sub" / "data").write_bytes(CONTENT)
    return inner


def load_from(folder: Path, content: bytes) -> ir.Model:
    (folder / "m.onnx").write_bytes(content)
    return load(folder / "m.onnx")


@pytest.mark.parametrize("location", ["data", "sub/data", "./data", "sub/./data"])
def test_files_in_the_folder_are_read(location: str, folder: Path) -> None:
    model = load_from(folder, referring(("location", location)))
    assert serialize(to_proto(model)) == serialize(small())


def test_offset_and_length_choose_the_span(folder: Path) -> None:
    (folder / "data").write_bytes(b"x" * 100 + CONTENT + b"y")
    model = load_from(
        folder, referring(("location", "data"), ("offset", "100"), ("length", "12000"), ("checksum", "0"))
    )
    assert serialize(to_proto(model)) == serialize(small())


@pytest.mark.parametrize(
    "location",
    [
        "../secret",
        "sub/../../secret",
        "sub/../data",
        "/etc/hostname",
        "//etc/hostname",
        "C:\\secret",
        "C:secret",
        "\\\\host\\x",
        "..\\secret",
        "",
        ".",
        "/",
        "a\0b",
        "missing",
        "sub",
        "data/x",
    ],
)
def test_locations_outside_the_folder_or_without_a_file_are_refused(location: str, folder: Path) -> None:
    with pytest.raises(ExternalDataError, match="'w'"):
        load_from(folder, referring(("location", location)))


def test_an_absolute_path_into_the_folder_is_refused(folder: Path) -> None:
    with pytest.raises(ExternalDataError, match="absolute"):
        load_from(folder, referring(("location", str(folder / "data"))))


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        (lambda path: path.symlink_to("../secret"), "symbolic link"),
        (lambda path: path.symlink_to("/etc"), "symbolic link"),
        (lambda path: path.symlink_to("linked"), "does not exist"),
        (lambda path: os.link(path.parent.parent / "secret", path), "hard links"),
        (os.mkfifo, "not a regular file"),
    ],
    ids=["to a file", "to a folder", "to itself", "hard", "pipe"],
)
def test_links_out_of_the_folder_are_refused(link: Callable[[Path], None], problem: str, folder: Path) -> None:
    link(folder / "linked")
    with pytest.raises(ExternalDataError, match=problem):
        load_from(folder, referring(("location", "linked")))


def test_a_folder_that_links_out_is_refused(folder: Path) -> None:
    (folder / "up").symlink_to("..")
    with pytest.raises(ExternalDataError, match="symbolic link"):
        load_from(folder, referring(("location", "up/secret")))


def test_links_within_the_folder_are_followed(folder: Path) -> None:
    (folder / "linked").symlink_to("sub/data")
    assert serialize(to_proto(load_from(folder, referring(("location", "linked"))))) == serialize(small())


@pytest.mark.parametrize("inner", ["", "onnx"])
def test_links_of_hub_caches_are_followed(inner: str, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0" / inner
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "a").write_bytes(referring(("location", "m.onnx_data")))
    (blobs / "b").write_bytes(CONTENT)
    (snapshot / "m.onnx").symlink_to(os.path.relpath(blobs / "a", snapshot))
    (snapshot / "m.onnx_data").symlink_to(os.path.relpath(blobs / "b", snapshot))
    assert serialize(to_proto(load(snapshot / "m.onnx"))) == serialize(small())
    (tmp_path / "secret").write_bytes(CONTENT)
    (snapshot / "m.onnx_data").unlink()
    (snapshot / "m.onnx_data").symlink_to(tmp_path / "secret")
    with pytest.raises(ExternalDataError, match="symbolic link"):
        load(snapshot / "m.onnx")


def test_a_link_to_a_model_elsewhere_finds_its_data_there(folder: Path, tmp_path: Path) -> None:
    (folder / "m.onnx").write_bytes(referring(("location", "data")))
    (tmp_path / "link.onnx").symlink_to(folder / "m.onnx")
    assert serialize(to_proto(load(tmp_path / "link.onnx"))) == serialize(small())


def test_the_model_file_may_have_several_names(folder: Path, tmp_path: Path) -> None:
    (folder / "m.onnx").write_bytes(referring(("location", "data")))
    os.link(folder / "m.onnx", folder / "n.onnx")
    assert serialize(to_proto(load(folder / "n.onnx"))) == serialize(small())


def test_relative_paths_are_resolved_when_loading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "m.onnx").write_bytes(referring(("location", "data")))
    monkeypatch.chdir(folder)
    model = load("m.onnx")
    monkeypatch.chdir("/")
    assert serialize(to_proto(model)) == serialize(small())


@pytest.mark.parametrize(
    "entries",
    [
        (("offset", "-1"),),
        (("length", "-1"),),
        (("offset", "1"),),
        (("offset", str(2**63)),),
        (("offset", "9" * 10000),),
        (("offset", str(2**63 - 1)), ("length", "12000")),
        (("offset", "1e3"),),
        (("offset", "٣"),),
        (("offset", ""),),
        (("length", "11999"),),
        (("length", "12001"),),
        (("location", "data"),),
        (("offset", "0"), ("offset", "4")),
    ],
    ids=lambda entries: ",".join(f"{key}={value[:20]}" for key, value in entries),
)
def test_spans_outside_the_file_or_the_shape_are_refused(entries: tuple[tuple[str, str], ...], folder: Path) -> None:
    with pytest.raises(ExternalDataError, match="'w'"):
        load_from(folder, referring(("location", "data"), *entries))


@pytest.mark.parametrize("dims", [(-3000,), (2**62, 2**62), (3001,), (-50, -60)])
def test_shapes_larger_than_the_file_are_refused(dims: tuple[int, ...], folder: Path) -> None:
    with pytest.raises(Exception, match="'w'"):
        load_from(folder, referring(("location", "data"), dims=dims))


@pytest.mark.parametrize(
    ("base", "location"), [("", "data"), ("", "/etc/hostname"), (".", "../secret"), (".", "linked")]
)
def test_tensors_of_other_code_are_checked_when_saved(base: str, location: str, folder: Path) -> None:
    (folder / "linked").symlink_to("../secret")
    model = from_proto(small())
    model.graph.initializers["w"].const_value = ir.ExternalTensor(
        location, 0, 12000, ir.DataType.FLOAT, shape=ir.Shape([3000]), name="w", base_dir=base and folder
    )
    before = sorted(folder.iterdir())
    for external in (False, True):
        with pytest.raises(ExternalDataError, match="'w'"):
            save(model, folder / "m.onnx", external_data=external)
    assert sorted(folder.iterdir()) == before
