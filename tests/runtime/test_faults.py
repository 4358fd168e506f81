"""What can go wrong around compiled code, in processes of their own: no crash, no hang, right answers."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import sardonyx

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the faults are those of Linux")

MODEL = """<ir_version: 9, opset_import: ["": 18]>
    net (float[N, 64] x) => (float[N, 16] y) {
        a = MatMul(x, w)
        y = Softmax(a)
    }"""

ANSWERS = """
import sys, os, threading, time
import numpy as np
import sardonyx
folder = sys.argv[1]
x, y = np.load(folder + "/x.npy"), np.load(folder + "/y.npy")
def right(session, times=3):
    for _ in range(times):
        np.testing.assert_allclose(session.run(None, {"x": x})[0], y, rtol=1e-4, atol=1e-6)
"""

LOADED = (
    ANSWERS
    + """
session = sardonyx.Session(folder + "/net.onnx", compile="wait", threads=2)
assert session.native is not None, session.not_compiled
right(session)
"""
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, an input, and what it gives."""
    created = tmp_path_factory.mktemp("faults")
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(MODEL)
    weights = rng.standard_normal((64, 16)).astype(np.float32) / 8
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, created / "net.onnx")
    os.utime(created / "net.onnx", (1e9, 1e9))
    x = rng.standard_normal((300, 64)).astype(np.float32)
    np.save(created / "x.npy", x)
    np.save(created / "y.npy", sardonyx.Session(model, compile="off").run(None, {"x": x})[0])
    return created


def environment(cache: Path | str, **more: str) -> dict[str, str]:
    arguments = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONDONTWRITEBYTECODE": "1"}
    return {**arguments, "SARDONYX_CACHE": str(cache), **more}


def start(script: str, folder: Path, cache: Path | str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, str(folder)],
        env=environment(cache), stderr=subprocess.PIPE, text=True, **options,  # type: ignore[call-overload]
    )  # fmt: skip


def ends_well(script: str, folder: Path, cache: Path | str, **options: object) -> str:
    """Run a script to its end; what it says on its standard error."""
    process = start(script, folder, cache, **options)
    try:
        _, messages = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, messages
    return messages


def entries(cache: Path) -> list[Path]:
    return sorted(path for path in cache.rglob("*") if path.is_file())


# The store on disk.


@pytest.mark.parametrize("rounds", [2, pytest.param(40, marks=pytest.mark.long)])
def test_a_process_that_is_killed_while_it_keeps_things(folder: Path, tmp_path: Path, rounds: int) -> None:
    """Killed as soon as there are so many entries, or one is being written; whoever comes next finds them whole."""
    draw = random.Random(0)
    for number in range(rounds):
        if number % 3 == 0:
            shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        before = len(entries(tmp_path / "cache"))
        process = start(LOADED, folder, tmp_path / "cache")
        while process.poll() is None and len(entries(tmp_path / "cache")) <= before + number % 4:
            time.sleep(0.001)
        time.sleep(draw.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert "damaged" not in ends_well(LOADED, folder, tmp_path / "cache")


@pytest.mark.parametrize("limit", [700, *(pytest.param(limit, marks=pytest.mark.long) for limit in (0, 3_000))])
def test_files_that_cannot_grow(folder: Path, tmp_path: Path, limit: int) -> None:
    """As on a full disk: the write in the middle of an entry fails."""
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n{LOADED}"
    assert "not stored" in ends_well(limited, folder, tmp_path)
    assert not [path for path in entries(tmp_path) if path.name.startswith(".")]
    ends_well(LOADED, folder, tmp_path)


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A disk of the test's own, mounted with the options of its parameter."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run([mount, "-t", "tmpfs", "-o", request.param, "tmpfs", disk], check=False).returncode
    ):
        pytest.skip("a disk cannot be mounted here")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("disk", ["size=16k"], indirect=True)
def test_a_full_disk(folder: Path, disk: Path) -> None:
    assert "No space left" in ends_well(LOADED, folder, disk)
    assert not [path for path in entries(disk) if path.name.startswith(".")]
    ends_well(LOADED, folder, disk)


@pytest.mark.parametrize("disk", ["ro"], indirect=True)
def test_a_disk_that_is_read_only(folder: Path, disk: Path) -> None:
    messages = ends_well(LOADED, folder, disk)
    assert "not stored" in messages and "Read-only" in messages


@pytest.mark.parametrize(
    "position", ["/dev/null", *(pytest.param(item, marks=pytest.mark.long) for item in ("/proc/none", "off"))]
)
def test_places_where_there_is_no_store(folder: Path, position: str) -> None:
    ends_well(LOADED, folder, position)


def flipped(data: bytes) -> bytes:
    at = random.Random(len(data)).randrange(len(data))
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


DAMAGES = {
    "flipped": flipped,
    "cut": lambda data: data[: len(data) // 2],
    "emptied": lambda data: b"",
    "longer": lambda data: data + data,
    "zeros": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize(
    "damage", ["flipped", *(pytest.param(item, marks=pytest.mark.long) for item in DAMAGES if item != "flipped")]
)
def test_entries_of_every_kind_that_are_damaged_are_made_anew(folder: Path, tmp_path: Path, damage: str) -> None:
    ends_well(LOADED, folder, tmp_path)
    whole = {path: path.read_bytes() for path in entries(tmp_path)}
    assert {path.parent.name for path in whole} == {"kernel", "object", "program", "weights"}
    for path, data in whole.items():
        path.write_bytes(DAMAGES[damage](data))
    assert "damaged" in ends_well(LOADED, folder, tmp_path)
    # What nobody needed meanwhile may still be damaged: what is found is whole.
    actual = {path: path.read_bytes() for path in entries(tmp_path)}
    assert actual.keys() == whole.keys()
    assert ends_well(LOADED, folder, tmp_path) == ""


@pytest.mark.long
def test_eight_sessions_that_start_at_once(folder: Path, tmp_path: Path) -> None:
    processes = [start(LOADED, folder, tmp_path) for _ in range(8)]
    messages = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, messages
    assert ends_well(LOADED, folder, tmp_path) == ""


@pytest.mark.long
def test_the_store_stays_bounded_under_sessions(folder: Path, tmp_path: Path) -> None:
    bounded = "from sardonyx.base import artifact_store\nartifact_store.Store.__init__.__defaults__ = (100_000,)\n"
    ends_well(bounded + LOADED, folder, tmp_path)
    assert sum(path.stat().st_size for path in entries(tmp_path)) <= 100_000
    ends_well(bounded + LOADED, folder, tmp_path)


# Processes that fork, and that end.


def test_a_process_that_forks_after_loading(folder: Path, tmp_path: Path) -> None:
    """While the session runs in another thread, too: parent and children go on, with workers of their own."""
    script = (
        LOADED
        + """
def children(count):
    for _ in range(count):
        child = os.fork()
        if child == 0:
            try:
                right(session)
                right(sardonyx.Session(folder + "/net.onnx", compile="wait", threads=2))
            finally:
                os._exit(7 if sys.exc_info()[0] is None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
children(3)
stop = threading.Event()
busy = threading.Thread(target=lambda: [right(session, 1) for _ in iter(stop.is_set, True)])
busy.start()
children(3)
stop.set()
busy.join()
right(session)
"""
    )
    ends_well(script, folder, tmp_path)


ENDINGS = {
    "workers wait": "",
    "a daemon is running": """
threading.Thread(target=lambda: right(session, 10**9), daemon=True).start()
time.sleep(0.1)
""",
    "daemons are in one long run": """
big = np.zeros((200_000, 64), np.float32)
for _ in range(2):
    threading.Thread(target=lambda: [session.run(None, {"x": big}) for _ in iter(int, 1)], daemon=True).start()
time.sleep(0.2)
""",
    "it is compiling": "sardonyx.Session(folder + '/net.onnx', threads=1, denormals='flush')",
    "an exit handler runs it": "import atexit; atexit.register(right, session)",
    "an exception ends it": "raise SystemExit(0)",
}


@pytest.fixture(scope="module")
def filled(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that has all."""
    cache = tmp_path_factory.mktemp("filled")
    ends_well(LOADED, folder, cache)
    return cache


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_interpreter_ends(folder: Path, filled: Path, ending: str) -> None:
    assert ends_well(LOADED + ENDINGS[ending], folder, filled) == ""


@pytest.mark.long
def test_the_interpreter_ends_at_any_moment(folder: Path, tmp_path: Path) -> None:
    for number, ending in itertools.product(range(15), ("a daemon is running", "it is compiling")):
        ends_well(f"{LOADED}{ENDINGS[ending]}\ntime.sleep({number * 0.003})", folder, tmp_path)
