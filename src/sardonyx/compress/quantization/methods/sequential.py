"""Sequential reconstruction: weights are rounded in the order of execution, on the inputs of the quantized model.

A site reads rows x' of the model whose earlier sites are quantized, and its products should be those of the float
model's rows x: integers minimize ``|W x - Q x'|`` over Q, so that a site corrects the errors of the sites before.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.base.blas_threads import factorizations, products
from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.compress.quantization.methods.gptq import descend, gptq, refit_scales
from sardonyx.compress.quantization.methods.grids import Grid
from sardonyx.compress.quantization.methods.objective import Objective, Rounded
from sardonyx.compress.quantization.methods.rounding import replace_integers, rows_of, scale_width, scales_of
from sardonyx.compress.quantization.placement import WeightSite
from sardonyx.compress.quantization.ranges import SENTINEL
from sardonyx.compress.quantization.scheme import Scheme
from sardonyx.compress.quantization.sensitivity import Probe
from sardonyx.compress.quantization.site_inputs import Needs, SiteInput, shrunk, trust_of
from sardonyx.compress.quantization.weights import QuantizedWeight

MOST_STAGES = 32
"""Stages of sites that are rounded on the same inputs: a stage costs a pass over the samples, or two."""

MOST_BYTES = 256 << 20
"""Bytes of rows of the float model that are read in one pass for all stages, in place of a pass for each."""

_DAMPING = 0.01
_ALTERNATIONS = 2
_MOST_DEPTH = 4096
"""Elements of a row above which a site keeps its integers: the moments would need too much memory."""


def reconstruct(
    probe: Probe, sites: Sequence[WeightSite], weights: Mapping[str, QuantizedWeight],
    schemes: Mapping[str, Scheme], samples: Sequence[Mapping[str, Any]], *, rows: int = 4096, seed: int = 0,
) -> dict[str, QuantizedWeight]:  # fmt: skip
    """Return weights whose integers and scales correct the errors of earlier sites.

    Args:
        probe: The model with switches, and the dequantized weights; replaced as sites are rounded.
        sites: The sites, in the order of execution.
        weights: The weights to begin with, by label.
        schemes: The schemes of the weights, by label.
        samples: Samples to learn from.
        rows: Rows of the input of a site that enter its moments at most.
        seed: The seed of the draw of rows.
    """
    result = dict(weights)
    done: set[str] = set()
    stages = _stages(probe, [site for site in sites if site.label in weights and not site.is_batched])
    ordered = list(itertools.chain(*stages))
    floats: dict[str, SiteInput] = {}
    if rows * 4 * sum(site.groups * site.matrix().shape[2] for site in ordered) <= MOST_BYTES:
        floats = _float_rows(probe, ordered, samples, rows, seed)
    for stage in stages:
        own = floats or _float_rows(probe, stage, samples, rows, seed)
        moments = _rows(probe, stage, samples, done, rows, seed, own)
        for site in stage:
            raise_if_cancelled()
            x, changed = moments[site.label]
            if x is not None and changed is not None and x.shape[2] <= _MOST_DEPTH:
                result[site.label] = _rounded(site, schemes[site.label], result[site.label], x, changed)
                probe.replace_weight(site.label, result[site.label].dequantized())
            done.add(site.label)
    return result


def _stages(probe: Probe, sites: Sequence[WeightSite]) -> list[list[WeightSite]]:
    """Return the sites by the activation that they read, in at most ``MOST_STAGES`` stages."""
    by_input: dict[object, list[WeightSite]] = {}
    for site in sites:
        if site.label in probe.nodes:
            by_input.setdefault(site.node.inputs[0], []).append(site)
    groups = list(by_input.values())
    count = min(len(groups), MOST_STAGES)
    bounds = [len(groups) * number // count for number in range(count + 1)] if count else []
    return [list(itertools.chain(*groups[first:last])) for first, last in itertools.pairwise(bounds)]


def _float_rows(
    probe: Probe, sites: Sequence[WeightSite], samples: Sequence[Mapping[str, Any]], rows: int, seed: int
) -> dict[str, SiteInput]:
    """Return the rows that each site reads in the float model."""
    inputs = {site.label: SiteInput(site, Needs(rows=rows), False, seed) for site in sites}
    for sample in samples:
        read = probe.site_inputs(sample, ())
        for label, own in inputs.items():
            own.add(read[label])
    return inputs


def _rows(
    probe: Probe, stage: Sequence[WeightSite], samples: Sequence[Mapping[str, Any]], done: set[str], rows: int,
    seed: int, floats: Mapping[str, SiteInput],
) -> dict[str, tuple[np.ndarray | None, np.ndarray | None]]:  # fmt: skip
    """Return the rows that each site reads in the float model and in the quantized one: the same draw of both."""
    # A site quantizes its own input too: its switch is on, while the weights of the stage are still float.
    own = {site.label for site in stage}
    inputs = {site.label: SiteInput(site, Needs(rows=rows), False, seed) for site in stage}
    for sample in samples:
        read = probe.site_inputs(sample, done | own)
        for label, after in inputs.items():
            after.add(read[label])
    return {label: _bounded(floats[label].rows, after.rows) for label, after in inputs.items()}


def _bounded(x: np.ndarray | None, changed: np.ndarray | None) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the pairs of rows without elements that stand for infinity; None if there is no pair."""
    if x is None or changed is None:
        return x, changed
    is_bounded = (np.maximum(np.abs(x), np.abs(changed)) < SENTINEL).all((0, 2))
    return (x[:, is_bounded], changed[:, is_bounded]) if is_bounded.any() else (None, None)


def _rounded(
    site: WeightSite, scheme: Scheme, start: QuantizedWeight, x: np.ndarray, changed: np.ndarray
) -> QuantizedWeight:
    matrices, grids = rows_of(site, scheme, start)
    plain = site.matrix(start.values.astype(np.float32))
    width = scale_width(site, start)
    integers, scales = np.empty(matrices.shape, np.float32), np.empty(matrices.shape, np.float32)
    k = matrices.shape[2]
    with products(max(matrices.shape[1], k, x.shape[1]) * k**2):
        for number, (rows, grid) in enumerate(zip(matrices, grids, strict=True)):
            own = _corrected(rows, grid, plain[number], (x[number], changed[number]), width)
            integers[number], scales[number] = own.integers, own.grid.scales
    return replace_integers(site, scheme, start, integers, scales_of(site, start, scales, width) if width else None)


def _corrected(
    rows: np.ndarray, grid: Grid, plain: np.ndarray, inputs: tuple[np.ndarray, np.ndarray], width: int
) -> Rounded:
    """Return the integers of one matrix for its inputs in the float model and in the quantized one, [rows, k]."""
    x, changed = inputs
    trust = trust_of(len(x), x.shape[1])
    hessian = shrunk(changed.T @ changed, trust)
    # With few rows, the errors of the sites before are chance as well: fewer of these are corrected.
    target = rows @ (hessian + np.float32(trust) * ((x - changed).T @ changed))
    objective, ideal = Objective(rows, hessian, target), Objective(_solution(target, hessian, rows), hessian)
    candidates = [
        descend(objective, objective.rounded(grid, first))
        for first in (plain, gptq(ideal, ideal.rounded(grid)).integers)
    ]
    chosen = objective.best(*candidates)
    for _ in range(_ALTERNATIONS if width else 0):
        chosen = descend(objective, refit_scales(objective, chosen, width), sweeps=1)
    return chosen


def _solution(target: np.ndarray, hessian: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the float weights of the least error, drawn to the original weights by the damping."""
    k = len(hessian)
    damping = _DAMPING * float(np.trace(hessian)) / max(k, 1) + 1e-12
    wide = hessian.astype(np.float64) + damping * np.eye(k)
    with factorizations(len(wide)):
        return np.asarray(np.linalg.solve(wide, (target + damping * rows).T.astype(np.float64)).T, np.float32)
