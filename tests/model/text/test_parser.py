"""The parser agrees with onnx's parser, and numbers are exact to the last bit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sardonyx.model import text
from sardonyx.model.text.decimals import format_floats, parse_floats

_HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
_GRAPH = _HEADER + "g (float[N] x) => (float[N] y) "

AS_ONNX = {
    "no header": "g (float x) => (float y) { y = Relu(x) }",
    "comments": _HEADER + "# a { comment\ng (float x # here\n) => (float y) { # and\n y = Relu(x) # there\n}",
    "header in full": '<ir_version: 8, producer_name: "p", producer_version: "1", domain: "d", model_version: 3,'
    ' doc_string: "a \\"quoted\\" \\\\ word\nline", opset_import: ["" : 17, "ai.onnx.ml" : 3],'
    ' metadata_props: ["k" : "v", "k" : ""]> g () => () {}',
    "empty metadata": "<metadata_props: [], opset_import: []> g () => () {}",
    "no inputs": _HEADER + "g => (float y) { y = F() }",
    "quoted names": _HEADER + '"my-graph" (float["a/b"] "in 1") => (float "out:0") { "out:0" = Relu("in 1") }',
    "untyped values": _HEADER + "g (x, float[] z) => (y) { y = Relu(x) }",
    "initialized input": _HEADER
    + "g (float[2] x = {1, 2}, int64 n) => (float[2] y) <int8[1] w = {-3}, float h> { y = R(x) }",
    "types": _HEADER + "g (seq(float[2]) a, map(int64, string) b, optional(seq(float)) c, sparse_tensor(float[?,3]) d,"
    " opaque() e, opaque(n.m) f, opaque(d.e, n) g) => () {}",
    "empty names": _GRAPH + '{ y = F(,x) z = F(x,) w = F("", x) v, = F(,) }',
    "domains": _GRAPH + "{ y = com.my.domain.F(x) z = ai.onnx.ml.G:over(x) }",
    "labels": _GRAPH + '{ [n0] y = F(x) ["n 1"] z = F(x) [] w = F(x) }',
    "attributes after": _GRAPH + "{ y = F(x) <a = 1, b = 2.5> z = F <c = -3> (x) }",
    "scalars": _GRAPH
    + '{ y = F <a = 1, b = -1.5e3, c = "s", d: float = 2, e: float = -0, f = 1., g = inf, h = -nan> (x) }',
    "special floats": _GRAPH + "{ y = F <a = Infinity, b: floats = [nan, -INF, 1e-46, 3.5], c = 1e5> (x) }",
    "lists": _GRAPH + '{ y = F <a = [1, 2], b = [1.5, 2], c = ["p", "q"], d: ints = [], e: floats = [1, 2]> (x) }',
    "tensors": _GRAPH
    + "{ y = F <a = float[2] {1, 2.5}, b = float[1] name = {1}, c: tensor = int8 {5}, d = bool[0] {}> (x) }",
    "typed data": _GRAPH
    + '{ y = F <a = uint64[2] {1, 18446744073709551615}, b = double {1e308}, c = string[2] {"p", "q"},'
    " d = float16[2] {15360, 0}, e = complex64[1] {1, 2}, f = int4[2] {33}, g = float6e2m3 {1}> (x) }",
    "external data": _GRAPH + '{ y = F <a = float[2] = ["location": "w", "offset": "0"]> (x) }',
    "type attributes": _GRAPH + "{ y = F <a = float[N], b: type_proto = seq(int64)> (x) }",
    "graph attributes": _GRAPH
    + "{ y = If(x) <t = th () => (float a) <float b> { a = G(x) }, e: graph = el => () {}> }",
    "functions": _GRAPH + '{ y = d.F(x) } <domain: "d", opset_import: ["" : 17], doc_string: "doc", overload: "o">'
    " F <alpha, beta: float = 1, gamma = [1]> (x, float[2] z) => (y) <int64 t>"
    " { y = G <a: float = @alpha, b = @beta> (x) }"
    ' <domain: "d"> H () => () {}',
    "leading zeros": _GRAPH + "{ y = F <a = 007, b = int32 {010}> (x) }",
    "data after equals": _HEADER + "g () => () <float[0] w =, float[2] v = {1,2}> {}",
}


@pytest.mark.parametrize("source", AS_ONNX.values(), ids=AS_ONNX.keys())
def test_parser_agrees_with_onnx(source: str) -> None:
    expected = onnx.parser.parse_model(source)
    parsed = text.parse(source)
    assert parsed.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)


def test_lists_that_onnx_drops_are_kept() -> None:
    source = (
        _GRAPH
        + "{ y = F <a: tensors = [float {1}, float {2}], b: graphs = [p () => () {}], c: type_protos = [float]> (x) }"
    )
    a, b, c = text.parse(source).graph.node[0].attribute
    assert ([list(tensor.float_data) for tensor in a.tensors], b.graphs[0].name) == ([[1.0], [2.0]], "p")
    assert c.type_protos[0].tensor_type.elem_type == onnx.TensorProto.FLOAT


def test_byte_order_mark_is_skipped() -> None:
    assert text.parse("\ufeff" + _GRAPH + "{}") == text.parse(_GRAPH + "{}")


@given(st.lists(st.floats(width=32), max_size=20))
def test_float32_round_trips_bit_for_bit(values: list[float]) -> None:
    bits = np.array(values, np.float32)
    texts = format_floats(bits)
    if texts is None:
        assert np.isnan(bits).any()
        return
    assert parse_floats(texts, bits.dtype).tobytes() == bits.tobytes()


@given(st.lists(st.floats(allow_nan=False), max_size=20))
def test_float64_round_trips_bit_for_bit(values: list[float]) -> None:
    doubles = np.array(values, np.float64)
    assert parse_floats(format_floats(doubles) or [], doubles.dtype).tobytes() == doubles.tobytes()


@given(st.floats(min_value=0, max_value=2.0**120, width=32), st.integers(-3, 3))
def test_decimals_near_the_middle_of_two_floats_round_once(value: float, step: int) -> None:
    low = np.float32(value)
    high = np.nextafter(low, np.float32(np.inf))
    middle = (Fraction(float(low)) + Fraction(float(high))) / 2
    digits = 200
    decimal = str(round(middle * 10**digits) + step * 10 ** (digits // 8)).rjust(digits + 1, "0")
    written = f"{decimal[:-digits]}.{decimal[-digits:]}"
    parsed = Fraction(float(parse_floats([written], np.dtype(np.float32))[0]))
    exact = Fraction(written)
    assert abs(parsed - exact) <= min(abs(Fraction(float(low)) - exact), abs(Fraction(float(high)) - exact))
