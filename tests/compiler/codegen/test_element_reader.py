"""Elements that a kernel reads through several operators."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from sardonyx import Session
from sardonyx.compiler.codegen.element_reader import Reader

LEVEL = """
    flat{0} = Reshape (at{0}, all) feature{0} = Gather (features, flat{0}) column{0} = Reshape (feature{0}, rows)
    number{0} = GatherElements <axis = 1> (x, column{0}) gathered{0} = Gather (limits, flat{0})
    limit{0} = Reshape (gathered{0}, rows) left{0} = Gather (lefts, flat{0}) below{0} = Reshape (left{0}, rows)
    right{0} = Gather (rights, flat{0}) above{0} = Reshape (right{0}, rows)
    less{0} = LessOrEqual (number{0}, limit{0}) at{1} = Where (less{0}, below{0}, above{0})"""
"""A level of trees as converters write it: the index is read four times, through reshapes."""


def walked(levels: int) -> onnx.ModelProto:
    """Return a model of trees, walked down level by level."""
    rng = np.random.default_rng(0)
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 28] x) => (int64[N] y)
    <int64[1] all = {-1}, int64[2] rows = {-1, 6}, int64[1] six = {6}, int64[1] last = {1},
    int64[6] roots = {0, 1, 2, 3, 4, 5}>
    { n = Shape <end = 1> (x) sizes = Concat <axis = 0> (n, six) at0 = Expand (roots, sizes)"""
    text += "".join(LEVEL.format(level, level + 1) for level in range(levels))
    text += f" y = ReduceSum <keepdims = 0> (at{levels}, last) }}"
    model = onnx.parser.parse_model(text)
    tables = {
        "features": rng.integers(0, 28, 64), "lefts": rng.integers(0, 64, 64), "rights": rng.integers(0, 64, 64),
        "limits": rng.standard_normal(64).astype(np.float32),
    }  # fmt: skip
    model.graph.initializer.extend(onnx.numpy_helper.from_array(table, name) for name, table in tables.items())
    return model


def test_a_chain_of_gathers_through_reshapes_repeats_few_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [0]
    compute = Reader.computed

    def counted(self: Reader, *arguments: object) -> object:
        calls[0] += 1
        return compute(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Reader, "computed", counted)
    assert Session(walked(2), compile="wait").native is not None
    short, calls[0] = calls[0], 0
    model = walked(8)
    compiled = Session(model, compile="wait")
    assert compiled.native is not None
    # 13.5 on every processor; 31 if each reader computed the position anew.
    assert 0 < calls[0] < 20 * short
    x = np.random.default_rng(1).standard_normal((5, 28)).astype(np.float32)
    np.testing.assert_array_equal(compiled.run(None, {"x": x})[0], Session(model, compile="off").run(None, {"x": x})[0])
