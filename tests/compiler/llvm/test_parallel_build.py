"""Object code comes from the store or from any thread that is free to compile."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sardonyx.base.artifact_store import Store
from sardonyx.compiler.llvm import object_code
from sardonyx.compiler.llvm import parallel_build as build
from sardonyx.compiler.llvm.object_code import CodeGenerationError, LoadedCode, compiled, module_text
from sardonyx.compiler.llvm.parallel_build import Build, Module, objects
from sardonyx.compiler.target.description import NAMED, Target, host


def giving(*numbers: int) -> list[str]:
    """Modules with one function each, ``giveN``, that gives ``N``."""
    return [module_text(host(), [f"define i64 @give{n}() {{\n  ret i64 {n}\n}}"]) for n in numbers]


def arguments(codes: list[bytes], *numbers: int) -> list[int]:
    loaded = LoadedCode(codes, host())
    return [ctypes.CFUNCTYPE(ctypes.c_int64)(loaded.address(f"give{n}"))() for n in numbers]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are compiled."""
    texts: list[str] = []

    def recorded(text: str, target: Target) -> bytes:
        texts.append(text)
        return compiled(text, target)

    monkeypatch.setattr(build, "compiled", recorded)
    return texts


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


def test_other_threads_compile_the_same(tmp_path: Path, here: list[str]) -> None:
    numbers = range(1, 20)
    stored = Store(tmp_path)
    codes = objects(giving(*numbers), host(), stored, jobs=3)
    assert sorted(here) == sorted(giving(*numbers))
    assert codes == [compiled(text, host()) for text in giving(*numbers)]
    here.clear()
    assert objects(giving(*numbers), host(), stored, jobs=3) == codes
    assert here == []


def test_other_threads_begin_before_somebody_asks(tmp_path: Path, here: list[str]) -> None:
    stored = Store(tmp_path)
    with Build(host(), stored, jobs=2) as build:
        for text in giving(1, 2, 3, 2):
            build.add(Module.of(text))
        for _ in range(6000):
            if len([*tmp_path.glob("object/*")]) == 3:
                break
            time.sleep(0.01)
        assert arguments(build.objects([*map(Module.of, giving(3, 1))]), 3, 1) == [3, 1]
    assert len(here) == 3


def test_an_error_while_texts_are_written_ends_the_others(tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), Build(host(), Store(tmp_path), jobs=3) as build:
        for text in giving(*range(50)):
            build.add(Module.of(text))
        raise ZeroDivisionError
    assert threading.active_count() == before


def test_a_system_without_further_threads(tmp_path: Path, here: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert arguments(objects(giving(1, 2, 3), host(), Store(tmp_path), jobs=3), 1, 2, 3) == [1, 2, 3]
    assert len(here) == 3


@pytest.mark.parametrize("jobs", [1, 3])
def test_an_error_of_any_thread_is_raised(tmp_path: Path, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(build, "compiled", fail)
    with pytest.raises(MemoryError):
        objects(giving(*range(6)), host(), Store(tmp_path), jobs=jobs)


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_text_that_llvm_refuses(tmp_path: Path, jobs: int) -> None:
    with pytest.raises(CodeGenerationError, match="LLVM refuses"):
        objects([*giving(*range(10)), "define nonsense" + " " * 1000], host(), Store(tmp_path), jobs=jobs)


def test_a_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    path, log = tmp_path / "script.py", tmp_path / "log"
    path.write_text(SCRIPT)
    ended = subprocess.run([sys.executable, path, log], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    assert log.read_text() == "run\n"


SCRIPT = """
import sys
with open(sys.argv[1], "a") as log:
    log.write("run\\n")
from sardonyx.compiler.llvm import parallel_build as build
from sardonyx.base.artifact_store import Store
from sardonyx.compiler.llvm.object_code import module_text
from sardonyx.compiler.target.description import host
texts = [module_text(host(), ["define i64 @give%d() { ret i64 %d }" % (n, n)]) for n in range(20)]
assert len(build.objects(texts, host(), Store(None), 2)) == 20
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_process_forked_while_others_compile_compiles_too() -> None:
    numbers = range(60)
    expected = [compiled(text, host()) for text in giving(*numbers)]
    with Build(host(), Store(None), jobs=4) as build:
        for text in giving(*numbers):
            build.add(Module.of(text))
        for _ in range(5):
            child = os.fork()
            if not child:
                os._exit(0 if compiled(giving(7)[0], host()) == expected[7] else 1)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
        assert build.objects([*map(Module.of, giving(*numbers))]) == expected


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
