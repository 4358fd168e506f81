"""Registry: look-ups, and the modules that they import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sardonyx.errors import UnsupportedError
from sardonyx.ops import registry
from sardonyx.ops.definitions.index import INDEX

HOST_FUNCTIONS = [
    ("ai.onnx.ml", "ZipMap", 1, (True,), "ml.maps"),
    ("", "StringConcat", 20, (True, True), "strings"),
    ("", "NonZero", 1, (True,), "indexing"),
]


def modules_after(code: str) -> set[str]:
    """Run code in a fresh process and return the definition modules that the process has imported."""
    code += """
import sys
prefix = "sardonyx.ops.definitions."
print(*(name.removeprefix(prefix) for name in sys.modules if name.startswith(prefix)), "this" * ("this" in sys.modules))
"""
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(("domain", "name", "since", "present", "module"), HOST_FUNCTIONS)
def test_a_host_function_is_found_by_its_module(
    domain: str, name: str, since: int, present: tuple[bool, ...], module: str
) -> None:
    function = registry.host_function(domain, name, since, present, f"sardonyx.ops.definitions.{module}")
    assert (function.domain, function.name, function.since, function.present) == (domain, name, since, present)
    assert function.module == f"sardonyx.ops.definitions.{module}"


def test_a_host_function_imports_only_its_module() -> None:
    code = f"""
from sardonyx.ops import registry
for domain, name, since, present, module in {HOST_FUNCTIONS}:
    registry.host_function(domain, name, since, present, "sardonyx.ops.definitions." + module)
"""
    modules = modules_after(code)
    assert {"ml.maps", "strings", "indexing"} <= modules
    assert not {"recurrent", "ml.trees", "microsoft.fusions"} & modules


@pytest.mark.parametrize("module", ["sardonyx.ops.definitions.nowhere", "this", "sardonyx.ops.definitions.ml.maps"])
def test_an_unknown_host_function_is_refused(module: str) -> None:
    with pytest.raises(UnsupportedError, match="unknown host function"):
        registry.host_function("ai.onnx.ml", "Nonesuch", 1, (True,), module)


def test_an_unknown_host_function_imports_no_other_module() -> None:
    code = """
import contextlib
from sardonyx.errors import UnsupportedError
from sardonyx.ops import registry
for module in ("sardonyx.ops.definitions.nowhere", "this", "sardonyx.ops.definitions.ml.maps"):
    with contextlib.suppress(UnsupportedError):
        registry.host_function("ai.onnx.ml", "Nonesuch", 1, (True,), module)
"""
    modules = modules_after(code)
    assert "ml.maps" in modules
    assert not {"this", "recurrent", "strings", "ml.trees"} & modules


def test_the_index_equals_the_registered_modules() -> None:
    registry.load()
    defined: dict[tuple[str, str], set[str]] = {}
    for operator in registry.all_operators():
        if not operator.is_user_defined:
            defined.setdefault((operator.domain, operator.name), set()).add(operator.module)
    indexed = {(domain, name): set(modules) for domain, names in INDEX.items() for name, modules in names.items()}
    assert indexed == defined, "run tools/make_operator_index.py"


def test_a_look_up_imports_only_the_defining_modules() -> None:
    code = """
import sys
from sardonyx.ops import registry
before = {name for name in sys.modules if name.startswith("sardonyx.ops.definitions.")}
assert registry.find("ai.onnx.ml", "Scaler", 3).name == "Scaler"
assert registry.find("", "Nonesuch", 3) is None
after = {name for name in sys.modules if name.startswith("sardonyx.ops.definitions.")}
print(*sorted(name.rpartition(".")[2] for name in after - before))
"""
    function = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "preprocessing" in function
    assert not {"recurrent", "strings", "trees", "fusions"} & set(function)


def test_a_user_definition_overrides_the_librarys() -> None:
    code = """
from sardonyx.ops import registry
@registry.operator("Softplus", since=1)
def softplus(x):
    return x
registry.load()
print(registry.find("", "Softplus", 13).definition is softplus)
"""
    function = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert function == ["True"]
