"""Reconstruction: weights and biases of each layer by least squares, so that its results are those of the original.

Layers are refitted in the order of the graph, on the inputs that the changed model has by then. The step from the
present weights is damped; of several dampings, and of no step, the one with the least error on rows that no step was
fitted to is chosen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.base.blas_threads import factorizations
from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.compress.quantization.bias_correction import is_per_channel
from sardonyx.compress.quantization.placement import WeightSite, find_placement
from sardonyx.compress.quantization.site_inputs import Needs, SiteInput
from sardonyx.model.copying import copy_model
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import Names, value_names
from sardonyx.runtime.session import Session
from sardonyx.train.step.forward import make_inputs

MOST_STAGES = 24
"""Stages of layers that are refitted on the same inputs; a stage costs a pass over the samples in both models."""

MOST_SAMPLES = 96
"""Samples that are read."""

_ROWS = 3072
"""Rows of a layer's input, over all samples; every fourth one checks the steps."""

_DEPTH = 4096
"""Elements of a row above which a layer stays: the system of equations would need too much memory."""

_DAMPINGS = (1e-4, 1e-3, 1e-2, 1e-1)
_GAIN = 0.98
"""The share of the error on checking rows below which a step is accepted."""


def reconstruct(
    before: ir.Model,
    after: ir.Model,
    samples: Iterable[Mapping[str, Any]],
    remaining: Mapping[str, np.ndarray],
    sources: Mapping[str, str] | None = None,
    *,
    seed: int = 0,
) -> int:
    """Refit weights and biases of a changed model in place, and return the number of layers whose weights changed.

    Args:
        before: The original, whose layers have names.
        after: The changed model.
        samples: Samples to learn from.
        remaining: True for the outputs of an original layer that the changed layer has, by the name of the original
            layer; layers that are missing have all outputs.
        sources: The name of the original layer of a changed one, where they differ.
        seed: The seed of the draw of rows.

    Raises:
        SardonyxError: A model does not run on a sample.
    """
    names = sources or {}
    originals = {site.label: site for site in find_placement(before).sites}
    pairs: list[tuple[WeightSite, WeightSite]] = []
    uses: dict[str, int] = {}
    for site in (sites := find_placement(after).sites):
        uses[str(site.node.inputs[1].name)] = uses.get(str(site.node.inputs[1].name), 0) + 1  # type: ignore[union-attr]
    for site in sites:
        original = originals.get(names.get(site.label, site.label))
        weight = site.node.inputs[1]
        if original is None or weight is None or weight.name not in after.graph.initializers:
            continue
        if site.is_batched or (site.node.op_type == "ConvTranspose" and site.groups > 1):
            continue
        depths = (site.matrix().shape[2], original.matrix().shape[2])
        if uses[str(weight.name)] == 1 and len(weight.uses()) == 1 and max(depths) <= _DEPTH:
            pairs.append((original, site))
    if not pairs:
        return 0
    refit = _Refit(before, after, pairs, remaining, list(itertools.islice(samples, MOST_SAMPLES)), seed)
    return refit.run()


class _Refit:
    """The refitting of layers, stage by stage."""

    def __init__(
        self, before: ir.Model, after: ir.Model, pairs: Sequence[tuple[WeightSite, WeightSite]],
        remaining: Mapping[str, np.ndarray], samples: Sequence[Mapping[str, Any]], seed: int,
    ) -> None:  # fmt: skip
        self._after, self._remaining, self._seed = after, remaining, seed
        self._pairs = list(pairs)
        self._added = _add_biases(after, [site for _, site in pairs])
        self._samples = samples
        self._weights: dict[str, np.ndarray] = {}
        for _, site in pairs:
            for value in site.node.inputs[1:]:
                if value is not None and value.is_initializer() and value.const_value is not None:
                    self._weights[str(value.name)] = np.array(value.const_value.numpy())
        observed = _observed(before, [str(original.input.name) for original, _ in pairs if original.input])
        self._before = Session(observed, compile="wait")
        changed = _observed(after, [str(site.input.name) for _, site in pairs if site.input])
        make_inputs(changed, list(self._weights))
        self._changed = Session(changed, compile="wait")

    def run(self) -> int:
        """Refit all layers, write the weights, and return the number of changed layers."""
        changed: set[str] = set()
        for stage in self._stages():
            rows = self._rows(stage)
            for original, site in stage:
                x, y = rows[site.label]
                if x.rows is not None and y.rows is not None and self._fit(original, site, *rows[site.label]):
                    changed.add(site.label)
        self._write(changed)
        return len(changed)

    def _stages(self) -> list[list[tuple[WeightSite, WeightSite]]]:
        by_input: dict[str, list[tuple[WeightSite, WeightSite]]] = {}
        for pair in self._pairs:
            by_input.setdefault(str(pair[1].node.inputs[0].name), []).append(pair)  # type: ignore[union-attr]
        groups = list(by_input.values())
        count = min(len(groups), MOST_STAGES)
        bounds = [len(groups) * number // count for number in range(count + 1)]
        return [list(itertools.chain(*groups[first:last])) for first, last in itertools.pairwise(bounds)]

    def _rows(self, stage: Sequence[tuple[WeightSite, WeightSite]]) -> dict[str, tuple[SiteInput, SiteInput]]:
        """Return the same draw of rows of each layer's input in the original and in the changed model."""
        needs = Needs(rows=_ROWS)
        inputs = {
            site.label: (SiteInput(original, needs, False, self._seed), SiteInput(site, needs, False, self._seed))
            for original, site in stage
        }
        for sample in self._samples:
            raise_if_cancelled()
            first = _named(self._before, sample)
            second = _named(self._changed, {**sample, **self._weights})
            first |= {name: np.asarray(array) for name, array in sample.items()}
            second |= {name: np.asarray(array) for name, array in sample.items()}
            for original, site in stage:
                for one, names, statistics in zip((original, site), (first, second), inputs[site.label], strict=True):
                    assert one.input is not None
                    statistics.add(names[str(one.input.name)])
        return inputs

    def _fit(self, original: WeightSite, site: WeightSite, before: SiteInput, after: SiteInput) -> bool:
        """Refit one layer; return True if its weights changed."""
        x, source = after.rows, before.rows
        assert x is not None and source is not None
        if x.shape[1] != source.shape[1] or x.shape[1] < 8 or not (np.isfinite(x).all() and np.isfinite(source).all()):
            return False
        target = _products(source, original.matrix(original.weight.astype(np.float32)))
        is_transposed = site.node.op_type == "ConvTranspose"  # Its rows of products overlap: the bias stays.
        if not is_transposed:
            constant = _bias(original)
            if constant is None:
                return False
            target += constant.reshape(target.shape[0], 1, -1)
        stays = self._remaining.get(original.label)
        if stays is not None:
            if is_transposed:
                stays = np.repeat(stays, math.prod(original.shape[2:]))
            flat = target.transpose(1, 0, 2).reshape(target.shape[1], -1)[:, stays]
            target = np.ascontiguousarray(flat.reshape(len(flat), len(x), -1).transpose(1, 0, 2))
        weight, bias = str(site.node.inputs[1].name), None if is_transposed else self._bias_name(site)  # type: ignore[union-attr]
        matrix = site.matrix(self._weights[weight].astype(np.float32))
        if target.shape[2] != matrix.shape[1]:
            return False
        offset = None if bias is None else self._weights[bias].astype(np.float32).reshape(len(x), 1, -1)
        residual = target - _products(x, matrix) - (0.0 if offset is None else offset)
        step = _best_step(x, residual, has_offset=offset is not None)
        if step is None:
            return False
        self._weights[weight] = site.from_matrix(matrix + step[0]).astype(self._weights[weight].dtype)
        if bias is not None:
            self._weights[bias] += step[1].reshape(-1).astype(self._weights[bias].dtype)
        return True

    def _bias_name(self, site: WeightSite) -> str | None:
        """Return the name of a bias with one element an output that this layer alone reads; None if there is none."""
        value = site.node.inputs[2] if len(site.node.inputs) > 2 else None
        if value is None or str(value.name) not in self._weights or len(value.uses()) != 1:
            return None
        return str(value.name) if self._weights[str(value.name)].shape == (site.channels,) else None

    def _write(self, changed: set[str]) -> None:
        for _, site in self._pairs:
            if site.label not in changed and site.label in self._added:
                site.node.resize_inputs(2)
                del self._after.graph.initializers[self._added[site.label]]
        for name, array in self._weights.items():
            value = self._after.graph.initializers.get(name)
            if value is not None and value.const_value is not None:
                value.const_value = ir.Tensor(np.ascontiguousarray(array), dtype=value.const_value.dtype, name=name)


def _named(session: Session, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
    results = session.run(None, feeds)
    outputs = zip(session.get_outputs(), results, strict=True)
    return {info.name: np.asarray(one) for info, one in outputs if not isinstance(one, (list, dict))}


def _observed(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """Return a copy of a model whose outputs are some inner values."""
    copy = copy_model(model)
    values = {str(value.name): value for node in copy.graph for value in node.outputs}
    aim = [values[name] for name in dict.fromkeys(names) if name in values]
    if aim:
        copy.graph.outputs.clear()
        copy.graph.outputs.extend(aim)
    return copy


def _add_biases(model: ir.Model, sites: Sequence[WeightSite]) -> dict[str, str]:
    """Give every Conv and Gemm without bias one of zeros, in place; return the names by layer."""
    fresh, added = Names(value_names(model)), {}
    for site in sites:
        node = site.node
        if node.op_type not in ("Conv", "Gemm") or (len(node.inputs) > 2 and node.inputs[2] is not None):
            continue
        name = fresh.fresh(f"{node.outputs[0].name}_bias")
        tensor = ir.Tensor(np.zeros(site.channels, site.weight.dtype), dtype=site.tensor.dtype, name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape), const_value=tensor)
        model.graph.register_initializer(value)
        node.resize_inputs(3)
        node.replace_input_with(2, value)
        added[site.label] = name
    return added


def _bias(site: WeightSite) -> np.ndarray | None:
    """Return the constant that a layer adds to each channel; None if it adds others to rows."""
    value = site.node.inputs[2] if len(site.node.inputs) > 2 else None
    array = None if value is None else facts.constant(value)
    if array is None:
        return np.zeros(site.channels, np.float32)
    if not is_per_channel(array.shape, site.channels):
        return None
    return np.broadcast_to(np.asarray(array, np.float32).reshape(-1), (site.channels,))


def _products(rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return products of shape [groups, rows, outputs]."""
    return np.asarray(np.matmul(rows, matrix.transpose(0, 2, 1)))


def _best_step(
    x: np.ndarray, residual: np.ndarray, *, has_offset: bool
) -> tuple[np.ndarray, np.ndarray] | None:  # fmt: skip
    """Return the change of matrices, [groups, outputs, depth], and offsets, [groups, 1, outputs]; None for none."""
    checks = np.arange(x.shape[1]) % 4 == 3
    fit, check = x[:, ~checks], x[:, checks]
    aim, checked = residual[:, ~checks], residual[:, checks]
    zero = np.zeros((len(x), 1, 1), np.float32)
    middle = fit.mean(1, keepdims=True) if has_offset else zero
    level = aim.mean(1, keepdims=True) if has_offset else zero
    centred = (fit - middle).astype(np.float64)
    gram = np.matmul(centred.transpose(0, 2, 1), centred)
    right = np.matmul(centred.transpose(0, 2, 1), (aim - level).astype(np.float64))
    size = np.trace(gram, axis1=1, axis2=2)[:, None, None] / gram.shape[1] + 1e-30
    best: tuple[float, np.ndarray, np.ndarray] | None = None
    least = _GAIN * float(np.square(checked, dtype=np.float64).sum())
    for damping in _DAMPINGS:
        with factorizations(gram.shape[1]):
            step = np.linalg.solve(gram + damping * size * np.eye(gram.shape[1]), right).astype(np.float32)
        offset = level - np.matmul(middle, step) if has_offset else zero
        error = float(np.square(checked - np.matmul(check, step) - offset, dtype=np.float64).sum())
        if error < least:
            least, best = error, (error, step.transpose(0, 2, 1), offset)
    return None if best is None else best[1:]
