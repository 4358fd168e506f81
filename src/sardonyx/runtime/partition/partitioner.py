"""A model, cut: which provider runs which nodes, compiled part by part."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.errors import ExecutionError, OptionError, UnsupportedError
from sardonyx.ops.graph import node_label
from sardonyx.rewrite.surgery.subgraph import boundary, is_constant_node, part_of, reads
from sardonyx.runtime.options import NodeSelector, SessionOptions
from sardonyx.runtime.partition.assignment import Costs, Group, assigned, grouped, within_budget
from sardonyx.runtime.partition.partition import Part, asking
from sardonyx.runtime.placement import Placement
from sardonyx.runtime.providers.estimates import weight_bytes
from sardonyx.runtime.providers.protocol import Answer, Claim, Provider, Refusal, Runner

PREFERENCE = 4.0
"""How many times cheaper than one before it a provider must be, to be worth as much."""


@dataclass(frozen=True)
class Chosen:
    """A provider that somebody found best for a node.

    Attributes:
        provider: Its name.
        reason: Why.
    """

    provider: str
    reason: str


class Cut:
    """Finds who runs which node, and has the parts compiled.

    A part that its provider cannot compile after all is taken apart until the nodes are found that are to blame; these
    are refused, and all is assigned anew.

    Args:
        model: The model, with types and shapes; it must stay as it is.
        providers: The engines that may run the model, in order of preference.
        options: What is pinned, and what weights a provider may hold.

    Attributes:
        nodes: The nodes that are assigned: all but constants, which are in every part that reads them.
        edges: Which node is read by which, by their places in ``nodes``.
        parts: In the order in which they run; once :meth:`decide` is called.
        placement: Where each node runs, in the order of the graph; likewise.
    """

    def __init__(self, model: ir.Model, providers: Sequence[Provider], options: SessionOptions) -> None:
        self._model = model
        self._providers = {each.name: each for each in providers}
        self._options = options
        graph = model.graph
        self._repeated = [
            node for node in graph if is_constant_node(node) and not any(v.is_graph_output() for v in node.outputs)
        ]
        constants = set(self._repeated)
        self.nodes = [node for node in graph if node not in constants]
        self._index = {node: i for i, node in enumerate(self.nodes)}
        self._readers: dict[ir.Value, set[int]] = {}
        for i, node in enumerate(self.nodes):
            for value in reads(node):
                self._readers.setdefault(value, set()).add(i)
        self.edges = sorted(
            {
                (self._index[producer], i)
                for value, readers in self._readers.items()
                if (producer := value.producer()) in self._index
                for i in readers
            }
        )
        self._answers = {each.name: _answers(each, model) for each in providers}
        self._pinned = self._pins()
        self._runners: dict[tuple[str, tuple[int, ...], tuple[str, ...]], Part | UnsupportedError] = {}
        self._costs: dict[int, Costs] = {}
        self._chosen: Mapping[int, Chosen] = {}
        self.parts: list[Part] = []
        self.placement: list[Placement] = []

    @property
    def provider_names(self) -> list[str]:
        """The names of the providers, in order of preference."""
        return list(self._providers)

    def claimants(self, node: int) -> list[str]:
        """The providers that can take a node, by its place."""
        return list(self._costs_of(node))

    def decide(self, chosen: Mapping[int, Chosen]) -> None:
        """Assign all nodes and compile the parts.

        Args:
            chosen: Nodes for which it is known who is best, by their places.

        Raises:
            OptionError: A provider cannot take what is pinned to it.
            UnsupportedError: Nobody takes a node.
        """
        self._chosen = chosen
        groups = self._assigned()
        while self._refuse_what_fails(groups):
            groups = self._assigned()
        self.parts = [part for part in map(self.part, groups) if isinstance(part, Part)]
        self.placement = self._placement(groups)

    def _pins(self) -> dict[int, str]:
        pinned: dict[int, str] = {}
        for who, name in self._options.pins:
            if name not in self._providers:
                there = ", ".join(self._providers)
                raise OptionError(
                    f"there is no provider {name!r} to pin to.", where="pins", remedy=f"There are: {there}."
                )
            chosen = [i for i, node in enumerate(self.nodes) if _is_meant(who, node)]
            if not chosen and isinstance(who, str):
                raise OptionError("there is no such node.", where=who, remedy="Nodes are named by name or output.")
            for i in chosen:
                pinned[i] = name
        for i, name in pinned.items():
            answer = self._answers[name].get(self.nodes[i])
            if not isinstance(answer, Claim):
                reason = answer.reason if answer is not None else "it says nothing of it"
                raise OptionError(
                    f"{name} cannot take what is pinned to it: {reason}.", where=node_label(self.nodes[i])
                )
        return pinned

    def _assigned(self) -> list[Group]:
        costs: dict[int, Costs] = {i: self._costs_of(i) for i in range(len(self.nodes))}
        if nobody := [i for i, known in costs.items() if not known]:
            raise self._refused(nobody)
        found = assigned(range(len(self.nodes)), self.edges, costs)
        while (left := within_budget(found, costs, self._weight_bytes, self._options.budgets)) is not None:
            costs = left
            found = assigned(range(len(self.nodes)), self.edges, costs)
        self._costs = costs
        return grouped([found[i] for i in range(len(self.nodes))], self.edges)

    def _weight_bytes(self, node: int) -> int:
        return weight_bytes(self.nodes[node])

    def _costs_of(self, i: int) -> dict[str, float]:
        found = {}
        for rank, name in enumerate(self._providers):
            answer = self._answers[name].get(self.nodes[i])
            if isinstance(answer, Claim) and self._pinned.get(i, name) == name:
                found[name] = answer.seconds * PREFERENCE**rank
        best = self._chosen[i].provider if i in self._chosen else ""
        return {best: found[best]} if best in found else found

    def _refused(self, nodes: Sequence[int]) -> UnsupportedError:
        told = []
        for i in nodes[:5]:
            told.append(f"{node_label(self.nodes[i])} ({self._reasons(i)})")
        more = f" and {len(nodes) - 5} more" if len(nodes) > 5 else ""
        remedy = "Name a provider that takes them, or leave out `strict`." if self._options.strict else ""
        return UnsupportedError(
            f"no provider takes {'; '.join(told)}{more}.", where=self._model.graph.name or "the model", remedy=remedy
        )

    def _reasons(self, i: int, but: str = "") -> str:
        """Why providers before ``but`` do not take a node."""
        told = []
        for name in self._providers:
            if name == but:
                break
            answer = self._answers[name].get(self.nodes[i])
            if answer is None:
                told.append(f"{name}: it says nothing of it")
            elif isinstance(answer, Refusal):
                told.append(f"{name}: {answer.reason}")
        return "; ".join(told)

    # Compiling.

    def part(self, group: Group) -> Part | UnsupportedError:
        """Nodes made ready by a provider, once; or why it cannot."""
        inside = set(group.nodes)
        nodes = [self.nodes[i] for i in group.nodes]
        wanted = {
            output
            for node in nodes
            for output in node.outputs
            if output.is_graph_output() or not self._readers.get(output, inside) <= inside
        }
        inputs, outputs, constants = boundary(nodes, set(self._repeated), wanted)
        key = (group.provider, group.nodes, tuple(str(value.name) for value in outputs))
        if key not in self._runners:
            model = part_of(self._model, [*constants, *nodes], inputs, outputs)
            try:
                self._runners[key] = Part(group.provider, _runner(self._providers[group.provider], model), model)
            except UnsupportedError as error:
                self._runners[key] = error
        return self._runners[key]

    def _refuse_what_fails(self, groups: Sequence[Group]) -> bool:
        """Whether a provider cannot compile a part after all; the nodes to blame are refused."""
        failed = [(group, error) for group in groups if isinstance(error := self.part(group), UnsupportedError)]
        for group, error in failed:
            self._blame(group, error)
        return bool(failed)

    def _blame(self, group: Group, error: UnsupportedError) -> None:
        pinned = [i for i in group.nodes if i in self._pinned]
        if len(group.nodes) == 1:
            if pinned:
                raise OptionError(
                    f"{group.provider} cannot take what is pinned to it: {error}",
                    where=node_label(self.nodes[group.nodes[0]]),
                ) from error
            self._options.log(logging.WARNING, "%s: %s", node_label(self.nodes[group.nodes[0]]), error)
            self._answers[group.provider][self.nodes[group.nodes[0]]] = Refusal(f"it does not compile: {error.problem}")
            return
        middle = len(group.nodes) // 2
        halves = [Group(group.provider, nodes) for nodes in (group.nodes[:middle], group.nodes[middle:])]
        failed = [(half, found) for half in halves if isinstance(found := self.part(half), UnsupportedError)]
        for half, found in failed:
            self._blame(half, found)
        if not failed:
            # Each half compiles and both together do not: they cannot stay one part.
            for i in halves[1].nodes:
                if i not in self._pinned:
                    reason = f"it does not compile with what is before it: {error.problem}"
                    self._answers[group.provider][self.nodes[i]] = Refusal(reason)
            if len(pinned) == len(group.nodes):
                raise OptionError(f"{group.provider} cannot take together what is pinned to it: {error}") from error

    # Telling.

    def _placement(self, groups: Sequence[Group]) -> list[Placement]:
        where = {self.nodes[i]: (part, group.provider) for part, group in enumerate(groups) for i in group.nodes}
        told = []
        for node in self._model.graph:
            if node in where:
                part, provider = where[node]
                told.append(Placement(node_label(node), node.op_type, provider, part, self._reason(node, provider)))
            else:
                told.append(Placement(node_label(node), node.op_type, "", -1, "a constant, wherever it is read"))
        return told

    def _reason(self, node: ir.Node, provider: str) -> str:
        i = self._index[node]
        if i in self._pinned:
            return "it is pinned"
        if i in self._chosen and self._chosen[i].provider == provider:
            return self._chosen[i].reason
        answer = self._answers[provider][node]
        claimed = answer.reason if isinstance(answer, Claim) and answer.reason else "it takes it"
        if refused := self._reasons(i, provider):
            return f"{claimed} ({refused})"
        if provider != next(iter(self._providers)):
            cheaper = provider == min(self._costs[i], key=lambda name: self._costs[i][name])
            return f"{claimed}, at less cost" if cheaper else f"{claimed}, and its neighbours are there"
        return claimed


def _answers(provider: Provider, model: ir.Model) -> dict[ir.Node, Answer]:
    """What a provider can take.

    Raises:
        ExecutionError: It raises, or answers with something else.
    """
    where = f"{provider.name}: capability"
    with asking(where):
        found = provider.capability(model)
    if not isinstance(found, Mapping):
        raise ExecutionError(
            f"the provider gave {type(found).__name__}, and a mapping from nodes is needed.", where=where
        )
    for node, answer in found.items():
        if not isinstance(answer, (Claim, Refusal)):
            raise ExecutionError(
                f"the provider gave {type(answer).__name__} for {node_label(node)}, which is no claim and no refusal.",
                where=where,
            )
        if isinstance(answer, Claim) and not 0 <= answer.seconds < math.inf:
            raise ExecutionError(f"the provider claims {node_label(node)} in {answer.seconds} seconds.", where=where)
    return dict(found)


def _runner(provider: Provider, part: ir.Model) -> Runner:
    """A part that a provider made ready.

    Raises:
        UnsupportedError: It cannot take the part after all.
        ExecutionError: It raises something else, or gives nothing that runs.
    """
    where = f"{provider.name}: compile"
    with asking(where):
        found = provider.compile(part)
    if not isinstance(found, Runner):
        raise ExecutionError(f"the provider gave {type(found).__name__}, which has no method `run`.", where=where)
    return found


def _is_meant(who: NodeSelector, node: ir.Node) -> bool:
    if isinstance(who, str):
        return node.name == who or any(value.name == who for value in node.outputs)
    return bool(who(node))
