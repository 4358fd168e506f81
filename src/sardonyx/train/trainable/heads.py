"""New heads: the last layer of a classifier with another number of classes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.base.option_checks import require_count
from sardonyx.errors import OptionError, UnsupportedError
from sardonyx.model import Loadable, load
from sardonyx.rewrite.analysis.inference import infer_shapes
from sardonyx.rewrite.analysis.names import node_label
from sardonyx.train.trainable.parameters import find_parameters
from sardonyx.train.trainable.trainable_models import trainable_form

_AXES = {"MatMul": 1, "Conv": 0}
"""The axis of output channels of a weight; that of Gemm depends on ``transB``."""


def swap_head(model: Loadable, classes: int, *, output: str | None = None, seed: int = 0) -> ir.Model:
    """Return a model whose last layer before an output has other classes, with new weights.

    Weights are uniform within the root of the inverse number of inputs, as torch initializes them; biases are zero.

    Args:
        model: A path or a model, which is not changed.
        classes: The number of classes.
        output: The output; the first one by default.
        seed: Seed of the weights.

    Raises:
        OptionError: The number is impossible, or the output unknown.
        UnsupportedError: No product or convolution computes the output by its last axis.
    """
    require_count(classes, "classes")
    result = trainable_form(load(model))
    outputs = {str(value.name): value for value in result.graph.outputs}
    name = output or next(iter(outputs))
    if name not in outputs:
        raise OptionError(f"expected one of {', '.join(outputs)}, got {name!r}.", where="output")
    before = _ancestors(outputs[name])
    layers = {one.name: one for one in find_parameters(result) if one.kind == "weight"}
    for node in before:
        for index, value in enumerate(node.inputs):
            if value is not None and value.name in layers and node.op_type in ("Gemm", "MatMul", "Conv") and index == 1:
                _replace(result, node, value, classes, seed)
                _check_channels(node, outputs[name], before, classes)
                infer_shapes(result)
                return result
    raise UnsupportedError("no product or convolution with a weight computes the output.", where=name)


def _ancestors(value: ir.Value) -> list[ir.Node]:
    """Return the nodes before a value, the nearest first."""
    order: list[ir.Node] = []
    pending = [value]
    while pending:
        producer = pending.pop(0).producer()
        if producer is not None and producer not in order:
            order.append(producer)
            pending += [one for one in producer.inputs if one is not None]
    return order


_CHANNELWISE = frozenset({"Add", "Identity", "Softmax", "LogSoftmax", "Sigmoid", "Flatten", "Squeeze", "Cast"})


def _check_channels(node: ir.Node, output: ir.Value, before: list[ir.Node], classes: int) -> None:
    """Require that all nodes between the layer and the output accept any number of classes."""
    for other in before[: before.index(node)]:
        if other.op_type not in _CHANNELWISE:
            raise UnsupportedError(
                f"{other.op_type} follows the last layer, and may depend on the number of classes.",
                where=node_label(other),
                remedy="Cut the model after the last layer with `sardonyx extract`.",
            )
        for value in other.inputs:
            tensor = None if value is None else value.const_value
            if tensor is None or other.op_type != "Add":
                continue
            array = tensor.numpy()
            assert value is not None
            value.const_value = ir.tensor(np.zeros((*array.shape[:-1], classes), array.dtype), name=value.name)
            value.shape = ir.Shape((*array.shape[:-1], classes))
    if output.shape is not None and len(output.shape):
        axis = 1 if len(output.shape) >= 4 else len(output.shape) - 1
        output.shape = ir.Shape([classes if i == axis else size for i, size in enumerate(output.shape)])


def _replace(model: ir.Model, node: ir.Node, weight: ir.Value, classes: int, seed: int) -> None:
    if len(weight.uses()) > 1:
        raise UnsupportedError("several nodes share the weight of the last layer.", where=node_label(node))
    assert weight.const_value is not None
    array = weight.const_value.numpy()
    transposed = node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))
    axis = 0 if transposed else _AXES.get(node.op_type, 1)
    if node.op_type == "MatMul":
        axis = array.ndim - 1
    shape = tuple(classes if i == axis else size for i, size in enumerate(array.shape))
    bound = 1 / np.sqrt(max(1, array.size // array.shape[axis]))
    new = np.random.default_rng(seed).uniform(-bound, bound, shape).astype(array.dtype)
    weight.const_value, weight.shape = ir.tensor(new, name=weight.name), ir.Shape(shape)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None and bias.const_value is not None:
        bias.const_value = ir.tensor(np.zeros(classes, array.dtype), name=bias.name)
        bias.shape = ir.Shape([classes])
    for value in node.outputs:
        value.shape = None
