"""Channels that can be rescaled: multiplied where they are computed and divided where they are read.

Between the two are only operators that commute with a positive factor per channel: Relu, pools, sums with constants,
products with other tensors. The function of the model stays; the integers of both ends change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.placement import WeightSite, find_placement
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import Names, value_names

_COMMUTING = frozenset(
    ("Relu", "LeakyRelu", "PRelu", "Identity", "Dropout", "Abs", "Neg", "MaxPool", "AveragePool", "GlobalAveragePool",
     "GlobalMaxPool", "ReduceMean", "ReduceMax", "ReduceSum", "Resize", "Transpose", "Flatten", "Reshape", "Squeeze")
)  # fmt: skip
"""Operators whose first input may be multiplied by a positive factor per channel, as then their result is."""

_SCALE_AND_BIAS = frozenset(("LayerNormalization", "RMSNormalization", "BatchNormalization", "InstanceNormalization"))
"""Operators with a factor per channel as input 1, and perhaps a term as input 2."""


@dataclass(frozen=True, eq=False)
class Parameter:
    """A constant that holds one number, or a slice, per channel.

    Attributes:
        node: The node that reads the constant.
        index: The index of the input.
        axis: The axis of channels, from the end.
    """

    node: ir.Node
    index: int
    axis: int


@dataclass(eq=False)
class ChannelGroup:
    """Channels between the constants that compute them and the sites that read them.

    Attributes:
        channels: The number of channels.
        parameters: The constants to multiply.
        sites: The sites whose weights to divide.
    """

    channels: int
    parameters: list[Parameter] = field(default_factory=list)
    sites: list[WeightSite] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The names of the sites."""
        return ", ".join(site.label for site in self.sites)


def find_channel_groups(model: ir.Model) -> list[ChannelGroup]:
    """Return the groups of channels of the main graph that can be rescaled, in the order of the graph.

    Args:
        model: The model, with inferred shapes.
    """
    sites = {site.node: site for site in find_placement(model).sites if site.node.graph is model.graph}
    groups = []
    starts: set[ir.Value] = set()
    for site in sites.values():
        value = site.node.inputs[0]
        if value is None:
            continue
        axis = 1 if site.node.op_type in ("Conv", "ConvTranspose") else _rank(value) - 1
        for origin, position in _origins(value, axis):
            if origin in starts:
                break
            group = _group_from(origin, position, sites)
            if group is not None and site in group.sites:
                starts.add(origin)
                groups.append(group)
                break
    return groups


def input_channels(site: WeightSite) -> np.ndarray:
    """Return the input channel of each element of a row of the weight's matrices, of shape [groups, depth]."""
    depth = site.matrix().shape[2]
    taps = int(np.prod(site.shape[2:])) if site.node.op_type == "Conv" else 1
    if site.node.op_type == "ConvTranspose":
        return np.arange(site.groups * depth).reshape(site.groups, depth)
    width = depth // taps
    return np.asarray(np.arange(site.groups)[:, None] * width + np.arange(depth)[None] // taps)


def rescale(model: ir.Model, group: ChannelGroup, factors: np.ndarray) -> None:
    """Multiply the channels of a group by positive factors, of shape [channels], and divide the weights of its readers.

    Args:
        model: The model, which is changed; its function stays, up to rounding.
        group: A group of this model.
        factors: The factors, of shape [channels].
    """
    names = Names(value_names(model))
    for parameter in group.parameters:
        array = _constant(parameter.node, parameter.index)
        if array.ndim < -parameter.axis:  # A bias of fewer elements than channels.
            array = np.broadcast_to(array, (1,) * (-parameter.axis - array.ndim) + array.shape)
        shape = [1] * array.ndim
        shape[parameter.axis] = group.channels
        _write(model, names, parameter.node, parameter.index, array * factors.astype(np.float32).reshape(shape))
    for site in group.sites:
        matrix = present_matrix(site) / factors.astype(np.float32)[input_channels(site)][:, None]
        _write(model, names, site.node, site.index, site.from_matrix(matrix))


def repeat_input_channels(model: ir.Model, site: WeightSite, index: np.ndarray) -> None:
    """Let a site, of one group, read the input channels of an index; its weight repeats those that are read again."""
    axis = 1 if site.node.op_type == "Conv" else site.sum_axis or 0
    array = np.take(_constant(site.node, site.index), index, axis)
    _write(model, Names(value_names(model)), site.node, site.index, array)


def _constant(node: ir.Node, index: int) -> np.ndarray:
    array = facts.constant(node.inputs[index])
    assert array is not None
    return array


def _write(model: ir.Model, names: Names, node: ir.Node, index: int, array: np.ndarray) -> None:
    """Let one node read an array in position of its constant, which other nodes may read."""
    old = node.inputs[index]
    assert old is not None
    name = names.fresh(f"{old.name}_rescaled")
    array = np.ascontiguousarray(array, np.float32)
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
    model.graph.register_initializer(value)
    node.replace_input_with(index, value)
    if old.uses() or old.is_graph_output() or old.is_graph_input():
        return
    producer = old.producer()
    if producer is not None:
        model.graph.remove(producer, safe=True)
    elif old.name in model.graph.initializers:
        del model.graph.initializers[str(old.name)]


def _origins(value: ir.Value, axis: int) -> Iterator[tuple[ir.Value, int]]:
    """Yield values from which a value is computed by commuting operators, with the axes of channels, nearest first."""
    pending = [(value, axis)]
    seen: set[ir.Value] = set()
    while pending:
        current, position = pending.pop(0)
        node = current.producer()
        if node is None or current in seen or position < 0:
            continue
        seen.add(current)
        if _own_parameters(node, position, _size(current, position)):
            yield current, position
        elif _passes(node):
            for source in node.inputs[: 2 if node.op_type in ("Mul", "Div", "Add", "Sub") else 1]:
                if source is not None and not facts.is_constant(source):
                    pending += [(source, before) for before in _axes_before(node, source, position)]


def _axes_before(node: ir.Node, source: ir.Value, axis: int) -> list[int]:
    """Return the axes of an input that may be the axis of the result."""
    return [before for before in range(_rank(source)) if _axis_after(node, source, before) == axis]


def _group_from(origin: ir.Value, axis: int, sites: dict[ir.Node, WeightSite]) -> ChannelGroup | None:
    """Return the group of the channels of a value; None if an operator does not commute with factors."""
    producer = origin.producer()
    channels = _size(origin, axis)
    assert producer is not None and channels is not None
    group = ChannelGroup(channels, list(_own_parameters(producer, axis, channels)))
    pending = [(origin, axis)]
    scaled: set[ir.Value] = set()
    while pending:
        value, position = pending.pop()
        if value in scaled:
            continue
        if value.is_graph_output() or not value.uses():
            return None
        scaled.add(value)
        for use in value.uses():
            node, index = use.node, use.idx
            if node.graph is not producer.graph:
                return None
            if node in sites and index == 0:
                expected = 1 if node.op_type in ("Conv", "ConvTranspose") else _rank(value) - 1
                if position != expected:
                    return None
                group.sites.append(sites[node])
                continue
            after = _axis_after(node, value, position) if _passes(node) else None
            if after is None or not _commutes(node, value, index, after, channels, group):
                return None
            pending.append((node.outputs[0], after))
    producers = [value.producer() for value in scaled]
    if any(one is not None and one.op_type == "Mul" and scaled.issuperset(one.inputs) for one in producers):
        return None  # A square: the factor would be applied twice.
    return group if group.sites else None


def _passes(node: ir.Node) -> bool:
    return not node.domain and (node.op_type in _COMMUTING or node.op_type in ("Mul", "Div", "Add", "Sub"))


def _commutes(node: ir.Node, value: ir.Value, index: int, axis: int, channels: int, group: ChannelGroup) -> bool:
    """Return True if a factor per channel of an input passes a node; add the terms to multiply to the group."""
    if len(node.outputs) > 1 and any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        return False
    if node.op_type == "Div":
        return index == 0
    if node.op_type in ("Add", "Sub"):
        term = node.inputs[1 - index]
        rank = _rank(node.outputs[0])
        if (index and node.op_type == "Sub") or term is None:
            return False
        parameter = _parameter(node, 1 - index, axis - rank, channels)
        if parameter is not None:
            group.parameters.append(parameter)
        return parameter is not None
    if node.op_type == "Mul":
        return True
    return index == 0


def _parameter(node: ir.Node, index: int, axis: int, channels: int | None) -> Parameter | None:
    """Return the constant input of a node with one number per channel; None if the input is something else."""
    array = facts.constant(node.inputs[index]) if len(node.inputs) > index else None
    if array is None or array.dtype != np.float32 or array.size != channels or array.ndim < -axis:
        return None
    return Parameter(node, index, axis) if array.shape[axis] == channels else None


def _own_parameters(node: ir.Node, axis: int, channels: int | None) -> list[Parameter]:
    """Return the constants of a node that multiply its result per channel; empty if the node has none."""
    if node.domain or channels is None:
        return []
    rank = _rank(node.outputs[0])
    bias = len(node.inputs) > 2 and node.inputs[2] is not None
    weight = facts.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    if node.op_type == "Mul":
        choices = (_parameter(node, index, axis - rank, channels) for index in (0, 1))
        return [parameter for parameter in choices if parameter is not None]
    if weight is None or weight.dtype != np.float32:
        return []
    if node.op_type in _SCALE_AND_BIAS:
        last = node.op_type in ("LayerNormalization", "RMSNormalization")
        if len(node.outputs) > 1 or axis != (rank - 1 if last else 1) or weight.ndim != 1:
            return []
        return _with_bias(node, Parameter(node, 1, -1), bias, channels)
    if node.op_type == "MatMul":
        return [Parameter(node, 1, -1)] if weight.ndim == 2 and axis == rank - 1 else []
    if node.op_type == "Gemm":
        own = -2 if facts.attribute(node, "transB", 13, 0) else -1
        return _with_bias(node, Parameter(node, 1, own), bias, channels) if axis == rank - 1 else []
    if axis == 1 and node.op_type == "Conv":
        return _with_bias(node, Parameter(node, 1, -weight.ndim), bias, channels)
    if axis == 1 and node.op_type == "ConvTranspose" and facts.attribute(node, "group", 11, 1) == 1:
        return _with_bias(node, Parameter(node, 1, 1 - weight.ndim), bias, channels)
    return []


def _with_bias(node: ir.Node, weight: Parameter, has_bias: bool, channels: int) -> list[Parameter]:
    if not has_bias:
        return [weight]
    bias = _parameter(node, 2, -1, channels)
    return [] if bias is None else [weight, bias]


def _axis_after(node: ir.Node, value: ir.Value, axis: int) -> int | None:
    """Return the axis of the channels in the first result of a node; None if the channels do not stay intact."""
    result = node.outputs[0]
    if value.shape is None or result.shape is None:
        return None
    before, after = _rank(value), _rank(result)
    size = _size(value, axis)
    if size is None:
        return None
    if node.op_type == "Transpose":
        perm = facts.attribute(node, "perm", 13, tuple(reversed(range(before))))
        return list(perm).index(axis)
    if node.op_type in ("Flatten", "Reshape", "Squeeze"):
        ones = all(_size(value, later) == 1 for later in range(axis + 1, before))
        # The last axis stays the last, or the axes after the channels have one element.
        keeps = _size(result, after - 1) == size and after > 0
        return after - 1 if ones and keeps else None
    if node.op_type in ("Mul", "Div", "Add", "Sub"):
        position = axis + after - before
        return position if _size(result, position) == size else None
    return axis if before == after and _size(result, axis) == size else None


def _rank(value: ir.Value) -> int:
    return len(value.shape) if value.shape is not None else 0


def _size(value: ir.Value, axis: int) -> int | None:
    if value.shape is None or not 0 <= axis < len(value.shape):
        return None
    size = value.shape[axis]
    return size if isinstance(size, int) else None


def largest_per_channel(site: WeightSite, channels: int) -> np.ndarray:
    """Return the largest magnitude of the weights that each input channel is multiplied by, of shape [channels]."""
    matrix, index = np.abs(present_matrix(site)), input_channels(site)
    result = np.zeros(channels, np.float32)
    for weights, row in zip(matrix, index, strict=True):
        np.maximum.at(result, row, weights.max(0, initial=0))
    return result


def present_matrix(site: WeightSite) -> np.ndarray:
    """Return the matrices of a site's weight as the model has them now, [groups, outputs, depth]."""
    return site.matrix(_constant(site.node, site.index))


def largest_per_parameter(group: ChannelGroup) -> np.ndarray:
    """Return the largest magnitude, per channel, of the first constant that computes a group, of shape [channels]."""
    parameter = group.parameters[0]
    array = np.moveaxis(np.abs(_constant(parameter.node, parameter.index)), parameter.axis, 0)
    return np.asarray(array.reshape(group.channels, -1).max(1, initial=0))
