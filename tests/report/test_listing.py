"""Rows of nodes and weights."""

from __future__ import annotations

import onnx
import pytest

import sardonyx
from sardonyx import demo

NET = """<ir_version: 8, opset_import: ["": 17]>
net (float[N, 3] x, bool c) => (float[N, 2] y) <float[3, 2] w = {1, 0, 0, -4, 5, 0}, float[2] b = {1, 1}> {
  [product] p = MatMul(x, w)
  [sum] s = Add(p, b)
  [soft] t = Softmax <axis = 1>(s)
  [choice] y = If (c) <then_branch = t () => (float[N, 2] a) { [negated] a = Neg(t) },
                       else_branch = e () => (float[N, 2] d) { [same] d = Identity(t) }>
}"""


def test_nodes_are_listed_with_shapes_attributes_and_cost() -> None:
    rows = {row.name: row for row in sardonyx.list_nodes(onnx.parser.parse_model(NET), sizes={"N": 5})}
    product = rows["product"]
    assert (product.operator, product.inputs, product.outputs) == ("MatMul", ("x", "w"), ("p",))
    assert product.types == ("float[5, 2]",)
    assert (product.macs, product.parameters, product.weight_bytes, product.output_bytes) == (30, 6, 24, 40)
    assert rows["soft"].attributes == {"axis": "1"}
    assert rows["soft"].macs is None
    assert rows["choice"].attributes["then_branch"] == "graph of 1 nodes"
    assert rows["negated"].graph == "choice.then_branch"


def test_open_sizes_give_expressions_and_no_bytes() -> None:
    rows = {row.name: row for row in sardonyx.list_nodes(onnx.parser.parse_model(NET))}
    assert (rows["product"].macs, rows["product"].output_bytes) == ("6*N", None)


def test_the_rows_sum_to_the_summary() -> None:
    path = demo.path("digits_classifier")
    info, rows = sardonyx.summary(path, sizes={"batch": 2}), sardonyx.list_nodes(path, sizes={"batch": 2})
    assert len(rows) == info.nodes
    assert sum(int(row.macs or 0) for row in rows) == info.macs


def test_weights_are_listed_with_range_and_zeros() -> None:
    first, second = sardonyx.list_weights(onnx.parser.parse_model(NET))
    assert (first.name, first.type, first.shape, first.bytes, first.readers) == ("w", "float", (3, 2), 24, 1)
    assert (first.least, first.largest, first.zeros) == (-4.0, 5.0, 0.5)
    assert (second.name, second.zeros) == ("b", 0.0)


@pytest.mark.parametrize("value", ['{"a", "b"}', "{1, 2}"])
def test_weights_of_every_type_are_listed(value: str) -> None:
    kind = "string" if '"' in value else "int64"
    text = (
        f'<ir_version: 8, opset_import: ["": 17]> g () => ({kind}[2] y) <{kind}[2] w = {value}> {{ y = Identity(w) }}'
    )
    (row,) = sardonyx.list_weights(onnx.parser.parse_model(text))
    assert (row.type, row.shape, row.least is None) == (kind, (2,), kind == "string")
