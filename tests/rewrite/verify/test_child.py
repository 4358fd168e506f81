"""A child process is reused, except one that could answer wrongly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from sardonyx import model as model_io
from sardonyx.rewrite.verify import Verifier, child
from sardonyx.rewrite.verify.child import Child, IsolatedRunner
from tests.rewrite.models import info, model, node

TANH = model([node("Tanh", ["x"], ["y"])], [info("x", ["n", 4])], [info("y", ["n", 4])])


@pytest.fixture(autouse=True)
def none_waits() -> Iterator[None]:
    """Stop the idle process before and after each test."""
    child.stop_idle()
    yield
    child.stop_idle()


def waiting() -> int | None:
    """Return the id of the idle process, if any."""
    idle = child.idle.get(os.getpid())
    return None if idle is None else idle.process.pid


def test_one_process_serves_several_verifiers() -> None:
    with Verifier(model_io.from_proto(TANH)) as verifier:
        assert verifier.judge(model_io.from_proto(TANH), exact=True).status == "proved"
    first = waiting()
    assert first is not None
    relu = model([node("Relu", ["x"], ["y"])], [info("x", [3])], [info("y", [3])])
    with Verifier(model_io.from_proto(relu)) as verifier:
        assert waiting() is None
        assert verifier.judge(model_io.from_proto(relu), exact=True).status == "proved"
        other = model([node("Abs", ["x"], ["y"])], [info("x", [3])], [info("y", [3])])
        assert verifier.judge(model_io.from_proto(other), exact=True).status == "different"
    assert waiting() == first


def test_a_process_with_an_outstanding_answer_is_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> object:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Verifier(model_io.from_proto(TANH)) as verifier:
        monkeypatch.setattr(child.select, "select", interrupted)
        verifier.judge(model_io.from_proto(TANH), exact=True)
    assert waiting() is None


def test_a_process_that_ended_while_idle_is_not_reused() -> None:
    first = Child()
    first.release()
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    with Verifier(model_io.from_proto(TANH)) as verifier:
        assert verifier.judge(model_io.from_proto(TANH), exact=True).status == "proved"


def test_a_process_with_a_large_peak_is_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "REUSE_BYTES", 1 << 20)
    with Verifier(model_io.from_proto(TANH)) as verifier:
        assert verifier.samples
    assert waiting() is None


def test_relative_paths_resolve_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process began in another one."""
    with Verifier(model_io.from_proto(TANH)):
        pass
    monkeypatch.chdir(tmp_path)
    onnx.save(TANH, "tanh.onnx")
    with Verifier(Path("tanh.onnx")) as verifier:
        assert verifier.samples
    with IsolatedRunner() as apart, apart.file_of("tanh.onnx") as path:
        assert path == tmp_path / "tanh.onnx"


SCRIPTS = {
    "prints half a line": "sys.stdout.write('{'); sys.stdout.flush(); time.sleep(60)",
    "reads nothing": "time.sleep(60)",
    "leaves a process with its output": "subprocess.Popen(['sleep', '30']); time.sleep(60)",
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_process_is_waited_for_without_bound(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = [sys.executable, "-c", f"import subprocess, sys, time; {SCRIPTS[script]}"]
    popen = subprocess.Popen
    monkeypatch.setattr(child.subprocess, "Popen", lambda _, **options: popen(program, **options))
    one = Child()
    began = time.monotonic()
    answer = one.ask({"do": "run", "path": "x" * (1 << 20)}, 0.3)
    assert answer["status"] == "ended" and "took more than" in answer["reason"]
    assert one.process.poll() is not None
    assert time.monotonic() - began < 50


def test_a_process_that_closes_its_output_and_lives_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    program = [sys.executable, "-c", "import os, sys, time; sys.stdin.readline(); os.close(1); time.sleep(60)"]
    popen = subprocess.Popen
    monkeypatch.setattr(child.subprocess, "Popen", lambda _, **options: popen(program, **options))
    monkeypatch.setattr(child, "END_SECONDS", 0.2)
    one = Child()
    assert "did not end" in one.ask({"do": "run"}, 30.0)["reason"]
    assert one.process.poll() is not None


def test_an_engine_that_prints_answers_nothing() -> None:
    program = "import os; from sardonyx.rewrite.verify import worker; worker.Judge.answer = lambda *_: "
    program += "[os.write(1, b'noise'), print('noise'), {'status': 'good'}][-1]; worker.main()"
    out = subprocess.run([sys.executable, "-c", program], input="{}\n", capture_output=True, text=True, check=True)
    assert json.loads(out.stdout)["status"] == "good"
