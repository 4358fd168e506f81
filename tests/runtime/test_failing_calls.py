"""What fails a call fails that call alone, with an error that says what and where; the session goes on."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx import Session
from sardonyx.errors import ExecutionError, ResourceError, SardonyxError

X = np.array([1, 2, 3], np.float32)
WAYS = pytest.mark.parametrize("compile", ["off", "wait"])

PLACES = {
    "first": "h = my.Fragile(x) y = Neg(h)",
    "alone": "y = my.Fragile(x)",
    "behind native code": "a = Neg(x) b = Exp(a) y = my.Fragile(b)",
    "between native code": "a = Neg(x) b = my.Fragile(a) y = Exp(b)",
    "in a loop": """n = Constant<value_int = 2>() go = Constant<value = bool {1}>()
        y = Loop(n, go, x)<body = b (int64 i, bool c, float[N] s) => (bool d, float[N] t) {
            d = Identity(c)  t = my.Fragile(s)
        }>""",
}


def parsed(graph: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21, "my": 1]> {graph}')


class Fragile:
    """A host operator that gives what it is given, or does what it is told."""

    def __init__(self) -> None:
        self.does: Callable[[np.ndarray], Any] | None = None
        sardonyx.host_operator("Fragile", domain="my", since=1, types=lambda x: (x,))(self._compute)

    def _compute(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (x.copy(),) if self.does is None else self.does(x)


@pytest.fixture
def fragile() -> Fragile:
    return Fragile()


def raises(error: BaseException) -> Callable[[np.ndarray], Any]:
    def compute(x: np.ndarray) -> Any:
        raise error

    return compute


FAULTS = {
    "an arithmetic error": (raises(ZeroDivisionError("bad luck")), "Fragile raised ZeroDivisionError: bad luck"),
    "an error of the system": (raises(OSError("no such device")), "Fragile raised OSError: no such device"),
    "an error of its own": (raises(ExecutionError("it is Monday.")), "it is Monday"),
    "no result": (lambda x: (), r"expected a tuple of 1 from Fragile, got 0 results"),
    "two results": (lambda x: (x, x), r"expected a tuple of 1 from Fragile, got 2 results"),
    "no tuple": (lambda x: x, r"expected a tuple of 1 from Fragile, got a ndarray"),
    "no array": (lambda x: ("text",), r"expected float.* from Fragile by its type rule, got a str"),
    "another type": (
        lambda x: (x.astype(np.float64),),
        r"expected float\[.* from Fragile by its type rule, got float64\[3\]",
    ),
    "another rank": (lambda x: (x[None],), r"expected float\[.* from Fragile by its type rule, got float32\[1, 3\]"),
    "another size": (lambda x: (x[:2],), r"Fragile.* (got float32\[2\]|size 2)"),
}


@WAYS
@pytest.mark.parametrize("position", PLACES)
def test_a_host_operator_that_fails(compile: str, position: str, fragile: Fragile) -> None:
    session = Session(parsed(f"g (float[N] x) => (float[N] y) {{ {PLACES[position]} }}"), compile=compile)  # type: ignore[arg-type]
    (expected,) = session.run(None, {"x": X})
    for _ in range(2):
        for does, message in FAULTS.values():
            fragile.does = does
            with pytest.raises(SardonyxError, match=message) as caught:
                session.run(None, {"x": X})
            assert caught.value.where
            fragile.does = None
            np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected)
        for error, kind in ((MemoryError(), ResourceError), (KeyboardInterrupt(), KeyboardInterrupt)):
            fragile.does = raises(error)
            with pytest.raises(kind):
                session.run(None, {"x": X})
            fragile.does = None
            np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected)


@WAYS
def test_calls_beside_one_that_fails_are_answered(compile: str, fragile: Fragile) -> None:
    session = Session(parsed("g (float[N] x) => (float[N] y) { h = my.Fragile(x) y = Neg(h) }"), compile=compile)  # type: ignore[arg-type]

    def compute(x: np.ndarray) -> tuple[np.ndarray]:
        if x[0] < 0:
            raise ValueError("below zero")
        return (x,)

    fragile.does = compute
    wrong: list[object] = []

    def call(sign: float) -> None:
        for n in range(1, 100):
            x = np.full(n, sign, np.float32)
            try:
                (actual,) = session.run(None, {"x": x})
                if sign < 0 or not np.array_equal(actual, -x):
                    wrong.append(actual)
            except ExecutionError as error:
                if sign > 0:
                    wrong.append(error)

    threads = [threading.Thread(target=call, args=(sign,)) for sign in (1.0, -1.0, 2.0, -2.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# Signals.

INTERRUPTED = """
import os, signal, sys, threading
import numpy as np, onnx
import sardonyx

looped = onnx.parser.parse_model('''<ir_version: 9, opset_import: ["": 18]>
    g (float[8] x, int64 n) => (float[8] y) { t = Constant<value = bool {1}>()
        y = Loop (n, t, x) <body = b (int64 i, bool c, float[8] v) => (bool d, float[8] w)
            { d = Identity(c) w = Sin(v) }> }''')
x, n = np.ones(8, np.float32), np.array(0)
heard = []

def handler(number, frame):
    heard.append(number)
    if len(heard) == 2:
        raise KeyboardInterrupt

def send(over):
    while not over.wait(0.05):
        os.kill(os.getpid(), signal.SIGINT)

def interrupted(call):
    "Signals while it runs: the handler lets the first pass."
    heard.clear()
    n[...] = 1 << 60
    over = threading.Event()
    sender = threading.Thread(target=send, args=(over,))
    sender.start()
    try:
        call()
    except KeyboardInterrupt:
        n[...] = 2
    else:
        raise SystemExit("a loop without an end ended")
    finally:
        over.set()
        sender.join()

def check(session):
    n[...] = 2
    np.testing.assert_allclose(session.run(None, {"x": x, "n": n})[0], np.sin(np.sin(x)), rtol=1e-5)

signal.signal(signal.SIGINT, handler)
session = sardonyx.Session(looped, compile="wait", threads=1)
assert session.native is not None
run = lambda: session.run(None, {"x": x, "n": n})
interrupted(run)  # The first call.
check(session), check(session), check(session)
interrupted(run)  # One of many.
check(session)
binding = session.bind({"x": x, "n": n})
interrupted(binding)
binding()
np.testing.assert_allclose(binding.outputs["y"], np.sin(np.sin(x)), rtol=1e-5)
child = os.fork()
if child == 0:
    interrupted(run)
    check(session)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as on POSIX")
def test_ctrl_c_ends_a_run_and_the_session_goes_on() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", INTERRUPTED],
        env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr


# Files that are no models.

NET = "net (float[N] x) => (float[N] y) { y = Neg(x) }"
OTHER = "other (float[N] x) => (float[N] y) { h = Abs(x) y = Exp(h) }"


def garbage() -> dict[str, bytes]:
    whole = parsed(OTHER).SerializeToString()
    draw = random.Random(0)
    return {
        "empty": b"",
        "zeros": bytes(1000),
        "text": b"this is no model\n" * 20,
        "numbers": bytes(draw.randrange(256) for _ in range(500)),
        "no operator": parsed("g (float[N] x) => (float[N] y) { y = my.Nobody(x) }").SerializeToString(),
        "no value": whole.replace(b"\x0a\x01h", b"\x0a\x01q", 1),
        **{f"cut at {at}": whole[:at] for at in draw.sample(range(1, len(whole)), 12)},
    }


@WAYS
def test_files_that_are_no_models_are_no_reload(compile: str, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    session = Session(parsed(NET), compile=compile)  # type: ignore[arg-type]
    for name, data in garbage().items():
        path.write_bytes(data)
        with pytest.raises(SardonyxError):
            session.reload(path)
            raise AssertionError(name)
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], -X)
    with pytest.raises(SardonyxError):
        session.reload(tmp_path / "none.onnx")
    with pytest.raises(SardonyxError):
        session.reload(tmp_path)
    assert not session.history
    path.write_bytes(parsed(OTHER).SerializeToString())
    session.reload(path)
    np.testing.assert_allclose(session.run(None, {"x": X})[0], np.exp(X), rtol=1e-6)


def test_a_watched_file_may_be_garbage_for_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sardonyx.runtime.live.file_watch.INTERVAL_SECONDS", 0.01)
    path = tmp_path / "net.onnx"
    path.write_bytes(parsed(NET).SerializeToString())
    session = Session(path, compile="off", watch=True)

    def replace(data: bytes) -> None:
        (tmp_path / "new").write_bytes(data)
        (tmp_path / "new").replace(path)

    def until(true: Callable[[], bool]) -> None:
        end = time.monotonic() + 300
        while not true():
            assert time.monotonic() < end
            time.sleep(0.01)

    for data in garbage().values():
        caplog.clear()
        replace(data)
        until(lambda: "not loaded" in caplog.text)
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], -X)
    path.unlink()
    replace(parsed(OTHER).SerializeToString())
    until(lambda: len(session.history) == 1)
    np.testing.assert_allclose(session.run(None, {"x": X})[0], np.exp(X), rtol=1e-6)
