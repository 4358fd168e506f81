"""Rounding of the weights of sites: grids fitted to weights, and integers chosen by the statistics of inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sardonyx.base.blas_threads import products
from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.compress.quantization.bias_correction import has_corrected_mean
from sardonyx.compress.quantization.methods.adaquant import adaquant
from sardonyx.compress.quantization.methods.adaround import adaround
from sardonyx.compress.quantization.methods.gptq import descend, descend_groups, gptq, refit_scales
from sardonyx.compress.quantization.methods.grids import Grid
from sardonyx.compress.quantization.methods.objective import Objective, Rounded
from sardonyx.compress.quantization.methods.scale_fitting import fit_half_quadratic, fit_scales
from sardonyx.compress.quantization.placement import WeightSite
from sardonyx.compress.quantization.saturation import exact, without_saturation
from sardonyx.compress.quantization.scheme import Scheme
from sardonyx.compress.quantization.site_inputs import SiteInput, shrunk
from sardonyx.compress.quantization.weights import QuantizedWeight, quantize_weight

_CHUNK = 1 << 20
"""Elements of blocks whose scales are fitted at once, which bounds temporary memory."""

_ALTERNATIONS = 2
"""Alternations of fitted scales and changed integers after GPTQ; more gain less than 1 % of the error."""

_MOST_SINGLE_GROUPS = 8
_LARGEST_SMALL_DEPTH = 64
"""Groups that are rounded one by one, and the length of rows up to which more groups are rounded at once."""

Choose = Callable[[Objective, Rounded, int], Rounded]
"""Returns integers from the error, the nearest integers, and the elements of a row with one scale (0: other)."""


def round_by_importance(site: WeightSite, scheme: Scheme, inputs: SiteInput | None) -> QuantizedWeight:
    """Return the nearest integers at the scales of the least error, weighted by the mean squares of the inputs."""
    return fitted_weight(site, scheme, None if inputs is None else inputs.squares)


def round_half_quadratically(site: WeightSite, scheme: Scheme, inputs: SiteInput | None) -> QuantizedWeight:
    """Return the nearest integers at the scales of the least error in a norm below 1, without data."""
    del inputs
    return fitted_weight(site, scheme, None, half_quadratic=True)


def round_by_second_order(site: WeightSite, scheme: Scheme, inputs: SiteInput | None) -> QuantizedWeight:
    """Return integers by GPTQ, sweeps of descent, and refitted scales."""
    return _chosen(site, scheme, inputs, _second_order)


def round_by_columns(site: WeightSite, scheme: Scheme, inputs: SiteInput | None) -> QuantizedWeight:
    """Return integers by GPTQ alone: with 8 bits, sweeps and refitted scales gain half a dB of small errors."""
    return _chosen(site, scheme, inputs, lambda objective, nearest, width: gptq(objective, nearest))


def round_by_gradient(site: WeightSite, scheme: Scheme, inputs: SiteInput | None) -> QuantizedWeight:
    """Return integers by AdaRound."""
    return _chosen(site, scheme, inputs, _by_gradient)


def _by_gradient(objective: Objective, nearest: Rounded, width: int) -> Rounded:
    del width
    return objective.rounded(nearest.grid, adaround(objective.rows, objective.hessian, nearest.grid))


def round_straight_through(site: WeightSite, scheme: Scheme, inputs: SiteInput | None) -> QuantizedWeight:
    """Return integers by AdaQuant, with refitted scales."""
    return _chosen(site, scheme, inputs, _straight_through)


def _straight_through(objective: Objective, nearest: Rounded, width: int) -> Rounded:
    result = objective.rounded(nearest.grid, adaquant(objective.rows, objective.hessian, nearest.grid))
    return refit_scales(objective, result, width) if width else result


def _second_order(objective: Objective, nearest: Rounded, width: int) -> Rounded:
    result = descend(objective, gptq(objective, nearest))
    for _ in range(_ALTERNATIONS if width else 0):
        result = descend(objective, refit_scales(objective, result, width), sweeps=1)
    return result


def _chosen(site: WeightSite, scheme: Scheme, inputs: SiteInput | None, choose: Choose) -> QuantizedWeight:
    """Return a weight whose integers a function chooses; without a Hessian, see :func:`round_by_importance`."""
    start = round_by_importance(site, scheme, inputs)
    hessians = None if inputs is None else _hessians(site, inputs)
    if hessians is None or scheme.weight_type.is_float:
        return start
    matrices, grids = rows_of(site, scheme, start)
    if len(matrices) > _MOST_SINGLE_GROUPS and matrices.shape[2] <= _LARGEST_SMALL_DEPTH:
        return replace_integers(site, scheme, start, descend_groups(matrices, hessians, _joined(grids)))
    width = scale_width(site, start)
    plain = site.matrix(start.values.astype(np.float32))
    integers, scales = np.empty(matrices.shape, np.float32), np.empty(matrices.shape, np.float32)
    with products(max(matrices.shape[1:]) * matrices.shape[2] ** 2):
        for number, (rows, hessian, grid) in enumerate(zip(matrices, hessians, grids, strict=True)):
            raise_if_cancelled()
            objective = Objective(rows, hessian)
            nearest = objective.rounded(grid, plain[number])
            chosen = choose(objective, nearest, width)
            if not objective.errors(chosen).sum() <= objective.errors(nearest).sum():
                chosen = nearest
            integers[number], scales[number] = chosen.integers, chosen.grid.scales
    return replace_integers(site, scheme, start, integers, scales_of(site, start, scales, width) if width else None)


def _hessians(site: WeightSite, inputs: SiteInput) -> np.ndarray | None:
    """Return the second moments of the rows: about their mean, where they vary, if a bias corrects the mean error.

    Correlations are shrunk as far as the rows are too few to support these.
    """
    covariances = inputs.covariance if has_corrected_mean(site) else None
    if covariances is None:
        moments = inputs.second_moment
        return None if moments is None else shrunk(moments, inputs.trust)
    varies = np.diagonal(covariances, axis1=1, axis2=2).any(1)
    if not varies.all():
        moments = inputs.second_moment
        assert moments is not None
        covariances[~varies] = moments[~varies]
    return shrunk(covariances, inputs.trust)


def _joined(grids: list[Grid]) -> Grid:
    """Return the grids of groups as one of shape [groups, outputs, depth]."""
    scales, zeros = (np.stack(arrays) for arrays in zip(*((grid.scales, grid.zeros) for grid in grids), strict=True))
    return replace(grids[0], scales=scales, zeros=zeros)


def rows_of(site: WeightSite, scheme: Scheme, weight: QuantizedWeight) -> tuple[np.ndarray, list[Grid]]:
    """Return the matrices of a site, [groups, outputs, depth], and the grid of each from a quantized weight."""
    scales, zeros = (site.matrix(np.broadcast_to(array, site.shape)) for array in weight.expanded())
    limits = int(scheme.lowest), int(scheme.limit)
    return site.matrix(), [Grid(*arrays, *limits) for arrays in zip(scales, zeros, strict=True)]


def replace_integers(
    site: WeightSite, scheme: Scheme, weight: QuantizedWeight, integers: np.ndarray, scales: np.ndarray | None = None
) -> QuantizedWeight:
    """Return a quantized weight with other integers, [groups, outputs, depth], and perhaps other scales."""
    values = site.from_matrix(integers).astype(scheme.weight_type.numpy)
    if scheme.has_exact_sums:
        values = without_saturation(values, site.channel_axis, site.sum_axis is not None)
    return replace(weight, values=values, scales=weight.scales if scales is None else scales)


def scale_width(site: WeightSite, weight: QuantizedWeight) -> int:
    """Return the elements of a row with one scale; 0 if several rows share a scale, which is then not refitted."""
    if weight.axis is None or site.node.op_type == "ConvTranspose" or site.is_batched:
        return 0
    return weight.block or site.matrix().shape[2]


def scales_of(site: WeightSite, start: QuantizedWeight, scales: np.ndarray, width: int) -> np.ndarray:
    """Return the scales of rows, [groups, outputs, depth], in the shape of a weight's scales."""
    firsts = scales[:, :, ::width]
    if not start.block:
        return np.ascontiguousarray(firsts.reshape(start.scales.shape))
    assert site.sum_axis is not None
    return np.ascontiguousarray(np.moveaxis(firsts[0], -1, site.sum_axis).reshape(start.scales.shape))


def fitted_weight(
    site: WeightSite, scheme: Scheme, importance: np.ndarray | None, *, half_quadratic: bool = False
) -> QuantizedWeight:
    """Return the nearest integers of a weight at fitted scales.

    Args:
        site: The site.
        scheme: The scheme; weights of floats, and scales that several rows share (those of batched matrices, and of
            both directions of a recurrent layer), are fitted without importance.
        importance: The mean squares of the elements of the input's rows, [groups, depth]; None for equal ones.
        half_quadratic: If True, the error is measured in a norm below 1, and importance is not read.
    """
    is_shared = scheme.granularity == "tensor" or site.node.op_type == "ConvTranspose" or site.is_batched
    if scheme.weight_type.is_float or is_shared:
        return quantize_weight(site.weight, site.channel_axis, site.sum_axis, scheme)
    matrices = site.matrix()
    groups, outputs, depth = matrices.shape
    width = scheme.block_along(None if site.sum_axis is None else depth)
    is_blocked, width = width > 0, width or max(depth, 1)
    rows = matrices.reshape(groups * outputs, depth)
    weights = None if importance is None else np.repeat(importance, outputs, 0)
    levels = int(scheme.lowest), int(scheme.limit)
    count = -(-depth // width)
    scales, zeros = (np.empty((len(rows), count), np.float32) for _ in range(2))
    step = max(_CHUNK // width, 1)
    for block in range(count):
        columns = slice(block * width, min((block + 1) * width, depth))
        for first in range(0, len(rows), step):
            part = slice(first, first + step)
            piece = rows[part, columns]
            if half_quadratic:
                grid = fit_half_quadratic(piece, levels, symmetric=scheme.symmetric)
            else:
                own = None if weights is None else weights[part, columns]
                grid = fit_scales(piece, levels, symmetric=scheme.symmetric, importance=own)
            scales[part, block], zeros[part, block] = grid.scales[:, 0], grid.zeros[:, 0]
    kind = scheme.weight_type.numpy

    def nearest(scales: np.ndarray) -> np.ndarray:
        wide = Grid(np.repeat(scales, width, 1)[:, :depth], np.repeat(zeros, width, 1)[:, :depth], *levels)
        return site.from_matrix(wide.nearest(rows).reshape(matrices.shape)).astype(kind)

    if scheme.has_exact_sums:
        is_matrix = site.sum_axis is not None
        values, own_scales = exact(lambda own: nearest(own[:, None]), scales[:, 0], site.channel_axis, is_matrix)
        return QuantizedWeight(values, own_scales.copy(), zeros[:, 0].astype(kind), site.channel_axis, 0)
    values = nearest(scales)
    if is_blocked:
        assert site.sum_axis is not None
        shaped = [np.ascontiguousarray(np.moveaxis(array, -1, site.sum_axis)) for array in (scales, zeros)]
        return QuantizedWeight(values, shaped[0], shaped[1].astype(kind), site.sum_axis, width)
    return QuantizedWeight(values, scales[:, 0].copy(), zeros[:, 0].astype(kind), site.channel_axis, 0)
