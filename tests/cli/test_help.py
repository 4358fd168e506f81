from __future__ import annotations

import importlib
import inspect
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sardonyx import __version__, demo
from sardonyx.cli import SECTIONS, VERBS
from sardonyx.cli.parameters import parameters
from sardonyx.cli.reference import reference_page
from tests.cli.conftest import Run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "cli.md"


def module_of(verb: str) -> ModuleType:
    return importlib.import_module(f"sardonyx.cli.{verb.replace('-', '_')}")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(run: Run, verb: str) -> None:
    outcome = run(verb, "--help")
    assert outcome.code == 0
    example = module_of(verb).EXAMPLE
    assert example.startswith(f"sardonyx {verb}")
    assert f"\n  {example}\n" in outcome.out, "on one line, to copy"
    assert "<bool>" not in outcome.out, "a flag has no value"
    for parameter in parameters(module_of(verb).command):
        assert f"\n  {parameter.spelling}" in outcome.out


def test_the_list_of_verbs_has_sections_and_wraps_lines(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = run("--help").out.splitlines()
    assert max(map(len, lines)) <= 60
    assert [line for line in lines if line in SECTIONS] == list(SECTIONS)
    assert {line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "} >= set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_line_of_a_verb_starts_its_docstring(verb: str) -> None:
    first = inspect.getdoc(module_of(verb).command).split("\n")[0]
    assert first.startswith(VERBS[verb].rstrip(".").split(":")[0])


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "view"])
def test_every_verb_but_view_prints_json(verb: str) -> None:
    assert "as_json" in inspect.signature(module_of(verb).command).parameters


HEAVY = {
    "--help": {"numpy", "onnx", "onnx_ir", "onnxruntime", "pydantic", "pygments", "rich"},
    f"info {demo.path('digits_classifier')}": {
        "llvmlite", "onnxruntime", "rich.markdown", "sardonyx.compiler", "sardonyx.rewrite.pipeline",
        "sardonyx.rewrite.rules", "sardonyx.runtime", "scipy", "sympy",
    },
}  # fmt: skip
"""Modules that a command line must not import: start-up would take several times as long."""


@pytest.mark.parametrize("line", HEAVY, ids=["--help", "info"])
def test_a_command_line_imports_no_heavy_library(line: str) -> None:
    script = (
        "import sys\nfrom sardonyx.cli import main\n"
        f"try:\n    main({line.split()!r})\nexcept SystemExit as ended:\n    assert not ended.code\n"
        f"heavy = sys.modules.keys() & set({sorted(HEAVY[line])!r})\nassert not heavy, heavy"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_version_option_prints_the_version(run: Run) -> None:
    assert run("--version").out.strip() == __version__


@pytest.mark.parametrize("arguments", [["no-such-verb"], ["info"], ["info", "model.onnx", "--no-such-option"]])
def test_invalid_requests_exit_with_2(run: Run, arguments: list[str]) -> None:
    assert run(*arguments).code == 2


def test_the_reference_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference_page(), (
        "python -m sardonyx.cli.reference > docs/reference/cli.md"
    )


def test_the_package_is_executable(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["sardonyx", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("sardonyx", run_name="__main__")
    assert ended.value.code == 0
    assert __version__ in capsys.readouterr().out
