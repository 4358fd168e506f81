"""Models rewritten for ONNX Runtime, whose contributed operators some rules create."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, parser

from sardonyx import model as model_io
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.rewrite_context import Settings

TARGET = "onnxruntime"


def settled(text: str, opset: int = 17, target: str = TARGET, **constants: np.ndarray) -> Engine:
    """Return the engine after the passes of a target over a graph written in ONNX's text form."""
    graph = parser.parse_graph(text)
    graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return pipeline.transform(model_io.from_proto(proto), pipeline.select(target), Settings(target=target))


def operators(engine: Engine) -> list[str]:
    """Return the operators of the rewritten graph, in order."""
    return [node.op_type for node in engine.model.graph]
