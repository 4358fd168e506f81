"""The direction of imports: between packages by the contracts in ``pyproject.toml``, between files without a cycle."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
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
def test_every_part_is_in_the_contract(contract: dict[str, Any]) -> None:
    (container,) = contract["containers"]
    folder = PACKAGE.joinpath(*container.split(".")[1:])
    layers = [name.strip() for layer in contract["layers"] for name in layer.split("|")]
    parts = {path.stem for path in folder.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    parts |= {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert contract["exhaustive"]
    assert sorted(layers) == sorted(parts)


def test_the_design_lists_every_package_from_the_lowest_layer_up() -> None:
    page = (ROOT / "docs" / "design" / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^ {6}(\w+)(?:/|\.py) ", page.partition("src/sardonyx/\n")[2].partition("tests/ ")[0], re.M)
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert sorted(listed) == sorted(packages | modules)
    contract = next(contract for contract in layer_contracts() if contract["containers"] == ["sardonyx"])
    ranks = {name.strip(): -rank for rank, layer in enumerate(contract["layers"]) for name in layer.split("|")}
    assert listed == sorted(listed, key=lambda name: ranks[name])


def test_every_large_package_has_a_contract() -> None:
    """A package of more than ten parts has its layers stated; `ops`, `base`, `cli`, `compat` list theirs."""
    large = {
        path.parent.name
        for path in PACKAGE.glob("*/__init__.py")
        if len([*path.parent.glob("*.py"), *path.parent.glob("*/__init__.py")]) > 10
    }
    stated = {container for contract in layer_contracts() for container in contract["containers"]}
    assert {f"sardonyx.{name}" for name in large - {"ops", "base", "cli", "compat"}} <= stated


SIZES = frozenset(f"sardonyx.core.dim.{part}" for part in ("bounds", "polynomial", "canonical_forms", "parse"))
BINDING = "sardonyx.compat.onnxruntime"

ONE_IDEA = {
    # ``//`` and ``%`` of sizes need proofs about sizes, and the proofs need the operators of the size class.
    **dict.fromkeys(SIZES, "sizes"),
    # ONNX Runtime's package imports its binding, which has the names of the package.
    **dict.fromkeys((BINDING, f"{BINDING}.capi", f"{BINDING}.capi.onnxruntime_pybind11_state"), "ONNX Runtime's names"),
}
"""Files that import each other and count as one file, and the reason."""


def import_statements(body: Iterable[ast.AST]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports among statements and nested statements; expressions, the larger part, are not visited."""
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement
        else:
            for field in ("body", "orelse", "finalbody", "handlers", "cases"):
                yield from import_statements(getattr(statement, field, ()))


def imported(path: Path, modules: set[str]) -> Iterator[str]:
    """Yield the modules of the package that a file imports: at module level, within functions, and for types alone."""
    for statement in import_statements(ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names if alias.name in modules)
        else:
            assert not statement.level, f"{path}: imports are absolute"
            inside = {f"{statement.module}.{alias.name}" for alias in statement.names} & modules
            yield from inside
            if len(inside) < len(statement.names) and statement.module in modules:
                yield str(statement.module)


def test_no_cycle_of_files() -> None:
    """Imports within functions and for types alone count too."""
    files = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        node = ONE_IDEA.get(name, name)
        graph.setdefault(node, set()).update({ONE_IDEA.get(m, m) for m in imported(path, set(files))} - {node})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" ← ".join(error.args[1]))


@pytest.mark.parametrize("name", ["utils", "helpers", "common_utils", "misc"])
def test_no_file_is_named_after_no_subject(name: str) -> None:
    assert not list(PACKAGE.rglob(f"{name}.py"))
