"""The schedule of row-by-row kernels: the choice by shape, its candidates, and kernels of other valid schedules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.compiler.explain import ChoiceNote, explain
from sardonyx.compiler.lower.launch import Scratch
from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import NAMED, host
from sardonyx.compiler.tiling import costs, overrides
from sardonyx.compiler.tiling.rows import RowProblem, choose_rows
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType
from sardonyx.errors import OptionError

M = Dim.symbol("m")
AVX2 = NAMED["avx2"]


def problem(shape: tuple[Any, ...], axes: tuple[int, ...], neighbours: Any = 1, **changes: Any) -> RowProblem:
    fields = {"bits": 32, "reductions": 1, "operations": 1, **changes}
    return RowProblem(shape, axes, neighbours, **fields)


@pytest.mark.parametrize(
    ("rows", "lane_axis", "lanes"),
    [
        (problem((5, 768), (1,), 5), "row", 8),
        (problem((5, M), (1,), 5), "row", 8),
        (problem((64, 4), (1,), 64), "rows", 8),
        (problem((M, 4), (1,), M), "rows", 8),
        (problem((64, 5), (1,), 64), "row", 8),
        (problem((7, 4), (1,), 7), "row", 8),
        (problem((64, 300), (0,), 300), "rows", 8),
        (problem((64, 300), (0,), 300, contiguous=True), "rows", 64),
        (problem((64, 300), (0,), 300, contiguous=True, reductions=2), "rows", 32),
        (problem((64, 300), (0,), 300, contiguous=True, bits=64), "rows", 32),
        (problem((64, 30), (0,), 30, contiguous=True), "rows", 16),
        (problem((64, 300), (0,), 300, contiguous=True, operations=9), "rows", 8),
        (problem((1, 64, 7, 7), (2, 3), 8, block=8), "channels", 8),
        (problem((1, 1), (1,)), "single", 1),
    ],
    ids=str,
)
def test_the_shape_decides_the_meaning_of_lanes(rows: RowProblem, lane_axis: str, lanes: int) -> None:
    schedule = choose_rows(rows, AVX2).schedule
    assert (schedule.lane_axis, schedule.lanes) == (lane_axis, lanes)


def test_no_candidate_of_the_same_lanes_is_cheaper_than_the_choice() -> None:
    for shared in ((), (3,), (8,), (20, 4)):
        for rows in (
            problem((5, 768), (1,), 5, shared=shared),
            problem((64, 300), (0,), 300, contiguous=True, shared=shared),
        ):
            choice = choose_rows(rows, AVX2)
            assert choice.candidates
            assert choice.cost is not None
            assert all(candidate.cost is None or candidate.cost >= choice.cost for candidate in choice.candidates)


def softmax(x: L.Tensor, axis: int) -> L.Tensor:
    e = L.exp(x - L.reduce_max(x, [axis], keepdims=True))
    return e / L.reduce_sum(e, [axis], keepdims=True)


def total(x: L.Tensor, axis: int) -> L.Tensor:
    return L.reduce_sum(x, [axis])


def greatest(x: L.Tensor, axis: int) -> L.Tensor:
    return L.argmax(x, axis)


def compile_rows(of: Any, shape: tuple[int, ...], axis: int) -> Program:
    return Program.compile(trace("rows", lambda x: [of(x, axis)], [TensorType(t.FLOAT, shape)]), threads=1)


def row_choice(program: Program) -> ChoiceNote:
    (choice,) = [choice for kernel in explain(program).kernels for choice in kernel.choices]
    return choice


LANES = host().lanes(32)


@pytest.mark.parametrize("of", [softmax, total, greatest], ids=lambda of: of.__name__)
@pytest.mark.parametrize(
    ("shape", "axis", "change"),
    [
        ((9, 77), 1, {"lane_axis": "rows"}),
        ((9, 77), 1, {"chains": 1}),
        ((9, 77), 1, {"chains": 8}),
        ((9, 777), 1, {"additions": 3}),
        ((9, 77), 1, {"item_elements": 64}),
        ((9, 77), 1, {"store_operations": 0}),
        ((9, 77), 1, {"store_operations": 1}),
        ((77, 3), 1, {"lane_axis": "row"}),
        ((77, 300), 0, {"lanes": LANES}),
        ((77, 300), 0, {"chains": 2, "additions": 5}),
    ],
    ids=str,
)
def test_any_valid_schedule_computes_the_same(of: Any, shape: tuple[int, int], axis: int, change: dict) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    program = compile_rows(of, shape, axis)
    note = row_choice(program)
    schedule = {**note.schedule, **change}
    with overrides.override_schedules({"schedules": {note.problem: schedule}}):
        other = compile_rows(of, shape, axis)
    assert row_choice(other).schedule == schedule
    np.testing.assert_allclose(other.run([x])[0], program.run([x])[0], rtol=1e-5, atol=1e-5)


def test_stored_values_follow_the_schedule() -> None:
    def scratch(program: Program) -> int:
        return sum(isinstance(buffer, Scratch) for launch in program.launches for buffer in launch.buffers)

    program = compile_rows(softmax, (9, 77), 1)
    note = row_choice(program)
    assert note.schedule["store_operations"] == costs.ROW_STORE_OPERATIONS
    assert scratch(program) == 1
    with overrides.override_schedules({"schedules": {note.problem: {**note.schedule, "store_operations": 0}}}):
        assert scratch(compile_rows(softmax, (9, 77), 1)) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lane_axis": "channels"}, "expected lane_axis to be one of"),
        ({"lane_axis": "spiral"}, "expected lane_axis to be one of"),
        ({"lanes": 3}, "expected lanes to be one of"),
        ({"chains": 3}, "1, 2, 4 or 8"),
        ({"additions": 0}, "1 to 4096 additions"),
        ({"item_elements": 1}, "elements per item"),
        ({"store_operations": -1}, "0 to 1000 operations"),
    ],
    ids=str,
)
def test_an_invalid_schedule_is_refused(change: dict, message: str) -> None:
    note = row_choice(compile_rows(softmax, (9, 77), 1))
    with (
        overrides.override_schedules({"schedules": {note.problem: {**note.schedule, **change}}}),
        pytest.raises(OptionError, match=message),
    ):
        compile_rows(softmax, (9, 77), 1)
