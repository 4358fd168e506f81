"""Axes of reshaped tensors: which of them are counted together."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sardonyx.compiler.analysis.strided_views import common_factors, factor_groups
from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size, equal, floor_div, product
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType


@pytest.mark.parametrize("seed", range(40))
def test_groups_are_runs_of_equal_products(seed: int) -> None:
    rng = np.random.default_rng(seed)
    factors = rng.choice([1, 2, 2, 3, 5], int(rng.integers(0, 8))).tolist()

    def joined() -> list[int]:
        cuts = sorted(rng.integers(0, len(factors) + 1, int(rng.integers(0, 4))).tolist())
        parts = [factors[a:b] for a, b in zip([0, *cuts], [*cuts, len(factors)], strict=True)]
        return [math.prod(part) for part in parts]

    first, second = joined(), joined()
    groups = factor_groups(first, second)
    assert [axis for mine, _ in groups for axis in mine] == list(range(len(first)))
    assert [axis for _, theirs in groups for axis in theirs] == list(range(len(second)))
    for mine, theirs in groups:
        assert math.prod(first[axis] for axis in mine) == math.prod(second[axis] for axis in theirs)


@pytest.mark.parametrize("seed", range(40))
def test_factors_are_the_same_of_both_shapes_in_every_run(seed: int) -> None:
    rng = np.random.default_rng(seed)
    symbols = {name: Dim.symbol(name) for name in "hw"}
    factors: list[Size] = [symbols.get(text) or int(text) for text in rng.choice([*"12235hw"], int(rng.integers(1, 7)))]

    def joined() -> list[Size]:
        cuts = sorted(rng.integers(0, len(factors) + 1, int(rng.integers(0, 4))).tolist())
        return [product(factors[a:b]) for a, b in zip([0, *cuts], [*cuts, len(factors)], strict=True)]

    first, second = joined(), joined()
    groups = common_factors(first, second)
    if groups is None:
        return
    for shape, grouped in zip((first, second), groups, strict=True):
        assert all(equal(product(parts), size) for parts, size in zip(grouped, shape, strict=True))
    one, other = ([part for parts in grouped for part in parts] for grouped in groups)
    assert one == other


def test_factors_of_groups_of_channels() -> None:
    h, w = Dim.symbol("h"), Dim.symbol("w")
    assert common_factors([32, h, w], [8, 4 * h * w]) == ([[8, 4], [h], [w]], [[8], [4, h, w]])
    assert common_factors([h * w, 8, 4], [h, w, 32]) == ([[h, w], [8], [4]], [[h], [w], [8, 4]])
    assert common_factors([4, 6], [6, 4]) is None
    assert common_factors([h, 6], [w, 6]) is None


def test_last_axes_are_told_apart_where_nothing_is_known_of_the_others() -> None:
    n, m = Dim.symbol("n"), Dim.symbol("m")
    assert factor_groups([n, m, 3, 80], [Dim.symbol("k"), 3, 80]) == [([0, 1], [0]), ([2], [1]), ([3], [2])]
    assert factor_groups([n, m], [Dim.symbol("k"), 6]) == [([0, 1], [0, 1])]


def test_rows_that_were_other_axes_are_read_where_they_lie() -> None:
    """Of the rows [N * 3, 5] nobody knows that they are as many as those of the result."""

    def rows(x: L.Tensor, y: L.Tensor) -> list[L.Tensor]:
        return [L.concat([L.reshape(L.permute(x, [1, 0, 2]), (Dim.symbol("M"), 5)), y], 0)]

    shapes = [TensorType(t.FLOAT, (3, Dim.symbol("N"), 5)), TensorType(t.FLOAT, (Dim.symbol("M"), 5))]
    program = Program.compile(trace("f", rows, shapes))
    for count in (0, 1, 7):
        x = np.arange(15 * count, dtype=np.float32).reshape(3, count, 5)
        y = np.ones((3 * count, 5), np.float32)
        actual = program.run([x, y])[0]
        np.testing.assert_array_equal(actual, np.concatenate([x.transpose(1, 0, 2).reshape(-1, 5), y]))


def test_halves_of_open_sizes_are_views_if_the_counts_are_equal() -> None:
    """The counts are compared in a call: with one side rounded down, each size has to be a multiple."""
    h, w = Dim.symbol("H"), Dim.symbol("W")
    image, halves = (3, h, w), (3, floor_div(h, 2), 2, floor_div(w, 2), 2)
    assert factor_groups(image, halves) == [([0], [0]), ([1], [1, 2]), ([2], [3, 4])]
    assert factor_groups(halves, image) == [([0], [0]), ([1, 2], [1]), ([3, 4], [2])]
    mixed = (3, h, floor_div(w, 2), 2)
    assert factor_groups(mixed, (3, floor_div(h, 2), 2, w)) == [([0, 1, 2, 3], [0, 1, 2, 3])]
