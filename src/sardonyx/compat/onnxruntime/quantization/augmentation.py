"""Models with the extremes of tensors as outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

_FLAT = "flat_shape_of_extremes"
_AXES_AS_INPUT = 18


def with_extremes(
    model: onnx.ModelProto, names: Collection[str], infos: Mapping[str, Any], per_channel: bool
) -> onnx.ModelProto:
    """Return a model with flat outputs ``NAME_ReduceMin`` and ``NAME_ReduceMax`` of tensors.

    Args:
        model: The model.
        names: The names of the tensors.
        infos: Descriptions of values by name.
        per_channel: If True, all axes but the second are reduced.
    """
    augmented = onnx.ModelProto()
    augmented.CopyFrom(model)
    graph = augmented.graph
    graph.initializer.append(numpy_helper.from_array(np.array([-1], np.int64), _FLAT))
    version = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)
    for name in sorted(names):
        tensor_type = infos[name].type.tensor_type
        axes = [axis for axis in range(len(tensor_type.shape.dim)) if axis != 1] if per_channel else []
        for kind in ("ReduceMin", "ReduceMax"):
            result, inputs = f"{name}_{kind}", [name]
            options: dict[str, Any] = {"keepdims": 1}
            if axes and version >= _AXES_AS_INPUT:
                inputs.append(f"{result}_axes")
                graph.initializer.append(numpy_helper.from_array(np.array(axes, np.int64), inputs[1]))
            elif axes:
                options["axes"] = axes
            between = f"{result}_Reshape"
            graph.node.append(helper.make_node(kind, inputs, [between], name=result, **options))
            graph.node.append(helper.make_node("Reshape", [between, _FLAT], [result], name=between))
            graph.output.append(helper.make_tensor_value_info(result, tensor_type.elem_type, [None]))
    return augmented
