"""Imports run one way: between parts, as the table in ``pyproject.toml`` says, and between files."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "sardonyx"


def contracts() -> list[dict[str, Any]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return list(settings["tool"]["importlinter"]["contracts"])


def test_imports_run_one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    importlinter = pytest.importorskip("importlinter.cli", reason="import-linter is not installed (extra: test)")
    monkeypatch.chdir(ROOT)
    assert importlinter.lint_imports(cache_dir=None) == importlinter.EXIT_STATUS_SUCCESS


def layer_contracts() -> list[dict[str, Any]]:
    return [contract for contract in contracts() if contract["type"] == "layers"]


@pytest.mark.parametrize("contract", layer_contracts(), ids=lambda contract: contract["name"])
def test_every_part_has_its_place_in_the_table(contract: dict[str, Any]) -> None:
    (container,) = contract["containers"]
    folder = PACKAGE.joinpath(*container.split(".")[1:])
    layers = [name.strip() for layer in contract["layers"] for name in layer.split("|")]
    parts = {path.stem for path in folder.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    parts |= {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert contract["exhaustive"]
    assert sorted(layers) == sorted(parts)


def test_every_large_package_has_a_table() -> None:
    assert {"sardonyx", "sardonyx.core", "sardonyx.compiler", "sardonyx.runtime"} <= {
        container for contract in layer_contracts() for container in contract["containers"]
    }


SIZES = frozenset(f"sardonyx.core.dim.{part}" for part in ("bounds", "polynomial", "canonical_forms", "parse"))
BINDING = "sardonyx.compat.onnxruntime"

ONE_IDEA = {
    # ``//`` and ``%`` of sizes are proofs about sizes: the operators of the one class stand on the proofs, these on it.
    **dict.fromkeys(SIZES, "sizes"),
    # ONNX Runtime's package imports its binding, which has the names of the package.
    **dict.fromkeys((BINDING, f"{BINDING}.capi", f"{BINDING}.capi.onnxruntime_pybind11_state"), "ONNX Runtime's names"),
}
"""Files that know each other and stand for one, and why."""


def imported(path: Path, modules: set[str]) -> Iterator[str]:
    """The modules of the package that a file imports: on top, within functions, and for types alone."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in modules)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports name their package"
            inside = {f"{node.module}.{each.name}" for each in node.names} & modules
            yield from inside
            if len(inside) < len(node.names) and node.module in modules:
                yield str(node.module)


def test_no_circle_of_files() -> None:
    """Those that are within functions, or for types alone, are imports too."""
    files = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        one = ONE_IDEA.get(name, name)
        others = {ONE_IDEA.get(each, each) for each in imported(path, set(files))}
        graph.setdefault(one, set()).update(others - {one})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" ← ".join(error.args[1]))


@pytest.mark.parametrize("name", ["utils", "helpers", "common_utils", "misc"])
def test_no_file_without_a_subject(name: str) -> None:
    assert not list(PACKAGE.rglob(f"{name}.py"))
