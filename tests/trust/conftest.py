"""Tests of a folder are skipped, with the reason, if the folder's package is not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

PACKAGES = {"encryption": ("cryptography", "encrypt"), "signing": ("model_signing", "sign")}
"""Folder of tests: the package that its tests import, and the extra."""


class SkippedModule(pytest.Module):
    """A module of tests that cannot be imported."""

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        package, extra = PACKAGES[self.path.parent.name]
        pytest.skip(f"{package} is not installed (extra: {extra})")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    package, _ = PACKAGES.get(module_path.parent.name, ("pytest", ""))
    if importlib.util.find_spec(package) is None:
        return SkippedModule.from_parent(parent, path=module_path)
    return None
