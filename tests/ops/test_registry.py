"""The registry: what is found in it, and what is imported for that."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sardonyx.errors import UnsupportedError
from sardonyx.ops import registry
from sardonyx.ops.definitions.index import INDEX


@pytest.fixture
def nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where all definitions are imported."""
    monkeypatch.setattr(registry, "_loaded", False)
    monkeypatch.setattr(registry, "_load", lambda: pytest.fail("all definitions are imported"))


@pytest.mark.usefixtures("nothing_more")
@pytest.mark.parametrize(
    "domain, name, since, present, module",
    [
        ("ai.onnx.ml", "ZipMap", 1, (True,), "ml.maps"),
        ("", "StringConcat", 20, (True, True), "strings"),
        ("", "NonZero", 1, (True,), "indexing"),
    ],
)
def test_a_host_function_is_found_by_its_module_alone(
    domain: str, name: str, since: int, present: tuple[bool, ...] | None, module: str
) -> None:
    found = registry.host_function(domain, name, since, present, f"sardonyx.ops.definitions.{module}")
    assert (found.domain, found.name, found.since, found.present) == (domain, name, since, present)
    assert found.module == f"sardonyx.ops.definitions.{module}"


@pytest.mark.usefixtures("nothing_more")
@pytest.mark.parametrize("module", ["sardonyx.ops.definitions.nowhere", "this", "sardonyx.ops.definitions.ml.maps"])
def test_no_other_module_is_imported_for_one_that_is_not_there(module: str) -> None:
    with pytest.raises(UnsupportedError, match="unknown host function"):
        registry.host_function("ai.onnx.ml", "Nonesuch", 1, (True,), module)
    assert "this" not in sys.modules


def test_the_index_says_which_modules_define_an_operator() -> None:
    registry.load()
    defined: dict[tuple[str, str], set[str]] = {}
    for each in registry.all_operators():
        if not each.is_user_defined:
            defined.setdefault((each.domain, each.name), set()).add(each.module)
    told = {(domain, name): set(modules) for domain, names in INDEX.items() for name, modules in names.items()}
    assert told == defined, "run tools/make_operator_index.py"


def test_an_operator_is_found_by_its_modules_alone() -> None:
    code = """
import sys
from sardonyx.ops import registry
before = {name for name in sys.modules if name.startswith("sardonyx.ops.definitions.")}
assert registry.find("ai.onnx.ml", "Scaler", 3).name == "Scaler"
assert registry.find("", "Nonesuch", 3) is None
after = {name for name in sys.modules if name.startswith("sardonyx.ops.definitions.")}
print(*sorted(name.rpartition(".")[2] for name in after - before))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "preprocessing" in found
    assert not {"recurrent", "strings", "trees", "fusions"} & set(found)


def test_a_definition_of_somebodys_own_stands_although_the_librarys_is_imported_after_it() -> None:
    code = """
from sardonyx.ops import registry
@registry.operator("Softplus", since=1)
def softplus(x):
    return x
registry.load()
print(registry.find("", "Softplus", 13).definition is softplus)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert found == ["True"]
