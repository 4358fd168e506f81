"""Convolutions whose operands are rounded to bfloat16, where the processor then computes them faster.

Nodes stay in float32: images pass through a Cast to bfloat16 and back, and weights are rounded. The compiler multiplies
such operands as bfloat16 and adds in float32 (:mod:`sardonyx.compiler.passes.bfloat16_convolutions`), in every operator
set with a Cast to bfloat16. A convolution that Winograd's algorithm computes faster in float32 keeps its operands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling.convolution import ConvolutionProblem, suits_pairs
from sardonyx.core.dim import Dim, Size
from sardonyx.core.ir.types import FLOAT
from sardonyx.rewrite.analysis.names import Names, value_names

_SUMS = ("Add", "Sum")
"""Readers of an image that read the rounded one too, so that the image is stored once: residual connections."""


def faster_convolutions(model: ir.Model, target: Target, threads: int) -> list[ir.Node]:
    """Return the convolutions of the main graph that are faster on operands of bfloat16, in order.

    Args:
        model: The model, with inferred shapes.
        target: The processor.
        threads: Threads that share the work.
    """
    return [
        node for node in model.graph
        if (problem := _describe(node, threads)) is not None and suits_pairs(problem, target)
    ]  # fmt: skip


def round_operands(model: ir.Model, nodes: Collection[ir.Node]) -> None:
    """Round the operands of some convolutions of a model to bfloat16, in place."""
    names = Names(value_names(model))
    rounded: dict[ir.Value, ir.Value] = {}
    for node in nodes:
        image, weights = node.inputs[0], node.inputs[1]
        assert image is not None
        assert weights is not None
        if image not in rounded:
            rounded[image] = _round_image(model.graph, image, names)
        node.replace_input_with(0, rounded[image])
        node.replace_input_with(1, _round_weights(model.graph, weights, names))


def _round_image(graph: ir.Graph, image: ir.Value, names: Names) -> ir.Value:
    """Return an image after a Cast to bfloat16 and back, which sums read too."""
    sums = [(node, i) for node, i in image.uses() if node.op_type in _SUMS and node.graph is graph]
    narrow = ir.node("Cast", [image], {"to": ir.DataType.BFLOAT16})
    wide = ir.node("Cast", [narrow.outputs[0]], {"to": ir.DataType.FLOAT})
    for cast, suffix in ((narrow, "bfloat16"), (wide, "rounded")):
        cast.outputs[0].name = names.fresh(f"{image.name}_{suffix}")
        cast.outputs[0].type = ir.TensorType(ir.DataType.BFLOAT16 if cast is narrow else ir.DataType.FLOAT)
        cast.outputs[0].shape = image.shape
    producer = image.producer()
    if producer is None:
        graph.insert_before(graph[0], [narrow, wide])
    else:
        graph.insert_after(producer, [narrow, wide])
    for node, i in sums:
        node.replace_input_with(i, wide.outputs[0])
    return wide.outputs[0]


def _round_weights(graph: ir.Graph, weights: ir.Value, names: Names) -> ir.Value:
    """Return an initializer with the rounded weights."""
    assert weights.const_value is not None
    array = weights.const_value.numpy().astype(ml_dtypes.bfloat16).astype(np.float32)
    name = names.fresh(f"{weights.name}_rounded")
    value = ir.Value(name=name, type=weights.type, shape=weights.shape, const_value=ir.tensor(array, name=name))
    graph.register_initializer(value)
    return value


def _describe(node: ir.Node, threads: int) -> ConvolutionProblem | None:
    """Return the problem of a convolution by constant weights in float32; None for other nodes."""
    if node.op_type != "Conv" or node.domain not in ("", "ai.onnx") or len(node.inputs) < 2:
        return None
    weights, result = node.inputs[1], node.outputs[0]
    if weights is None or weights.const_value is None or weights.is_graph_input():
        return None
    if weights.dtype != ir.DataType.FLOAT or result.shape is None:
        return None
    batch, _, *out = _sizes(result)
    filters, channels, *window = weights.const_value.shape.numpy()
    rank = len(window)
    groups = int(_attribute(node, "group", 1))
    strides, dilations = (tuple(_attribute(node, name, [1] * rank)) for name in ("strides", "dilations"))
    return ConvolutionProblem(
        batch, channels * groups, filters, groups, tuple(window), strides, dilations, (1,) * rank, tuple(out), FLOAT,
        rank - 1, threads,
    )  # fmt: skip


def _attribute(node: ir.Node, name: str, default: Any) -> Any:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.value


def _sizes(value: ir.Value) -> Iterator[Size]:
    """Yield the sizes of a value; open ones are symbols."""
    assert value.shape is not None
    for axis, size in enumerate(value.shape):
        yield size if isinstance(size, int) else Dim.symbol(f"size{axis}")
