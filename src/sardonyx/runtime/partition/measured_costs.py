"""The fastest provider for each piece of a model on this machine: measured once, and stored.

The model is cut at changes of the set of providers that support a node; long stretches are also cut between nodes where
a single value crosses. Each piece goes to its fastest provider, less the cost of crossings. The result is measured
once more against every provider that can run the whole model, since a whole model can be faster than its pieces.
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
from sardonyx.runtime.partition.assignment import CROSSING_SECONDS, Group, assign, group_by_provider
from sardonyx.runtime.partition.partition import Part
from sardonyx.runtime.partition.partitioner import Chosen, Cut

PIECES = 4
"""Limit of the pieces of a stretch of nodes with the same providers."""

SECONDS = 0.25
"""Time to measure a piece on a provider, after a first run."""

RUNS = 30
"""Limit of the runs of a piece on a provider; at least three."""

_log = logging.getLogger("sardonyx")


def choose(model: ir.Model, cut: Cut, name: str | None) -> Mapping[int, Chosen]:
    """Return the fastest provider of every node, from the store or measured now.

    Args:
        model: The model, with its shapes.
        cut: Compiles parts of the model.
        name: The digest of the model's contents and the machine; None if nothing is stored.

    Returns:
        The provider by node index; empty if no inputs to measure on were found.
    """
    artifacts = store()
    key = None if name is None else digest("auto", name, *_versions(cut.provider_names), str(len(cut.nodes)))
    if key is not None and (entry := artifacts.get("program", key)) is not None:
        return {i: Chosen(*row) for i, row in enumerate(json.loads(entry))}
    measured = _measured(model, cut)
    if key is not None and len(measured) == len(cut.nodes):
        rows = [(measured[i].provider, measured[i].reason) for i in range(len(cut.nodes))]
        artifacts.put("program", key, json.dumps(rows).encode())
    return measured


def _versions(names: Sequence[str]) -> list[str]:
    """Return the providers with the versions of their packages."""
    versions = []
    for name in names:
        package = name.partition(":")[0]
        try:
            versions.append(f"{name} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:  # The model's name includes this package's version.
            versions.append(name)
    return versions


def _measured(model: ir.Model, cut: Cut) -> Mapping[int, Chosen]:
    feeds = _feeds(model)
    if feeds is None:
        return {}
    pieces = _pieces(cut)
    values = dict(feeds)
    costs: dict[int, dict[str, float]] = {}
    for number, piece in enumerate(pieces):
        results: dict[str, Any] = {}
        costs[number] = {}
        for provider in cut.claimants(piece[0]):
            timed = _timed(cut, Group(provider, piece), values)
            if timed is not None:
                costs[number][provider], results = timed
        if not costs[number]:
            return {}
        values |= results
    owner = {node: number for number, piece in enumerate(pieces) for node in piece}
    edges = sorted({(owner[a], owner[b]) for a, b in cut.edges if owner[a] != owner[b]})
    mixed = assign(range(len(pieces)), edges, costs, CROSSING_SECONDS)
    best = {node: mixed[number] for node, number in owner.items()}
    summaries = {number: _summary(piece_costs) for number, piece_costs in costs.items()}
    alone = _alone(cut, best, feeds)
    if alone is not None:
        return dict.fromkeys(owner, alone)
    return {node: Chosen(provider, f"measured: {summaries[owner[node]]}") for node, provider in best.items()}


def _summary(costs: Mapping[str, float]) -> str:
    ordered = sorted(costs.items(), key=lambda pair: pair[1])
    return ", ".join(f"{name} {seconds * 1e3:.3g} ms" for name, seconds in ordered)


def _feeds(model: ir.Model) -> dict[str, Any] | None:
    """Return random inputs on which the model runs; None if there are none."""
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
    """Return pieces of nodes with the same providers, in execution order."""
    kinds = [" ".join(cut.claimants(i)) for i in range(len(cut.nodes))]
    return [piece for group in group_by_provider(kinds, cut.edges) for piece in _stretches(group.nodes, cut)]


def _stretches(nodes: tuple[int, ...], cut: Cut) -> list[tuple[int, ...]]:
    """Cut nodes between which one value crosses into pieces of similar sizes."""
    positions = {node: i for i, node in enumerate(nodes)}
    last: dict[int, int] = {}
    for tail, head in cut.edges:
        if tail in positions and head in positions:
            last[tail] = max(last.get(tail, 0), positions[head])
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
    """Return the seconds of a piece on a provider, and its results; None if the provider does not run the piece."""
    part = cut.part(group)
    if not isinstance(part, Part):
        return None
    try:
        results = dict(zip(part.outputs, part.run(values, RunContext()), strict=True))
        return median_seconds(lambda: part.run(values, RunContext())), results
    except SardonyxError as error:
        _log.info("%s is not measured on %s: %s", part.label, group.provider, error)
        return None


def median_seconds(run: Callable[[], object]) -> float:
    """Return the median seconds of a call, after one call that is not measured."""
    run()
    times: list[float] = []
    deadline = time.perf_counter() + SECONDS
    while len(times) < 3 or (len(times) < RUNS and time.perf_counter() < deadline):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _alone(cut: Cut, best: Mapping[int, str], feeds: Mapping[str, Any]) -> Chosen | None:
    """Return the provider that runs the whole model faster than the mixture; None if the mixture is fastest."""
    count = len(cut.nodes)
    times: dict[str, float] = {}
    for provider in cut.provider_names:
        if all(provider in cut.claimants(i) for i in range(count)):
            timed = _timed(cut, Group(provider, tuple(range(count))), feeds)
            if timed is not None:
                times[provider] = timed[0]
    if not times:
        return None
    fastest = min(times, key=lambda name: times[name])
    mixture = _mixture(cut, best, feeds)
    if mixture is not None and mixture < times[fastest]:
        return None
    mixed = "" if mixture is None else f", mixed {mixture * 1e3:.3g} ms"
    return Chosen(fastest, f"measured as a whole: {_summary(times)}{mixed}")


def _mixture(cut: Cut, best: Mapping[int, str], feeds: Mapping[str, Any]) -> float | None:
    """Return the seconds of the model with the fastest provider of each node; None if one provider runs all nodes."""
    if len(set(best.values())) == 1:
        return None
    parts = [cut.part(group) for group in group_by_provider([best[i] for i in range(len(best))], cut.edges)]
    if any(isinstance(part, UnsupportedError) for part in parts):
        return None

    def run() -> None:
        values = dict(feeds)
        for part in parts:
            assert isinstance(part, Part)
            values.update(zip(part.outputs, part.run(values, RunContext()), strict=True))

    return median_seconds(run)
