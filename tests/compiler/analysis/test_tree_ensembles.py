"""Tree ensembles: one kernel gives the same bits as the interpreter, for any number of rows."""

from __future__ import annotations

import numpy as np
import pytest
from tests.compiler.tree_ensembles import ORDERED, Grown, random_trees, rows_of, traced
from tests.core.programs import computed

from sardonyx.compiler.analysis.tree_ensembles import tree_sum
from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import TensorType
from sardonyx.ops.definitions.ml.tree_tables import LEAF, MODES

pytestmark = pytest.mark.sampled


def assert_as_interpreted(function: Function, titles: list[str], counts: tuple[int, ...], features: int) -> None:
    program, rng = Program.compile(function), np.random.default_rng(1)
    assert [launch.title for launch in program.launches] == titles
    for count in counts:
        x = rows_of(rng, count, features)
        np.testing.assert_array_equal(program.run([x])[0], computed(function, [x])[0])


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(("targets", "features"), [(1, 1), (1, 7), (3, 4), (20, 300)])
def test_a_sum_over_trees_is_one_kernel(targets: int, features: int, missing: bool) -> None:
    rng = np.random.default_rng(targets + features)
    for count, depth in ((1, 0), (8, 4), (9, 8)):
        trees = random_trees(rng, count, features, targets, depth, ORDERED, missing)
        function = traced(trees, features, targets, "AVERAGE" if depth == 4 else "SUM")
        assert_as_interpreted(function, ["trees", "map"], (0, 1, 2, 3, 17, 18, 32, 33, 131, 600), features)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("modes", [[mode] for mode in MODES[:-1]] + [[*MODES[:-1]]], ids="/".join)
def test_all_comparisons_have_the_kernel(modes: list[str], missing: bool) -> None:
    rng = np.random.default_rng(len(modes[0]))
    for count, depth, features in ((9, 3, 2), (17, 9, 5)):
        function = traced(random_trees(rng, count, features, 1, depth, modes, missing), features, 1)
        assert_as_interpreted(function, ["trees", "map"], (1, 40), features)


@pytest.mark.parametrize("mode", MODES[:6])
def test_denormal_numbers_are_told_apart(mode: str) -> None:
    least = float(np.finfo(np.float32).smallest_subnormal)
    for split in (-least, -0.0, 0.0, least):
        grown = Grown(roots=[0], weights=[(1, 0, 1.0)])
        for row in ((0, split, MODES.index(mode), 1, 2), (0, 0.0, LEAF, 1, 1), (0, 0.0, LEAF, 2, 2)):
            grown.add(*row)
        trees = grown.trees()
        x = np.array([-2 * least, -least, -0.0, 0.0, least, 2 * least], np.float32)[:, None]
        function = traced(trees, 1, 1)
        np.testing.assert_array_equal(Program.compile(function).run([x])[0], computed(function, [x])[0])


@pytest.mark.parametrize("depth", [1, 5])
def test_threads_share_many_trees_where_rows_are_few(depth: int) -> None:
    trees = random_trees(np.random.default_rng(2), 520, 6, 2, depth, ["BRANCH_LEQ", "BRANCH_EQ"], True)
    assert_as_interpreted(traced(trees, 6, 2), ["leaves", "trees", "map"], (0, 1, 5, 18), 6)


def test_a_chain_of_categories_is_a_search() -> None:
    """A feature is compared with one category after the other: 200 steps down, 8 of a search."""
    count = 200
    grown = Grown(roots=[0])
    for category in range(count):
        yes, no = 2 * category + 1, 2 * category + 2
        grown.add(0, float(category), MODES.index("BRANCH_EQ"), yes, no)
        grown.add(0, 0.0, LEAF, yes, yes)
        grown.weights.append((yes, 0, float(category)))
    last = grown.add(0, 0.0, LEAF, 2 * count, 2 * count)
    grown.weights.append((last, 0, -1.0))
    trees = grown.trees()
    function = traced(trees, 1, 1)
    call = next(value for value in function.values if value.op == "call")
    ensemble = tree_sum(call)
    assert ensemble is not None
    assert ensemble.row_tests(ways=16, steps=4).max() <= 9
    x = np.array([*range(-1, count + 2), 0.5, np.nan, np.inf], np.float32)[:, None]
    np.testing.assert_array_equal(Program.compile(function).run([x])[0], computed(function, [x])[0])


def test_the_least_and_the_greatest_have_no_such_kernel() -> None:
    trees = random_trees(np.random.default_rng(0), 5, 4, 2, 3, ["BRANCH_LEQ"], False)
    function = traced(trees, 4, 2, "MIN")
    program = Program.compile(function)
    assert not program.grouping.host
    assert "trees" not in [launch.title for launch in program.launches]
    x = rows_of(np.random.default_rng(1), 20, 4)
    np.testing.assert_array_equal(program.run([x])[0], computed(function, [x])[0])


def test_calls_of_other_functions_are_taken_apart() -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        (doubled,) = L.call("twice", lambda y: [y + y], [x])
        return [L.tanh(doubled)]  # type: ignore[arg-type]

    program = Program.compile(trace("f", body, [TensorType(t.FLOAT, (Dim.symbol("N"),))]))
    assert [launch.title for launch in program.launches] == ["map"]
    x = np.arange(5, dtype=np.float32) / 5
    np.testing.assert_allclose(program.run([x])[0], np.tanh(2 * x), rtol=1e-6)
