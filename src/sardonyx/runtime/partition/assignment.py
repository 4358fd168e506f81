"""Assignment of nodes to providers: the cheapest way to partition a model.

Two steps. Each node is *assigned* to a provider that claims the node, so that the sum of node costs and of crossings
between providers is minimal. Alpha expansion: for one provider after another, a minimum cut selects the nodes that
change to this provider, until none does; exact for two providers, within a factor of two of the minimum for more
(Boykov, Veksler, Zabih: *Fast Approximate Energy Minimization via Graph Cuts*, 2001). Then the nodes of a provider are
*grouped* into parts that can run one after another: no path leaves a part and returns to it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sardonyx.rewrite.analysis.minimum_cut import NEVER, Network

CROSSING_SECONDS = 3e-5
"""Cost of a value that one provider computes and another reads: mostly the cost of a further call."""

_UNIT = 1e-9
"""Seconds per unit of the integer costs."""

N = TypeVar("N", bound=Hashable)

Costs = Mapping[str, float]
"""Seconds of a node, by the providers that support the node."""


def assign(
    nodes: Sequence[N], edges: Sequence[tuple[N, N]], costs: Mapping[N, Costs], crossing: float = CROSSING_SECONDS
) -> dict[N, str]:
    """Return a provider for every node, at the lowest cost that alpha expansion finds.

    Args:
        nodes: The nodes.
        edges: Pairs of a node and a reader of its results.
        costs: The costs of each node; every node has at least one provider.
        crossing: Seconds of an edge between two providers.

    Returns:
        The provider of each node.
    """
    providers = list(dict.fromkeys(provider for node in nodes for provider in costs[node]))
    assignment = {node: min(costs[node], key=lambda provider: costs[node][provider]) for node in nodes}
    best = _total(assignment, edges, costs, crossing)
    is_improving = len(providers) > 1
    while is_improving:
        is_improving = False
        for provider in providers:
            candidate = _expand(provider, assignment, edges, costs, crossing)
            total = _total(candidate, edges, costs, crossing)
            if total < best - _UNIT:
                assignment, best, is_improving = candidate, total, True
    return assignment


def _total(
    assignment: Mapping[N, str], edges: Sequence[tuple[N, N]], costs: Mapping[N, Costs], crossing: float
) -> float:
    return sum(costs[node][provider] for node, provider in assignment.items()) + crossing * sum(
        assignment[tail] != assignment[head] for tail, head in edges
    )


def _expand(
    provider: str, assignment: Mapping[N, str], edges: Sequence[tuple[N, N]], costs: Mapping[N, Costs], crossing: float
) -> dict[N, str]:
    """Return the cheapest change in which nodes keep their provider or change to ``provider``."""
    weight = _whole(crossing)
    keep = {
        node: NEVER if current == provider else _whole(costs[node][current]) for node, current in assignment.items()
    }
    move = {node: _whole(costs[node][provider]) if provider in costs[node] else NEVER for node in assignment}
    network = Network()
    vertices = {node: network.add_vertex() for node in assignment}
    for tail, head in edges:
        if assignment[tail] == provider or assignment[head] == provider:
            # The edge is a crossing if the other end keeps its provider.
            keep[head if assignment[tail] == provider else tail] += weight
            continue
        # With x, y = 1 for a change, cost a if neither end changes and w if one end changes:
        # a + (w - a) x - w y + (2 w - a) (1 - x) y.
        separation = weight * (assignment[tail] != assignment[head])
        move[tail] += weight - separation
        keep[head] += weight
        network.connect(vertices[tail], vertices[head], 2 * weight - separation)
    for node, vertex in vertices.items():
        network.connect(Network.SOURCE, vertex, move[node])
        network.connect(vertex, Network.SINK, keep[node])
    unchanged = network.cut()
    return {node: current if vertices[node] in unchanged else provider for node, current in assignment.items()}


def _whole(seconds: float) -> int:
    return max(round(seconds / _UNIT), 0)


def within_budget(
    assignment: Mapping[N, str], costs: Mapping[N, Costs], nbytes: Callable[[N], int], budgets: Mapping[str, int]
) -> dict[N, Costs] | None:
    """Return the costs without the claims that exceed a provider's budget; None if no budget is exceeded.

    Nodes with the lowest gain per byte leave first; a node without another provider stays.
    """
    reduced: dict[N, dict[str, float]] | None = None
    for provider, budget in budgets.items():
        own = [node for node, name in assignment.items() if name == provider and nbytes(node)]
        excess = sum(map(nbytes, own)) - budget
        if excess <= 0:
            continue
        others = {node: min((s for name, s in costs[node].items() if name != provider), default=None) for node in own}
        movable = [(node, other) for node in own if (other := others[node]) is not None]
        movable.sort(key=lambda pair: (pair[1] - costs[pair[0]][provider]) / nbytes(pair[0]))
        for node, _ in movable:
            if excess <= 0:
                break
            excess -= nbytes(node)
            reduced = reduced or {other_node: dict(known) for other_node, known in costs.items()}
            del reduced[node][provider]
    return None if reduced is None else dict(reduced)


@dataclass(frozen=True)
class Group:
    """Nodes that a provider runs in one call.

    Attributes:
        provider: The provider.
        nodes: Indices of the nodes, in order.
    """

    provider: str
    nodes: tuple[int, ...]


def group_by_provider(providers: Sequence[str], edges: Sequence[tuple[int, int]]) -> list[Group]:
    """Return the nodes in as few calls as their levels allow, in execution order.

    The level of a node is the largest number of provider changes on a path to the node. The nodes of one provider and
    level form a group: an edge between two groups leads to a higher level, so that no path returns. Then nodes move to
    later levels that have a group of their provider, which empties some groups.

    Args:
        providers: The provider of each node; the nodes are in topological order.
        edges: Pairs of the indices of a node and its reader; the reader is later.
    """
    count = len(providers)
    levels, readers = [0] * count, [list[int]() for _ in range(count)]
    for tail, head in edges:
        readers[tail].append(head)
    for node in range(count):
        for reader in readers[node]:
            levels[reader] = max(levels[reader], levels[node] + (providers[reader] != providers[node]))
    present = {(providers[node], levels[node]) for node in range(count)}
    for node in reversed(range(count)):
        latest = min(
            (levels[r] - (providers[r] != providers[node]) for r in readers[node]), default=max(levels, default=0)
        )
        allowed = (level for level in range(latest, levels[node], -1) if (providers[node], level) in present)
        levels[node] = next(allowed, levels[node])
    groups: dict[tuple[int, str], list[int]] = {}
    for node in range(count):
        groups.setdefault((levels[node], providers[node]), []).append(node)
    return [Group(provider, tuple(nodes)) for (_, provider), nodes in sorted(groups.items(), key=lambda kv: kv[0])]
