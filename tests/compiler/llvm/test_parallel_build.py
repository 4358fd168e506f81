"""Object code comes from the store or from whoever is free to compile; processes that die change nothing."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sardonyx.base.artifact_store import Store
from sardonyx.compiler.llvm import object_code
from sardonyx.compiler.llvm import parallel_build as build
from sardonyx.compiler.llvm.compile_worker import CompileProcess, ProcessEnded
from sardonyx.compiler.llvm.object_code import CodeGenerationError, LoadedCode, compiled, module_text
from sardonyx.compiler.llvm.parallel_build import Build, objects
from sardonyx.compiler.target.description import NAMED, Target, host


def giving(*numbers: int) -> list[str]:
    """Modules with one function each, ``giveN``, that gives ``N``."""
    return [module_text(host(), [f"define i64 @give{n}() {{\n  ret i64 {n}\n}}"]) for n in numbers]


def arguments(codes: list[bytes], *numbers: int) -> list[int]:
    loaded = LoadedCode(codes, host())
    return [ctypes.CFUNCTYPE(ctypes.c_int64)(loaded.address(f"give{n}"))() for n in numbers]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that this process compiles itself."""
    texts: list[str] = []

    def recorded(text: str, target: Target) -> bytes:
        texts.append(text)
        return compiled(text, target)

    monkeypatch.setattr(build, "compiled", recorded)
    return texts


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any text is worth a process."""
    monkeypatch.setattr(build, "WORTH_A_PROCESS", 1)


def test_each_text_is_compiled_once_and_then_read(tmp_path: Path, here: list[str]) -> None:
    first = objects(giving(1, 2, 1, 3, 2), host(), Store(tmp_path))
    assert len(here) == 3
    assert first[0] == first[2] and first[1] == first[4]
    assert arguments(first[1:4], 2, 1, 3) == [2, 1, 3]
    assert objects(giving(3, 1), host(), Store(tmp_path)) == [first[3], first[0]]
    assert len(here) == 3


def test_without_a_store_and_without_texts(here: list[str]) -> None:
    assert arguments(objects(giving(5), host(), Store(None)), 5) == [5]
    assert objects([], host(), Store(None)) == []
    assert len(here) == 1


def test_targets_have_code_of_their_own(tmp_path: Path) -> None:
    text = "define <16 x float> @f(<16 x float> %x) {\n  %y = fadd <16 x float> %x, %x\n  ret <16 x float> %y\n}"
    stored = Store(tmp_path)
    codes = {objects([text], NAMED[name], stored)[0] for name in ("sse", "avx2", "avx512")}
    assert len(codes) == 3


def test_a_damaged_object_is_compiled_again(tmp_path: Path, here: list[str]) -> None:
    (good,) = objects(giving(1), host(), Store(tmp_path))
    (path,) = (tmp_path / "object").iterdir()
    path.write_bytes(path.read_bytes()[:-9] + bytes(9))
    assert objects(giving(1), host(), Store(tmp_path)) == [good]
    assert len(here) == 2
    assert objects(giving(1), host(), Store(tmp_path)) == [good]
    assert len(here) == 2


def test_other_processes_compile_the_same(tmp_path: Path, here: list[str], eager: None) -> None:
    numbers = range(1, 20)
    stored = Store(tmp_path)
    codes = objects(giving(*numbers), host(), stored, jobs=3)
    assert len(here) <= len(numbers) - 2, "each of two others has done something"
    assert codes == [compiled(text, host()) for text in giving(*numbers)]
    here.clear()
    assert objects(giving(*numbers), host(), stored, jobs=3) == codes
    assert here == []


def test_other_processes_begin_before_somebody_asks(tmp_path: Path, here: list[str], eager: None) -> None:
    stored = Store(tmp_path)
    with Build(host(), stored, jobs=2) as build:
        for text in giving(1, 2, 3, 2):
            build.add(text)
        for _ in range(6000):
            if len([*tmp_path.glob("object/*")]) == 3:
                break
            time.sleep(0.01)
        assert arguments(build.objects(giving(3, 1)), 3, 1) == [3, 1]
    assert here == []


def test_an_error_while_texts_are_written_ends_the_others(tmp_path: Path, eager: None) -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), Build(host(), Store(tmp_path), jobs=3) as build:
        for text in giving(*range(50)):
            build.add(text)
        raise ZeroDivisionError
    assert threading.active_count() == before


def test_a_process_answers_until_it_is_ended() -> None:
    process = CompileProcess(host())
    for text in giving(1, 2):
        assert process.compiled(text) == compiled(text, host())
    with pytest.raises(CodeGenerationError, match="LLVM refuses"):
        process.compiled("define nonsense")
    assert process.compiled(giving(3)[0]) == compiled(giving(3)[0], host())
    process.end()
    with pytest.raises(ProcessEnded):
        process.compiled(giving(1)[0])


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system does not kill so")
def test_processes_that_are_killed_leave_the_work_to_this_one(
    monkeypatch: pytest.MonkeyPatch, here: list[str], eager: None
) -> None:
    class Doomed(CompileProcess):
        def compiled(self, text: str) -> bytes:
            self._process.kill()
            return super().compiled(text)

    monkeypatch.setattr(build, "CompileProcess", Doomed)
    numbers = range(1, 9)
    assert arguments(objects(giving(*numbers), host(), Store(None), jobs=3), *numbers) == list(numbers)
    assert sorted(set(here)) == sorted(giving(*numbers))


@pytest.mark.parametrize("executable", ["", "/nowhere/python", "/bin/false"])
def test_no_process_can_be_started(
    monkeypatch: pytest.MonkeyPatch, here: list[str], eager: None, executable: str
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    assert arguments(objects(giving(1, 2, 3), host(), Store(None), jobs=2), 1, 2, 3) == [1, 2, 3]
    assert len(here) == 3


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_text_that_llvm_refuses(tmp_path: Path, eager: None, jobs: int) -> None:
    with pytest.raises(CodeGenerationError, match="LLVM refuses"):
        objects([*giving(*range(10)), "define nonsense" + " " * 1000], host(), Store(tmp_path), jobs=jobs)


def test_the_process_imports_little() -> None:
    script = """
import sys
from sardonyx.compiler.llvm.compile_worker import compiled
from sardonyx.compiler.target.description import host
assert compiled("define i64 @give() { ret i64 1 }", host())
print(*sorted(sys.modules))
"""
    actual = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "llvmlite" in actual
    assert not {"numpy", "onnx", "onnx_ir", "rich", "sardonyx.core", "sardonyx.model"} & set(actual)


SCRIPT = """
import pathlib, sys
with open(sys.argv[1], "a") as log:
    log.write("run\\n")
from sardonyx.compiler.llvm import object_code as machine_code, parallel_build as build
from sardonyx.base.artifact_store import Store
from sardonyx.compiler.llvm.object_code import module_text
from sardonyx.compiler.target.description import host
build.WORTH_A_PROCESS = 1
texts = [module_text(host(), ["define i64 @give%d() { ret i64 %d }" % (n, n)]) for n in range(20)]
processes = []
start = build.CompileProcess.__init__
def noted(self, target):
    start(self, target)
    processes.append(self._process.pid)
    with open(sys.argv[1], "a") as log:
        log.write("process %d\\n" % self._process.pid)
build.CompileProcess.__init__ = noted
"""


def script(folder: Path, end: str) -> tuple[Path, Path]:
    """A script as users write them, that compiles without a ``__main__`` guard, and its log."""
    path, log = folder / "script.py", folder / "log"
    path.write_text(SCRIPT + end)
    return path, log


def test_a_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    path, log = script(tmp_path, "assert len(build.objects(texts, host(), Store(None), 2)) == 20\n")
    ended = subprocess.run([sys.executable, path, log], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    words = [line.split()[0] for line in log.read_text().splitlines()]
    assert words == ["run", "process"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="processes are looked up in /proc")
def test_a_process_does_not_outlive_the_one_it_works_for(tmp_path: Path) -> None:
    path, log = script(tmp_path, "while True:\n    build.objects(texts, host(), Store(None), 2)\n")
    parent = subprocess.Popen([sys.executable, path, log])
    while not (log.exists() and "process" in log.read_text()):
        assert parent.poll() is None
        time.sleep(0.01)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    children = [int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("process")]
    for _ in range(500):
        if not any(alive(child) for child in children):
            return
        time.sleep(0.02)
    raise AssertionError("a compiling process goes on alone")


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_other_passes_make_other_code(tmp_path: Path, here: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def without_passes(module: object, machine: object) -> None:
        return None

    objects(giving(1), host(), Store(tmp_path))
    with monkeypatch.context() as changed:
        changed.setattr(object_code, "optimize", without_passes)
        object_code.toolchain.cache_clear()  # A process asks once what compiles.
        objects(giving(1), host(), Store(tmp_path))
    object_code.toolchain.cache_clear()
    assert len(here) == 2
