"""Every deterministic node case of ONNX's suite, exported from Core back to ONNX, passes on ``onnx.reference``."""

from __future__ import annotations

import functools
import re
import warnings
from typing import Any

import onnx
import pytest
from onnx import numpy_helper

from tests.suites.exported import run_exported, traced_case
from tests.suites.left_out import EXPORTED

runner = pytest.importorskip("onnx.backend.test.runner", reason="this onnx comes without its backend suite")

STEP = 16
"""One in so many cases is run by default; ``-m long`` runs all."""


@functools.cache
def cases() -> list[Any]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        node_cases = sorted(load_model_tests(kind="node"), key=lambda case: case.name)
    return [case for case in node_cases if not any(re.fullmatch(pattern, case.name) for pattern in EXPORTED)]


def plain(fed: Any) -> Any:
    if isinstance(fed, onnx.TensorProto):
        return numpy_helper.to_array(fed)
    return [plain(item) for item in fed] if isinstance(fed, (list, tuple)) else fed


def problem(case: Any) -> str | None:
    """What is wrong with the exported case; None where it passes."""
    for inputs, outputs in case.data_sets:
        feeds = [plain(x) for x in inputs]
        try:
            function, open_ = traced_case(case.model, feeds)
            actual = run_exported(function, [feeds[i] for i in open_])
            expected = [plain(y) for y in outputs]
            runner.Runner.assert_similar_outputs(expected, actual, case.rtol, case.atol)
        except Exception as error:  # Whatever a case raises is its failure, told with its name.
            return f"{case.name}: {type(error).__name__}: {error}"
    return None


def problems(chosen: list[Any]) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [text for case in chosen if (text := problem(case)) is not None]


def test_a_sample_of_the_cases() -> None:
    assert problems(cases()[::STEP]) == []


@pytest.mark.long
def test_every_case() -> None:
    assert problems(cases()) == []
    assert len(cases()) > 1500
