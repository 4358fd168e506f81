"""Who computes which node: the cheapest way to cut a model into parts for several providers.

Two steps. The nodes are *assigned*: each to a provider that claims it, so that what the nodes cost there and what
crossings between providers cost is least (alpha expansion: for one provider after the other, a minimum cut decides
which nodes go over to it, until none does; exact for two providers, within a factor of two of the least for more.
Boykov, Veksler, Zabih: *Fast Approximate Energy Minimization via Graph Cuts*, 2001). Then the nodes of a provider are
*grouped* into parts that can run one after the other: no way leads out of a part and back into it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sardonyx.rewrite.minimum_cut import NEVER, Network

CROSSING_SECONDS = 3e-5
"""Of a value that one provider gives and another takes: mostly that of a further call."""

_UNIT = 1e-9
"""Seconds of which costs are whole numbers."""

N = TypeVar("N", bound=Hashable)

Costs = Mapping[str, float]
"""Seconds of a node by the providers that can take it."""


def assigned(
    nodes: Sequence[N], edges: Sequence[tuple[N, N]], costs: Mapping[N, Costs], crossing: float = CROSSING_SECONDS
) -> dict[N, str]:
    """A provider for every node, at the least cost that alpha expansion finds.

    Args:
        nodes: The nodes.
        edges: Which node reads what which gives.
        costs: What each costs, and where; every node has at least one provider.
        crossing: Seconds of an edge between two providers.

    Returns:
        The provider of each node.
    """
    providers = list(dict.fromkeys(provider for node in nodes for provider in costs[node]))
    found = {node: min(costs[node], key=lambda provider: costs[node][provider]) for node in nodes}
    best = _total(found, edges, costs, crossing)
    going = len(providers) > 1
    while going:
        going = False
        for provider in providers:
            tried = _expanded(provider, found, edges, costs, crossing)
            total = _total(tried, edges, costs, crossing)
            if total < best - _UNIT:
                found, best, going = tried, total, True
    return found


def _total(found: Mapping[N, str], edges: Sequence[tuple[N, N]], costs: Mapping[N, Costs], crossing: float) -> float:
    return sum(costs[node][provider] for node, provider in found.items()) + crossing * sum(
        found[tail] != found[head] for tail, head in edges
    )


def _expanded(
    provider: str, found: Mapping[N, str], edges: Sequence[tuple[N, N]], costs: Mapping[N, Costs], crossing: float
) -> dict[N, str]:
    """The cheapest change in which nodes keep what they have or go over to ``provider``."""
    weight = _whole(crossing)
    keep = {node: NEVER if now == provider else _whole(costs[node][now]) for node, now in found.items()}
    move = {node: _whole(costs[node][provider]) if provider in costs[node] else NEVER for node in found}
    network = Network()
    places = {node: network.place() for node in found}
    for tail, head in edges:
        if found[tail] == provider or found[head] == provider:
            # The other end crosses if it stays.
            keep[head if found[tail] == provider else tail] += weight
            continue
        # With 1 for a move, a what it costs that both stay and w that one does:
        # a + (w - a) x - w y + (2 w - a) (1 - x) y.
        both = weight * (found[tail] != found[head])
        move[tail] += weight - both
        keep[head] += weight
        network.connect(places[tail], places[head], 2 * weight - both)
    for node, place in places.items():
        network.connect(Network.SOURCE, place, move[node])
        network.connect(place, Network.SINK, keep[node])
    staying = network.cut()
    return {node: now if places[node] in staying else provider for node, now in found.items()}


def _whole(seconds: float) -> int:
    return max(round(seconds / _UNIT), 0)


def within_budget(
    found: Mapping[N, str], costs: Mapping[N, Costs], nbytes: Callable[[N], int], budgets: Mapping[str, int]
) -> dict[N, Costs] | None:
    """What the nodes cost where, without those claims that pass a provider's budget; None where none does.

    What goes first is what gains least a byte; a node that nobody else takes stays.
    """
    left: dict[N, dict[str, float]] | None = None
    for provider, budget in budgets.items():
        own = [node for node, name in found.items() if name == provider and nbytes(node)]
        over = sum(map(nbytes, own)) - budget
        if over <= 0:
            continue
        others = {node: min((s for name, s in costs[node].items() if name != provider), default=None) for node in own}
        movable = [(node, other) for node in own if (other := others[node]) is not None]
        movable.sort(key=lambda pair: (pair[1] - costs[pair[0]][provider]) / nbytes(pair[0]))
        for node, _ in movable:
            if over <= 0:
                break
            over -= nbytes(node)
            left = left or {each: dict(known) for each, known in costs.items()}
            del left[node][provider]
    return None if left is None else dict(left)


@dataclass(frozen=True)
class Group:
    """Nodes that one provider runs in one call.

    Attributes:
        provider: The provider.
        nodes: Indices of the nodes, in order.
    """

    provider: str
    nodes: tuple[int, ...]


def grouped(providers: Sequence[str], edges: Sequence[tuple[int, int]]) -> list[Group]:
    """The nodes in as few calls as their levels allow, in an order in which these can run.

    A node's level is how often the provider changes on a way to it. Nodes of a provider and a level are a group: an
    edge between two groups goes to a higher level, so that no way leads back. Then nodes move to later levels, where
    there is a group for them, which empties some.

    Args:
        providers: The provider of each node; the nodes in an order in which they can run.
        edges: Which node is read by which, by index; each goes forward.
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
