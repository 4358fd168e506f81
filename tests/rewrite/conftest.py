"""What tests of the rewriter share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def suites() -> Path:
    folder = os.environ.get("SARDONYX_SUITES")
    if not folder:
        pytest.skip("SARDONYX_SUITES does not name the folder of public test models")
    return Path(folder)
