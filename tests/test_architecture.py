"""Imports run one way; the table is in ``pyproject.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "sardonyx"


def contracts() -> list[dict[str, object]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: list[dict[str, object]] = settings["tool"]["importlinter"]["contracts"]
    return found


def test_imports_run_one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    importlinter = pytest.importorskip("importlinter.cli", reason="import-linter is not installed (extra: test)")
    monkeypatch.chdir(ROOT)
    assert importlinter.lint_imports(cache_dir=None) == importlinter.EXIT_STATUS_SUCCESS


def test_every_part_has_its_place_in_the_table() -> None:
    (layers,) = (contract["layers"] for contract in contracts() if contract["type"] == "layers")
    assert isinstance(layers, list)
    placed = {name.strip() for layer in layers for name in layer.split("|")}
    parts = {path.stem for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    parts |= {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert parts == placed


@pytest.mark.parametrize("name", ["utils", "helpers", "common_utils", "misc"])
def test_no_file_without_a_subject(name: str) -> None:
    assert not list(PACKAGE.rglob(f"{name}.py"))
