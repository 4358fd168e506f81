"""ONNX Runtime by its library: it gives what its package gives, to the bit, and says what is wrong."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from sardonyx.core.eval.run_context import RunContext
from sardonyx.errors import ExecutionError, ResourceError, UnsupportedError
from sardonyx.runtime.providers import onnxruntime_library
from sardonyx.runtime.providers.onnxruntime_library import LibraryRunner, library

onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed (extra: onnxruntime)")
PATH = library()
pytestmark = pytest.mark.skipif(PATH is None, reason="this package of ONNX Runtime holds no library for C")

TYPES = ["float", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def net(text: str) -> bytes:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> net {text}')
    return bytes(model.SerializeToString())


def runner(model: bytes | str, inputs: Sequence[str], outputs: Sequence[str], threads: int | None = 2) -> LibraryRunner:
    assert PATH is not None
    return LibraryRunner(PATH, model, inputs, outputs, threads)


LOOP = net(
    """(int64 n, float[4] x) => (float[4] y) {
        t = Constant<value = bool {1}>()
        y = Loop(n, t, x) <body = body (int64 i, bool go, float[4] a) => (bool more, float[4] b) {
            more = Identity(go)  b = Tanh(a)
        }>
    }"""
)


@pytest.mark.parametrize("type", TYPES)
def test_arrays_of_every_type_and_rank(type: str) -> None:
    dtype = np.dtype("float32" if type == "float" else type)
    for shape in [(), (1,), (3, 2), (2, 0, 3), (1, 2, 1, 2, 1)]:
        declared = f"{type}[{', '.join(map(str, shape))}]" if shape else type
        made = runner(net(f"({declared} x) => ({declared} y) {{ y = Identity(x) }}"), ["x"], ["y"])
        x = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
        (y,) = made.run([x], RunContext())
        np.testing.assert_array_equal(y, x)
        assert y.dtype == dtype
        assert y.shape == shape
        assert y.flags.owndata
        assert y.flags.writeable


def test_it_gives_what_the_package_gives(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    text = "(float[2, 8, 9, 9] x, float[8, 8, 3, 3] w) => (float[?] y, float[?] s) { y = Conv(x, w) s = Softmax(y) }"
    path = tmp_path / "net.onnx"
    path.write_bytes(net(text))
    feeds = {name: random.standard_normal(shape).astype(np.float32) for name, shape in
             {"x": (2, 8, 9, 9), "w": (8, 8, 3, 3)}.items()}  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    wanted = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, feeds)
    for given in (str(path), path.read_bytes()):
        for threads in (None, 1, 2):
            found = runner(given, ["w", "x"], ["s", "y"], threads).run([feeds["w"], feeds["x"]], RunContext())
            for one, other in zip(found, reversed(wanted), strict=True):
                np.testing.assert_array_equal(one, other)


def test_arrays_that_are_not_in_order_in_memory() -> None:
    made = runner(net("(float[2, 3] x) => (float[3, 2] y) { y = Transpose(x) }"), ["x"], ["y"])
    x = np.arange(12, dtype=np.float32).reshape(3, 4).T[::2]
    np.testing.assert_array_equal(made.run([x], RunContext())[0], x.T)


def test_it_runs_from_any_thread() -> None:
    made = runner(net("(float[N] x) => (float[N] y) { y = Add(x, x) }"), ["x"], ["y"])
    wrong = []

    def calls(number: int) -> None:
        for size in range(200):
            x = np.full(size + 1, number, np.float32)
            if not np.array_equal(made.run([x], RunContext())[0], x + x):
                wrong.append(size)

    threads = [threading.Thread(target=calls, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="protobuf"):
        runner(b"no model", ["x"], ["y"])
    with pytest.raises(UnsupportedError, match=r"missing\.onnx"):
        runner(str(tmp_path / "missing.onnx"), ["x"], ["y"])
    made = runner(net("(float[3] x, int64[1] i) => (float[1] y) { y = Gather(x, i) }"), ["x", "i"], ["y"])
    x = np.arange(3, dtype=np.float32)
    for index, size in ((3, 3), (0, 2)):
        with pytest.raises(ExecutionError, match="ONNX Runtime"):
            made.run([x[:size], np.array([index])], RunContext())
    np.testing.assert_array_equal(made.run([x, np.array([1])], RunContext())[0], [1])


def test_runs_are_ended() -> None:
    made = runner(LOOP, ["n", "x"], ["y"])
    x = np.ones(4, np.float32)
    np.testing.assert_allclose(made.run([np.array(1), x], RunContext(timeout=60))[0], np.tanh(x), rtol=1e-6)
    with pytest.raises(ResourceError, match="longer than"):
        made.run([np.array(1 << 40), x], RunContext(timeout=0.05))
    context = RunContext(timeout=60)
    timer = threading.Timer(0.05, context.terminate)
    timer.start()
    with pytest.raises(ResourceError, match="terminated"):
        made.run([np.array(1 << 40), x], context)
    timer.join()


def test_what_is_no_such_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(UnsupportedError, match="is not opened"):
        onnxruntime_library.interface(tmp_path / "text.so")


def test_a_package_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime_library, "NAMES", "libother.so*")
    assert library() is None
    monkeypatch.setattr(onnxruntime_library.importlib.util, "find_spec", lambda _: None)
    assert library() is None
