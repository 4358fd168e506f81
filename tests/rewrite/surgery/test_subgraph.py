"""Parts of a model as models of their own."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx import parser

from sardonyx.model import load
from sardonyx.rewrite.surgery.interface import symbols_in
from sardonyx.rewrite.surgery.subgraph import boundary, part_of
from sardonyx.runtime import Session

HALVES = """<ir_version: 8, opset_import: ["": 17]>
"torch-jit-export" (float[1, 1, N, M] x) => (float[1, 1, A, B] y) {
  pooled = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)
  bent = Relu(pooled)
  y = Exp(bent)
}"""
"""What comes after the pooling is half as large, in a graph whose name reads as a difference."""


def last_two() -> ir.Model:
    model = load(parser.parse_model(HALVES))
    half = [ir.SymbolicDim("floor(N/2)"), ir.SymbolicDim("floor(M/2)")]
    nodes = list(model.graph)
    for node in nodes:
        node.outputs[0].dtype, node.outputs[0].shape = ir.DataType.FLOAT, ir.Shape([1, 1, *half])
    inputs, outputs, _ = boundary(nodes[1:], (), model.graph.outputs)
    return part_of(model, nodes[1:], inputs, outputs)


def test_undetermined_sizes_get_names_declared_by_inputs() -> None:
    part = last_two()
    (entry,) = part.graph.inputs
    known = {str(dim.value) for dim in entry.shape if isinstance(dim, ir.SymbolicDim)}
    for value in (entry, *(output for node in part.graph for output in node.outputs)):
        assert value.shape is not None
        assert all(symbols_in(dim) <= known for dim in value.shape)
    assert len(known) == 2


def test_a_part_whose_sizes_were_renamed_is_compiled() -> None:
    part = last_two()
    session = Session(part, providers=["native"], compile="wait")
    x = np.linspace(-1, 1, 15, dtype=np.float32).reshape(1, 1, 3, 5)
    (actual,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(actual, np.exp(np.maximum(x, 0)), rtol=1e-5)
    assert {placement.provider for placement in session.placement} == {"native"}
