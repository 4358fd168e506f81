"""A failing model is reduced to the part that fails."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import sardonyx
from sardonyx import demo
from sardonyx.errors import EvaluationError, OptionError
from sardonyx.report.accuracy import Side, draw_feeds
from sardonyx.report.reduction import differs_between, fails_command, reduce


@pytest.fixture(scope="module")
def detector() -> tuple[ir.Model, dict[str, Any]]:
    model = sardonyx.load(demo.path("digits_detector"))
    return model, draw_feeds(Side(model, "reference"))


def contains(*operators: str) -> Any:
    def fails(model: ir.Model, feeds: Mapping[str, Any]) -> str:
        return "contains them" if {node.op_type for node in model.graph} >= set(operators) else ""

    return fails


@pytest.mark.parametrize("operators", [("Exp",), ("InstanceNormalization",), ("Sigmoid", "Conv")])
def test_only_the_failing_part_remains(detector: tuple[ir.Model, dict[str, Any]], operators: tuple[str, ...]) -> None:
    model, feeds = detector
    reduced = reduce(model, feeds, contains(*operators))
    assert reduced.before == sum(1 for _ in model.graph)
    assert reduced.after == sum(1 for _ in reduced.model.graph)
    if len(operators) == 1:
        assert [node.op_type for node in reduced.model.graph] == list(operators)
    else:
        assert reduced.after < reduced.before / 4
    # The part runs on its own inputs.
    (name,) = [str(value.name) for value in reduced.model.graph.outputs]
    part = Side(reduced.model, "reference").run(reduced.model, reduced.feeds)
    assert np.isfinite(np.asarray(part[name], np.float64)).all()


def test_a_model_that_does_not_fail_is_refused(detector: tuple[ir.Model, dict[str, Any]]) -> None:
    model, feeds = detector
    with pytest.raises(EvaluationError, match="does not fail"):
        reduce(model, feeds, lambda model, feeds: "")


def test_a_command_fails_by_its_exit_code(detector: tuple[ir.Model, dict[str, Any]], tmp_path: Path) -> None:
    model, feeds = detector
    script = tmp_path / "check.py"
    script.write_text(
        "import sys, numpy, onnx\n"
        "model, inputs = onnx.load(sys.argv[1]), numpy.load(sys.argv[2])\n"
        "assert {v.name for v in model.graph.input} <= set(inputs.files)\n"
        "sys.exit(3 if any(n.op_type == 'Exp' for n in model.graph.node) else 0)\n"
    )
    fails = fails_command(f"{sys.executable} {script} {{model}} {{inputs}}", timeout=600)
    assert fails(model, feeds) == "exit code 3"
    assert fails_command(f"{sys.executable} -c 0 {{model}}", timeout=600)(model, feeds) == ""
    slow = fails_command(f"{sys.executable} -c 'import time; time.sleep(60)' {{model}}", timeout=0.2)
    assert slow(model, feeds) == "timeout"
    with pytest.raises(OptionError, match=r"expected \{model\} in"):
        fails_command("true", timeout=60)
    with pytest.raises(OptionError, match="cannot be run"):
        fails_command("/no/such/program {model}", timeout=60)(model, feeds)


def test_equal_providers_do_not_fail(detector: tuple[ir.Model, dict[str, Any]]) -> None:
    model, feeds = detector
    assert differs_between("reference", "native", 1e-3)(model, feeds) == ""


def test_other_outputs_than_the_tolerance_permits_are_a_failure() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[4096] x) => (float[4096] y) { y = Tanh (x) }'
    model, feeds = sardonyx.load(onnx.parser.parse_model(text)), {"x": np.linspace(-3, 3, 4096, dtype=np.float32)}
    assert differs_between("reference", "native", 1e-6)(model, feeds) == ""
    assert differs_between("reference", "native", 0.0)(model, feeds) == "other outputs", "by roundings"
    with pytest.raises(OptionError, match="tolerance"):
        differs_between("reference", "native", -1.0)
