from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from sardonyx.model.check.commands import Commands
from tests.cli.conftest import Run

LINES: dict[str, Callable[[Commands], str]] = {
    "optimize": lambda c: c.optimize("eliminate_identity", "eliminate_nop_cast"),
    "optimize for a target": lambda c: c.optimize(target="onnxruntime"),
    "optimize at an opset": lambda c: c.optimize(opset=18),
    "freeze_defaults": lambda c: c.freeze_defaults(),
    "simplify": lambda c: c.simplify(),
    "fp16": lambda c: c.fp16(),
    "set_shape": lambda c: c.set_shape({"x": "batch,2"}),
    "convert_opset": lambda c: c.convert_opset(13),
    "convert_ir": lambda c: c.convert_ir(9),
    "rename": lambda c: c.rename("x", "image"),
    "extract": lambda c: c.extract(["x"], ["y"]),
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_command_that_check_recommends_works(line: Callable[[Commands], str], run: Run, two_layers: Path) -> None:
    program, *arguments = shlex.split(line(Commands(str(two_layers))))
    assert program == "sardonyx"
    assert run(*arguments).code == 0
    assert two_layers.with_name("layers.repaired.onnx").exists()


def test_every_kind_of_recommendation_is_tested() -> None:
    kinds = {name for name in vars(Commands) if not name.startswith("_")} - {"source"}
    assert kinds <= {line.split(" ")[0] for line in LINES}
