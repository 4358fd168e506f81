"""Correction of biases by the mean of what pruning removes from the products of a layer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from sardonyx.compress.pruning.channels import ChannelGraph, Cut
from sardonyx.compress.pruning.shrink import stays_after, write_constant
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import Names, value_names


def correct_bias(model: ir.Model, node: ir.Node, lost: np.ndarray, means: np.ndarray) -> bool:
    """Add the mean of removed products to the bias of a Conv or Gemm, in place.

    The correction is exact for the mean of the result, except at the padded border of a convolution.

    Args:
        model: The model.
        node: The layer.
        lost: The removed part of the weight, of the weight's shape.
        means: The mean of the input per channel, of shape [channels].

    Returns:
        True if the node has a bias afterwards that holds the correction; False for other operators, and for a bias that
        is not a vector of one element per output channel.
    """
    if node.op_type == "Conv":
        taps = lost.reshape(*lost.shape[:2], -1).sum(axis=2, dtype=np.float64)
        groups = len(means) // lost.shape[1]
        rows = taps.reshape(groups, -1, lost.shape[1])
        shift = np.einsum("goc,gc->go", rows, means.reshape(groups, -1)).reshape(-1)
    elif node.op_type == "Gemm" and not facts.attribute(node, "transA", 13, 0):
        if facts.attribute(node, "alpha", 13, 1.0) != 1.0 or facts.attribute(node, "beta", 13, 1.0) != 1.0:
            return False
        matrix = lost if facts.attribute(node, "transB", 13, 0) else lost.T
        shift = matrix.astype(np.float64) @ means
    else:
        return False
    names = Names(value_names(model))
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        bias = facts.constant(node.inputs[2])
        if bias is None or bias.shape != shift.shape:
            return False
        write_constant(model, names, node, 2, (bias.astype(np.float64) + shift).astype(bias.dtype))
        return True
    name = names.fresh(f"{node.outputs[0].name}_bias")
    tensor = ir.tensor(shift.astype(lost.dtype), name=name)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(shift.shape), const_value=tensor)
    model.graph.register_initializer(value)
    node.resize_inputs(3)
    node.replace_input_with(2, value)
    return True


def correct_readers(
    model: ir.Model, graph: ChannelGraph, removed: set[int], means: Mapping[ir.Value, np.ndarray]
) -> int:
    """Add the mean of removed channels to the biases of layers that read these; return the number of layers."""
    corrected = 0
    for cut in list(graph.cuts):
        value, weight = cut.node.inputs[0], facts.constant(cut.constant)
        stays = stays_after(graph, cut.ids, removed)
        if cut.role != "consumer" or value is None or value not in means or weight is None or stays.all():
            continue
        if cut.transpose is not None:
            continue
        had_bias = len(cut.node.inputs) > 2 and cut.node.inputs[2] is not None
        lost = np.where(cut.mask(weight, stays), np.zeros((), weight.dtype), weight)
        if correct_bias(model, cut.node, lost, means[value]):
            corrected += 1
            if not had_bias:
                ids = graph.axes[cut.node.outputs[0]].ids
                graph.cuts.append(Cut(cut.node, 2, 0, ids, "parameter"))
    return corrected
