"""The importance of channels: magnitude of weights, activations, or the expected change of the outputs (Taylor)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.compress.pruning.channels import UNNUMBERED, ChannelGraph
from sardonyx.compress.samples import require_finite
from sardonyx.errors import UnsupportedError
from sardonyx.model.copying import copy_model
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import Names, node_label, value_names
from sardonyx.runtime.session import Session
from sardonyx.train.gradient import gradient

_DRAWS = 4
"""Random directions of the outputs for each sample."""


def score_channels(graph: ChannelGraph, activations: Mapping[ir.Value, np.ndarray] | None) -> dict[int, float]:
    """Return the importance of each representing channel: the mean over its slices, each relative to its layer.

    Without activations the importance of a slice is the L2 norm of a weight that computes or reads the channel. With
    activations it is the mean absolute activation of the channel times the norm of the weight that reads the channel.

    Args:
        graph: The channels.
        activations: The mean absolute activation per channel, of shape [channels], by input of the consumers.

    Raises:
        EvaluationError: A score is not finite.
    """
    sums: dict[int, list[float]] = {}
    for cut in graph.cuts:
        if cut.role == "parameter" or (activations is not None and cut.role == "producer"):
            continue
        weight = facts.constant(cut.constant)
        assert weight is not None
        rows = cut.rows(weight).astype(np.float32)
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
        if activations is not None:
            value = cut.node.inputs[0]
            assert value is not None
            norms = norms * activations[value]
        require_finite(node_label(cut.node), norms)
        mean = norms.mean() if norms.size else 0.0
        for root, norm in zip(graph.roots(cut.ids).tolist(), (norms / (mean or 1.0)).tolist(), strict=True):
            sums.setdefault(root, []).append(norm)
    return {root: float(np.mean(values)) for root, values in sums.items() if root != UNNUMBERED}


def score_by_changes(graph: ChannelGraph, changes: Mapping[ir.Value, np.ndarray]) -> dict[int, float]:
    """Return the importance of each representing channel: the mean over the values that hold it, relative to the layer.

    Args:
        graph: The channels.
        changes: The expected squared change of the outputs without a channel, of shape [channels], by value.
    """
    sums: dict[int, list[float]] = {}
    for value, change in changes.items():
        sizes = np.sqrt(change)
        mean = float(sizes.mean()) if sizes.size else 0.0
        ids = graph.axes[value].of_length(len(sizes))
        assert ids is not None
        for root, amount in zip(graph.roots(ids).tolist(), (sizes / (mean or 1.0)).tolist(), strict=True):
            sums.setdefault(root, []).append(amount)
    return {root: float(np.mean(values)) for root, values in sums.items() if root != UNNUMBERED}


def output_changes(
    model: ir.Model, values: Mapping[ir.Value, int | None], samples: Iterable[Mapping[str, Any]], seed: int = 0
) -> dict[ir.Value, np.ndarray]:
    """Return the expected squared change of the outputs if a channel of an inner tensor were zero, to first order.

    The change along a direction v of the outputs is v J a, for the elements a of the channel and the Jacobian J; the
    mean over random signs v is the squared length of J a. Outputs have equal weight, by their power; a Softmax is
    measured ahead of it. Source: Molchanov et al., Pruning Convolutional Neural Networks for Resource Efficient
    Inference, 2017, with the outputs in place of a loss of labels.

    Args:
        model: The model.
        values: The inner tensors, each with the axis of channels; None for the tensor as one channel.
        samples: The samples.
        seed: The seed of the directions.

    Raises:
        UnsupportedError: The model has no floating-point output, or an operator between has no gradient.
        EvaluationError: A change is not finite.
    """
    names = [str(value.name) for value in values]
    work, total, directions = _directed(model, names)
    session = Session(gradient(work, of=total, wrt=names), compile="wait")
    outputs = [*names, *(f"{name}_gradient" for name in names)]
    plain = Session(model, compile="wait")
    rng = np.random.default_rng(seed)
    sums: dict[ir.Value, Any] = {}
    count = 0
    for sample in samples:
        raise_if_cancelled()
        count += 1
        results = [np.asarray(one) for one in plain.run(list(directions.values()), sample)]
        for _ in range(_DRAWS):
            feeds = dict(sample)
            for name, result in zip(directions, results, strict=True):
                size = float(np.sqrt(np.square(result, dtype=np.float64).sum())) or 1.0
                feeds[name] = (rng.choice((-1.0, 1.0), result.shape) / size).astype(result.dtype)
            answers = [np.asarray(one, np.float64) for one in session.run(outputs, feeds)]
            pairs = zip(answers[: len(names)], answers[len(names) :], strict=True)
            for (value, axis), (array, slope) in zip(values.items(), pairs, strict=True):
                sums[value] = sums.get(value, 0.0) + _squared(array * slope, axis)
    for value, change in sums.items():
        require_finite(str(value.name), change)
    return {value: np.asarray(change / (count * _DRAWS)) for value, change in sums.items()}


def _squared(products: np.ndarray, axis: int | None) -> np.ndarray:
    """Return the squared sum over the elements of each channel, summed over the samples of axis 0."""
    if axis is None:
        flat = products.reshape(len(products), -1) if products.ndim else products.reshape(1, 1)
        return np.asarray(np.square(flat.sum(1)).sum(keepdims=True))
    moved = np.moveaxis(products, axis, 0)
    rows = moved.reshape(moved.shape[0], moved.shape[1] if moved.ndim > 1 and axis else 1, -1)
    return np.asarray(np.square(rows.sum(2)).sum(1))


def _directed(model: ir.Model, inner: Sequence[str]) -> tuple[ir.Model, str, dict[str, str]]:
    """Return a copy with an output that is the sum of the outputs times directions, and outputs by direction.

    Inner tensors of these names are outputs too.
    """
    work = copy_model(model)
    names = Names(value_names(work))
    terms: list[ir.Value] = []
    directions: dict[str, str] = {}
    for output in list(work.graph.outputs):
        value = _ahead_of_softmax(output)
        if value.dtype is None or not value.dtype.is_floating_point() or str(value.name) in directions.values():
            continue
        direction = ir.Value(name=names.fresh(f"{value.name}_direction"), type=value.type, shape=value.shape)
        work.graph.inputs.append(direction)
        directions[str(direction.name)] = str(value.name)
        product = ir.node("Mul", [value, direction])
        total = ir.node("ReduceSum", [product.outputs[0]], {"keepdims": 0})
        for node in (product, total):
            node.outputs[0].name = names.fresh(f"{value.name}_{node.op_type.lower()}")
            node.outputs[0].type = value.type
            work.graph.append(node)
        total.outputs[0].shape = ir.Shape([])
        terms.append(total.outputs[0])
    if not terms:
        raise UnsupportedError("expected a floating-point output to differentiate.", where=str(model.graph.name))
    while len(terms) > 1:
        first, second = terms.pop(), terms.pop()
        node = ir.node("Add", [first, second])
        node.outputs[0].name, node.outputs[0].type = names.fresh("total_change"), first.type
        node.outputs[0].shape = ir.Shape([])
        work.graph.append(node)
        terms.append(node.outputs[0])
    values = {str(value.name): value for node in work.graph for value in node.outputs}
    present = {str(value.name) for value in work.graph.outputs}
    work.graph.outputs.extend([terms[0], *(values[name] for name in inner if name not in present)])
    return work, str(terms[0].name), directions


def _ahead_of_softmax(output: ir.Value) -> ir.Value:
    producer = output.producer()
    if producer is not None and producer.op_type == "Softmax" and not producer.domain:
        before = producer.inputs[0]
        if before is not None and before.dtype is not None and before.shape is not None:
            return before
    return output
