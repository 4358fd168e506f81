from __future__ import annotations

import importlib
import inspect
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sardonyx import __version__
from sardonyx.cli import VERBS
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
    assert example in " ".join(outcome.out.split())


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_line_of_a_verb_starts_its_docstring(verb: str) -> None:
    first = inspect.getdoc(module_of(verb).command).split("\n")[0]
    assert first.startswith(VERBS[verb].rstrip(".").split(":")[0])


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "view"])
def test_every_verb_but_view_prints_json(verb: str) -> None:
    assert "as_json" in inspect.signature(module_of(verb).command).parameters


def test_the_list_of_verbs_imports_no_heavy_library() -> None:
    script = (
        "import sys\nfrom sardonyx.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as ended:\n    assert not ended.code\n"
        "assert not {'onnx', 'onnx_ir', 'onnxruntime', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


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
