"""Models in double precision, as references for single precision."""

from __future__ import annotations

import numpy as np
import onnx


def in_doubles(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model, changed in place, with all float32 tensors of its main graph as float64."""
    tensors = [*proto.graph.initializer, *(a.t for node in proto.graph.node for a in node.attribute if a.HasField("t"))]
    for tensor in tensors:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            array = onnx.numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    return proto
