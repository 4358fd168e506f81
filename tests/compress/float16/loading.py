"""What "the result loads" means: the full checker and ONNX Runtime take it; and running models on the same inputs."""

import numpy as np
import onnx
import onnxruntime

from sardonyx import model as model_io
from sardonyx.compress.float16 import Conversion, convert_float_to_float16


def session(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[object]:
    """The outputs for float32 inputs, which are rounded where the model takes float16."""
    wanted = {each.name: each.type.tensor_type.elem_type for each in proto.graph.input}
    given = {
        name: value.astype(np.float16) if wanted[name] == onnx.TensorProto.FLOAT16 else value
        for name, value in feeds.items()
    }
    return session(proto).run(None, given)


def parse(text: str, opset: int = 17) -> onnx.ModelProto:
    """A model in ONNX text syntax, without its header."""
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}, "local": 1]> {text}')


def converted(model: onnx.ModelProto, **options: object) -> tuple[onnx.ModelProto, Conversion]:
    """The model in float16, which loads, and the report."""
    conversion = convert_float_to_float16(model, **options)
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
