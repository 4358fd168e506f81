"""Models of other floats in float32: integers take the place of weights of float16, bfloat16 and double as well.

Inputs and outputs keep their types: Casts are between these and the float32 inside.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.model.copying import copy_model
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import Names, node_names, value_names

_OTHERS = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "stash_type")


def weights_of_other_floats(model: ir.Model) -> tuple[str, ...]:
    """Return the types of float weights that are not float32, in lower case; empty if any weight is float32."""
    kinds = {
        tensor.dtype for node in model.graph.all_nodes() if node.op_type in ("Conv", "ConvTranspose", "MatMul", "Gemm")
        for value in node.inputs[1:2] if (tensor := facts.constant_tensor(value)) is not None
    }  # fmt: skip
    if ir.DataType.FLOAT in kinds:
        return ()
    return tuple(sorted(kind.name.lower() for kind in kinds if kind in _OTHERS))


def in_single_precision(model: ir.Model) -> ir.Model:
    """Return a copy of a model without functions that computes in float32 in place of other floats.

    Weights of double are rounded; inputs, outputs and their types stay.
    """
    result = copy_model(model)
    outputs = [value.dtype for value in result.graph.outputs]
    inputs = [value for value in result.graph.inputs if not value.is_initializer()]
    for graph in facts.graphs_of(result.graph):
        for value in graph.initializers.values():
            if value.dtype in _OTHERS and value.const_value is not None:
                array = np.asarray(value.const_value.numpy(), np.float32)
                value.const_value = ir.Tensor(array, name=value.name)
        values = [*graph.initializers.values(), *([] if graph is result.graph else graph.inputs)]
        for node in graph:
            _widen_attributes(node)
            values += node.outputs
        for value in values:
            if value.dtype in _OTHERS:
                value.dtype = ir.DataType.FLOAT
    _cast_interface(result.graph, inputs, outputs, Names(value_names(result)), Names(node_names(result)))
    return result


def _widen_attributes(node: ir.Node) -> None:
    """Let a node's constants, and the types that it states, be of float32."""
    for name, attribute in list(node.attributes.items()):
        if attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype in _OTHERS:
            array = np.asarray(attribute.value.numpy(), np.float32)
            node.attributes[name] = ir.AttrTensor(name, ir.Tensor(array))
        elif name in _TYPE_ATTRIBUTES and attribute.type == ir.AttributeType.INT and attribute.value in _OTHERS:
            node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))


def _cast_interface(
    graph: ir.Graph, inputs: Sequence[ir.Value], outputs: Sequence[ir.DataType | None], names: Names, labels: Names
) -> None:
    """Write Casts after the inputs of other floats and ahead of the outputs; names of both stay."""
    for value in inputs:
        if value.dtype in _OTHERS:
            uses = list(value.uses())
            cast = ir.node("Cast", [value], {"to": int(ir.DataType.FLOAT)}, name=labels.fresh(f"{value.name}_Cast"))
            inner = cast.outputs[0]
            inner.name, inner.shape = names.fresh(f"{value.name}_float32"), value.shape
            inner.type = ir.TensorType(ir.DataType.FLOAT)
            for node, index in uses:
                node.replace_input_with(index, inner)
            graph.insert_before(graph[0], [cast])
    for index, kind in enumerate(outputs):
        value = graph.outputs[index]
        if kind in _OTHERS and kind is not None and value.dtype == ir.DataType.FLOAT:
            name = str(value.name)
            value.name = names.fresh(f"{name}_float32")
            cast = ir.node("Cast", [value], {"to": int(kind)}, name=labels.fresh(f"{name}_Cast"))
            outer = cast.outputs[0]
            outer.name, outer.shape, outer.type = name, value.shape, ir.TensorType(kind)
            graph.append(cast)
            graph.outputs[index] = outer
