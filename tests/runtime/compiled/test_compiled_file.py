"""Compiled files: the same bits as the session that wrote them, and refused where they are not what they should be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.compiler.program_image.image import FORMAT
from sardonyx.compiler.target import description
from sardonyx.errors import ExecutionError, FeedError, ModelFileError, OptionError, ShapeError, UnsupportedError
from sardonyx.runtime.compiled import compiled_file

MODEL = onnx.parser.parse_model(
    """<ir_version: 9, opset_import: ["": 18]>
    net (float[N, 8] x, int64[K] rows) => (float[K, 4] y, float[N, 4] h) {
        h = MatMul(x, w)
        s = Softmax(h)
        y = Gather(s, rows)
    }"""
)
RNG = np.random.default_rng(0)
MODEL.graph.initializer.append(onnx.numpy_helper.from_array(RNG.standard_normal((8, 4)).astype(np.float32), "w"))
FEEDS = {"x": RNG.standard_normal((5, 8)).astype(np.float32), "rows": np.array([3, 0, -1])}


@pytest.fixture(scope="module")
def original() -> sardonyx.Session:
    return sardonyx.Session(MODEL, compile="wait")


@pytest.fixture
def path(original: sardonyx.Session, tmp_path: Path) -> Path:
    file = tmp_path / "net.sdx"
    original.save_compiled(file)
    return file


def opened(path: Path, **options: int) -> sardonyx.Session:
    return sardonyx.Session(path, compile="wait", **options)  # type: ignore[arg-type]


def test_it_computes_the_same_bits_at_any_size(original: sardonyx.Session, path: Path) -> None:
    session = opened(path)
    assert repr(session.get_inputs()) == repr(original.get_inputs())
    assert repr(session.get_outputs()) == repr(original.get_outputs())
    for count in (1, 5, 33):
        feeds = {**FEEDS, "x": RNG.standard_normal((count, 8)).astype(np.float32), "rows": np.array([0, -1])}
        for actual, expected in zip(session.run(None, feeds), original.run(None, feeds), strict=True):
            np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(session.run(["h"], FEEDS)[0], original.run(["h"], FEEDS)[0])


def test_it_runs_on_other_numbers_of_threads(original: sardonyx.Session, path: Path) -> None:
    for threads in (1, 2, 3):
        np.testing.assert_array_equal(opened(path, threads=threads).run(None, FEEDS)[0], original.run(None, FEEDS)[0])


def test_another_process_without_a_store_runs_it(original: sardonyx.Session, path: Path) -> None:
    np.savez(path.with_name("feeds.npz"), **FEEDS)  # type: ignore[arg-type]
    code = (
        "import sys, numpy as np, sardonyx;"
        "y = sardonyx.Session(sys.argv[1], compile='wait').run(['y'], dict(np.load(sys.argv[2])))[0];"
        "np.save(sys.argv[3], y)"
    )
    files = [path, path.with_name("feeds.npz"), path.with_name("y.npy")]
    environment = {**os.environ, "SARDONYX_CACHE": "off", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code, *map(str, files)], check=True, env=environment)
    np.testing.assert_array_equal(np.load(files[2]), original.run(["y"], FEEDS)[0])


def test_weights_stay_in_the_file(path: Path) -> None:
    native = opened(path).native
    assert native is not None
    (weights,) = native.program.prepared.values()
    assert not weights.flags.writeable
    assert not weights.flags.owndata


def test_wrong_calls_are_refused(path: Path) -> None:
    session = opened(path)
    with pytest.raises(FeedError, match="not fed"):
        session.run(None, {"x": FEEDS["x"]})
    with pytest.raises(FeedError, match="no such input"):
        session.run(None, {**FEEDS, "z": FEEDS["x"]})
    with pytest.raises(FeedError, match="no such value"):
        session.run(["s"], FEEDS)
    with pytest.raises(FeedError, match="double"):
        session.run(None, {**FEEDS, "x": FEEDS["x"].astype(np.float64)})
    with pytest.raises(ShapeError, match="axis 1 has size 7"):
        session.run(None, {**FEEDS, "x": FEEDS["x"][:, :7]})
    with pytest.raises(ExecutionError, match="index out of range"):
        session.run(None, {**FEEDS, "rows": np.array([7])})
    with pytest.raises(UnsupportedError, match=r"got a compiled file\. Give the model from which"):
        _ = session.model


@pytest.mark.parametrize("position", [0, 20, 100, -1])
def test_damage_is_noticed(path: Path, position: int) -> None:
    contents = bytearray(path.read_bytes())
    contents[position] ^= 1
    path.write_bytes(contents)
    with pytest.raises(ModelFileError):
        opened(path)


@pytest.mark.parametrize("length", [0, 10, 64, 500])
def test_files_that_are_cut_off_are_refused(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ModelFileError):
        opened(path)


def test_another_version_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sardonyx, "__version__", "0.0.0")
    with pytest.raises(UnsupportedError, match=r"this is 0\.0\.0"):
        opened(path)


def test_a_file_of_an_earlier_format_is_refused_though_the_package_version_is_the_same(path: Path) -> None:
    contents = bytearray(path.read_bytes())
    assert contents[7] == FORMAT
    contents[7] = 1
    path.write_bytes(contents)
    with pytest.raises(UnsupportedError, match=rf"expected a compiled file of format {FORMAT}, got format 1"):
        opened(path)


def test_a_lesser_processor_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lesser = description.NAMED["sse"]
    if description.host().name == "sse":
        pytest.skip("there is no lesser one")
    monkeypatch.setattr(compiled_file, "host", lambda: lesser)
    with pytest.raises(UnsupportedError, match="this machine has sse"):
        opened(path)


def test_what_the_interpreter_computes_a_part_of_is_written(tmp_path: Path) -> None:
    text = '<ir_version: 9, opset_import: ["": 18]> net (float[N] x) => (float[K] y) { z = Exp(x) y = Unique(z) }'
    session = sardonyx.Session(onnx.parser.parse_model(text), compile="wait")
    session.save_compiled(tmp_path / "net.sdx")
    for x in ([1.0, 0.0, 1.0, 2.0], [], [3.0]):
        feeds = {"x": np.array(x, np.float32)}
        actual = sardonyx.Session(tmp_path / "net.sdx", compile="wait").run(None, feeds)[0]
        np.testing.assert_array_equal(actual, session.run(None, feeds)[0])


def test_what_is_not_compiled_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="compiling is off"):
        sardonyx.Session(MODEL, compile="off").save_compiled(tmp_path / "net.sdx")
    assert list(tmp_path.iterdir()) == []


def test_names_and_options_that_make_no_sense(original: sardonyx.Session, path: Path) -> None:
    with pytest.raises(OptionError, match=r"ends in \.sdx"):
        original.save_compiled(path.with_suffix(".onnx"))
    with pytest.raises(OptionError, match="compiled code only"):
        sardonyx.Session(path, compile="off")
    with pytest.raises(ModelFileError):
        opened(path.with_name("none.sdx"))
