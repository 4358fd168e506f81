"""While a model is compiled for the first time, the interpreter answers, and no other engine."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.base.thread_priority import FirstCall
from sardonyx.errors import OptionError
from sardonyx.model import load

TEXT = """<ir_version: 9, opset_import: ["": 18]>
    net (float[N, 8] x) => (float[N, 4] y) {
        h = MatMul(x, w)
        s = Relu(h)
        y = Softmax(s)
    }"""
X = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
INTERPRETER, NATIVE = {"reference"}, {"native"}


def net() -> onnx.ModelProto:
    model = onnx.parser.parse_model(TEXT)
    weights = np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


def expected(weights: np.ndarray | None = None, x: np.ndarray = X) -> np.ndarray:
    w = onnx.numpy_helper.to_array(net().graph.initializer[0]) if weights is None else weights
    s = np.maximum(x @ w, 0)
    e = np.exp(s - s.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SARDONYX_COMPILE", "background")
    return tmp_path


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """An event until which no model is compiled in the background."""
    over = threading.Event()
    monkeypatch.setattr(FirstCall, "wait", lambda _: over.wait(60))
    yield over
    over.set()
    for thread in threading.enumerate():  # A compile thread would be counted by other tests.
        if thread.name == "sardonyx-compile":
            thread.join(60)


def providers(session: sardonyx.Session) -> set[str]:
    return {placement.provider for placement in session.placement if placement.part >= 0}


def assert_close(actual: Any, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", ["path", "bytes", "proto", "model"])
def test_the_interpreter_answers_until_compiled_code_does(folder: Path, compiling: threading.Event, form: str) -> None:
    path = folder / "net.onnx"
    onnx.save(net(), path)
    model = {"path": path, "bytes": path.read_bytes(), "proto": net(), "model": load(path)}[form]
    session = sardonyx.Session(model)
    assert_close(session.run(None, {"x": X})[0], expected())
    assert providers(session) == INTERPRETER
    assert {placement.reason for placement in session.placement} == {"compiling is under way"}
    assert_close(session.run(["y"], {"x": X[:2]})[0], expected(x=X[:2]))
    compiling.set()
    assert session.wait()
    assert providers(session) == NATIVE
    assert_close(session.run(None, {"x": X})[0], expected())


def test_a_native_session_imports_no_other_engine(folder: Path) -> None:
    onnx.save(net(), folder / "net.onnx")
    code = """import sys, numpy as np, sardonyx
session = sardonyx.Session(sys.argv[1])
session.run(None, {"x": np.ones((2, 8), np.float32)})
assert session.wait(), session.not_compiled
session.run(None, {"x": np.ones((2, 8), np.float32)})
libraries = open("/proc/self/maps").read() if sys.platform == "linux" else ""
assert not {"onnxruntime", "openvino"} & set(sys.modules)
assert "onnxruntime" not in libraries
"""
    subprocess.run([sys.executable, "-c", code, folder / "net.onnx"], check=True, timeout=120)


def test_no_option_names_another_engine_for_first_answers() -> None:
    with pytest.raises((OptionError, TypeError), match="interim"):
        sardonyx.Session(net(), interim="onnxruntime")  # type: ignore[call-arg,unused-ignore]


def test_edits_of_a_model_that_is_not_compiled_yet(compiling: threading.Event) -> None:
    session = sardonyx.Session(net())
    session.run(None, {"x": X})
    weights = np.random.default_rng(2).standard_normal((8, 4)).astype(np.float32)
    session.set_weight("w", weights)
    assert_close(session.run(None, {"x": X})[0], expected(weights))
    with session.edit() as g:
        g.add_output("s")
    assert len(session.run(None, {"x": X})) == 2
    compiling.set()
    assert session.wait()
    assert_close(session.run(None, {"x": X})[0], expected(weights))


def test_a_binding_of_a_model_that_is_not_compiled_yet(compiling: threading.Event) -> None:
    binding = sardonyx.Session(net()).bind({"x": X.copy()})
    binding()
    assert_close(binding.outputs["y"], expected())


def test_an_input_with_a_default_may_be_fed_or_omitted(compiling: threading.Event) -> None:
    model = net()
    model.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [8, 4]))
    session = sardonyx.Session(model)
    weights = np.ones((8, 4), np.float32)
    for _ in range(2):
        assert_close(session.run(None, {"x": X})[0], expected())
        assert_close(session.run(None, {"x": X, "w": weights})[0], expected(weights))
        compiling.set()
        session.wait()


def test_compiling_waits_for_the_end_of_the_first_call() -> None:
    call, done = FirstCall(), threading.Event()
    waiting = threading.Thread(target=lambda: (call.wait(), done.set()))
    with call:
        waiting.start()
        assert not done.is_set()
    assert done.wait(120)
    waiting.join()


def test_compiling_begins_without_a_call_once_the_session_waits() -> None:
    call = FirstCall()
    call.give_up()
    call.wait()
    FirstCall().wait()


def test_a_large_file_is_digested_and_restored_in_the_background(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = folder / "a.onnx", folder / "b.onnx"
    large = net()
    large.doc_string = " " * (5 << 20)  # Files of 4 MiB are digested before the first call.
    for path in (first, second):
        onnx.save(large, path)
    assert sardonyx.Session(first, compile="wait").native
    monkeypatch.setattr(
        "sardonyx.runtime.compiled.compiled_model.NativeModel.compiled", lambda *_: pytest.fail("the model is compiled")
    )
    session = sardonyx.Session(second)
    assert_close(session.run(None, {"x": X})[0], expected())
    assert session.wait(), session.not_compiled
