"""Conversion with the full checker and ONNX Runtime, and runs of models on common inputs."""

import numpy as np
import onnx
import onnxruntime

from sardonyx import model as model_io
from sardonyx.compress.float16 import Conversion, convert_float16


def session(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[object]:
    """Return the outputs for float32 inputs, rounded to float16 if the model declares float16."""
    types = {value.name: value.type.tensor_type.elem_type for value in proto.graph.input}
    inputs = {
        name: array.astype(np.float16) if types[name] == onnx.TensorProto.FLOAT16 else array
        for name, array in feeds.items()
    }
    return session(proto).run(None, inputs)


def parse(text: str, opset: int = 17) -> onnx.ModelProto:
    """Return a model from ONNX text syntax without header."""
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}, "local": 1]> {text}')


def converted(model: onnx.ModelProto, **options: object) -> tuple[onnx.ModelProto, Conversion]:
    """Return the model in float16, checked and loaded, and the report."""
    conversion = convert_float16(model, **options)
    proto = model_io.to_proto(conversion.model)
    onnx.checker.check_model(proto, full_check=True)
    session(proto)
    return proto, conversion


def operators(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


def element_type(proto: onnx.ModelProto, name: str) -> str:
    for value in (*proto.graph.input, *proto.graph.output):
        if value.name == name:
            return onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
    for tensor in proto.graph.initializer:
        if tensor.name == name:
            return onnx.TensorProto.DataType.Name(tensor.data_type)
    raise KeyError(name)
