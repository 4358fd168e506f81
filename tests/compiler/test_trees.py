"""Tree ensembles: one kernel gives the same bits as the interpreter, for any number of rows."""

from __future__ import annotations

import numpy as np
import pytest
from tests.core.programs import computed

from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core import types as t
from sardonyx.core.dim import Dim
from sardonyx.core.graph import Function
from sardonyx.core.simplify import simplify
from sardonyx.core.trace import trace
from sardonyx.core.types import TensorType
from sardonyx.ops.definitions.ml.trees import LEAF, MODES, Trees, scores


def random_trees(
    rng: np.random.Generator, count: int, features: int, targets: int, depth: int, modes: list[str], missing: bool
) -> Trees:
    """Trees whose paths end at random, with weights of either sign, zeros and NaN among them."""
    trees = Trees([], [], [], [], [], [], [], [], {})

    def grown(level: int) -> int:
        node = len(trees.modes)
        is_leaf = level == depth or (level and rng.random() < 0.2)
        for column in (trees.features, trees.splits, trees.modes, trees.yes, trees.no, trees.missing):
            column.append(False)
        trees.features[node] = 0 if is_leaf else int(rng.integers(features))
        trees.splits[node] = float(rng.choice([-np.inf, np.inf, 0.0, *rng.standard_normal(20)]))
        trees.modes[node] = LEAF if is_leaf else MODES.index(str(rng.choice(modes)))
        trees.missing[node] = missing and bool(rng.random() < 0.5)
        if is_leaf:
            trees.yes[node] = trees.no[node] = node
            given = float(rng.choice([0.0, -0.0, np.nan, *rng.standard_normal(40)]))
            for target in range(targets):
                if rng.random() < 0.9:
                    trees.weights.append((node, target, given if target == 0 else float(rng.standard_normal())))
        else:
            trees.yes[node] = grown(level + 1)
            trees.no[node] = grown(level + 1)
        return node

    for _ in range(count):
        trees.roots.append(grown(0))
    return trees


def traced(trees: Trees, features: int, targets: int, aggregate: str = "SUM") -> Function:
    rows = TensorType(t.FLOAT, (Dim.symbol("N"), features))
    return simplify(trace("f", lambda x: [scores(x, trees, targets, aggregate, t.FLOAT) * 2], [rows]))


def rows_of(rng: np.random.Generator, count: int, features: int) -> np.ndarray:
    x = rng.standard_normal((count, features)).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    x[rng.random(x.shape) < 0.05] = np.inf
    x[rng.random(x.shape) < 0.05] = -np.inf
    return x


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(("targets", "features"), [(1, 1), (1, 7), (3, 4), (20, 300)])
def test_a_sum_over_trees_is_one_kernel(targets: int, features: int, missing: bool) -> None:
    rng = np.random.default_rng(targets + features)
    for count, depth in ((1, 0), (3, 1), (8, 4), (13, 7)):
        trees = random_trees(rng, count, features, targets, depth, ["BRANCH_LEQ", "BRANCH_LT"], missing)
        function = traced(trees, features, targets, "AVERAGE" if depth == 4 else "SUM")
        program = Program(function)
        assert [launch.title for launch in program.launches] == ["trees", "map"]
        for n in (0, 1, 7, 8, 9, 131, 300):
            x = rows_of(rng, n, features)
            np.testing.assert_array_equal(program.run([x])[0], computed(function, [x])[0])


@pytest.mark.parametrize("aggregate", ["SUM", "MIN"])
def test_other_comparisons_and_aggregates_have_no_such_kernel(aggregate: str) -> None:
    rng = np.random.default_rng(0)
    modes = ["BRANCH_GT", "BRANCH_EQ"] if aggregate == "SUM" else ["BRANCH_LEQ"]
    function = traced(random_trees(rng, 5, 4, 2, 3, modes, False), 4, 2, aggregate)
    program = Program(function)
    assert not program.schedule.host
    assert "trees" not in [launch.title for launch in program.launches]
    x = rows_of(rng, 20, 4)
    np.testing.assert_array_equal(program.run([x])[0], computed(function, [x])[0])


def test_calls_of_other_functions_are_taken_apart() -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        (found,) = L.call("twice", lambda y: [y + y], [x])
        return [L.tanh(found)]  # type: ignore[arg-type]

    program = Program(trace("f", body, [TensorType(t.FLOAT, (Dim.symbol("N"),))]))
    assert [launch.title for launch in program.launches] == ["map"]
    x = np.arange(5, dtype=np.float32) / 5
    np.testing.assert_allclose(program.run([x])[0], np.tanh(2 * x), rtol=1e-6)
