"""The operators and tensors of a model that become integers.

Operators with a constant weight are quantized: Conv, ConvTranspose, MatMul, Gemm, and Gather for weights alone. Between
them, sums, concatenations and pools read integers as well if their result does not leave the integers: a part of the
result is read as integers, directly or after an activation. Movements of such a result (the halves and the shuffle of
channels, a larger image) move integers, at one scale on both sides, if all their readers read integers. The last part
of a model, for example the boxes and scores of a detector, stays in float, where one scale for all would erase small
values; so do the residual sums of transformers, which normalizations read in float. Recurrent layers, and nodes in
bodies of control flow, have integer weights alone: their activations are not observed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from sardonyx.base.mapped_files import count_read
from sardonyx.errors import OptionError
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import node_label

CONVOLUTIONS = ("Conv", "ConvTranspose")
PRODUCTS = ("MatMul", "Gemm")
RECURRENT = ("LSTM", "GRU", "RNN")
WEIGHTED = (*CONVOLUTIONS, *PRODUCTS, *RECURRENT)
_VENDOR = "com.microsoft"
INTEGER = ("Add", "Concat", "AveragePool", "GlobalAveragePool", "MaxPool")
"""Operators that engines compute on integers if all their inputs are quantized."""

MOVEMENTS = frozenset(
    ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Gather", "Slice", "Split", "DepthToSpace",
     "SpaceToDepth", "Expand", "Tile", "Resize")
)  # fmt: skip
"""Operators whose results are elements of their first input: codes move as floats do, if both have one scale."""

_FUSED = frozenset({"Relu", "Clip", "LeakyRelu", "Flatten", "Reshape", "Squeeze", "Unsqueeze", "Identity", "HardSwish"})
"""Operators between an integer operator and the next quantization that engines fuse."""

_BETWEEN = ("Relu", "Clip", "LeakyRelu")
"""Activations between an operator on integers and a movement of its result."""

NOT_FINITE = "the weight holds values that are not finite"
"""The reason why a layer stays whose weight is NaN or infinite somewhere."""

QUANTIZED = "the weight is quantized already"
"""The reason for a weight that another quantization has written."""

_MOVED_WEIGHTS = ("Transpose", "Reshape", "Cast", "Identity", "Flatten", "Squeeze", "Unsqueeze")
"""Operators between a dequantized weight and its reader, as exporters write them."""

_ON_INTEGERS = frozenset(
    ("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "QGemm", "QAttention", "DynamicQuantizeMatMul",
     "DynamicQuantizeLSTM", "MatMulIntegerToFloat", "MatMulNBits", "MatMulBnb4", "GatherBlockQuantized")
)  # fmt: skip
"""Operators with integer weights, of the standard and of ONNX Runtime."""

_MOST_NAMES = 5
"""Recurrent layers that a note names."""

_SMALLEST_TABLE = 1024
"""Elements from which a table of embeddings is quantized, and a constant of other operators is reported."""


@dataclass(frozen=True, eq=False)
class WeightSite:
    """A node with a constant weight.

    Attributes:
        node: The node.
        index: The index of the weight among the inputs.
        tensor: The weight, read on demand.
        channel_axis: The axis of output channels.
        sum_axis: The axis of the sum; None if the sum runs over several axes.
        label: The name of the site in reports: the node's, for recurrent layers with the input's.
        groups: The groups of a convolution; 1 otherwise. Groups of a transposed convolution share scales.
        input: The value that is multiplied by the weight; None for a state, and for weights of fused operators.
    """

    node: ir.Node
    index: int
    tensor: ir.TensorProtocol
    channel_axis: int
    sum_axis: int | None
    label: str
    groups: int = 1
    input: ir.Value | None = None

    @property
    def weight(self) -> np.ndarray:
        """The weight; a large one is mapped from its file."""
        count_read(self.tensor.nbytes)
        return self.tensor.numpy()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        return tuple(self.tensor.shape.numpy())

    @property
    def channels(self) -> int:
        """The number of output channels; of one group for transposed convolutions."""
        return self.shape[self.channel_axis]

    @property
    def depth(self) -> int:
        """The number of products that one result sums; of a transposed convolution with unit strides."""
        if self.sum_axis is not None:
            return self.shape[self.sum_axis]
        shared = self.groups if self.node.op_type == "ConvTranspose" else 1
        return math.prod(self.shape) // max(self.channels * shared, 1)

    @property
    def is_batched(self) -> bool:
        """True if several matrices of the weight share the scales of their output channels."""
        return self.sum_axis is not None and len(self.shape) > 2

    def matrix(self, weight: np.ndarray | None = None) -> np.ndarray:
        """Return the weight, or an array of its shape, as matrices of shape [groups, outputs, depth].

        A result of the node is the product of a row of its input (see ``site_inputs``) and one output of a matrix.
        """
        weight = self.weight if weight is None else weight
        if self.node.op_type == "Conv":
            return weight.reshape(self.groups, weight.shape[0] // self.groups, -1)
        if self.node.op_type == "ConvTranspose":
            grouped = weight.reshape(self.groups, weight.shape[0] // self.groups, -1)
            return np.ascontiguousarray(grouped.transpose(0, 2, 1))
        moved = np.moveaxis(weight, self.sum_axis or 0, -1)
        return np.ascontiguousarray(moved).reshape(1, -1, moved.shape[-1])

    def from_matrix(self, matrix: np.ndarray) -> np.ndarray:
        """Return matrices of shape [groups, outputs, depth] in the shape of the weight."""
        if self.node.op_type == "Conv":
            return matrix.reshape(self.shape)
        if self.node.op_type == "ConvTranspose":
            return np.ascontiguousarray(matrix.transpose(0, 2, 1)).reshape(self.shape)
        shape = [size for axis, size in enumerate(self.shape) if axis != (self.sum_axis or 0)]
        return np.ascontiguousarray(np.moveaxis(matrix.reshape(*shape, -1), -1, self.sum_axis or 0))


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
        sites: Nodes of the main graph whose weights are quantized, and whose activations can be.
        inner: Recurrent layers and nodes in bodies, whose weights alone are quantized.
        tables: Gather nodes whose tables are quantized: rows of 8 bits or less, each with a scale.
        reads: For each activation to quantize, the readers: pairs of a node and the index of its input.
        moved: The source of each activation to quantize that is moved from another one, whose scale it has.
        floats: Nodes with weights that stay in float.
    """

    sites: list[WeightSite] = field(default_factory=list)
    inner: list[WeightSite] = field(default_factory=list)
    tables: list[WeightSite] = field(default_factory=list)
    reads: dict[ir.Value, list[tuple[ir.Node, int]]] = field(default_factory=dict)
    moved: dict[ir.Value, ir.Value] = field(default_factory=dict)
    floats: list[FloatNode] = field(default_factory=list)

    @property
    def all_sites(self) -> list[WeightSite]:
        """All nodes whose weights are quantized, without tables."""
        return [*self.sites, *self.inner]

    def source(self, value: ir.Value, known: Container[str]) -> ir.Value:
        """Return the activation whose range decides the scale of an activation: the one whose elements it has.

        Args:
            value: The activation.
            known: The names of the activations that have a range.
        """
        while value in self.moved and str(self.moved[value].name) in known:
            value = self.moved[value]
        return value


def find_placement(model: ir.Model, exclude: Collection[str] = ()) -> Placement:
    """Return the places of integers in a model.

    Args:
        model: The model, with inferred shapes.
        exclude: Names of nodes, or operators, that stay in float.

    Raises:
        OptionError: A name in `exclude` is neither a node nor an operator of the model.
    """
    graphs = [list(graph) for graph in facts.graphs_of(model.graph)]
    labels = {label for nodes in graphs for node in nodes for label in (node_label(node), node.op_type)}
    recurrent = [node for nodes in graphs for node in nodes if node.op_type in RECURRENT]
    labels |= {recurrent_label(node, index) for node in recurrent for index in (1, 2)}
    unknown = [name for name in exclude if name not in labels]
    if unknown:
        raise OptionError(f"the model has no node and no operator {', '.join(unknown)}.", where="exclude")
    placement = Placement()
    for nodes in graphs:
        for node in nodes:
            if not node.domain and node.op_type in (*WEIGHTED, "Gather"):
                _place_weights(node, placement, exclude, is_outer=nodes is graphs[0])
            elif node.domain == _VENDOR and node.op_type == "Attention":
                _place_weights(node, placement, exclude, is_outer=False)
            elif node.domain == _VENDOR or node.op_type == "Einsum":
                _report_constants(node, placement)
    for function in model.functions.values():
        placement.floats += [
            FloatNode(node_label(node), node.op_type, f"inside of the function {function.name}")
            for node in function
            if node.op_type in WEIGHTED and not node.domain
        ]
    _place_activations(graphs[0], placement, exclude)
    return placement


def _place_weights(node: ir.Node, placement: Placement, exclude: Collection[str], *, is_outer: bool) -> None:
    label = node_label(node)
    for index in (1, 2) if node.op_type in RECURRENT else (0,) if node.op_type == "Gather" else (1,):
        site = _site(node, index)
        name = recurrent_label(node, index) if node.op_type in RECURRENT else label
        if isinstance(site, str):
            if node.op_type != "Gather":
                placement.floats.append(FloatNode(name, node.op_type, site))
        elif not {label, name, node.op_type}.isdisjoint(exclude):
            placement.floats.append(FloatNode(name, node.op_type, "excluded by the caller"))
        elif node.op_type == "Gather":
            placement.tables.append(site)
        elif is_outer and node.op_type not in RECURRENT:
            placement.sites.append(site)
        else:
            placement.inner.append(site)


def _report_constants(node: ir.Node, placement: Placement) -> None:
    """Report the constants of an operator that has no form of integers."""
    for index, value in enumerate(node.inputs):
        tensor = facts.constant_tensor(value)
        if tensor is not None and tensor.dtype == ir.DataType.FLOAT and facts.count(tensor) >= _SMALLEST_TABLE:
            reason = f"input {index} of {node.op_type} has no form of integers"
            placement.floats.append(FloatNode(node_label(node), node.op_type, reason))


def recurrent_operators(model: ir.Model) -> list[str]:
    """Return the operators of the recurrent layers in a model."""
    present = {node.op_type for node in model.graph.all_nodes() if node.domain == ""}
    return [name for name in RECURRENT if name in present]


def recurrent_notes(model: ir.Model, fact: str = "The weights of recurrent layers stay as they are") -> list[str]:
    """Return a note of a fact that names the recurrent layers with weights; none without."""
    names = _recurrent_layers(model)
    return [f"{fact}: {names}."] if names else []


def without_layers(model: ir.Model, reasons: Sequence[str] = ()) -> str:
    """Return the reasons why no layer of a model changes: those of layers, and recurrent layers, which stay."""
    names = _recurrent_layers(model)
    recurrent = [f"the weights of recurrent layers stay as they are: {names}"] if names else []
    return "; ".join([*reasons, *recurrent]) or "no layer has a constant weight"


def _recurrent_layers(model: ir.Model) -> str:
    names = [
        node_label(node)
        for node in model.graph.all_nodes()
        if node.domain == "" and node.op_type in RECURRENT and facts.is_constant(node.inputs[1])
    ]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def recurrent_label(node: ir.Node, index: int) -> str:
    """Return the name of a weight of a recurrent layer, with the letter of the input: W or R."""
    return f"{node_label(node)}[{'WR'[index - 1]}]"


def _site(node: ir.Node, index: int) -> WeightSite | str:
    """Return the site of a node with a constant weight, or the reason for none."""
    tensor = facts.constant_tensor(node.inputs[index]) if len(node.inputs) > index else None
    if tensor is None:
        value = node.inputs[index] if len(node.inputs) > index else None
        return QUANTIZED if _is_dequantized(value) else "the weight is not constant"
    if tensor.dtype != ir.DataType.FLOAT:
        return f"the weight is {tensor.dtype.name.lower()}, expected float"
    if facts.refers_to_function_attribute(node):
        return "an attribute is that of the enclosing function"
    if not facts.count(tensor):
        return "the weight has no elements"
    rank = len(tensor.shape)
    label, x = node_label(node), node.inputs[0]
    site: WeightSite | str
    if node.op_type == "Gather":
        axis = facts.attribute(node, "axis", 13, 0)
        if rank != 2 or axis != 0 or facts.count(tensor) < _SMALLEST_TABLE:
            return "no table of embeddings"
        site = WeightSite(node, 0, tensor, 0, 1, label)
    elif node.op_type in RECURRENT:
        if rank != 3:
            return f"the weight has {rank} axes, expected 3"
        site = WeightSite(node, index, tensor, 1, 2, recurrent_label(node, index), input=x if index == 1 else None)
    elif node.op_type == "MatMul":
        site = "the weight is a vector" if rank < 2 else WeightSite(
            node, 1, tensor, rank - 1, rank - 2, label, input=x
        )  # fmt: skip
    elif node.op_type == "Attention":
        site = f"the weight has {rank} axes, expected 2" if rank != 2 else WeightSite(node, 1, tensor, 1, 0, label)
    elif node.op_type == "Gemm":
        site = _site_of_gemm(node, tensor, label)
    elif node.op_type == "ConvTranspose":
        site = WeightSite(node, 1, tensor, 1, None, label, int(facts.attribute(node, "group", 11, 1)), x)
    else:
        groups = int(facts.attribute(node, "group", 11, 1))
        site = WeightSite(node, 1, tensor, 0, None, label, groups, x)
    if isinstance(site, WeightSite) and not is_finite(tensor):
        return NOT_FINITE
    return site


def _is_dequantized(value: ir.Value | None) -> bool:
    """Return True for a dequantized constant, perhaps moved."""
    producer = None if value is None else value.producer()
    while producer is not None and producer.op_type in _MOVED_WEIGHTS:
        producer = None if producer.inputs[0] is None else producer.inputs[0].producer()
    return producer is not None and producer.op_type == "DequantizeLinear" and facts.is_constant(producer.inputs[0])


def quantized_nodes(model: ir.Model) -> list[FloatNode]:
    """Return the nodes of the main graph that compute on integer weights."""
    return [
        FloatNode(node_label(node), node.op_type, QUANTIZED) for node in model.graph if node.op_type in _ON_INTEGERS
    ]


def _site_of_gemm(node: ir.Node, tensor: ir.TensorProtocol, label: str) -> WeightSite | str:
    transposed = bool(facts.attribute(node, "transB", 13, 0))
    if facts.attribute(node, "alpha", 13, 1.0) != 1.0 or facts.attribute(node, "beta", 13, 1.0) != 1.0:
        return "alpha or beta differs from 1"
    if facts.attribute(node, "transA", 13, 0):
        return "the other factor is transposed"
    return WeightSite(node, 1, tensor, 0 if transposed else 1, 1 if transposed else 0, label, input=node.inputs[0])


def is_finite(tensor: ir.TensorProtocol) -> bool:
    """Return True if all elements are finite; reads a large tensor part by part."""
    flat = tensor.numpy().reshape(-1)
    step = 1 << 20
    for first in range(0, len(flat), step):
        part = flat[first : first + step]
        if not np.isfinite(part).all():
            return False
        count_read(part.nbytes)
    return True


def _place_activations(nodes: Sequence[ir.Node], placement: Placement, exclude: Collection[str]) -> None:
    """Let products read integers, then the operators between them whose result does not leave the integers."""
    excluded = frozenset(exclude)
    for site in placement.sites:
        _read(placement, site.node, 0)
    for node in reversed(nodes):
        if not excluded.isdisjoint((node_label(node), node.op_type)):
            continue
        results = [value for value in node.outputs if value in placement.reads]
        if results and is_movement(node) and _moves_integers(node, placement, excluded):
            source = node.inputs[0]
            assert source is not None
            _read(placement, node, 0)
            placement.moved |= dict.fromkeys(results, source)
        if node.domain or node.op_type not in INTEGER or not _is_read_as_integers(node, placement):
            continue
        if _reads_floats(node):
            for index in range(sum(value is not None for value in node.inputs)):
                _read(placement, node, index)


def is_movement(node: ir.Node) -> bool:
    """Return True if the results of a node are elements of its first input."""
    if node.domain or node.op_type not in MOVEMENTS or not node.inputs:
        return False
    if node.op_type != "Resize":
        return True
    mode = facts.attribute(node, "mode", 19, "nearest")
    positions = facts.attribute(node, "coordinate_transformation_mode", 19, "half_pixel")
    return bool(mode == "nearest" and positions != "tf_crop_and_resize")


def _moves_integers(node: ir.Node, placement: Placement, exclude: frozenset[str]) -> bool:
    """Return True if a movement would leave floats to the readers of an operator that computes integers otherwise.

    All readers of its results read integers, and what it moves is the result of such an operator, directly or after an
    activation and other movements. Movements that engines fuse count only beside others.
    """
    for value in node.outputs:
        readers = placement.reads.get(value, ())
        if value.is_graph_output() or any((use.node, use.idx) not in readers for use in value.uses()):
            return False
    is_needed = node.op_type not in _FUSED
    is_needed |= any(is_movement(reader) for value in node.outputs for reader, _ in placement.reads.get(value, ()))
    moved = node
    while True:
        source = moved.inputs[0]
        producer = None if source is None or source.dtype != ir.DataType.FLOAT else source.producer()
        if producer is None or producer.domain or not exclude.isdisjoint((node_label(producer), producer.op_type)):
            return False
        if producer.op_type in INTEGER:
            return is_needed and _reads_floats(producer)
        if not (is_movement(producer) or producer.op_type in _BETWEEN):
            return False
        is_needed |= producer.op_type not in _FUSED
        moved = producer


def _reads_floats(node: ir.Node) -> bool:
    """Return True if all inputs of a node are computed floats."""
    inputs = [value for value in node.inputs if value is not None]
    return all(value.dtype == ir.DataType.FLOAT and not facts.is_constant(value) for value in inputs)


def _is_read_as_integers(node: ir.Node, placement: Placement) -> bool:
    """Return True if a reader of the result reads integers, directly or after operators that engines fuse.

    Nodes are asked in reverse order: readers are placed before the nodes that they read.
    """
    pending, seen = [node.outputs[0]], set()
    while pending:
        value = pending.pop()
        if value in placement.reads:
            return True
        for reader in value.consumers():
            if reader.op_type in _FUSED and not reader.domain and reader not in seen:
                seen.add(reader)
                pending.append(reader.outputs[0])
    return False


def _read(placement: Placement, node: ir.Node, index: int) -> None:
    value = node.inputs[index]
    if value is not None and not facts.is_constant(value):
        placement.reads.setdefault(value, []).append((node, index))
