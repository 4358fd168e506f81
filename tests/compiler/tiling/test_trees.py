"""The schedule of tree ensembles: the choice, its candidates, and kernels of other valid schedules."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tests.compiler.tree_ensembles import ORDERED, random_trees, rows_of, traced
from tests.core.programs import computed

from sardonyx.compiler.explain import ChoiceNote, explain
from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import NAMED
from sardonyx.compiler.tiling import costs, overrides
from sardonyx.compiler.tiling.trees import TreeProblem, choose_trees, estimate_cost
from sardonyx.core.dim import Dim
from sardonyx.core.ir.graph import Function
from sardonyx.errors import OptionError

pytestmark = pytest.mark.sampled

AVX2 = NAMED["avx2"]


def problem(rows: Any, trees: int, *, shallow: bool = False) -> TreeProblem:
    return TreeProblem(rows, trees, 20, 1, 1000 * trees, shallow, 1)


def test_the_number_of_trees_and_their_depth_decide() -> None:
    shallow, deep = choose_trees(problem(50, 40, shallow=True), AVX2), choose_trees(problem(50, 40), AVX2)
    assert (shallow.schedule.group_rows, deep.schedule.group_rows) == (3, 18)
    assert not deep.schedule.shares_trees
    assert choose_trees(problem(50, costs.TREE_SHARED_TREES), AVX2).schedule.shares_trees
    assert deep.schedule.tile == AVX2.l1 // 2 // 1000


@pytest.mark.parametrize("rows", [1, 3, 17, 18, 33, 500])
@pytest.mark.parametrize("shallow", [False, True])
def test_no_candidate_is_cheaper_than_the_choice_for_a_thread(rows: int, shallow: bool) -> None:
    for trees in (40, 600):
        choice = choose_trees(problem(rows, trees, shallow=shallow), AVX2)
        assert choice.cost is not None
        assert len(choice.candidates) >= 3
        assert all(candidate.cost is not None and candidate.cost >= choice.cost for candidate in choice.candidates)


def test_open_rows_have_no_estimate() -> None:
    choice = choose_trees(problem(Dim.symbol("N"), 40), AVX2)
    assert choice.cost is None
    assert estimate_cost(problem(64, 40), choice.schedule) == 40 * 2 * costs.TREE_GROUP_ROWS


@pytest.fixture(scope="module", params=[(9, 8, 3), (40, 3, 1), (520, 5, 2)], ids=str)
def ensemble(request: pytest.FixtureRequest) -> Function:
    count, depth, targets = request.param
    return traced(random_trees(np.random.default_rng(3), count, 6, targets, depth, ORDERED, True), 6, targets)


def tree_choice(program: Program) -> ChoiceNote:
    """The schedule of the ensemble, the same for all of its kernels."""
    kernels = explain(program).kernels
    (choice,) = {
        choice.text: choice for kernel in kernels for choice in kernel.choices if choice.schedule["kind"] == "trees"
    }.values()
    return choice


@pytest.mark.parametrize(
    "change",
    [
        {"group_rows": 1},
        {"group_rows": 33},
        {"item_groups": 1},
        {"tile": 1},
        {"shares_trees": True},
        {"shares_trees": False},
        {"item_trees": 16},
        {"row_ways": 1, "row_steps": 1},
        {"row_ways": 4, "row_steps": 9},
        {"row_ways": 32, "item_trees": 64},
        {"group_ways": 1, "group_steps": 1},
        {"group_ways": 32, "group_steps": 3},
        {"prefetch_lines": 0},
    ],
    ids=str,
)
def test_any_valid_schedule_gives_the_same_bits(ensemble: Function, change: dict[str, Any]) -> None:
    note = tree_choice(Program.compile(ensemble, threads=2))
    schedule = {**note.schedule, **change}
    with overrides.override_schedules({"schedules": {note.problem: schedule}}):
        program = Program.compile(ensemble, threads=2)
    assert tree_choice(program).schedule == schedule
    assert ("leaves" in [launch.title for launch in program.launches]) is schedule["shares_trees"]
    rng = np.random.default_rng(1)
    for count in (0, 1, 2, 17, 40, 131):
        x = rows_of(rng, count, 6)
        np.testing.assert_array_equal(program.run([x])[0], computed(ensemble, [x])[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group_rows": 0}, "group_rows from 1 to 33"),
        ({"item_groups": 0}, "groups per item"),
        ({"tile": 0}, "at least 1 tree"),
        ({"row_ways": 3}, "row_ways to be one of"),
        ({"group_ways": 64}, "group_ways to be one of"),
        ({"item_trees": 24}, "multiple of row_ways"),
        ({"row_steps": 0}, "1 to 64 steps"),
        ({"prefetch_lines": -1}, "0 to 4096 lines"),
        ({"shares_trees": 1}, "expected shares_trees to be bool"),
    ],
    ids=str,
)
def test_an_invalid_schedule_is_refused(ensemble: Function, change: dict[str, Any], message: str) -> None:
    note = tree_choice(Program.compile(ensemble, threads=1))
    with (
        overrides.override_schedules({"schedules": {note.problem: {**note.schedule, **change}}}),
        pytest.raises(OptionError, match=re.escape(message)),
    ):
        Program.compile(ensemble, threads=1)
