"""Compiled models in the store: found by contents, taken as they are, and made anew where anything differs."""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.compiler.llvm import build_digest
from sardonyx.compiler.program_image import image as image_module
from sardonyx.errors import ModelFileError
from sardonyx.rewrite.language import rule
from sardonyx.runtime.compiled import program_cache
from sardonyx.runtime.compiled.compiled_model import NativeModel

TEXT = """<ir_version: 9, opset_import: ["": 18]>
    net (float[N, 8] x) => (float[N, 4] y) {
        h = MatMul(x, w)
        s = Relu(h)
        y = Softmax(s)
    }"""
X = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)


def net(seed: int = 0) -> onnx.ModelProto:
    model = onnx.parser.parse_model(TEXT)
    weights = np.random.default_rng(seed).standard_normal((8, 4)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def path(folder: Path) -> Path:
    file = folder / "net.onnx"
    written(net(), file)
    return file


def written(model: onnx.ModelProto, file: Path) -> None:
    """The model in a file, written long enough ago for the file's times to tell."""
    onnx.save(model, file)
    os.utime(file, (1e9, 1e9))


def session(model: Any, **options: Any) -> sardonyx.Session:
    return sardonyx.Session(model, compile="wait", **options)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the models that are compiled."""
    counted: list[int] = []
    compiled = NativeModel.compiled

    def counting(*arguments: Any) -> NativeModel:
        counted.append(1)
        return compiled(*arguments)

    monkeypatch.setattr(NativeModel, "compiled", counting)
    return counted


def test_the_second_session_compiles_nothing_and_loads_no_model(
    path: Path, compilations: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = session(path)
    monkeypatch.setattr("sardonyx.model.node_order.load_sorted", None)
    second = session(path)
    assert len(compilations) == 1
    np.testing.assert_array_equal(second.run(None, {"x": X})[0], first.run(None, {"x": X})[0])
    assert repr(second.get_inputs()) == repr(first.get_inputs())
    assert repr(second.get_outputs()) == repr(first.get_outputs())


def test_another_process_compiles_nothing(path: Path) -> None:
    expected = session(path).run(None, {"x": X})[0]
    np.save(path.with_name("x.npy"), X)
    code = (
        "import sys, numpy as np, sardonyx; from sardonyx.runtime.compiled.compiled_model import NativeModel;"
        " del NativeModel.compiled;"
        "np.save(sys.argv[3], sardonyx.Session(sys.argv[1]).run(None, {'x': np.load(sys.argv[2])})[0])"
    )
    files = [path, path.with_name("x.npy"), path.with_name("y.npy")]
    environment = {**os.environ, "SARDONYX_COMPILE": "wait", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code, *map(str, files)], check=True, env=environment)
    np.testing.assert_array_equal(np.load(files[2]), expected)


def test_a_model_without_weights_is_kept(compilations: list[int]) -> None:
    text = '<ir_version: 9, opset_import: ["": 18]> net (float[N] x) => (float[N] y) { y = Exp(x) }'
    model = onnx.parser.parse_model(text).SerializeToString()
    for _ in range(2):
        np.testing.assert_array_equal(session(model).run(None, {"x": np.zeros(3, np.float32)})[0], np.ones(3))
    assert len(compilations) == 1


HOSTED = """<ir_version: 9, opset_import: ["": 18]>
    net (float[N] x) => (float[K] y, float total) {
        z = Exp(x)
        y = Unique(z)
        total = ReduceSum <keepdims = 0> (y)
    }"""

TEXTS = """<ir_version: 9, opset_import: ["": 20]>
    net (string[N] x, float[N] y) => (string[N] upper, float[N] z) {
        upper = StringNormalizer <case_change_action = "UPPER"> (x)
        z = Exp(y)
    }"""


@pytest.mark.parametrize(
    "text, feeds",
    [
        (HOSTED, {"x": np.array([1, 2, 1], np.float32)}),
        (TEXTS, {"x": np.array(["a", "b"], object), "y": np.zeros(2, np.float32)}),
    ],
)
def test_what_the_interpreter_computes_a_part_of_is_kept(
    text: str, feeds: dict[str, np.ndarray], compilations: list[int]
) -> None:
    model = onnx.parser.parse_model(text).SerializeToString()
    first, second = session(model), session(model)
    assert len(compilations) == 1
    for actual, expected in zip(second.run(None, feeds), first.run(None, feeds), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_a_host_function_of_nothing_is_kept(compilations: list[int]) -> None:
    kind = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, ["N"])
    optional = onnx.helper.make_optional_type_proto(kind)

    def branch(name: str, node: onnx.NodeProto) -> onnx.GraphProto:
        return onnx.helper.make_graph([node], name, [], [onnx.helper.make_value_info(name, optional)])

    created = branch("some", onnx.helper.make_node("Optional", ["x"], ["some"]))
    none = branch("none", onnx.helper.make_node("Optional", [], ["none"], type=kind))
    nodes = [
        onnx.helper.make_node("If", ["c"], ["o"], then_branch=created, else_branch=none),
        onnx.helper.make_node("OptionalHasElement", ["o"], ["y"]),
    ]
    inputs = [
        onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []),
        onnx.helper.make_value_info("x", kind),
    ]
    outputs = [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.BOOL, [])]
    graph = onnx.helper.make_graph(nodes, "net", inputs, outputs)
    opsets = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    for messages in (True, False):
        (actual,) = session(model).run(None, {"c": np.array(messages), "x": np.zeros(2, np.float32)})
        assert actual == messages
    assert len(compilations) == 1


@pytest.mark.parametrize("form", ["bytes", "a copy"])
def test_models_are_known_by_their_contents(path: Path, compilations: list[int], form: str) -> None:
    session(path)
    copy = path.with_name("copy.onnx")
    copy.write_bytes(path.read_bytes())
    session(path.read_bytes() if form == "bytes" else copy)
    assert len(compilations) == 1


def test_a_file_that_is_written_anew_is_compiled_anew(path: Path, compilations: list[int]) -> None:
    before = session(path).run(None, {"x": X})[0]
    written(net(1), path)
    after = session(path)
    assert len(compilations) == 2
    assert not np.array_equal(after.run(None, {"x": X})[0], before)
    np.testing.assert_array_equal(after.run(None, {"x": X})[0], session(net(1)).run(None, {"x": X})[0])


def test_external_data_that_are_written_anew_are_packed_anew(folder: Path, compilations: list[int]) -> None:
    path = folder / "net.onnx"

    def saved(seed: int) -> None:
        onnx.save(net(seed), path, save_as_external_data=True, location="data", size_threshold=0)
        for file in (path, folder / "data"):
            os.utime(file, (1e9, 1e9))

    saved(0)
    before = session(path).run(None, {"x": X})[0]
    session(path)
    assert len(compilations) == 1
    (folder / "data").unlink()
    contents = path.read_bytes()
    saved(1)
    assert path.read_bytes() == contents
    assert not np.array_equal(session(path).run(None, {"x": X})[0], before)
    assert len(compilations) == 2


def test_threads_have_programs_of_their_own(path: Path, compilations: list[int]) -> None:
    session(path, threads=1)
    session(path, threads=2)
    session(path, threads=1)
    assert len(compilations) == 2


def test_programs_for_other_numbers_of_threads_have_the_same_weights(path: Path, folder: Path) -> None:
    for threads in (1, 2):
        session(path, threads=threads)
    one, two = (session(path, threads=threads) for threads in (1, 2))
    assert one.native is not None
    assert two.native is not None
    weights = [next(iter(item.native.program.prepared.values())) for item in (one, two)]
    assert np.shares_memory(*weights)
    assert len(list((folder / "cache" / "weights").iterdir())) == 1


def test_an_entry_of_another_format_is_ignored_and_replaced(
    path: Path, compilations: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = session(path).run(None, {"x": X})[0]
    monkeypatch.setattr(image_module, "FORMAT", image_module.FORMAT + 1)
    for _ in range(2):
        np.testing.assert_array_equal(session(path).run(None, {"x": X})[0], expected)
    assert len(compilations) == 2


@pytest.mark.parametrize("kind", ["program", "weights"])
@pytest.mark.parametrize("damage", ["changed", "cut", "deleted"])
def test_damaged_entries_are_made_anew(
    path: Path, folder: Path, compilations: list[int], kind: str, damage: str
) -> None:
    expected = session(path).run(None, {"x": X})[0]
    for file in (folder / "cache" / kind).iterdir():
        contents = bytearray(file.read_bytes())
        contents[-1] ^= 1
        file.unlink()
        if damage != "deleted":
            file.write_bytes(contents if damage == "changed" else contents[:-1])
    np.testing.assert_array_equal(session(path).run(None, {"x": X})[0], expected)
    assert len(compilations) == 2
    session(path)
    assert len(compilations) == 2


def test_rules_of_users_are_asked(path: Path, compilations: list[int]) -> None:
    session(path)

    @rule("of_mine", exactness="exact", on="Relu")
    def never(site: Any) -> None:
        """Does nothing."""

    session(path)
    assert len(compilations) == 2


def test_weights_are_in_memory_once(path: Path) -> None:
    session(path)
    one, two = session(path), session(path)
    assert one.native is not None
    assert two.native is not None
    weights = [next(iter(item.native.program.prepared.values())) for item in (one, two)]
    assert np.shares_memory(*weights)
    assert not weights[0].flags.writeable


def test_the_interpreter_still_has_the_model(path: Path) -> None:
    first, second = session(path), session(path)
    for item in (first, second):
        assert item.run(["h"], {"x": X})[0].shape == (5, 4)
        assert item.model.graph.name == "net"


def test_a_model_that_was_changed_is_not_taken_for_the_one_that_was_compiled(path: Path) -> None:
    session(path)
    second = session(path)
    path.unlink()
    written(net(1), path)
    second.run(None, {"x": X})
    with pytest.raises(ModelFileError, match="changed since"):
        second.run(["h"], {"x": X})


def test_a_program_is_made_again_for_who_asks_what_is_in_it(path: Path, compilations: list[int]) -> None:
    first = session(path)
    expected = first.run(None, {"x": X})[0]
    second = session(path)
    assert first.program is not None
    assert len(compilations) == 1
    assert second.program is not None
    assert len(compilations) == 2
    assert [launch.title for launch in second.program.launches] == [launch.title for launch in first.program.launches]
    assert second.program.grouping.groups
    np.testing.assert_array_equal(second.run(None, {"x": X})[0], expected)


def test_nothing_is_kept_where_there_is_no_store(
    path: Path, compilations: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", "off")
    session(path)
    session(path)
    assert len(compilations) == 2


@pytest.mark.long
def test_processes_that_start_at_once_on_an_empty_store(path: Path) -> None:
    np.save(path.with_name("x.npy"), X)
    code = (
        "import sys, numpy as np, sardonyx;"
        "x = np.load(sys.argv[2]);"
        "found = [sardonyx.Session(sys.argv[1]).run(None, {'x': x})[0] for _ in range(3)];"
        "np.save(sys.argv[3], found)"
    )
    environment = {**os.environ, "SARDONYX_COMPILE": "wait", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    files = [path.with_name(f"y{number}.npy") for number in range(4)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path), str(path.with_name("x.npy")), str(file)], env=environment
        )
        for file in files
    ]
    assert [process.wait(timeout=120) for process in processes] == [0] * len(files)
    expected = session(path).run(None, {"x": X})[0]
    for file in files:
        for actual in np.load(file):
            np.testing.assert_array_equal(actual, expected)


def test_a_store_that_cannot_be_written_is_done_without(
    path: Path, folder: Path, compilations: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "file").touch()
    monkeypatch.setenv("SARDONYX_CACHE", str(folder / "file" / "cache"))
    expected = session(path).run(None, {"x": X})[0]
    np.testing.assert_array_equal(session(path).run(None, {"x": X})[0], expected)
    assert len(compilations) == 2


class Disk:
    """A disk that is full in the middle of one of the writes to it, and at no other time.

    Args:
        full_at: The number of that write; None: of none.

    Attributes:
        writes: How many there were.
    """

    def __init__(self, full_at: int | None) -> None:
        self.full_at = full_at
        self.writes = 0

    def open(self, descriptor: int, mode: str) -> io.BufferedWriter:
        disk = self

        class File(io.BufferedWriter):
            def write(self, data: Any) -> int:
                number, disk.writes = disk.writes, disk.writes + 1
                if number != disk.full_at:
                    return super().write(data)
                super().write(data[: len(data) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return File(io.FileIO(descriptor, mode))


@pytest.mark.parametrize("most", [1, pytest.param(100, marks=pytest.mark.long)])
def test_no_space_left_at_any_write(
    path: Path, folder: Path, most: int, compilations: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session answers, nothing is left half written, and another session keeps all that the next one needs."""
    for number in range(most):
        position = folder / f"cache{number}"
        monkeypatch.setenv("SARDONYX_CACHE", str(position))
        disk = Disk(number)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fdopen", disk.open)
            expected = session(path).run(None, {"x": X})[0]
        if disk.writes <= number:
            break
        assert not [item for item in position.rglob(".*") if item.is_file()]
        compilations.clear()
        for end in ("/", "//"):
            # Another spelling of the folder is another store, as in another process.
            monkeypatch.setenv("SARDONYX_CACHE", f"{position}{end}")
            np.testing.assert_array_equal(session(path).run(None, {"x": X})[0], expected)
        assert len(compilations) == 1
    assert most == 1 or 4 < number < most - 1


def test_the_sources_that_name_a_program_are_all_that_sessions_stand_on() -> None:
    root = Path(__file__).resolve().parents[3]
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (layers,) = (contract["layers"] for contract in settings["contracts"] if contract.get("containers") == ["sardonyx"])
    below = {name.strip() for layer in layers[layers.index("runtime") :] for name in layer.split("|")}
    assert below - set(build_digest.COMPILING) == {"demo", "errors"}, "of these no program is made"
    assert set(build_digest.COMPILING) <= below


def test_a_large_file_is_not_read_for_its_digest_if_no_program_has_its_size(
    path: Path, compilations: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_cache, "SOON_BYTES", 16)
    source = program_cache.ModelSource(path)
    assert not source.may_be_stored(2)
    session(path, threads=2)
    copy = path.with_name("copy.onnx")
    shutil.copy(path, copy)
    # Reading the store waits for the writing of the program.
    session(copy, threads=2)
    assert program_cache.ModelSource(copy).may_be_stored(2)
    assert len(compilations) == 1
