"""A failing model is shrunk to the part that fails."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import sardonyx
from sardonyx import demo
from sardonyx.errors import EvaluationError, OptionError
from sardonyx.report.accuracy import Side, drawn
from sardonyx.report.reduction import differing, reduce, refused_by


@pytest.fixture(scope="module")
def detector() -> tuple[ir.Model, dict[str, Any]]:
    model = sardonyx.load(demo.path("digits_detector"))
    return model, drawn(Side(model, "reference"))


def holds(*wanted: str) -> Any:
    def fails(model: ir.Model, feeds: Mapping[str, Any]) -> str:
        operators = {node.op_type for node in model.graph}
        return "holds them" if operators >= set(wanted) else ""

    return fails


@pytest.mark.parametrize("wanted", [("Exp",), ("InstanceNormalization",), ("Sigmoid", "Conv")])
def test_only_what_fails_is_left(detector: tuple[ir.Model, dict[str, Any]], wanted: tuple[str, ...]) -> None:
    model, feeds = detector
    found = reduce(model, feeds, holds(*wanted))
    assert found.before == sum(1 for _ in model.graph)
    assert found.after == sum(1 for _ in found.model.graph)
    if len(wanted) == 1:
        assert [node.op_type for node in found.model.graph] == list(wanted)
    else:
        assert found.after < found.before / 4
    # The part runs on the inputs that come with it, and computes what the whole did.
    (name,) = [str(value.name) for value in found.model.graph.outputs]
    part = Side(found.model, "reference").run(found.model, found.feeds)
    assert np.isfinite(np.asarray(part[name], np.float64)).all()


def test_a_model_that_does_not_fail_is_refused(detector: tuple[ir.Model, dict[str, Any]]) -> None:
    model, feeds = detector
    with pytest.raises(EvaluationError, match="does not fail"):
        reduce(model, feeds, lambda model, feeds: "")


def test_a_command_tells_by_its_exit_code(detector: tuple[ir.Model, dict[str, Any]], tmp_path: Path) -> None:
    model, feeds = detector
    script = tmp_path / "check.py"
    script.write_text(
        "import sys, numpy, onnx\n"
        "model, inputs = onnx.load(sys.argv[1]), numpy.load(sys.argv[2])\n"
        "assert {v.name for v in model.graph.input} <= set(inputs.files)\n"
        "sys.exit(3 if any(n.op_type == 'Exp' for n in model.graph.node) else 0)\n"
    )
    fails = refused_by(f"{sys.executable} {script} {{model}} {{inputs}}", timeout=600)
    assert fails(model, feeds) == "exit code 3"
    assert refused_by(f"{sys.executable} -c 0 {{model}}", timeout=600)(model, feeds) == ""
    slow = refused_by(f"{sys.executable} -c 'import time; time.sleep(60)' {{model}}", timeout=0.2)
    assert slow(model, feeds) == "no end in time"
    with pytest.raises(OptionError, match="where the model goes"):
        refused_by("true", timeout=1)
    with pytest.raises(OptionError, match="cannot be run"):
        refused_by("/no/such/program {model}", timeout=1)(model, feeds)


def test_equal_providers_do_not_fail(detector: tuple[ir.Model, dict[str, Any]]) -> None:
    model, feeds = detector
    assert differing("reference", "native", 1e-3)(model, feeds) == ""
    assert differing("reference", "native", -1.0)(model, feeds) == "other outputs"
