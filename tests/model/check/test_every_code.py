"""Each finding code is reported for an example model, and the finding names its location."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest
from tests.model.check.samples import EXAMPLES, batch, relu, text

from sardonyx.model.check import CODES, Finding, check

ELSEWHERE = {
    "checker": "errors of later versions of onnx.checker",
    "external-file": "test_external.py",
    "external-range": "test_external.py",
    "message-too-large": "test_external.py",
    "target-form": "tests/export/test_exporting.py",
    "target-ir": "test_targets.py",
    "target-operator": "test_targets.py",
    "target-opset": "test_targets.py",
    "target-restriction": "test_targets.py",
    "target-type": "test_targets.py",
}


def find(findings: list[Finding], code: str) -> list[Finding]:
    return [item for item in findings if item.code == code]


@pytest.mark.parametrize("code", EXAMPLES)
def test_finding_names_its_location(code: str) -> None:
    model, location = EXAMPLES[code]
    findings = find(check(model(), lint=CODES[code].severity == "lint"), code)
    assert findings, [str(item) for item in check(model())]
    assert any(location in str(item.where) for item in findings), [str(item.where) for item in findings]
    assert findings[0].severity == CODES[code].severity
    assert findings[0].reason.endswith(".") and findings[0].remedy.endswith(".")


def test_every_code_has_one_example() -> None:
    assert set(EXAMPLES) | set(ELSEWHERE) == set(CODES)
    assert not set(EXAMPLES) & set(ELSEWHERE)


def test_a_valid_model_has_no_finding() -> None:
    assert check(relu(), lint=True) == []


def test_commands_name_the_file_and_the_repair(tmp_path: Path) -> None:
    path = tmp_path / "my model.onnx"
    onnx.save(batch(1), path)
    (finding,) = find(check(path, lint=True), "batch-baked")
    assert finding.command == f"sardonyx set-shape '{path}' --input x:batch,3 -o '{tmp_path}/my model.repaired.onnx'"


def test_a_batch_shared_by_inputs_becomes_symbolic_in_all_of_them() -> None:
    findings = find(
        check(text("g (float[1, 2] x, float[1, 2] z, float[5] k) => (float[1, 2] y) { y = Sum (x, z) }"), lint=True),
        "batch-baked",
    )
    assert [item.where.tensor for item in findings] == ["x", "z"]
    assert {item.command.split(" -o ")[0] for item in findings} == {
        "sardonyx set-shape MODEL.onnx --input x:batch,2 --input z:batch,2"
    }


def test_a_weight_returned_by_a_body_is_not_a_duplicate() -> None:
    model = text(
        """g (int64 n, bool go, float[2] x) => (float[2] y) <bool other = {1}> {
            t = And (go, other)
            y = Loop (n, t, x) <body = b (int64 i, bool c, float[2] s) => (bool again, float[2] r) <bool again = {1}>
                                       { r = Neg (s) }> }"""
    )
    assert not find(check(model, lint=True), "duplicate-weight")


def test_dictionary_has_every_field() -> None:
    (finding,) = check(text("g (float[2] x) => (float[2] y) { y = Relu (x, x) }"))[:1]
    assert finding.as_dict() == {
        "severity": "error",
        "code": "arity",
        "reason": finding.reason,
        "where": "node Relu(y)",
        "graph": "",
        "node": "Relu(y)",
        "op_type": "Relu",
        "tensor": "",
        "item": "",
        "remedy": finding.remedy,
        "command": "",
    }


def test_reasons_contain_no_internal_numbers() -> None:
    for model, _ in EXAMPLES.values():
        for item in check(model()):
            assert not re.search(r"@@\d*|\[\w+InferenceError\]", item.reason)
