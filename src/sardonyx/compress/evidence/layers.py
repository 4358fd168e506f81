"""Layers that hurt: the nodes of a compressed model at which the error of inner tensors grows most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from sardonyx.report.accuracy import compare


@dataclass(frozen=True)
class LayerError:
    """The error of a layer's result.

    Attributes:
        node: The node of the original.
        op_type: The operator.
        error: Mean absolute difference of the result over its largest magnitude.
        growth: The part of the error that the layers before do not have.
    """

    node: str
    op_type: str
    error: float
    growth: float


def layers_that_hurt(
    before: ir.Model, after: ir.Model, feeds: Mapping[str, Any], most: int = 5
) -> tuple[LayerError, ...]:
    """Return the layers at which the error grows most on one sample, in the order of the graph.

    Args:
        before: The original.
        after: The compressed model, whose inner tensors are paired with the original's by name and structure.
        feeds: A sample.
        most: The number of layers.

    Raises:
        SardonyxError: A model does not run on the sample.
    """
    layers = compare(before, after, inputs=feeds, all_layers=True).layers
    errors = {layer.tensor: layer.mean for layer in layers if layer.mean is not None}
    inputs = {
        str(node.outputs[0].name): [str(value.name) for value in node.inputs if value is not None]
        for node in before.graph
    }
    results: list[LayerError] = []
    inherited: dict[str, float] = {}
    for layer in layers:
        # A tensor without a counterpart passes the error of its inputs on.
        sources = inputs.get(layer.tensor, [])
        arrived = max((errors.get(name, inherited.get(name, 0.0)) for name in sources), default=0.0)
        inherited[layer.tensor] = arrived
        if layer.mean is not None and layer.mean > arrived:
            results.append(LayerError(layer.node, layer.operator, layer.mean, layer.mean - arrived))
    worst = set(sorted(results, key=lambda layer: -layer.growth)[:most])
    return tuple(layer for layer in results if layer in worst)
