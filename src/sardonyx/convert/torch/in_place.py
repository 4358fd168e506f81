"""Functional forms of in-place operators that write to a fresh result, e.g. of ``ReLU(inplace=True)``.

torch makes a program functional by tracing it twice more, which takes longer than the first capture. A write to the
result of an operator that returns new memory, of which no view exists, is replaced by a new value, which later users
read.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from sardonyx.convert.torch.operators.activations import DROPOUTS
from sardonyx.convert.torch.operators.registry import translation_of

_FRESH = frozenset({
    "_adaptive_avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "add", "add_", "addmm", "avg_pool2d",
    "batch_norm", "bmm", "cat", "clone", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "convolution", "div", "div_", "elu", "elu_", "gelu", "group_norm", "hardsigmoid",
    "hardsigmoid_", "hardswish", "hardswish_", "hardtanh", "hardtanh_", "instance_norm", "layer_norm", "leaky_relu",
    "leaky_relu_", "linear", "matmul", "max_pool2d", "mean", "mm", "mul", "mul_", "neg", "prelu", "relu", "relu6",
    "relu6_", "relu_", "selu", "selu_", "sigmoid", "sigmoid_", "silu", "silu_", "softmax", "sub", "sub_", "sum", "tanh",
    "tanh_",
})  # fmt: skip
"""Operators of ``aten`` that neither return an operand nor a view; the in-place ones count as soon as replaced."""

_SAME_NAME = frozenset(name for name in _FRESH if name.endswith("_"))
"""In-place operators whose functional forms have the name without the underscore and the same arguments."""


def functional(exported: Any) -> Any:
    """Return a program whose in-place operators on fresh results are functional; the program itself if none is."""
    if any(isinstance(part, torch.fx.GraphModule) for part in list(exported.graph_module.modules())[1:]):
        return exported
    if not any(_name(node) in _SAME_NAME for node in exported.graph_module.graph.nodes):
        return exported
    graph = copy.deepcopy(exported.graph_module.graph)
    for node, original in zip(graph.nodes, exported.graph_module.graph.nodes, strict=True):
        node.name = original.name  # A copy renumbers names, by which the program's signature has inputs and outputs.
    for node in list(graph.nodes):
        if _name(node) in DROPOUTS and node.args[2:] == (False,):
            node.replace_all_uses_with(node.args[0], delete_user_cb=lambda user: user.op != "output")
            if not node.users:
                graph.erase_node(node)
    order = {node: position for position, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        replacement = _replacement(node)
        if replacement is None:
            continue
        target = node.args[0]
        users = [user for user in target.users if user is not node]
        if any(user.op == "output" or (order[user] < order[node] and not _is_fresh(user)) for user in users):
            continue
        node.target = replacement
        target.replace_all_uses_with(node, delete_user_cb=lambda user, node=node: order[user] > order[node])
    result = copy.copy(exported)
    result._graph_module = torch.fx.GraphModule(exported.graph_module, graph)
    result._graph_module.meta.update(exported.graph_module.meta)
    return result


def _replacement(node: Any) -> Any:
    """Return the functional operator of an in-place call; None if the call writes to memory that others may read."""
    name = _name(node)
    if name not in _SAME_NAME or not node.args or not isinstance(node.args[0], torch.fx.Node):
        return None
    if not _is_fresh(node.args[0]):
        return None
    operands = [node.meta.get("val"), *(argument.meta.get("val") for argument in node.all_input_nodes)]
    tensors = [value for value in operands if isinstance(value, torch.Tensor)]
    if len({value.dtype for value in tensors}) != 1 or not tensors[0].dtype.is_floating_point:
        return None  # The functional form of other types may have the type of another operand.
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    overload = getattr(packet, node.target._overloadname, None)
    if overload is None or translation_of(f"aten.{name.removesuffix('_')}.{overload._overloadname}") is None:
        return None
    return overload


def _is_fresh(node: Any) -> bool:
    """Return True if a call returns new memory."""
    name = _name(node)
    return name in _FRESH and not (name in _SAME_NAME and node.target._schema.is_mutable)


def _name(node: Any) -> str:
    target = node.target
    is_aten = node.op == "call_function" and isinstance(target, torch._ops.OpOverload) and target.namespace == "aten"
    return target._schema.name.partition("::")[2] if is_aten else ""
