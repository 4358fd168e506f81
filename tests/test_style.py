"""The tree follows ``docs/contributing/style.md``, as far as a program can tell."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEST_FILES = sorted((ROOT / "tests").rglob("*.py"))


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("measure_prose", ROOT / "tools" / "measure_prose.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = tool
    spec.loader.exec_module(tool)
    return tool


PROSE = load_tool()

DOCUMENTED_NAMES = frozenset(("_exit", "_replace"))
"""Public names of the standard library that begin with an underscore: ``os._exit`` and a method of named tuples."""


@pytest.mark.parametrize("package", sorted(PROSE.packages()))
def test_docstrings_names_and_messages_follow_the_style(package: str) -> None:
    total = PROSE.Measure()
    deviations = []
    for path in PROSE.packages()[package]:
        counts = PROSE.measure(path)
        total.add(counts)
        deviations += [
            f"{path.relative_to(ROOT)}:{finding.line}: {finding.text}"
            for finding in counts.findings
            if PROSE.is_binding(finding)
        ]
    assert not deviations, "\n".join(deviations)
    assert total.is_within_limits(), f"what {total.what_rate:.1f}, pronouns {total.pronoun_rate:.1f} per 1,000 words"


@pytest.mark.parametrize("folder", ["benchmarks", "examples", "tools"])
def test_docstrings_of_programs_follow_the_style(folder: str) -> None:
    total = PROSE.Measure()
    deviations = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        counts = PROSE.measure(path)
        total.add(counts)
        deviations += [
            f"{path.relative_to(ROOT)}:{finding.line}: {finding.text}"
            for finding in counts.findings
            if PROSE.is_binding(finding) or finding.text.startswith("first line")
        ]
    assert not deviations, "\n".join(deviations)
    assert total.is_within_limits(), f"what {total.what_rate:.1f}, pronouns {total.pronoun_rate:.1f} per 1,000 words"


@pytest.mark.parametrize("page", PROSE.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_of_pages_follow_the_style(page: Path) -> None:
    assert not (findings := PROSE.measure_page(page)), "\n".join(f"{page.name}:{f.line}: {f.text}" for f in findings)


@pytest.mark.parametrize(
    "text, deviations",
    [
        ("Text. What follows is wrong.\n", ["line 1: What"]),
        ("- **Whether it holds**\n- *That it is*\n", ["line 1: Whether", "line 2: That"]),
        ("| a | Those of b |\n|---|---|\n| How it works | c |\n", ["line 1: Those", "line 3: How"]),
        ("A line that\nWhat continues.\n", []),
        ("# What is new\n\n    What is code.\n\n```\nWhat is code.\n```\n", []),
        ("<!-- What is\nWhat is -->\nWhere x is, y is.\n", ["line 3: Where"]),
        ("| `Where` | Where | How-to pages |\n", []),
    ],
)
def test_a_deviation_of_a_page_is_reported(text: str, deviations: list[str], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    reported = [f"line {finding.line}: {finding.text.split(chr(39))[1]}" for finding in PROSE.measure_page(page)]
    assert reported == deviations


def test_names_outside_the_package_follow_the_style() -> None:
    deviations = [
        f"{path.relative_to(ROOT)}:{finding.line}: {finding.text}"
        for path in PROSE.others()
        for finding in PROSE.measure(path, identifiers_only=True).findings
    ]
    assert not deviations, "\n".join(deviations)


@pytest.mark.parametrize(
    "source, deviation",
    [
        ('def f():\n    """What it returns."""\n', "docstring starts with 'What'"),
        ('def f():\n    """Return x. Those are y."""\n', "sentence starts with 'Those'"),
        ("found = 1\n", "identifier 'found'"),
        ("def f(given): ...\n", "identifier 'given'"),
        ("for each in x: ...\n", "identifier 'each'"),
        ("class C:\n    kept: int\n", "identifier 'kept'"),
        ('raise ValueError(f"{x} is no integer")\n', "say 'expected X, got Y'"),
        (f'"""{"a " * 60}"""\n', "first line has 119 characters"),
    ],
)
def test_a_deviation_is_reported(source: str, deviation: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    assert any(deviation in finding.text for finding in PROSE.measure(path).findings)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in DOCUMENTED_NAMES


def is_test_module(name: str) -> bool:
    """Return True for a module of test functions of this project; ``onnx`` has a module ``test_case`` of its own."""
    return re.fullmatch(r"(tests\..*\.|tests\.)?test_\w+", name) is not None


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: str(path.relative_to(ROOT / "tests")))
def test_tests_use_public_names_and_import_no_test_module(path: Path) -> None:
    deviations = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name) if is_private(name):
                deviations.append(f"{path.name}:{node.lineno}: private attribute {name}")
            case ast.ImportFrom(module=str(module)) if is_test_module(module):
                deviations.append(
                    f"{path.name}:{node.lineno}: helpers belong in a module of their own, not in {module}"
                )
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] in ("sardonyx", "tests"):
                deviations += [
                    f"{path.name}:{node.lineno}: private name {alias.name}" for alias in names if is_private(alias.name)
                ]
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[*arguments]):
                deviations += [
                    f"{path.name}:{node.lineno}: private attribute {argument.value}"
                    for argument in arguments[:2]
                    if isinstance(argument, ast.Constant)
                    and isinstance(argument.value, str)
                    and is_private(argument.value.rsplit(".", 1)[-1])
                ]
    assert not deviations, "\n".join(deviations)


@pytest.mark.parametrize(
    "message, expected",
    [
        ("kernels/gemm: prefetch the next panel\n\nWhy.\n", None),
        ("Rows that are too few are not walked\n", "area: imperative summary"),
        (f"core: {'a' * 70}\n", "at most 72 characters"),
        ("core: fold constants\nwhy\n", "blank line"),
    ],
)
def test_the_commit_hook_checks_subjects(message: str, expected: str | None, tmp_path: Path) -> None:
    path = tmp_path / "message"
    path.write_text(message)
    hook = ROOT / "tools" / "hooks" / "commit-msg"
    done = subprocess.run([sys.executable, str(hook), str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is (expected is None)
    assert expected is None or expected in done.stderr
