"""Operator sets that a file claims and that do not exist: no work grows with the number."""

from __future__ import annotations

import time
from pathlib import Path

import onnx
import onnx.parser
import pytest

from sardonyx import Session, check, load, optimize
from sardonyx.errors import SardonyxError
from sardonyx.rewrite.opset import convert_opset
from sardonyx.rewrite.opset.schemas import newest

CLAIMED = [1000, 314159, 2**31, 2**40, 2**63 - 1, 0, -5, -(2**40), -(2**63)]
SECONDS = 10
"""Far above the time of any existing version, far below a walk over the claimed ones."""


def model(version: int) -> onnx.ModelProto:
    parsed = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> g (float[2] x, bool c) => (float[2] y) {
        a = Exp (x)
        y = If (c) <then_branch = t () => (float[2] o) { o = Sin (a) },
                    else_branch = e () => (float[2] p) { p = Abs (a) }>
        }"""
    )
    parsed.opset_import[0].version = version
    return parsed


@pytest.mark.parametrize("version", CLAIMED)
def test_a_claimed_version_costs_no_time_and_raises_no_foreign_exception(version: int) -> None:
    def attempt(action: object) -> None:
        begin = time.process_time()
        try:
            action()  # type: ignore[operator]
        except SardonyxError as error:
            assert str(error)
        assert time.process_time() - begin < SECONDS

    claimed = model(version)
    assert {finding.code for finding in check(claimed)} & {"opset-unknown", "opset-missing"}
    attempt(lambda: check(claimed, lint=True, target="onnxruntime"))
    attempt(lambda: convert_opset(load(claimed), 13))
    attempt(lambda: optimize(claimed, verify=False))
    attempt(lambda: optimize(claimed, opset=13, verify=False))
    attempt(lambda: Session(claimed, compile="wait"))


@pytest.mark.parametrize("version", [version for version in CLAIMED if version > 1000])
def test_a_version_after_the_newest_is_converted_as_the_newest(version: int, tmp_path: Path) -> None:
    converted = convert_opset(load(model(version)), 13)
    expected = convert_opset(load(model(newest(""))), 13)
    assert [node.op_type for node in converted.graph.all_nodes()] == [n.op_type for n in expected.graph.all_nodes()]
    assert converted.opset_imports[""] == 13
