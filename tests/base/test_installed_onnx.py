"""An installed onnx that is too old is named in one sentence when Sardonyx is imported."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sardonyx.base.installed_onnx import OLDEST

ROOT = Path(__file__).parents[2]


def _python(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    paths = [str(folder), str(ROOT / "src")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    line = [sys.executable, *map(str, words)]
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60)


def _import(module: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return _python(folder, "-c", f"import {module}")


def _write_old_onnx(folder: Path) -> None:
    package = folder / "onnx"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    (package / "version.py").write_text(
        'version = "1.16.1"\ngit_version = "595228d99e3977ac27cb79d5963adda262af99ad"\n'
    )


SENTENCE = 'onnx 1.16 is installed, and Sardonyx needs 1.21 or newer. Install it: pip install "onnx>=1.21".'


@pytest.mark.parametrize("module", ["sardonyx", "sardonyx.compat.onnxruntime", "sardonyx.cli"])
def test_an_old_onnx_is_named_at_import(tmp_path: Path, module: str) -> None:
    _write_old_onnx(tmp_path)
    run = _import(module, tmp_path)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].endswith(f"MissingDependencyError: {SENTENCE}")


@pytest.mark.parametrize("options", [["-m", "sardonyx"], ["-m", "sardonyx.compat.onnxruntime"], ["-Bm", "sardonyx"]])
def test_a_command_names_an_old_onnx_without_a_traceback(tmp_path: Path, options: list[str]) -> None:
    _write_old_onnx(tmp_path)
    run = _python(tmp_path, *options, "info", "model.onnx")
    assert (run.returncode, run.stdout, run.stderr) == (2, "", f"error: {SENTENCE}\n")


def test_the_installed_script_names_an_old_onnx_without_a_traceback(tmp_path: Path) -> None:
    _write_old_onnx(tmp_path)
    script = tmp_path / "bin" / "sardonyx"
    script.parent.mkdir()
    script.write_text("from sardonyx.cli import main\nmain()\n")
    run = _python(tmp_path, script, "info", "model.onnx")
    assert (run.returncode, run.stdout, run.stderr) == (2, "", f"error: {SENTENCE}\n")


def test_a_program_with_sardonyx_among_its_arguments_can_catch_the_error(tmp_path: Path) -> None:
    _write_old_onnx(tmp_path)
    package = tmp_path / "program"
    package.mkdir()
    (package / "__init__.py").write_text("try:\n    import sardonyx\nexcept Exception as error:\n    print(error)\n")
    (package / "__main__.py").write_text("")
    run = _python(tmp_path, "-m", "program", "-m", "sardonyx")
    assert (run.returncode, run.stdout, run.stderr) == (0, f"{SENTENCE}\n", "")


@pytest.mark.parametrize("version", ['version = "1.21.0rc1"', "version: str = '2.0'", "no version here"])
def test_newer_and_unreadable_versions_are_accepted(tmp_path: Path, version: str) -> None:
    package = tmp_path / "onnx"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "version.py").write_text(version)
    assert _import("sardonyx", tmp_path).returncode == 0


def test_the_oldest_version_is_that_of_the_package() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (stated,) = [item for item in dependencies if item.startswith("onnx>")]
    assert stated.startswith(f"onnx>={OLDEST[0]}.{OLDEST[1]},")
