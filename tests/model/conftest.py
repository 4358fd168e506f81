"""Public test models, and a model with every field of the format."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest

from tests.model import samples


@pytest.fixture(scope="session")
def suites() -> Path:
    folder = os.environ.get("SARDONYX_SUITES")
    if not folder:
        pytest.skip("SARDONYX_SUITES does not name the folder of public test models")
    return Path(folder)


@pytest.fixture
def everything() -> onnx.ModelProto:
    return samples.everything()


@pytest.fixture
def small() -> onnx.ModelProto:
    return samples.small()
