"""Functions of numpy traced over an array of a graph, and the graph's answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

import sardonyx
from sardonyx.convert.graph_builder import GraphBuilder, Names
from sardonyx.convert.tabular.array_tracing import traced
from sardonyx.convert.tabular.arrays import IR_VERSION, OPSETS, Array


def answer(function: Callable[[Any], Any], x: Any) -> Any:
    """Return the answer of the model of a function."""
    builder = GraphBuilder(Names())
    value = ir.Value(name="x", shape=ir.Shape(["batch", x.shape[1]]), type=ir.TensorType(ir.DataType.DOUBLE))
    result = traced(function, Array(builder, value, np.float64), {})
    output = builder.node("Identity", result.value)
    output.name, output.type = "y", ir.TensorType(ir.DataType.from_numpy(result.dtype))
    constants = list(builder.initializers.values())
    graph = ir.Graph([value], [output], nodes=builder.nodes, initializers=constants, opset_imports=dict(OPSETS))
    session = sardonyx.Session(ir.Model(graph, ir_version=IR_VERSION), providers=["reference"])
    return session.run(None, {"x": x})[0]
