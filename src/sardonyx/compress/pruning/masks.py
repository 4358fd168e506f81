"""Masks: the least important weights become zero; shapes and bytes stay."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.compress.pruning.compensation import correct_bias
from sardonyx.compress.pruning.shrink import replace_constant, write_constant
from sardonyx.errors import EvaluationError
from sardonyx.rewrite import facts
from sardonyx.rewrite.names import Names, node_label, value_names

PATTERN = 4
"""Consecutive weights of a 2:4 pattern, along the input channels."""


@dataclass(frozen=True)
class MaskedLayer:
    """The zeros of a weight.

    Attributes:
        name: The name of the node.
        op_type: The operator.
        weights: The number of weights.
        zeros: The number of zeros of the result.
        fixed: The reason why the weight is unchanged; empty if masked.
    """

    name: str
    op_type: str
    weights: int
    zeros: int
    fixed: str


def input_axis(node: ir.Node) -> int:
    """Return the axis of the input channels of a weight: of Conv, ConvTranspose, Gemm and MatMul."""
    if node.op_type == "Conv":
        return 1
    if node.op_type == "ConvTranspose":
        return 0
    return 1 if node.op_type == "Gemm" and facts.attribute(node, "transB", 11, 0) else 0


def weighted_nodes(model: ir.Model) -> list[ir.Node]:
    """Return the nodes of the main graph with a constant weight as input 1."""
    nodes = []
    for node in model.graph:
        if node.domain not in ("", "ai.onnx") or node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
            continue
        shape = facts.static_shape(node.inputs[1])
        if facts.is_constant(node.inputs[1]) and shape is not None and len(shape) >= 2 and 0 not in shape:
            nodes.append(node)
    return nodes


def mask_weights(
    model: ir.Model,
    share: float,
    pattern: str | None,
    activations: Mapping[ir.Value, np.ndarray] | None,
    means: Mapping[ir.Value, np.ndarray],
    exclude: Collection[str] = (),
) -> tuple[tuple[MaskedLayer, ...], int]:
    """Set the least important weights of every layer to zero, in place.

    The importance is the magnitude, times the mean absolute activation of the input channel if there are activations.

    Args:
        model: The model.
        share: The share of zeros per layer.
        pattern: ``"2:4"`` for two zeros of four consecutive input channels; None for any weights.
        activations: The mean absolute activation per input channel by input of the nodes; None for magnitudes alone.
        means: The mean of the input per channel, for the correction of biases; empty without data.
        exclude: Names of nodes, or operators, whose weights stay.

    Returns:
        The layers, and the number of corrected biases.

    Raises:
        EvaluationError: A weight or an activation is not finite.
    """
    names = Names(value_names(model))
    layers = []
    corrected = 0
    losses: dict[ir.Value | None, np.ndarray] = {}
    nodes = weighted_nodes(model)
    maskable = {node for node in nodes if node_label(node) not in exclude and node.op_type not in exclude}
    for node in nodes:
        source, old = node.inputs[0], node.inputs[1]
        weight = facts.constant(old)
        assert weight is not None and old is not None
        axis = input_axis(node) if node.op_type != "MatMul" else weight.ndim - 2
        fixed = ""
        if node not in maskable:
            fixed = "excluded"
        elif old in losses:
            fixed = "the weight is shared with a layer that is masked already"
        elif node.op_type == "Conv" and facts.attribute(node, "group", 11, 1) > 1 and weight.shape[1] == 1:
            fixed = "a depthwise convolution has few weights, and each matters"
        elif pattern is not None and weight.shape[axis] % PATTERN:
            fixed = f"{weight.shape[axis]} input channels are not a multiple of {PATTERN}"
        result = weight
        if not fixed:
            rows = np.moveaxis(np.abs(weight.astype(np.float32)), axis, -1)
            size = None if activations is None or source is None else activations.get(source)
            if size is not None and size.shape == rows.shape[-1:]:
                rows = rows * size.astype(np.float32)
            if not np.isfinite(rows).all():
                raise EvaluationError(
                    "expected finite weights and activations, got infinity or NaN.", where=node_label(node),
                    remedy="Repair the weights, or exclude the node.",
                )  # fmt: skip
            stays = np.moveaxis(_mask(rows, share, pattern), -1, axis)
            result = np.where(stays, weight, np.zeros((), weight.dtype))
            value = write_constant(model, names, node, 1, result)
            for use in list(old.uses()):  # Other products by the same weight read the masked one too.
                if use.node in maskable and use.idx == 1:
                    replace_constant(model, use.node, 1, value)
            losses[value] = np.where(stays, np.zeros((), weight.dtype), weight)
        if source is not None and source in means and (loss := losses.get(node.inputs[1])) is not None:
            corrected += correct_bias(model, node, loss, means[source])
        zeros = int(result.size - np.count_nonzero(result))
        layers.append(MaskedLayer(node_label(node), node.op_type, int(result.size), zeros, fixed))
    return tuple(layers), corrected


def _mask(rows: np.ndarray, share: float, pattern: str | None) -> np.ndarray:
    """Return True for the weights that stay, of shape [..., input channels]."""
    blocks = rows.reshape(1, -1) if pattern is None else rows.reshape(-1, PATTERN)
    zeros = round(share * blocks.shape[1])
    stays = np.ones(blocks.shape, bool)
    smallest = np.argsort(blocks, axis=1, kind="stable")[:, :zeros]
    np.put_along_axis(stays, smallest, False, axis=1)
    return stays.reshape(rows.shape)
