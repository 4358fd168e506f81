"""Work behind calls ends with the process, and the process ends well."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from sardonyx.base import background_threads
from sardonyx.base.cancellation import Cancelled, cancel_on, raise_if_cancelled


def ended(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)


def test_a_process_waits_until_work_asks_whether_to_go_on() -> None:
    """Python would end the thread inside of what gives its lock back, and numpy's C++ code aborts the process then."""
    actual = ended("""
import threading
import numpy as np
from sardonyx.base import background_threads as background
from sardonyx.base.cancellation import Cancelled, raise_if_cancelled

begun = threading.Event()

def work():
    numbers = np.random.default_rng(0).integers(0, 1 << 40, 1 << 12)
    try:
        while True:
            np.unique(numbers)
            begun.set()
            raise_if_cancelled()
    except Cancelled:
        print("ended")
        raise

background.start("work", work)
begun.wait()
""")
    assert (actual.returncode, actual.stdout, actual.stderr) == (0, "ended\n", "")


def test_a_process_does_not_wait_for_a_pause() -> None:
    actual = ended("""
from sardonyx.base import background_threads as background
from sardonyx.base.cancellation import Cancelled

def work():
    try:
        background.pause(1000)
    except Cancelled:
        print("woken")
        raise

background.start("work", work)
""")
    assert (actual.returncode, actual.stdout, actual.stderr) == (0, "woken\n", "")


def test_a_process_ends_well_while_a_session_compiles() -> None:
    actual = ended("""
import numpy as np
import sardonyx
from onnx import TensorProto, helper
x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])
nodes = [helper.make_node("Tanh", [f"v{i}" if i else "x"], [f"v{i + 1}" if i < 99 else "y"]) for i in range(100)]
graph = helper.make_graph(nodes, "g", [x], [y])
session = sardonyx.Session(helper.make_model(graph), compile="background")
session.run(None, {"x": np.ones((2, 3), np.float32)})
""")
    assert (actual.returncode, actual.stdout, actual.stderr) == (0, "", "")


def test_work_in_threads_of_the_process_goes_on_while_it_lives() -> None:
    messages: list[str] = []
    background_threads.start(
        "work", lambda: (raise_if_cancelled(), messages.append(threading.current_thread().name))
    ).join(120)
    assert messages == ["work"]


def test_what_is_asked_from_around_counts_inside() -> None:
    outer, inner = threading.Event(), threading.Event()
    with cancel_on(outer), cancel_on(inner):
        raise_if_cancelled()
        outer.set()
        with pytest.raises(Cancelled):
            raise_if_cancelled()
    raise_if_cancelled()


def test_what_a_thread_may_need_is_taken_down_after_it() -> None:
    """Whenever that was registered: before any work was begun, or after some."""
    actual = ended("""
import atexit
from sardonyx.base import background_threads as background
from sardonyx.base.cancellation import Cancelled

def work():
    try:
        background.pause(1000)
    except Cancelled:
        print("ended", flush=True)
        raise

atexit.register(print, "first taken down", flush=True)
background.start("before", lambda: None)
atexit.register(print, "second taken down", flush=True)
background.start("work", work)
""")
    assert (actual.returncode, actual.stdout) == (0, "ended\nsecond taken down\nfirst taken down\n")
