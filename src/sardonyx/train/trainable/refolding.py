"""BatchNormalization after convolutions, as before an exporter folded it away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import OptionError, UnsupportedError
from sardonyx.model import Loadable, load
from sardonyx.rewrite.analysis.names import Names, node_label, value_names
from sardonyx.runtime.session import Session
from sardonyx.train.trainable.trainable_models import trainable_form

_EPSILON = 1e-5


Feeds = Mapping[str, Any] | Iterable[Mapping[str, Any]]
"""Inputs by name, for one or for several calls."""


def restore_batch_norm(model: Loadable, feeds: Feeds, *, momentum: float = 0.9) -> ir.Model:
    """Return a model that normalizes the results of convolutions, and answers as before in inference mode.

    The statistics of the results are measured on feeds; the scale and the shift of a channel undo the normalization:
    the answers change by rounding alone. In training the statistics are those of batches again.

    Args:
        model: A model whose convolutions have a bias, as exporters leave when they fold BatchNormalization.
        feeds: Inputs by name, or an iterable of such.
        momentum: Momentum of the running statistics.

    Raises:
        OptionError: The feeds are not inputs by name, or there are none.
        UnsupportedError: No convolution with constant weights and bias has another result than an output of the model.
        SardonyxError: The model cannot be read or run.

    Example:
        >>> trainer = Trainer(restore_batch_norm("folded.onnx", [{"image": x[:256]}]), "cross-entropy")
    """
    result = trainable_form(load(model))
    graph = result.graph
    nodes = [node for node in graph if _is_folded(node)]
    if not nodes:
        raise UnsupportedError(
            "no convolution has constant weights and a bias.", where=graph.name or "the model",
            remedy="Train the model as it is.",
        )  # fmt: skip
    names = [str(node.outputs[0].name) for node in nodes]
    statistics = _measured(result, names, feeds)
    fresh = Names(value_names(result))
    for node, (mean, variance) in zip(nodes, statistics, strict=True):
        _insert(graph, node, mean, variance, fresh, momentum)
    graph.sort()
    return result


def _is_folded(node: ir.Node) -> bool:
    if node.op_type != "Conv" or node.domain or len(node.inputs) < 3 or node.outputs[0].is_graph_output():
        return False
    constant = all(value is not None and value.const_value is not None for value in node.inputs[1:3])
    readers = {reader.op_type for reader, _ in node.outputs[0].uses()}
    return constant and "BatchNormalization" not in readers


def _measured(model: ir.Model, names: Sequence[str], feeds: Feeds) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the mean and the variance of each channel of some tensors over all feeds."""
    session = Session(model, compile="wait")
    sums: list[list[np.ndarray]] = []
    count = [0] * len(names)
    for feed in [feeds] if isinstance(feeds, Mapping) else feeds:
        if not isinstance(feed, Mapping):
            raise OptionError(
                f"expected inputs by name, got {type(feed).__name__}.",
                where="feeds",
                remedy='Give `{"image": x}`, or a list of such.',
            )
        for i, array in enumerate(session.run(list(names), dict(feed))):
            wide = np.asarray(array, np.float64)
            axes = (0, *range(2, wide.ndim))
            part = [wide.sum(axes), np.square(wide).sum(axes)]
            if len(sums) <= i:
                sums.append(part)
            else:
                sums[i] = [a + b for a, b in zip(sums[i], part, strict=True)]
            count[i] += wide.size // wide.shape[1]
    if not sums:
        raise OptionError("expected at least one feed.", where="feeds")
    return [
        (total / n, np.maximum(square / n - np.square(total / n), 0))
        for (total, square), n in zip(sums, count, strict=True)
    ]


def _insert(
    graph: ir.Graph, node: ir.Node, mean: np.ndarray, variance: np.ndarray, fresh: Names, momentum: float
) -> None:
    """Normalize the result of a convolution without its bias, scale by the deviation, and shift by mean and bias."""
    bias, y = node.inputs[2], node.outputs[0]
    assert bias is not None and bias.const_value is not None
    dtype = bias.const_value.dtype
    plain = mean - bias.const_value.numpy().astype(np.float64)
    arrays = {"scale": np.sqrt(variance + _EPSILON), "shift": mean, "mean": plain, "variance": variance}
    values = []
    for suffix, array in arrays.items():
        name = fresh.fresh(f"{node_label(node)}.norm_{suffix}")
        tensor = ir.Tensor(array.astype(dtype.numpy()), dtype=dtype, name=name)
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(array.shape), const_value=tensor)
        graph.register_initializer(value)
        values.append(value)
    node.replace_input_with(2, None)
    attributes = [ir.AttrFloat32("epsilon", _EPSILON), ir.AttrFloat32("momentum", momentum)]
    norm = ir.Node("", "BatchNormalization", [y, *values], attributes, name=f"{node_label(node)}_norm")
    output = norm.outputs[0]
    output.name, output.type, output.shape = fresh.fresh(f"{y.name}_normalized"), y.type, y.shape
    for reader, index in list(y.uses()):
        if reader is not norm:
            reader.replace_input_with(index, output)
    graph.append(norm)
