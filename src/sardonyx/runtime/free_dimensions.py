"""Models with open dimensions of their inputs set to sizes."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from sardonyx.core.dim import Size
from sardonyx.model.copying import copy_model
from sardonyx.rewrite.surgery.interface import substituted


def with_sizes(model: ir.Model, by_name: Mapping[str, int], by_denotation: Mapping[str, int]) -> ir.Model:
    """Return a copy of a model with these sizes for open dimensions of its inputs, wherever their names occur.

    Args:
        model: The model, which is not changed.
        by_name: Sizes by the name of a dimension; names that no input has are ignored.
        by_denotation: Sizes by the denotation of a dimension, such as ``DATA_BATCH``.
    """
    fixed = copy_model(model)
    sizes: dict[str, Size] = dict(by_name)
    for value in fixed.graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            denoted = by_denotation.get(value.shape.get_denotation(axis) or "") if value.shape is not None else None
            if denoted is not None and not isinstance(dim, int) and value.shape is not None:
                value.shape[axis] = denoted
                if dim.value is not None:
                    sizes.setdefault(dim.value, denoted)
    outputs = [output for node in fixed.graph for output in node.outputs]
    for value in dict.fromkeys((*fixed.graph.inputs, *outputs, *fixed.graph.outputs)):
        if value.shape is not None:
            value.shape = ir.Shape(
                [substituted(dim, sizes) for dim in value.shape],
                [value.shape.get_denotation(axis) for axis in range(len(value.shape))],
            )
    return fixed


def with_sizes_of_defaults(model: ir.Model) -> ir.Model:
    """Return a model in which symbols that inputs share with a default value have the sizes of the default value.

    A constant has no declared symbols, so that calls could otherwise contradict the declaration unnoticed.
    """
    graph = model.graph
    required = [value for value in graph.inputs if not value.is_initializer()]
    symbols = {dim.value for value in required for dim in value.shape or () if isinstance(dim, ir.SymbolicDim)}
    sizes: dict[str, int] = {}
    for value in graph.inputs:
        if value.is_initializer() and value.const_value is not None:
            for dim, size in zip(value.shape or (), value.const_value.shape.numpy(), strict=False):
                if isinstance(dim, ir.SymbolicDim) and dim.value is not None and dim.value in symbols:
                    sizes.setdefault(dim.value, int(size))
    return with_sizes(model, sizes, {}) if sizes else model
