"""onnx's backend suite through the optimizer: node models keep their expected outputs, light models shrink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

import sardonyx
from sardonyx.errors import EvaluationError
from sardonyx.rewrite.evaluate import evaluate
from sardonyx.rewrite.verify.compare import TOLERANCE, difference
from tests.suites.node_cases import PARTS, Case, node_cases

pytestmark = pytest.mark.sampled

LIGHT = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data" / "light").glob("*.onnx"))


def is_valid(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def errors(model: onnx.ModelProto, feeds: dict[str, Any], expected: dict[str, Any]) -> dict[str, float] | None:
    """How far each output is from the expected one; None where no evaluator runs the model."""
    try:
        results = evaluate(model, feeds)
    except EvaluationError:
        return None
    return {name: difference(name, want, results[name]).error for name, want in expected.items()}


def fault(case: Case) -> str:
    """What optimizing does wrong to a case; empty where nothing."""
    model = case.model
    result = sardonyx.optimize(model, verify=False)
    if not result.report.applied and result.proto.graph.node == model.graph.node:
        return ""
    rules = sorted(result.report.by_pass())
    if is_valid(model) and not is_valid(result.proto):
        return f"the checker rejects the result of {rules}"
    for inputs, outputs in case.data_sets:
        feeds = {value.name: content for value, content in zip(model.graph.input, inputs, strict=True)}
        expected = {value.name: content for value, content in zip(model.graph.output, outputs, strict=True)}
        after = errors(result.proto, feeds, expected)
        if after is not None and all(error <= TOLERANCE for error in after.values()):
            continue
        before = errors(model, feeds, expected)
        if before is None:
            continue
        if after is None:
            return f"no evaluator runs the result of {rules}"
        worse = {name: error for name, error in after.items() if error > max(before[name] * 1.01, TOLERANCE)}
        if worse:
            return f"{rules} change {worse}, where the evaluators' own errors are {before}"
    return ""


@pytest.mark.parametrize("part", range(PARTS))
def test_optimizing_a_node_model_keeps_its_result(part: int) -> None:
    cases = node_cases()[part::PARTS]
    assert len(cases) > 200
    faults = [f"{case.name}: {text}" for case in cases if (text := fault(case))]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_light_models_shrink_in_nodes_and_do_not_grow_in_bytes(path: Path, tmp_path: Path) -> None:
    result = sardonyx.optimize(path, verify=False)
    result.save(tmp_path / path.name)
    assert result.report.after.nodes < result.report.before.nodes
    assert (tmp_path / path.name).stat().st_size <= path.stat().st_size
    assert is_valid(onnx.load(tmp_path / path.name))


def test_there_are_nine_light_models() -> None:
    assert len(LIGHT) == 9
