"""The pipeline: passes in order, their contracts, dumps and times."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.programs import random_program
from tests.random_cases import cases

import sardonyx
from sardonyx.compiler import pass_runner
from sardonyx.compiler.pass_runner import Contract, ContractError, Pass, recorded_pass_times
from sardonyx.compiler.pipeline import FUSE, PASSES, PLAN_SEGMENT, compile_function
from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import TensorType
from sardonyx.core.transform.simplify import simplify
from sardonyx.errors import OptionError

N = Dim.symbol("N")
WEIGHTS = constant(np.arange(32, dtype=np.float32).reshape(8, 4))


def net() -> Function:
    def body(x: L.Tensor) -> list[L.Tensor]:
        return [L.reduce_sum(L.exp(L.matmul(x, WEIGHTS)) / 4.0, [1])]

    return trace("net", body, [TensorType(t.FLOAT, (N, 8))])


def printed(level: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Compile and run at a debug level; return what is printed."""
    monkeypatch.setenv("SARDONYX_DEBUG", level)
    Program.compile(net()).run([np.ones((3, 8), np.float32)])
    monkeypatch.delenv("SARDONYX_DEBUG")
    captured = capsys.readouterr()
    assert not captured.out
    return captured.err


ADDED = [
    ("1", r"^sardonyx: fuse \(net\): \d+\.\d ms$"),
    ("2", r"^net\(x0: float\[N, 8\]\):"),
    ("3", r"^  group 0: contract"),
    ("4", r"^  tape: \d+ words"),
    ("5", r"^define "),
    ("6", r"^\s*\.globl"),
]
"""A line that each debug level adds."""


@pytest.mark.parametrize("level", "123456")
def test_a_debug_level_prints_its_part_and_those_below(
    level: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = printed(level, capsys, monkeypatch)
    for least, line in ADDED:
        assert bool(re.search(line, text, re.MULTILINE)) == (least <= level), (least, text)


def test_every_pass_is_printed_in_order(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    names = re.findall(r"^sardonyx: ([a-z ]+?)(?: \(\w+\))?: ", printed("1", capsys, monkeypatch), re.MULTILINE)
    assert list(dict.fromkeys(names)) == [stage.name for stage in PASSES]


def test_constants_are_printed_in_short(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert max(map(len, printed("2", capsys, monkeypatch).splitlines())) < 200


def test_nothing_is_printed_without_a_level(capsys: pytest.CaptureFixture[str]) -> None:
    compile_function(net())
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("text", ["7", "-1", "yes"])
def test_other_levels_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_DEBUG", text)
    with pytest.raises(OptionError, match="expected a level from 0 to 6"):
        compile_function(net())


def test_what_a_pass_requires_another_ensures() -> None:
    """But for Core, which the caller of the pipeline ensures."""
    ensured = set(PASSES[0].requires)
    for stage in PASSES:
        assert set(stage.requires) <= ensured, stage.name
        ensured.update(stage.ensures)


def test_contracts_are_verified_from_a_level_on(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = Contract("the number is even", lambda number: ["it is odd"] if number % 2 else [])
    stage: Pass[[int], int] = Pass("increment", lambda number: number + 1, requires=(odd,), ensures=(odd,))
    assert stage(1) == 2
    monkeypatch.setenv("SARDONYX_DEBUG", str(pass_runner.VERIFY))
    with pytest.raises(ContractError, match="increment: the pass requires: the number is even; it is odd"):
        stage(1)
    with pytest.raises(ContractError, match="the pass ensures"):
        stage(2)


def test_a_session_raises_a_violated_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '<ir_version: 9, opset_import: ["": 18]> net (float[N] x) => (float[N] y) { y = Neg(x) }'
    broken = replace(FUSE, ensures=(Contract("no group exists", lambda schedule: map(str, schedule.groups)),))
    monkeypatch.setattr("sardonyx.compiler.pipeline.FUSE", broken)
    monkeypatch.setenv("SARDONYX_CACHE", "off")
    sardonyx.Session(onnx.parser.parse_model(text), compile="wait")
    monkeypatch.setenv("SARDONYX_DEBUG", str(pass_runner.VERIFY))
    with pytest.raises(ContractError, match="fuse: the pass ensures: no group exists"):
        sardonyx.Session(onnx.parser.parse_model(text), compile="wait")


def test_an_error_lists_some_of_many_violations(monkeypatch: pytest.MonkeyPatch) -> None:
    stage: Pass[[int], int] = Pass(
        "count", int, requires=(Contract("no number is listed", lambda n: map(str, range(n))),)
    )
    monkeypatch.setenv("SARDONYX_DEBUG", str(pass_runner.VERIFY))
    with pytest.raises(ContractError, match="no number is listed; 0; 1; 2; 3; 4; and 95 more"):
        stage(100)


@settings(
    max_examples=cases(20),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32 - 1))
def test_contracts_hold_for_random_programs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program = random_program(np.random.default_rng(seed), 10, without=("random",))
    monkeypatch.setattr(pass_runner, "VERIFY", 1)
    monkeypatch.setenv("SARDONYX_DEBUG", "1")
    compiled = Program.compile(simplify(program.traced()))
    for arrays in program.arrays:
        compiled.run([np.array(x, order="C") for x in arrays])


def test_times_are_recorded_of_every_pass_and_leave_out_what_runs_inside() -> None:
    inner: Pass[[], None] = Pass("inner", lambda: None)
    outer: Pass[[], None] = Pass("outer", lambda: [inner(), inner(), None][-1])
    with recorded_pass_times() as times:
        outer()
        Program.compile(net()).run([np.ones((3, 8), np.float32)])
    assert times.runs["inner"] == 2 and times.runs["outer"] == 1
    assert {stage.name for stage in PASSES} <= times.seconds.keys()
    compile_function(net())
    assert times.runs["fuse"] == 1


def test_the_page_about_debugging_names_every_pass() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/debug-the-compiler.md").read_text(encoding="utf-8")
    for stage in PASSES:
        assert f"| {stage.name} |" in page
    assert PLAN_SEGMENT in PASSES
