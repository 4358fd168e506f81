"""The fastest provider for each part of a model on the machine at hand: measured once, and remembered.

The model is cut where the set of providers that can take a node changes, and long stretches where a single value goes
from what is before to what is after. Each piece runs on each of its providers, on the values that it is given in a run
of the model; whoever is fastest gets it, less what crossings cost. What comes of that is measured once more against
every provider that can run the model alone, since a whole model can be made faster than its pieces are.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx.base.artifact_store import digest, store
from sardonyx.core.eval.run_context import RunContext
from sardonyx.errors import EvaluationError, SardonyxError, UnsupportedError
from sardonyx.model.copying import copy_model
from sardonyx.ops.reference import ReferenceModel
from sardonyx.rewrite import measure
from sardonyx.runtime.partition.assignment import CROSSING_SECONDS, Group, assigned, grouped
from sardonyx.runtime.partition.partition import Part
from sardonyx.runtime.partition.partitioner import Chosen, Cut

PIECES = 4
"""Into how many pieces a stretch of nodes with the same providers is cut at most."""

SECONDS = 0.25
"""Spent on a piece and a provider, after it has run once."""

RUNS = 30
"""Of a piece on a provider at most; at least three."""

_log = logging.getLogger("sardonyx")


def choose(model: ir.Model, cut: Cut, name: str | None) -> Mapping[int, Chosen]:
    """The provider of every node by measured time, as it is remembered or measured now.

    Args:
        model: The model, with its shapes.
        cut: Compiles parts of it.
        name: What names the model's contents and the machine; None where nothing does, and nothing is remembered.

    Returns:
        By the node's place among those that are assigned; empty where no inputs could be found to measure on.
    """
    kept = store()
    key = None if name is None else digest("auto", name, *_versions(cut.provider_names), str(len(cut.nodes)))
    if key is not None and (found := kept.get("program", key)) is not None:
        told = json.loads(found)
        return {i: Chosen(*each) for i, each in enumerate(told)}
    measured = _measured(model, cut)
    if key is not None and len(measured) == len(cut.nodes):
        rows = [(measured[i].provider, measured[i].reason) for i in range(len(cut.nodes))]
        kept.put("program", key, json.dumps(rows).encode())
    return measured


def _versions(names: Sequence[str]) -> list[str]:
    """The providers, with the versions of the packages that they stand on."""
    told = []
    for name in names:
        package = name.partition(":")[0]
        try:
            told.append(f"{name} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:  # Ours; the name of the model tells its version.
            told.append(name)
    return told


def _measured(model: ir.Model, cut: Cut) -> Mapping[int, Chosen]:
    feeds = _feeds(model)
    if feeds is None:
        return {}
    pieces = _pieces(cut)
    values = dict(feeds)
    costs: dict[int, dict[str, float]] = {}
    for number, piece in enumerate(pieces):
        given: dict[str, Any] = {}
        costs[number] = {}
        for provider in cut.claimants(piece[0]):
            found = _timed(cut, Group(provider, piece), values)
            if found is not None:
                costs[number][provider], given = found
        if not costs[number]:
            return {}
        values |= given
    owner = {node: number for number, piece in enumerate(pieces) for node in piece}
    edges = sorted({(owner[a], owner[b]) for a, b in cut.edges if owner[a] != owner[b]})
    mixed = assigned(range(len(pieces)), edges, costs, CROSSING_SECONDS)
    best = {node: mixed[number] for node, number in owner.items()}
    told = {number: _told(each) for number, each in costs.items()}
    alone = _alone(cut, best, feeds)
    if alone is not None:
        return dict.fromkeys(owner, alone)
    return {node: Chosen(provider, f"measured: {told[owner[node]]}") for node, provider in best.items()}


def _told(costs: Mapping[str, float]) -> str:
    ordered = sorted(costs.items(), key=lambda pair: pair[1])
    return ", ".join(f"{name} {seconds * 1e3:.3g} ms" for name, seconds in ordered)


def _feeds(model: ir.Model) -> dict[str, Any] | None:
    """Inputs on which the model runs."""
    names = [str(value.name) for value in model.graph.outputs]
    reference = ReferenceModel(model)

    def run(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return dict(zip(names, reference.run(None, feeds, RunContext(timeout=10.0)), strict=True))
        except SardonyxError as error:
            raise EvaluationError(error.problem, where=error.where) from error

    try:
        return dict(measure.draw(copy_model(model), run)[0])
    except SardonyxError as error:
        _log.info("providers are not measured, estimates decide: %s", error)
        return None


# Pieces.


def _pieces(cut: Cut) -> list[tuple[int, ...]]:
    """Nodes that have the same providers, in stretches, in an order in which they can run."""
    kinds = [" ".join(cut.claimants(i)) for i in range(len(cut.nodes))]
    return [piece for group in grouped(kinds, cut.edges) for piece in _stretches(group.nodes, cut)]


def _stretches(nodes: tuple[int, ...], cut: Cut) -> list[tuple[int, ...]]:
    """The nodes cut where one value goes across, into pieces of about as many nodes."""
    place = {node: i for i, node in enumerate(nodes)}
    last: dict[int, int] = {}
    for tail, head in cut.edges:
        if tail in place and head in place:
            last[tail] = max(last.get(tail, 0), place[head])
    narrow, alive = [], 0
    ends: dict[int, int] = {}
    for i, node in enumerate(nodes[:-1]):
        alive -= ends.pop(i, 0)
        if node in last:
            alive += 1
            ends[last[node]] = ends.get(last[node], 0) + 1
        if alive == 1:
            narrow.append(i + 1)
    cuts: list[int] = []
    for k in range(1, PIECES):
        near = min(narrow, key=lambda at: abs(at - k * len(nodes) // PIECES), default=None)
        if near is not None and near not in cuts:
            cuts.append(near)
    bounds = [0, *sorted(cuts), len(nodes)]
    return [nodes[begin:end] for begin, end in itertools.pairwise(bounds)]


# Clocks.


def _timed(cut: Cut, group: Group, values: Mapping[str, Any]) -> tuple[float, dict[str, Any]] | None:
    """Seconds of a piece on a provider, and what it gives; None where it does not run."""
    part = cut.part(group)
    if not isinstance(part, Part):
        return None
    try:
        given = dict(zip(part.outputs, part.run(values, RunContext()), strict=True))
        return _median(lambda: part.run(values, RunContext())), given
    except SardonyxError as error:
        _log.info("%s is not measured on %s: %s", part.label, group.provider, error)
        return None


def _median(run: Callable[[], object]) -> float:
    run()
    times: list[float] = []
    deadline = time.perf_counter() + SECONDS
    while len(times) < 3 or (len(times) < RUNS and time.perf_counter() < deadline):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _alone(cut: Cut, best: Mapping[int, str], feeds: Mapping[str, Any]) -> Chosen | None:
    """The provider that runs the whole model faster than the mixture does; None where the mixture is best."""
    count = len(cut.nodes)
    times: dict[str, float] = {}
    for provider in cut.provider_names:
        if all(provider in cut.claimants(i) for i in range(count)):
            found = _timed(cut, Group(provider, tuple(range(count))), feeds)
            if found is not None:
                times[provider] = found[0]
    if not times:
        return None
    fastest = min(times, key=lambda name: times[name])
    together = _mixture(cut, best, feeds)
    if together is not None and together < times[fastest]:
        return None
    mixed = "" if together is None else f", mixed {together * 1e3:.3g} ms"
    return Chosen(fastest, f"measured as a whole: {_told(times)}{mixed}")


def _mixture(cut: Cut, best: Mapping[int, str], feeds: Mapping[str, Any]) -> float | None:
    """Seconds of the model with each node where it was fastest; None where that is one provider or does not run."""
    if len(set(best.values())) == 1:
        return None
    parts = [cut.part(group) for group in grouped([best[i] for i in range(len(best))], cut.edges)]
    if any(isinstance(each, UnsupportedError) for each in parts):
        return None

    def run() -> None:
        values = dict(feeds)
        for part in parts:
            assert isinstance(part, Part)
            values.update(zip(part.outputs, part.run(values, RunContext()), strict=True))

    return _median(run)
