"""The registry: what is found in it, and what is imported for that."""

from __future__ import annotations

import sys

import pytest

from sardonyx.errors import UnsupportedError
from sardonyx.ops import registry


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
    with pytest.raises(UnsupportedError, match="no such host function"):
        registry.host_function("ai.onnx.ml", "Nonesuch", 1, (True,), module)
    assert "this" not in sys.modules
