"""A defect of a template costs its group the kernel: the interpreter computes the group, and the session reports it."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import numpy as np
import onnx.parser
import pytest

from sardonyx.compiler.lower import groups
from sardonyx.compiler.lower.launch import Launch
from sardonyx.compiler.schedule.groups import Group
from sardonyx.runtime.session import Session

pytestmark = pytest.mark.internal_errors

MODEL = """
<ir_version: 8, opset_import: ["": 18]>
g (float[N, 8] x) => (float[8, N] y, float[N, 8] z) {
   e = Exp (x)
   y = Transpose <perm = [1, 0]> (e)
   z = CumSum (e, axis)
}
"""


def model() -> onnx.ModelProto:
    parsed = onnx.parser.parse_model(MODEL)
    parsed.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1, np.int64), "axis"))
    return parsed


def check_session(expected_reason: str, caplog: pytest.LogCaptureFixture) -> None:
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    expected = Session(model(), compile="off").run(None, {"x": x})
    with caplog.at_level(logging.WARNING, "sardonyx"):
        session = Session(model(), compile="wait")
    for result, reference in zip(session.run(None, {"x": x}), expected, strict=True):
        np.testing.assert_allclose(result, reference, rtol=1e-5)
    reasons = {node.operator: node.reason for node in session.placement if node.provider == "reference"}
    assert list(reasons) == ["CumSum"], "the other nodes are compiled"
    assert expected_reason in reasons["CumSum"]
    assert any(expected_reason in record.getMessage() for record in caplog.records)


@pytest.fixture(autouse=True)
def without_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", "off")


@pytest.mark.parametrize("error", [AssertionError("a defect"), KeyError("a defect"), StopIteration("a defect")])
def test_an_error_in_a_template_leaves_its_group_to_the_interpreter(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(groups, "lower_row_algorithm", fail)
    check_session(f"internal error: {type(error).__name__}", caplog)


def test_a_kernel_that_llvm_refuses_leaves_its_group_to_the_interpreter(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lower_group = groups.Lowering.lower

    def lower(self: groups.Lowering, group: Group) -> list[Launch]:
        launches = lower_group(self, group)
        if group.anchor is None:
            return launches
        return [
            dataclasses.replace(launch, text=launch.text.replace("ret void", "ret i64 %absent")) for launch in launches
        ]

    monkeypatch.setattr(groups.Lowering, "lower", lower)
    check_session("internal error: CodeGenerationError", caplog)


def test_a_value_that_cannot_be_stored_leaves_its_reader_to_the_interpreter(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lower_group = groups.Lowering.lower

    def lower(self: groups.Lowering, group: Group) -> list[Launch]:
        if group.anchor is not None:
            raise groups.Unfusable(group.anchor.operands[0])
        return lower_group(self, group)

    monkeypatch.setattr(groups.Lowering, "lower", lower)
    check_session("in memory, which is never stored", caplog)
