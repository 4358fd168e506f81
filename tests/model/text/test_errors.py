"""Malformed and hostile text raises the named error with line, column, expected and actual token."""

from __future__ import annotations

import pytest

from sardonyx.errors import TextFormatError
from sardonyx.model import text

_GRAPH = '<ir_version: 8, opset_import: ["" : 17]>\ng (float[N] x) => (float[N] y) '

WRONG = {
    "nothing": ("", "1:1", "expected a model, got the end of the text"),
    "unknown key": ("<ir: 8> g () => () {}", "1:2", "expected one of ir_version, .*, got 'ir'"),
    "no arrow": ("g (float x)\n  (float y) {}", "2:3", "expected '=>' before a graph's outputs, got '\\('"),
    "unknown type": ("g (flaot[2] x) => () {}", "1:9", "expected '\\)' or ',' after a value, got '\\['"),
    "symbolic size of data": (_GRAPH + "<float[N] w = {1}> {}", "2:33", "expected numbers as sizes"),
    "unclosed string": ('g (float "x) => () {}', "1:10", "unterminated string"),
    "unclosed nodes": (_GRAPH + "{\n y = F(x)\n", "4:1", "expected '=' after a node's outputs, got the end"),
    "no value": (_GRAPH + "{ y = F <a = > (x) }", "2:45", "expected a value, got '>'"),
    "wrong type of value": (_GRAPH + '{ y = F <a: int = "s"> (x) }', "2:50", "type INT, got one of type STRING"),
    "mixed list": (_GRAPH + "{ y = F <a = [1, 2.5]> (x) }", "2:49", "type INT, got one of type FLOAT"),
    "untyped empty list": (_GRAPH + "{ y = F <a = []> (x) }", "2:45", "an empty list needs the type"),
    "reference in a list": (_GRAPH + "{ y = F <a = [@b]> (x) }", "2:46", "expected a value, got '@'"),
    "number for a string": (_GRAPH + "{ y = F <a = string {1}> (x) }", "2:53", "expected a string, got '1'"),
    "float for an integer": (_GRAPH + "{ y = F <a = int8 {1, 2.5}> (x) }", "2:54", "expected an integer, got '2.5'"),
    "float32 overflow": (_GRAPH + "{ y = F <a: float = 1e39> (x) }", "2:52", "beyond the range of float32"),
    "raw overflow": ("#@ defaults raw\ng () => () <uint8[1] w = {256}> {}", "2:26", "256, is not between 0 and 255"),
    "wrong base64": (_GRAPH + '{ y = F <a = float[1] = base64"a"> (x) }', "2:56", "invalid base64"),
    "unclosed base64": (_GRAPH + '{ y = F <a = float[1] = base64"AAAA', "2:56", "unterminated base64 block"),
    "ragged base64": (
        _GRAPH + '{ y = F <a = float[1] = base64"AAAA"> (x) }',
        "2:56",
        "expected whole entries of float_data, got 3 bytes",
    ),
    "unknown annotation": (_GRAPH + "{ y = F(x)\n#@ nosuch: 1\n}", "3:4", 'no field named "nosuch"'),
    "annotation out of place": (_GRAPH + "{ y = #@ doc_string: 'a'\n F(x) }", "2:38", "got '#@'"),
    "unset of nothing": (_GRAPH + "{ y = F(x)\n#@ unset(a.b)\n}", "3:3", "has no field 'a.b'"),
    "wrong wire": (_GRAPH + '{ y = F(x)\n#@ wire("////")\n}', "3:3", "expected the bytes of a NodeProto"),
    "unknown default": ("#@ defaults cooked\ng () => () {}", "1:13", "got 'cooked'"),
    "surrogate": ("g\ud800 () => () {}", "1:2", "surrogate"),
    "unknown escape": (_GRAPH + '{ y = F <a = b"\\q"> (x) }', "2:45", "unknown escape"),
}


@pytest.mark.parametrize(("source", "position", "problem"), WRONG.values(), ids=WRONG.keys())
def test_error_names_position_and_expectation(source: str, position: str, problem: str) -> None:
    with pytest.raises(TextFormatError, match=problem) as caught:
        text.parse(source, source="m.onnxtxt")
    assert caught.value.where == f"m.onnxtxt:{position}"


HOSTILE = {
    "graphs": _GRAPH + "{ y = If (x) <b: graph = g () => (float y) " * 3000,
    "sequences": "g (" + "seq(" * 100_000,
    "optionals in an attribute": _GRAPH + "{ y = F <t: type_proto = " + "optional(" * 100_000,
    "messages in an annotation": "#@ " + "{" * 100_000 + "\ng",
    "messages in a block": _GRAPH + "{ @{ training_info {" + "initialization {" * 20_000 + "}" * 20_003,
    "unclosed block": _GRAPH + "{ @{" + "{" * 100_000,
    "unclosed string": _GRAPH + '{ y = F("' + "a\\" * 1_000_000,
    "long integer": _GRAPH + "{ y = F <v: int = " + "9" * 1_000_000 + "> () }",
    "long fraction": _GRAPH + "{ y = F <v: float = 1." + "9" * 1_000_000 + "> () }",
    "long exponent": _GRAPH + "{ y = F <v: float = 1e" + "9" * 1_000_000 + "> () }",
    "long numbers in data": _GRAPH + "{ y = F <v = int64 {" + "9" * 1_000_000 + "}> () }",
    "unclosed data": _GRAPH + "{ y = F <v = int64 {" + "1," * 50_000,
    "size beyond int64": "g (float[99999999999999999999] x) => () {}",
    "brackets": "<" * 100_000,
    "labels": _GRAPH + "{" + "[" * 100_000,
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_gets_the_named_error(source: str) -> None:
    with pytest.raises(TextFormatError) as caught:
        text.parse(source)
    assert len(str(caught.value)) < 500


def test_huge_sizes_allocate_nothing() -> None:
    size = 2**63 - 1
    tensor = text.parse(_GRAPH + f"{{ y = F <v = float[{size},{size}] {{1}}> () }}").graph.node[0].attribute[0].t
    assert (list(tensor.dims), list(tensor.float_data)) == ([size, size], [1.0])


def test_nesting_that_is_read_can_be_stored() -> None:
    def nested(levels: int) -> str:
        return _GRAPH + "{ y = If (x) <b: graph = g () => (float y) " * levels + "{}" + ">}" * levels

    model = text.parse(nested(29))
    assert type(model).FromString(model.SerializeToString()) == model
    assert text.parse(text.print_model(model)) == model
    with pytest.raises(TextFormatError, match="nested too deeply"):
        text.parse(nested(40))
