"""The node cases of onnx's backend suite."""

from __future__ import annotations

import functools
import warnings

from onnx.backend.test.case.test_case import TestCase as Case

PARTS = 8
"""The node cases are tested in so many parts, for several workers."""


@functools.cache
def node_cases() -> list[Case]:
    """Return the node cases of the installed onnx."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_model_tests(kind="node")
