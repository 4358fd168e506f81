"""Layout of trees: when ways down are looked at for their end."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.compiler.analysis.tree_layout import arrival_shares, column_bits, completion_tests, nodes_by_level
from sardonyx.compiler.analysis.tree_predicates import Branches


def chain(length: int) -> Branches:
    """Nodes each of whose first children is a leaf, and the other one the next of them."""
    count = 2 * length + 1
    inner = np.arange(count) % 2 == 0
    inner[-1] = False
    number = np.arange(count)
    none = np.zeros(count, np.int64)
    return Branches(inner, none, none, np.where(inner, number + 1, 0), np.where(inner, number + 2, 0), none > 0)


def whole(depth: int) -> Branches:
    """A tree all of whose leaves are as far down."""
    count = (2 << depth) - 1
    inner = np.arange(count) < (1 << depth) - 1
    number = np.arange(count)
    none = np.zeros(count, np.int64)
    return Branches(inner, none, none, np.where(inner, 2 * number + 1, 0), np.where(inner, 2 * number + 2, 0), none > 0)


@pytest.mark.parametrize(("branches", "expected"), [(whole(3), [0, 0, 0, 1]), (chain(3), [0, 0.25, 0.5, 1])])
def test_arrivals_are_parts_of_the_leaves(branches: Branches, expected: list[float]) -> None:
    roots = np.zeros(1, np.int64)
    np.testing.assert_array_equal(arrival_shares(roots[:, None], branches, nodes_by_level(roots, branches)), [expected])


def test_arrivals_are_counted_from_several_nodes_of_a_tree() -> None:
    branches, roots = whole(3), np.zeros(1, np.int64)
    below = arrival_shares(np.array([[1, 5, 6, -1]]), branches, nodes_by_level(roots, branches))
    np.testing.assert_array_equal(below, [[0, 0.5, 1]])


def test_balanced_trees_are_never_looked_at() -> None:
    np.testing.assert_array_equal(completion_tests(np.array([[0, 0, 0, 0, 0.2, 1]]), np.array([5]), 2), [[5, 5]])


def test_a_look_finds_what_is_likely() -> None:
    arrived = np.array([[0, 0, 0, 0.4, 0.6, 0.7, 0.8, 0.9, 1]])
    # Two steps after the third tell whether the fourth was the last that anyone took.
    np.testing.assert_array_equal(completion_tests(arrived, np.array([8]), 2), [[3, 8]])


def test_trees_without_leaves_of_their_own_are_looked_at_from_the_start() -> None:
    np.testing.assert_array_equal(completion_tests(np.zeros((1, 4)), np.array([9]), 2), [[0, 9]])


@pytest.mark.parametrize(("columns", "bits"), [(1, 8), (255, 8), (256, 9), (4000, 12)])
def test_a_column_is_a_byte_where_that_is_enough(columns: int, bits: int) -> None:
    assert column_bits(columns) == bits
