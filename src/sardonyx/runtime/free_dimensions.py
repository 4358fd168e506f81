"""Models whose open sizes are told before they run."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from sardonyx.core.dim import Size
from sardonyx.model.copying import copy_model
from sardonyx.rewrite.surgery.interface import substituted


def with_sizes(model: ir.Model, by_name: Mapping[str, int], by_denotation: Mapping[str, int]) -> ir.Model:
    """A copy of a model in which open dimensions of its inputs have sizes; names stand for the same everywhere.

    Args:
        model: The model; it is left as it is.
        by_name: Sizes by the name of a dimension; a name that no input has is passed over.
        by_denotation: Sizes by what a dimension denotes, as ``DATA_BATCH``.
    """
    fixed = copy_model(model)
    meaning: dict[str, Size] = dict(by_name)
    for value in fixed.graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            denoted = by_denotation.get(value.shape.get_denotation(axis) or "") if value.shape is not None else None
            if denoted is not None and not isinstance(dim, int) and value.shape is not None:
                value.shape[axis] = denoted
                if dim.value is not None:
                    meaning.setdefault(dim.value, denoted)
    outputs = [output for node in fixed.graph for output in node.outputs]
    for value in dict.fromkeys((*fixed.graph.inputs, *outputs, *fixed.graph.outputs)):
        if value.shape is not None:
            value.shape = ir.Shape(
                [substituted(dim, meaning) for dim in value.shape],
                [value.shape.get_denotation(axis) for axis in range(len(value.shape))],
            )
    return fixed
