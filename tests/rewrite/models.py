"""Builders of small models for the tests of the rewriter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

from sardonyx import model as model_io
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.rewrite_context import Settings

FLOAT, INT64, BOOL, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING

node = helper.make_node


def info(name: str, shape: Sequence[int | str | None] | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: dict[str, Any] | None = None,
    *,
    opset: int = 18,
    ir_version: int = 9,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()]
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), tensors)
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version, functions=list(functions))


def transformed(text: str, opset: int = 18, **constants: Any) -> Engine:
    """The engine after the default passes over a graph written in ONNX's text form, with these initializers."""
    graph = parser.parse_graph(text)
    graph.initializer.extend(numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items())
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return pipeline.transform(model_io.from_proto(proto), pipeline.select(), Settings())
