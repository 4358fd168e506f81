"""The partitioner: assigns the nodes of a model to providers, and compiles the partitions."""

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
from sardonyx.runtime.partition.assignment import Costs, Group, assign, group_by_provider, within_budget
from sardonyx.runtime.partition.partition import Part, provider_errors
from sardonyx.runtime.placement import Placement
from sardonyx.runtime.providers.estimates import weight_bytes
from sardonyx.runtime.providers.protocol import Answer, Claim, Provider, Refusal, Runner

PREFERENCE = 4.0
"""Factor by which a provider must be cheaper than the previous provider in the order of preference."""


@dataclass(frozen=True)
class Chosen:
    """The provider that is best for a node by measurement.

    Attributes:
        provider: Its name.
        reason: The reason.
    """

    provider: str
    reason: str


class Cut:
    """Assigns nodes to providers and has the partitions compiled.

    A partition that its provider cannot compile is halved until the failing nodes are known; the provider then refuses
    these nodes, and all nodes are assigned anew.

    Args:
        model: The model, with types and shapes; it must not change.
        providers: The engines that may run the model, in order of preference.
        options: Pins and budgets.

    Attributes:
        nodes: The assigned nodes: all except constants, which belong to every part that reads them.
        edges: Pairs of the indices of a node and its reader in ``nodes``.
        parts: The parts in execution order, after :meth:`decide`.
        placement: The placement of each node in graph order, after :meth:`decide`.
    """

    def __init__(self, model: ir.Model, providers: Sequence[Provider], options: SessionOptions) -> None:
        self._model = model
        self._providers = {provider.name: provider for provider in providers}
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
        self._answers = {provider.name: _answers(provider, model) for provider in providers}
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
        """Return the providers that support a node, by index."""
        return list(self._costs_of(node))

    def decide(self, chosen: Mapping[int, Chosen]) -> None:
        """Assign all nodes and compile the parts.

        Args:
            chosen: Nodes whose best provider is known, by index.

        Raises:
            OptionError: A provider does not support a pinned node.
            UnsupportedError: No provider supports a node.
        """
        self._chosen = chosen
        groups = self._assigned()
        while self._refuse_failing_nodes(groups):
            groups = self._assigned()
        self.parts = [part for part in map(self.part, groups) if isinstance(part, Part)]
        self.placement = self._placement(groups)

    def _pins(self) -> dict[int, str]:
        pinned: dict[int, str] = {}
        for selector, name in self._options.pins:
            if name not in self._providers:
                known = ", ".join(self._providers)
                raise OptionError(f"unknown provider {name!r}.", where="pins", remedy=f"Choose from {known}.")
            selected = [i for i, node in enumerate(self.nodes) if _is_selected(selector, node)]
            if not selected and isinstance(selector, str):
                raise OptionError("unknown node.", where=selector, remedy="Use the name of a node or of an output.")
            for i in selected:
                pinned[i] = name
        for i, name in pinned.items():
            answer = self._answers[name].get(self.nodes[i])
            if not isinstance(answer, Claim):
                reason = answer.reason if answer is not None else "no answer"
                raise OptionError(
                    f"{name} does not support the pinned node: {reason}.", where=node_label(self.nodes[i])
                )
        return pinned

    def _assigned(self) -> list[Group]:
        costs: dict[int, Costs] = {i: self._costs_of(i) for i in range(len(self.nodes))}
        if unclaimed := [i for i, claims in costs.items() if not claims]:
            raise self._refused(unclaimed)
        assignment = assign(range(len(self.nodes)), self.edges, costs)
        while (reduced := within_budget(assignment, costs, self._weight_bytes, self._options.budgets)) is not None:
            costs = reduced
            assignment = assign(range(len(self.nodes)), self.edges, costs)
        self._costs = costs
        return group_by_provider([assignment[i] for i in range(len(self.nodes))], self.edges)

    def _weight_bytes(self, node: int) -> int:
        return weight_bytes(self.nodes[node])

    def _costs_of(self, i: int) -> dict[str, float]:
        costs = {}
        for rank, name in enumerate(self._providers):
            answer = self._answers[name].get(self.nodes[i])
            if isinstance(answer, Claim) and self._pinned.get(i, name) == name:
                costs[name] = answer.seconds * PREFERENCE**rank
        best = self._chosen[i].provider if i in self._chosen else ""
        return {best: costs[best]} if best in costs else costs

    def _refused(self, nodes: Sequence[int]) -> UnsupportedError:
        labels = []
        for i in nodes[:5]:
            labels.append(f"{node_label(self.nodes[i])} ({self._reasons(i)})")
        more = f" and {len(nodes) - 5} more" if len(nodes) > 5 else ""
        remedy = "Name a provider that supports them, or leave out `strict`." if self._options.strict else ""
        return UnsupportedError(
            f"no provider supports {'; '.join(labels)}{more}.",
            where=self._model.graph.name or "the model",
            remedy=remedy,
        )

    def _reasons(self, i: int, but: str = "") -> str:
        """Return the refusals of a node by the providers before ``but``."""
        reasons = []
        for name in self._providers:
            if name == but:
                break
            answer = self._answers[name].get(self.nodes[i])
            if answer is None:
                reasons.append(f"{name}: no answer")
            elif isinstance(answer, Refusal):
                reasons.append(f"{name}: {answer.reason}")
        return "; ".join(reasons)

    # Compiling.

    def part(self, group: Group) -> Part | UnsupportedError:
        """Return the nodes compiled by their provider, once; or the error of the provider."""
        inside = set(group.nodes)
        nodes = [self.nodes[i] for i in group.nodes]
        results = {
            output
            for node in nodes
            for output in node.outputs
            if output.is_graph_output() or not self._readers.get(output, inside) <= inside
        }
        inputs, outputs, constants = boundary(nodes, set(self._repeated), results)
        key = (group.provider, group.nodes, tuple(str(value.name) for value in outputs))
        if key not in self._runners:
            model = part_of(self._model, [*constants, *nodes], inputs, outputs)
            try:
                self._runners[key] = Part(group.provider, _runner(self._providers[group.provider], model), model)
            except UnsupportedError as error:
                self._runners[key] = error
        return self._runners[key]

    def _refuse_failing_nodes(self, groups: Sequence[Group]) -> bool:
        """Refuse the nodes that their provider cannot compile; return True if there are any."""
        failed = [(group, error) for group in groups if isinstance(error := self.part(group), UnsupportedError)]
        for group, error in failed:
            self._blame(group, error)
        return bool(failed)

    def _blame(self, group: Group, error: UnsupportedError) -> None:
        pinned = [i for i in group.nodes if i in self._pinned]
        if len(group.nodes) == 1:
            if pinned:
                raise OptionError(
                    f"{group.provider} does not compile the pinned node: {error}",
                    where=node_label(self.nodes[group.nodes[0]]),
                ) from error
            self._options.log(logging.WARNING, "%s: %s", node_label(self.nodes[group.nodes[0]]), error)
            self._answers[group.provider][self.nodes[group.nodes[0]]] = Refusal(
                f"the node does not compile: {error.problem}"
            )
            return
        middle = len(group.nodes) // 2
        halves = [Group(group.provider, nodes) for nodes in (group.nodes[:middle], group.nodes[middle:])]
        failed = [(half, half_error) for half in halves if isinstance(half_error := self.part(half), UnsupportedError)]
        for half, half_error in failed:
            self._blame(half, half_error)
        if not failed:
            # Each half compiles, but not both in one part.
            for i in halves[1].nodes:
                if i not in self._pinned:
                    reason = f"the node does not compile together with the nodes before: {error.problem}"
                    self._answers[group.provider][self.nodes[i]] = Refusal(reason)
            if len(pinned) == len(group.nodes):
                raise OptionError(f"{group.provider} does not compile the pinned nodes together: {error}") from error

    # Placement.

    def _placement(self, groups: Sequence[Group]) -> list[Placement]:
        parts = {self.nodes[i]: (part, group.provider) for part, group in enumerate(groups) for i in group.nodes}
        placements = []
        for node in self._model.graph:
            if node in parts:
                part, provider = parts[node]
                placements.append(
                    Placement(node_label(node), node.op_type, provider, part, self._reason(node, provider))
                )
            else:
                placements.append(Placement(node_label(node), node.op_type, "", -1, "a constant, part of every reader"))
        return placements

    def _reason(self, node: ir.Node, provider: str) -> str:
        i = self._index[node]
        if i in self._pinned:
            return "the node is pinned"
        if i in self._chosen and self._chosen[i].provider == provider:
            return self._chosen[i].reason
        answer = self._answers[provider][node]
        claimed = answer.reason if isinstance(answer, Claim) and answer.reason else "the provider claims the node"
        if refused := self._reasons(i, provider):
            return f"{claimed} ({refused})"
        if provider != next(iter(self._providers)):
            cheaper = provider == min(self._costs[i], key=lambda name: self._costs[i][name])
            return f"{claimed}, at less cost" if cheaper else f"{claimed}, like the adjacent nodes"
        return claimed


def _answers(provider: Provider, model: ir.Model) -> dict[ir.Node, Answer]:
    """Return a provider's claims and refusals.

    Raises:
        ExecutionError: The provider fails, or returns something else.
    """
    where = f"{provider.name}: capability"
    with provider_errors(where):
        answers = provider.capability(model)
    if not isinstance(answers, Mapping):
        raise ExecutionError(f"expected a mapping from nodes to answers, got {type(answers).__name__}.", where=where)
    for node, answer in answers.items():
        if not isinstance(answer, (Claim, Refusal)):
            raise ExecutionError(
                f"expected a claim or a refusal of {node_label(node)}, got {type(answer).__name__}.",
                where=where,
            )
        if isinstance(answer, Claim) and not 0 <= answer.seconds < math.inf:
            raise ExecutionError(
                f"expected a finite cost of {node_label(node)}, got {answer.seconds} seconds.", where=where
            )
    return dict(answers)


def _runner(provider: Provider, part: ir.Model) -> Runner:
    """Return a partition compiled by a provider.

    Raises:
        UnsupportedError: The provider does not support the partition.
        ExecutionError: The provider fails otherwise, or its result has no method `run`.
    """
    where = f"{provider.name}: compile"
    with provider_errors(where):
        runner = provider.compile(part)
    if not isinstance(runner, Runner):
        raise ExecutionError(f"expected an object with a method `run`, got {type(runner).__name__}.", where=where)
    return runner


def _is_selected(selector: NodeSelector, node: ir.Node) -> bool:
    if isinstance(selector, str):
        return node.name == selector or any(value.name == selector for value in node.outputs)
    return bool(selector(node))
