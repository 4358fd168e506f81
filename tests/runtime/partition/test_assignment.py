"""Cutting a graph into parts: least cost, parts that can run one after the other, budgets."""

from __future__ import annotations

import itertools
import random

import pytest

from sardonyx.runtime.partition.assignment import assign, group_by_provider, within_budget

CROSSING = 1e-5


def total(actual, edges, costs):  # type: ignore[no-untyped-def]
    return sum(costs[n][p] for n, p in actual.items()) + CROSSING * sum(actual[a] != actual[b] for a, b in edges)


def drawn(rng: random.Random, count: int, providers: str) -> tuple[list[tuple[int, int]], dict[int, dict[str, float]]]:
    edges = [(a, b) for a, b in itertools.combinations(range(count), 2) if rng.random() < 0.3]
    costs = {}
    for node in range(count):
        able = rng.sample(providers, rng.randint(1, len(providers)))
        costs[node] = {provider: rng.choice((0.0, 1e-6, 5e-6, 2e-5, 1e-4)) for provider in able}
    return edges, costs


@pytest.mark.parametrize("seed", range(40))
def test_two_providers_cost_the_least_there_is(seed: int) -> None:
    edges, costs = drawn(random.Random(seed), 8, "ab")
    choices = itertools.product(*(costs[n] for n in range(8)))
    least = min(total(dict(enumerate(choice)), edges, costs) for choice in choices)
    assert total(assign(range(8), edges, costs, CROSSING), edges, costs) == pytest.approx(least, abs=1e-8)


@pytest.mark.parametrize("seed", range(40))
def test_three_providers_cost_at_most_twice_the_least(seed: int) -> None:
    edges, costs = drawn(random.Random(seed), 7, "abc")
    actual = assign(range(7), edges, costs, CROSSING)
    assert all(provider in costs[node] for node, provider in actual.items())
    choices = itertools.product(*(costs[n] for n in range(7)))
    least = min(total(dict(enumerate(choice)), edges, costs) for choice in choices)
    assert least - 1e-8 <= total(actual, edges, costs) <= 2 * least + 1e-8


def test_a_cheap_node_between_two_others_does_not_cross() -> None:
    costs = {0: {"a": 1.0}, 1: {"a": 2e-6, "b": 1e-6}, 2: {"a": 1.0}}
    assert assign(range(3), [(0, 1), (1, 2)], costs, CROSSING) == {0: "a", 1: "a", 2: "a"}
    assert assign(range(3), [(0, 1), (1, 2)], costs, 1e-9)[1] == "b"


@pytest.mark.parametrize("seed", range(60))
def test_groups_run_one_after_the_other(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 30)
    edges = [(a, b) for a, b in itertools.combinations(range(count), 2) if rng.random() < 0.15]
    providers = [rng.choice("abc") for _ in range(count)]
    groups = group_by_provider(providers, edges)
    position = {node: i for i, group in enumerate(groups) for node in group.nodes}
    assert sorted(position) == list(range(count))
    assert all(providers[node] == group.provider for group in groups for node in group.nodes)
    assert all(position[tail] <= position[head] for tail, head in edges)


def test_one_provider_is_one_group() -> None:
    assert len(group_by_provider(["a"] * 5, [(0, 1), (1, 4), (2, 3)])) == 1


def test_a_node_waits_for_the_group_that_it_can_join() -> None:
    # 0 could run at once; its only reader runs after 1 of the other provider.
    assert [group.nodes for group in group_by_provider(["a", "b", "a"], [(0, 2), (1, 2)])] == [(1,), (0, 2)]


def test_what_gains_least_a_byte_leaves_first() -> None:
    costs = {"x": {"fast": 1e-6, "slow": 9e-6}, "y": {"fast": 1e-6, "slow": 2e-6}, "z": {"fast": 1e-6}}
    actual = dict.fromkeys("xyz", "fast")
    nbytes = {"x": 10, "y": 10, "z": 10}.__getitem__
    assert within_budget(actual, costs, nbytes, {"fast": 30}) is None
    left = within_budget(actual, costs, nbytes, {"fast": 20})
    assert left == {**costs, "y": {"slow": 2e-6}}
    assert within_budget(actual, costs, nbytes, {"fast": 0}) == {**costs, "y": {"slow": 2e-6}, "x": {"slow": 9e-6}}
