"""Rules of operators: the channels of a node's results, and the constants that belong to these channels."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.compress.pruning.channels import UNNUMBERED, Axis, ChannelGraph, Cut, is_constant
from sardonyx.compress.pruning.grouping import GROUPING, axis_of
from sardonyx.compress.pruning.movement import MOVEMENT, SEVERAL_RESULTS
from sardonyx.compress.pruning.packing import PACKING
from sardonyx.compress.pruning.recurrent import RECURRENT_RULES
from sardonyx.compress.pruning.sharing import unite_shared
from sardonyx.compress.pruning.sizes import record_size
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import node_label

Rule = Callable[[ChannelGraph, ir.Node, int], bool]
"""A function of the graph, a node and the operator set; False if the channels of the inputs must stay."""


def find_channels(model: ir.Model, exclude: Collection[str] = (), *, vectors: bool = False) -> ChannelGraph:
    """Return the channels of the main graph.

    Args:
        model: The model, with inferred shapes and no model functions.
        exclude: Names of nodes, or operators, whose channels stay.
        vectors: If True, layers that share a bias or a scale lose the same channels, as layers that share a weight do.
    """
    graph = ChannelGraph()
    for node in model.graph:
        follow(graph, node, model.opset_imports.get("", 1))
        if node_label(node) in exclude or node.op_type in exclude:
            for value in (*node.inputs, *node.outputs):
                if value is not None and value in graph.axes:
                    graph.fix(graph.axes[value].ids, f"'{node_label(node)}' is excluded")
    for value in model.graph.outputs:
        if value in graph.axes:
            graph.fix(graph.axes[value].ids, f"'{value.name}' is an output of the model")
    unite_shared(graph, vectors=vectors)
    return graph


def follow(graph: ChannelGraph, node: ir.Node, opset: int) -> None:
    """Continue the channels of the inputs of a node to the results, or fix these channels."""
    rule = RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    used = [value for value in node.outputs[1:] if value.uses() or value.is_graph_output()]
    several = (*SEVERAL_RESULTS, *RECURRENT_RULES)
    repeated = any(value in graph.axes and graph.axes[value].is_repeated for value in node.inputs if value is not None)
    fits = (not used or node.op_type in several) and (not repeated or node.op_type in _OF_REPEATED)
    if rule is not None and fits and rule(graph, node, opset):
        return
    values = [value for value in node.inputs if value is not None]
    values += [value for body in facts.bodies(node) for value in facts.captured_values(body)]
    for value in values:
        if value in graph.axes:
            graph.fix(graph.axes[value].ids, f"read by {node.op_type} '{node_label(node)}'")
    for output in node.outputs:  # A rule may have numbered a result before a later input refused.
        if output in graph.axes:
            graph.fix(graph.axes[output].ids, f"computed by {node.op_type} '{node_label(node)}'")


@dataclass(frozen=True)
class _Matrix:
    """The weight of a product: a constant of two axes, or the Transpose of one.

    Attributes:
        node: The product.
        shape: The shape of the constant.
        rows: The axis of the constant that is summed over.
        transpose: The Transpose between the constant and the product; None if there is none.
    """

    node: ir.Node
    shape: tuple[int, ...]
    rows: int
    transpose: ir.Node | None

    @classmethod
    def of(cls, node: ir.Node, *, is_transposed: bool = False) -> _Matrix | None:
        """Return the second factor of a product; None if it is no constant of two axes."""
        value = node.inputs[1]
        source = None if value is None else value.producer()
        transpose = source if source is not None and facts.is_op(source, "Transpose") else None
        constant = value if transpose is None else transpose.inputs[0]
        shape = facts.static_shape(constant)
        if not facts.is_constant(constant) or shape is None or len(shape) != 2:
            return None
        perm = None if transpose is None else transpose.attributes.get("perm")
        if perm is not None and list(perm.as_ints()) != [1, 0]:
            return None
        return cls(node, shape, int(is_transposed != (transpose is not None)), transpose)

    def consume(self, graph: ChannelGraph, input_axis: int) -> bool:
        """Record the slices of the input's channels; False if the input has channels on another axis."""
        axis = axis_of(graph, self.node)
        if axis is None:
            return True
        ids = axis.of_length(self.shape[self.rows]) if axis.index == input_axis else None
        if ids is None:
            return False
        graph.cuts.append(Cut(self.node, 1, self.rows, ids, "consumer", transpose=self.transpose))
        return True

    def produce(self, graph: ChannelGraph, index: int) -> np.ndarray:
        """Number the channels that the weight computes."""
        columns = 1 - self.rows
        ids = graph.new(self.shape[columns])
        graph.cuts.append(Cut(self.node, 1, columns, ids, "producer", transpose=self.transpose))
        graph.axes[self.node.outputs[0]] = Axis(index, ids)
        return ids


def _gemm(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    weight = _Matrix.of(node, is_transposed=bool(facts.attribute(node, "transB", opset, 0)))
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if weight is None or (bias is not None and not is_constant(node, 2)):
        return False
    if axis_of(graph, node) is not None and facts.attribute(node, "transA", opset, 0):
        return False
    if not weight.consume(graph, 1):
        return False
    ids = weight.produce(graph, 1)
    sizes = () if bias is None else facts.static_shape(bias) or ()
    if sizes and sizes[-1] == len(ids):
        graph.cuts.append(Cut(node, 2, len(sizes) - 1, ids, "parameter"))
    return True


def _matmul(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    weight, rank = _Matrix.of(node), facts.rank(node.inputs[0])
    if weight is None and not is_constant(node, 1) and not is_constant(node, 0):
        return _batched_product(graph, node)
    if weight is None or rank is None or rank < 2 or not weight.consume(graph, rank - 1):
        return False
    weight.produce(graph, rank - 1)
    return True


def _batched_product(graph: ChannelGraph, node: ir.Node) -> bool:
    """Unite the channels of two factors on an axis of the batch, such as the heads of queries, keys and values.

    Channels that the product sums over are united too; rows of the first factor and columns of the second continue.
    """
    axes, ranks = [axis_of(graph, node, index) for index in (0, 1)], [facts.rank(value) for value in node.inputs]
    first, second = (
        None if axis is None or rank is None else rank - axis.index for axis, rank in zip(axes, ranks, strict=True)
    )
    rank = facts.rank(node.outputs[0])
    if (first, second) == (1, 2) and axes[0] is not None and axes[1] is not None:
        if len(axes[0].ids) != len(axes[1].ids) or axes[0].is_repeated or axes[1].is_repeated:
            return False
        graph.unite(axes[0].ids, axes[1].ids, f"multiplied in {node.op_type} '{node_label(node)}'")
        return True
    for own, other, axis, end in ((first, second, axes[0], 2), (second, first, axes[1], 1)):
        if own == end and other is None and axis is not None and rank is not None and 1 not in ranks:
            graph.axes[node.outputs[0]] = axis.at(rank - end)
            return True
    ends = {end for end in (first, second) if end is not None}
    if not ends:
        return all(axis is None for axis in axes)
    if any(axis is not None and axis.is_repeated for axis in axes):
        return False
    end = ends.pop()
    known = [rank for rank in ranks if rank is not None]
    if ends or end < 3 or len(known) != 2:
        return False
    for value, rank, axis in zip(node.inputs, known, axes, strict=True):
        if axis is None and rank >= end and facts.dim_at(value, rank - end) != 1:
            return False
    numbered = [axis for axis in axes if axis is not None]
    if len({len(axis.ids) for axis in numbered}) != 1:
        return False
    for axis in numbered[1:]:
        graph.unite(numbered[0].ids, axis.ids, f"multiplied in {node.op_type} '{node_label(node)}'")
    graph.attended.update(numbered[0].ids.tolist())
    graph.axes[node.outputs[0]] = Axis(max(known) - end, numbered[0].ids)
    return True


def _elementwise(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    axis = axis_of(graph, node)
    if axis is not None:
        graph.axes[node.outputs[0]] = axis
    return True


def _pool(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    axis = axis_of(graph, node)
    return axis is None or (axis.index == 1 and _elementwise(graph, node, opset))


def _binary(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    """Unite the channels of all operands, and cut constants with an element per channel."""
    axes = [axis_of(graph, node, index) for index in range(len(node.inputs))]
    if not any(axes):
        return True
    ranks = [facts.rank(value) for value in node.inputs]
    known = [rank for rank in ranks if rank is not None]
    if len(known) != len(ranks):
        return False
    ends = {rank - axis.index for rank, axis in zip(known, axes, strict=True) if axis is not None}
    numbered = [axis for axis in axes if axis is not None]
    lengths = {len(axis.ids) for axis in numbered}
    if len(ends) != 1 or len(lengths) != 1:
        return False
    end, length = ends.pop(), lengths.pop()
    cuts = []
    for index, (value, rank, axis) in enumerate(zip(node.inputs, known, axes, strict=True)):
        if axis is not None or rank < end:
            continue
        size = facts.dim_at(value, rank - end)
        if size == length and is_constant(node, index) and length > 1:
            cuts.append(Cut(node, index, rank - end, numbered[0].ids, "parameter"))
        elif size != 1:
            return False
    for axis in numbered[1:]:
        graph.unite(numbered[0].ids, axis.ids, f"added to elements that stay by {node.op_type} '{node_label(node)}'")
    graph.cuts += cuts
    graph.axes[node.outputs[0]] = Axis(max(known) - end, numbered[0].ids)
    return True


def _concat(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    axes = [axis_of(graph, node, index) for index in range(len(node.inputs))]
    rank = facts.rank(node.inputs[0])
    if not any(axes):
        return True
    if rank is None:
        return False
    position = int(facts.attribute(node, "axis", opset, 1)) % rank
    numbers = []
    for value, axis in zip(node.inputs, axes, strict=True):
        size = facts.dim_at(value, position)
        if (axis is not None and axis.index != position) or size is None:
            return False
        numbers.append(np.full(size, UNNUMBERED) if axis is None else axis.ids)
    graph.axes[node.outputs[0]] = Axis(position, np.concatenate(numbers))
    return True


def _resize(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    """Continue channels that keep their number, by scales of 1 or by a list of sizes."""
    axis = axis_of(graph, node)
    if axis is None:
        return True
    if "axes" in node.attributes:
        return False
    if opset >= 11 and len(node.inputs) > 3 and node.inputs[3] is not None:
        if not record_size(graph, node, 3, axis.index, axis.ids, copies=False, allowzero=True):
            return False
        return facts.dim_at(node.outputs[0], axis.index) == len(axis.ids) and _elementwise(graph, node, opset)
    index = 2 if opset >= 11 else 1
    scales = facts.constant(node.inputs[index]) if index < len(node.inputs) else None
    if scales is None or scales.size <= axis.index or scales[axis.index] != 1:
        return False
    return _elementwise(graph, node, opset)


_ELEMENTWISE = (
    "Relu", "LeakyRelu", "Elu", "Selu", "Celu", "ThresholdedRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Swish",
    "Mish", "Tanh", "Softplus", "Softsign", "Gelu", "Erf", "Exp", "Log", "Sqrt", "Reciprocal", "Abs", "Neg", "Sign",
    "Floor", "Ceil", "Round", "Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Asinh", "Shrink", "Not", "IsNaN", "IsInf",
    "Clip", "Cast", "Identity", "Dropout",
)  # fmt: skip

_OF_REPEATED = (*_ELEMENTWISE, "Transpose", "Squeeze", "Unsqueeze", "Gemm", "MatMul", *RECURRENT_RULES)
"""Operators that read channels repeated by an open number."""

RULES: dict[str, Rule] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), _pool),
    **dict.fromkeys(
        ("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Max", "Min", "Sum", "Mean", "PRelu", "Where", "Equal", "Less",
         "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor"), _binary
    ),
    "Concat": _concat,
    "Resize": _resize,
    **GROUPING,
    **MOVEMENT,
    **PACKING,
    **RECURRENT_RULES,
}  # fmt: skip
"""The rules by operator; channels that another operator reads stay."""
