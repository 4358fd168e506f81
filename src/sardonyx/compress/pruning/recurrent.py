"""Rules of recurrent layers: the elements of the state, which several gates compute and the next step reads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from sardonyx.compress.pruning.channels import AttributeCount, Axis, ChannelGraph, Cut, SizeEntry, is_constant
from sardonyx.compress.pruning.grouping import axis_of
from sardonyx.compress.pruning.sizes import size_element
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import node_label

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}

_BIASES, _LENGTHS, _STATES, _PEEPHOLES = 3, 4, (5, 6), 7
"""The indices of the optional inputs; only an LSTM has a second state and peepholes."""


def _recurrent(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    """Consume the channels of the input, and number the elements of the state; both directions lose the same ones."""
    weight, axis = facts.static_shape(node.inputs[1]), axis_of(graph, node)
    if weight is None or not all(is_constant(node, index) for index in (1, 2)):
        return False
    constants = [index for index in (_BIASES, _PEEPHOLES) if _has(node, index)]
    if not all(is_constant(node, index) for index in constants) or axis_of(graph, node, _LENGTHS) is not None:
        return False
    gates = _GATES[node.op_type]
    read = None if axis is None or axis.index != 2 else axis.of_length(weight[2])
    if axis is not None and read is None:
        return False
    ids = graph.new(weight[1] // gates)
    states = [_state(graph, node, index, ids) for index in _STATES if _has(node, index)]
    if not all(states):
        return False
    if read is not None:
        graph.cuts.append(Cut(node, 1, 2, read, "consumer"))
    graph.cuts.append(Cut(node, 1, 1, np.tile(ids, gates), "producer"))
    graph.cuts += [Cut(node, 2, 1, np.tile(ids, gates), "parameter"), Cut(node, 2, 2, ids, "parameter")]
    if _has(node, _BIASES):
        graph.cuts.append(Cut(node, _BIASES, 1, np.tile(ids, 2 * gates), "parameter"))
    if _has(node, _PEEPHOLES):
        graph.cuts.append(Cut(node, _PEEPHOLES, 1, np.tile(ids, 3), "parameter"))
    graph.counts.append(AttributeCount(node, "hidden_size", ids))
    for output, index in zip(node.outputs, (3, 2, 2), strict=False):
        graph.axes[output] = Axis(index, ids)
    return True


def _has(node: ir.Node, index: int) -> bool:
    return index < len(node.inputs) and node.inputs[index] is not None


def _state(graph: ChannelGraph, node: ir.Node, index: int, ids: np.ndarray) -> bool:
    """Continue the elements of the state to an initial one; False if their number cannot change there."""
    value, axis = node.inputs[index], axis_of(graph, node, index)
    assert value is not None
    if axis is not None:
        if axis.index != 2 or len(axis.ids) != len(ids):
            return False
        graph.unite(ids, axis.ids, f"the initial state of {node.op_type} '{node_label(node)}'")
        return True
    if is_constant(node, index):
        if facts.dim_at(value, 2) != len(ids):
            return False
        graph.cuts.append(Cut(node, index, 2, ids, "parameter"))
        return True
    return _filled(graph, value, ids)


def _filled(graph: ChannelGraph, value: ir.Value, ids: np.ndarray) -> bool:
    """Record the size of a state that repeats one number: of ConstantOfShape, or an Expand of a constant."""
    source = value.producer()
    if source is None or value.is_graph_output() or len({use.node for use in value.uses()}) != 1:
        return False
    if facts.is_op(source, "Expand"):
        rank = facts.rank(source.inputs[0])
        if not is_constant(source, 0) or (rank and facts.dim_at(source.inputs[0], -1) != 1):
            return False
    elif not facts.is_op(source, "ConstantOfShape"):
        return False
    index = 1 if source.op_type == "Expand" else 0
    entry = size_element(source, index, 2)
    if entry is None:
        return False
    graph.sizes.append(SizeEntry(*entry[:3], ids))
    return True


RECURRENT_RULES: dict[str, Callable[[ChannelGraph, ir.Node, int], bool]] = dict.fromkeys(_GATES, _recurrent)
"""The rules by operator."""
