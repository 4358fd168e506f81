"""The command that a finding of ``check`` recommends repairs the finding."""

from __future__ import annotations

import shlex
from pathlib import Path

import onnx
import pytest

from sardonyx.model.check import CODES, Finding, check
from tests.cli.conftest import Run
from tests.model.check.samples import EXAMPLES

REPAIRED = (
    "batch-baked",
    "dimension-invalid",
    "duplicate-weight",
    "float16-overflow",
    "float64",
    "int64-fits-int32",
    "ir-too-old",
    "ir-version",
    "opset-old",
    "opset-unknown",
    "unused-function",
    "unused-input",
    "unused-node",
    "unused-weight",
    "weight-denormal",
    "weight-is-input",
)
"""Codes of findings that have a command."""


def findings(path: Path, code: str) -> list[Finding]:
    return [finding for finding in check(path, lint=CODES[code].severity == "lint") if finding.code == code]


@pytest.mark.parametrize("code", REPAIRED)
def test_a_command_repairs_its_finding(code: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model, _ = EXAMPLES[code]
    onnx.save(model(), path)
    remaining = findings(path, code)
    for _ in remaining:
        program, *arguments = shlex.split(remaining[0].command)
        assert program == "sardonyx"
        outcome = run(*arguments)
        assert outcome.code == 0, outcome.err
        path.with_name("model.repaired.onnx").replace(path)
        remaining = findings(path, code)
        if not remaining:
            return
    assert not remaining


def test_every_code_with_a_command_is_tested() -> None:
    recommending = {
        finding.code for model, _ in EXAMPLES.values() for finding in check(model(), lint=True) if finding.command
    }
    assert recommending == set(REPAIRED)


@pytest.mark.parametrize("code", ["unused-weight", "duplicate-weight"])
def test_overridable_weights_are_frozen_by_the_repair(code: str, run: Run, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        net (float[2] x, float[2] a, float[2] b, float[2] c) => (float[2] y) { t = Add(x, a) y = Mul(t, b) }"""
    )
    for name in "abc":
        model.graph.initializer.append(onnx.helper.make_tensor(name, onnx.TensorProto.FLOAT, [2], [1.0, 2.0]))
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    remaining = findings(path, code)
    assert remaining
    assert run(*shlex.split(remaining[0].command)[1:]).code == 0
    assert not findings(path.with_name("model.repaired.onnx"), code)
