"""Lists of sizes in the graph: the elements that count channels, and the form in which these can be changed."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.compress.pruning.channels import ChannelGraph, SizeEntry
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import Names, node_label, node_names, value_names

_SPLIT_SIZES = 13
"""The operator set from which the sizes of a Split are an input."""


def separate_lists(model: ir.Model) -> None:
    """Give each reader of a joined list of sizes its own Concat, whose sizes can be changed alone."""
    names, labels = Names(value_names(model)), Names(node_names(model))
    for node in list(model.graph):
        if not facts.is_op(node, "Concat") or facts.rank(node.outputs[0]) != 1:
            continue
        first = 0 if node.outputs[0].is_graph_output() else 1
        for use in list(node.outputs[0].uses())[first:]:
            copy = ir.node(
                "Concat", node.inputs, {"axis": ir.AttrInt64("axis", 0)}, name=labels.fresh(node_label(node))
            )
            value = copy.outputs[0]
            value.name = names.fresh(str(node.outputs[0].name))
            value.type, value.shape = node.outputs[0].type, node.outputs[0].shape
            model.graph.insert_after(node, copy)
            use.node.replace_input_with(use.idx, value)


def join_lists(model: ir.Model) -> None:
    """Let readers of equal joined lists of sizes read one Concat again."""
    first: dict[tuple[ir.Value | None, ...], ir.Node] = {}
    for node in list(model.graph):
        if not facts.is_op(node, "Concat") or facts.rank(node.outputs[0]) != 1:
            continue
        earlier = first.setdefault(tuple(node.inputs), node)
        if earlier is not node and not node.outputs[0].is_graph_output():
            ir.convenience.replace_all_uses_with(node.outputs[0], earlier.outputs[0])
            model.graph.remove(node, safe=True)


def state_split_sizes(model: ir.Model) -> None:
    """Write the known sizes of each Split that divides its axis evenly, so that parts can become smaller."""
    opset = model.opset_imports.get("", 1)
    names = Names(value_names(model))
    for node in model.graph if opset >= _SPLIT_SIZES else ():
        if node.op_type != "Split" or node.domain or (len(node.inputs) > 1 and node.inputs[1] is not None):
            continue
        axis = int(facts.attribute(node, "axis", opset, 0))
        sizes = [facts.dim_at(output, axis) for output in node.outputs]
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes):
            continue
        tensor = ir.tensor(np.array(known, np.int64), name=names.fresh(f"{node.outputs[0].name}_sizes"))
        value = ir.Value(
            name=tensor.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape([len(known)]), const_value=tensor
        )
        model.graph.register_initializer(value)
        node.attributes.pop("num_outputs", None)
        node.resize_inputs(2)
        node.replace_input_with(1, value)


def record_size(
    graph: ChannelGraph, node: ir.Node, index: int, position: int, ids: np.ndarray, *, copies: bool, allowzero: bool
) -> bool:
    """Record the element of a list of sizes that counts channels; False if the element cannot be changed.

    Args:
        graph: The channels.
        node: The node that reads the list, as input `index`: a constant, or a Concat of pieces.
        index: The index of the input.
        position: The offset of the element in the list.
        ids: The channels that the element counts.
        copies: True if an element 0 copies the size of the channels.
        allowzero: True if an element 0 is a size.
    """
    entry = size_element(node, index, position)
    if entry is None:
        return False
    owner, input_index, offset, value = entry
    if value == 0 and not allowzero:
        return copies
    if value != -1:
        graph.sizes.append(SizeEntry(owner, input_index, offset, ids))
    return True


def size_element(node: ir.Node, index: int, position: int) -> tuple[ir.Node, int, int, int] | None:
    """Return the node, input, offset and value of an element of a list of sizes; None if it is computed."""
    sizes = facts.constant_ints(node.inputs[index])
    if sizes is not None:
        return (node, index, position, sizes[position]) if position < len(sizes) else None
    value = node.inputs[index]
    producer = None if value is None else value.producer()
    if producer is None or producer.op_type != "Concat" or producer.domain:
        return None
    offset = position
    for number, piece in enumerate(producer.inputs):
        length = facts.dim_at(piece, 0)
        if length is None:
            return None
        if offset < length:
            known = facts.constant_ints(piece)
            return None if known is None else (producer, number, offset, known[offset])
        offset -= length
    return None
