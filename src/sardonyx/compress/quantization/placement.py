"""The operators and tensors of a model that become integers.

Operators with a constant weight are quantized: Conv, ConvTranspose, MatMul, Gemm, and Gather for weights alone. Between
them, sums, concatenations and pools read integers as well if their result reaches such an operator: the last part of a
model, for example the boxes and scores of a detector, stays in float, where one scale for all would erase small values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from sardonyx.errors import OptionError
from sardonyx.rewrite import facts
from sardonyx.rewrite.names import node_label

WEIGHTED = ("Conv", "ConvTranspose", "MatMul", "Gemm")
INTEGER = ("Add", "Concat", "AveragePool", "GlobalAveragePool", "MaxPool")
"""Operators that engines compute on integers if all their inputs are quantized."""

_SMALLEST_TABLE = 1024
"""Elements from which a table of embeddings is quantized."""


@dataclass(frozen=True, eq=False)
class WeightSite:
    """A node with a constant weight.

    Attributes:
        node: The node.
        index: The index of the weight among the inputs.
        tensor: The weight, read on demand.
        channel_axis: The axis of output channels.
        sum_axis: The axis of the sum; None if the sum runs over several axes.
        label: The name of the node in reports.
        groups: The groups of a convolution; 1 otherwise.
    """

    node: ir.Node
    index: int
    tensor: ir.TensorProtocol
    channel_axis: int
    sum_axis: int | None
    label: str
    groups: int = 1

    @property
    def weight(self) -> np.ndarray:
        """The weight; a large one is mapped from its file."""
        return self.tensor.numpy()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        return tuple(self.tensor.shape.numpy())

    @property
    def channels(self) -> int:
        """The number of output channels."""
        return self.shape[self.channel_axis]

    def matrix(self, weight: np.ndarray | None = None) -> np.ndarray:
        """Return the weight, or an array of its shape, as matrices of shape [groups, outputs, depth].

        A result of the node is the product of a row of its input (see ``site_inputs``) and one output of a matrix.
        """
        weight = self.weight if weight is None else weight
        if self.node.op_type == "Conv":
            return weight.reshape(self.groups, weight.shape[0] // self.groups, -1)
        if self.node.op_type == "ConvTranspose":
            return np.ascontiguousarray(weight.reshape(weight.shape[0], -1).T)[None]
        return np.ascontiguousarray(np.moveaxis(weight, self.sum_axis or 0, -1))[None]

    def from_matrix(self, matrix: np.ndarray) -> np.ndarray:
        """Return matrices of shape [groups, outputs, depth] in the shape of the weight."""
        if self.node.op_type == "Conv":
            return matrix.reshape(self.shape)
        if self.node.op_type == "ConvTranspose":
            return np.ascontiguousarray(matrix[0].T).reshape(self.shape)
        return np.ascontiguousarray(np.moveaxis(matrix[0], -1, self.sum_axis or 0))


@dataclass(frozen=True)
class FloatNode:
    """A node with a weight that stays in float.

    Attributes:
        name: The name of the node.
        op_type: The operator.
        reason: The reason.
    """

    name: str
    op_type: str
    reason: str


@dataclass
class Placement:
    """The places of integers in a model.

    Attributes:
        sites: Nodes whose weights are quantized.
        tables: Gather nodes whose tables are quantized, for weights alone.
        reads: For each activation to quantize, the readers: pairs of a node and the index of its input.
        floats: Nodes with weights that stay in float.
    """

    sites: list[WeightSite] = field(default_factory=list)
    tables: list[WeightSite] = field(default_factory=list)
    reads: dict[ir.Value, list[tuple[ir.Node, int]]] = field(default_factory=dict)
    floats: list[FloatNode] = field(default_factory=list)


def find_placement(model: ir.Model, exclude: Collection[str] = ()) -> Placement:
    """Return the places of integers in the main graph of a model.

    Args:
        model: The model, with inferred shapes.
        exclude: Names of nodes, or operators, that stay in float.

    Raises:
        OptionError: A name in `exclude` is neither a node nor an operator of the model.
    """
    nodes = list(model.graph)
    known = {name for node in nodes for name in (node_label(node), node.op_type)}
    unknown = [name for name in exclude if name not in known]
    if unknown:
        raise OptionError(f"the model has no node and no operator {', '.join(unknown)}.", where="exclude")
    placement = Placement()
    for node in nodes:
        if node.domain or node.op_type not in (*WEIGHTED, "Gather"):
            continue
        site = _site(node)
        label = node_label(node)
        if isinstance(site, str):
            if node.op_type != "Gather":
                placement.floats.append(FloatNode(label, node.op_type, site))
        elif label in exclude or node.op_type in exclude:
            placement.floats.append(FloatNode(label, node.op_type, "excluded by the caller"))
        elif node.op_type == "Gather":
            placement.tables.append(site)
        else:
            placement.sites.append(site)
    for body in facts.graphs_of(model.graph)[1:]:
        placement.floats += [
            FloatNode(node_label(node), node.op_type, "inside of a body of control flow")
            for node in body
            if node.op_type in WEIGHTED and not node.domain
        ]
    _place_activations(nodes, placement, exclude)
    return placement


def _site(node: ir.Node) -> WeightSite | str:
    """Return the site of a node with a constant weight, or the reason for none."""
    index = 0 if node.op_type == "Gather" else 1
    tensor = facts.constant_tensor(node.inputs[index])
    if tensor is None:
        return "the weight is not constant"
    if tensor.dtype != ir.DataType.FLOAT:
        return f"the weight is {tensor.dtype.name.lower()}, expected float"
    rank = len(tensor.shape)
    label = node_label(node)
    site: WeightSite | str
    if node.op_type == "Gather":
        axis = facts.attribute(node, "axis", 13, 0)
        if rank != 2 or axis != 0 or facts.count(tensor) < _SMALLEST_TABLE:
            return "no table of embeddings"
        site = WeightSite(node, 0, tensor, 0, 1, label)
    elif node.op_type == "MatMul":
        site = "the weight is no matrix" if rank != 2 else WeightSite(node, 1, tensor, 1, 0, label)
    elif node.op_type == "Gemm":
        site = _site_of_gemm(node, tensor, label)
    elif node.op_type == "ConvTranspose":
        grouped = facts.attribute(node, "group", 11, 1) != 1
        site = "a transposed convolution with groups" if grouped else WeightSite(node, 1, tensor, 1, None, label)
    else:
        site = WeightSite(node, 1, tensor, 0, None, label, int(facts.attribute(node, "group", 11, 1)))
    if isinstance(site, WeightSite) and not is_finite(tensor):
        return "the weight holds values that are not finite"
    return site


def _site_of_gemm(node: ir.Node, tensor: ir.TensorProtocol, label: str) -> WeightSite | str:
    transposed = bool(facts.attribute(node, "transB", 13, 0))
    if facts.attribute(node, "alpha", 13, 1.0) != 1.0 or facts.attribute(node, "beta", 13, 1.0) != 1.0:
        return "alpha or beta differs from 1"
    if facts.attribute(node, "transA", 13, 0):
        return "the other factor is transposed"
    return WeightSite(node, 1, tensor, 0 if transposed else 1, 1 if transposed else 0, label)


def is_finite(tensor: ir.TensorProtocol) -> bool:
    """Return True if all elements are finite; reads a large tensor part by part."""
    flat = tensor.numpy().reshape(-1)
    step = 1 << 20
    return all(np.isfinite(flat[first : first + step]).all() for first in range(0, len(flat), step))


def _place_activations(nodes: list[ir.Node], placement: Placement, exclude: Collection[str]) -> None:
    for site in placement.sites:
        _read(placement, site.node, 0)
    reaching = set(_ancestors([site.node for site in placement.sites]))
    for node in nodes:
        if node.domain or node.op_type not in INTEGER or node not in reaching:
            continue
        if node_label(node) in exclude or node.op_type in exclude:
            continue
        inputs = [value for value in node.inputs if value is not None]
        if all(value.dtype == ir.DataType.FLOAT and not facts.is_constant(value) for value in inputs):
            for index in range(len(inputs)):
                _read(placement, node, index)


def _read(placement: Placement, node: ir.Node, index: int) -> None:
    value = node.inputs[index]
    if value is not None and not facts.is_constant(value):
        placement.reads.setdefault(value, []).append((node, index))


def _ancestors(nodes: list[ir.Node]) -> Iterator[ir.Node]:
    """Yield the nodes from which values flow into the first inputs of these nodes."""
    seen: set[ir.Node] = set()
    pending = [value for node in nodes if (value := node.inputs[0]) is not None]
    while pending:
        producer = pending.pop().producer()
        if producer is not None and producer not in seen:
            seen.add(producer)
            yield producer
            pending += [value for value in producer.inputs if value is not None]
