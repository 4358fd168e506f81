"""The public trained models, their stored inputs and outputs, and the comparison that their collection prescribes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SUITES = os.environ.get("SARDONYX_SUITES", "")
"""The folder of public models; empty where there are none."""

needs_suites = pytest.mark.skipif(not SUITES, reason="SARDONYX_SUITES does not name the folder of public models")

REAL_FOLDER = Path(SUITES) / "real"

REAL = sorted(path.stem for path in REAL_FOLDER.glob("*.onnx")) if SUITES else []
"""Names of the trained models."""


def stored(name: str, side: str) -> dict[str, np.ndarray]:
    """Return the stored arrays of a model: inputs for ``"in::"``, outputs for ``"out::"``."""
    with np.load(REAL_FOLDER / f"{name}.npz") as archive:
        return {key[len(side) :]: archive[key] for key in archive.files if key.startswith(side)}


def assert_agrees(actual: Any, expected: Any, rtol: float, atol: float) -> None:
    """Assert equal kinds, element types and sizes, and numbers within ``rtol`` of each, or ``atol`` of the largest."""
    if isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_agrees(one, other, rtol, atol)
    elif isinstance(expected, Mapping):
        assert list(actual) == list(expected)
        for key in expected:
            assert type(actual[key]) is type(expected[key])
            assert_agrees(np.asarray(actual[key]), np.asarray(expected[key]), rtol, atol)
    elif expected.dtype.kind in "OSUbiu":
        assert actual.shape == expected.shape and actual.tolist() == expected.tolist()
    else:
        assert actual.dtype == expected.dtype
        largest = np.abs(expected).max(initial=0.0)
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol * largest)
