"""Sequences and optionals: positions, concatenation, maps over bodies; traced results equal eager ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx.core.dim import Dim
from sardonyx.core.eval.interpreter import evaluate
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.errors import ExecutionError, NeedsValueError, SardonyxError, TypeMismatchError
from sardonyx.ops.registry import find
from sardonyx.runtime import Session

A, B, C = (np.full((2, i + 1), i, np.float32) for i in range(3))


def run(text: str, **feeds: Any) -> list[Any]:
    return Session(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {text}')).run(None, feeds)


@pytest.mark.parametrize(("position", "order"), [(0, "CAB"), (1, "ACB"), (2, "ABC"), (-1, "ACB"), (-2, "CAB")])
def test_insert_counts_from_either_end(position: int, order: str) -> None:
    text = """g (float[2,1] a, float[2,2] b, float[2,3] c, int64 i) => (seq(float[]) s) {
        ab = SequenceConstruct(a, b)  s = SequenceInsert(ab, c, i) }"""
    (actual,) = run(text, a=A, b=B, c=C, i=np.array(position))
    assert [id_of(x) for x in actual] == list(order)


def id_of(array: np.ndarray) -> str:
    return "ABC"[array.shape[1] - 1]


def test_at_erase_and_length() -> None:
    text = """g (float[2,1] a, float[2,2] b, float[2,3] c) => (float[2,M] x, seq(float[]) s, int64 n) {
        abc = SequenceConstruct(a, b, c)  i = Constant<value_int = -2>()  x = SequenceAt(abc, i)
        s = SequenceErase(abc)  n = SequenceLength(s) }"""
    x, s, n = run(text, a=A, b=B, c=C)
    assert id_of(x) == "B" and [id_of(y) for y in s] == ["A", "B"] and n == 2 and n.shape == ()


def test_concat_along_an_old_and_a_new_axis() -> None:
    text = """g (float[2,1] a, float[2,2] b) => (float[2,M] x, float[2,K,1] y) {
        ab = SequenceConstruct(a, b)  x = ConcatFromSequence<axis = -1>(ab)
        aa = SequenceConstruct(a, a)  y = ConcatFromSequence<axis = -2, new_axis = 1>(aa) }"""
    x, y = run(text, a=A, b=B)
    np.testing.assert_array_equal(x, np.concatenate([A, B], 1))
    np.testing.assert_array_equal(y, np.stack([A, A], 1))


@pytest.mark.parametrize(
    ("split", "attributes", "sizes"),
    [
        (None, "axis = 1", [(2, 1)] * 5),
        (None, "axis = 1, keepdims = 0", [(2,)] * 5),
        (np.array(2), "axis = -1", [(2, 2), (2, 2), (2, 1)]),
        (np.array([1, 0, 4]), "axis = 1, keepdims = 0", [(2, 1), (2, 0), (2, 4)]),
    ],
)
def test_split(split: np.ndarray | None, attributes: str, sizes: list[tuple[int, ...]]) -> None:
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    declaration = "" if split is None else f", int64{'[K]' if split.ndim else ''} k"
    inputs = "x, k" if declaration else "x"
    text = f"g (float[2,5] x{declaration}) => (seq(float[]) s) {{ s = SplitToSequence<{attributes}>({inputs}) }}"
    (actual,) = run(text, x=x, **({} if split is None else {"k": split}))
    assert [y.shape for y in actual] == sizes
    np.testing.assert_array_equal(np.concatenate([y.reshape(2, -1) for y in actual], 1), x)


@pytest.mark.parametrize(
    ("split", "keepdims", "element"),
    [(None, 1, "float[2, 1]"), (None, 0, "float[2]"), (2, 1, "float"), ([1, 4], 1, "float")],
)
def test_split_into_an_open_number_of_parts(split: Any, keepdims: int, element: str) -> None:
    operator = find("", "SplitToSequence", 13)
    assert operator is not None
    values = [constant(np.arange(10, dtype=np.float32).reshape(2, 5))]
    values += [] if split is None else [constant(np.array(split))]
    types = [t.TensorType(t.FLOAT, (2, Dim.symbol("N"))), *[value.type for value in values[1:]]]
    attributes = {"axis": -1, "keepdims": keepdims}
    function = trace("split", lambda *inputs: list(operator(inputs, attributes, opset=13)), types)  # type: ignore[arg-type]
    assert str(function.results[0].type) == f"sequence({element})"
    with running(RunContext()):
        (actual,), (expected,) = evaluate(function, values), operator(values, attributes, opset=13)
    assert len(actual.known) > 1
    for one, other in zip(actual.known, expected.known, strict=True):  # type: ignore[union-attr]
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("nodes", "error"),
    [
        ("i = Constant<value_int = 2>()  y = SequenceAt(s, i)", ExecutionError),
        ("i = Constant<value_int = -3>()  y = SequenceAt(s, i)", ExecutionError),
        ("y = ConcatFromSequence<axis = 0>(s)", ExecutionError),
        ("y = ConcatFromSequence<axis = 5>(s)", SardonyxError),
        ("i = Constant<value_int = 3>()  r = SequenceInsert(s, a, i)  y = SequenceAt(r, i)", ExecutionError),
        ("e = SequenceEmpty()  y = ConcatFromSequence<axis = 0>(e)", ExecutionError),
        ("e = SequenceEmpty<dtype = 7>()  r = SequenceInsert(e, a)  y = SequenceLength(r)", TypeMismatchError),
        ("k = Constant<value_ints = [1, 2]>()  r = SplitToSequence(a, k)  y = SequenceLength(r)", ExecutionError),
        ("k = Constant<value_int = 0>()  r = SplitToSequence(a, k)  y = SequenceLength(r)", ExecutionError),
        ("o = Optional<type = float[2]>()  y = OptionalGetElement(o)", ExecutionError),
    ],
)
def test_invalid_inputs_are_refused(nodes: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="node "):
        run(f"g (float[2,1] a, float[2,2] b) => (y) {{ s = SequenceConstruct(a, b)  {nodes} }}", a=A, b=B)


def test_map_runs_a_body_for_each_element() -> None:
    text = """g (seq(float[M]) s, float[1] k) => (seq(float[M]) y, seq(int64[1]) z) {
        y, z = SequenceMap<body = b (float[M] x, float[1] f) => (float[M] p, int64[1] n) {
            p = Mul(x, f)  n = Shape(x) }>(s, k) }"""
    y, z = run(text, s=[np.ones(2, np.float32), np.ones(3, np.float32)], k=np.array([3], np.float32))
    assert [list(x) for x in y] == [[3, 3], [3, 3, 3]] and [list(x) for x in z] == [[2], [3]]
    assert run(text, s=[], k=np.array([3], np.float32)) == [[], []]


def test_optionals_have_elements_or_not() -> None:
    text = """g (float[2] x, optional(seq(float[2])) s) => (bool a, bool b, bool c, bool d, float[2] y) {
        o = Optional(x)  e = Optional<type = float[2]>()
        a = OptionalHasElement(o)  b = OptionalHasElement(e)  c = OptionalHasElement(s)  d = OptionalHasElement()
        y = OptionalGetElement(x) }"""
    x = np.ones(2, np.float32)
    assert [bool(v) for v in run(text, x=x, s=None)[:4]] == [True, False, False, False]
    assert [bool(v) for v in run(text, x=x, s=[x])[:4]] == [True, False, True, False]


def apply(name: str, *inputs: Value, **attributes: Any) -> Value:
    operator = find("", name, 18)
    assert operator is not None
    (result,) = operator(inputs, attributes, opset=18)
    assert result is not None
    return result


def test_traced_equals_eager() -> None:
    def body(x: Value, y: Value, i: Value) -> list[Value]:
        pair = apply("SequenceInsert", apply("SequenceConstruct", x, y), apply("Neg", x), i)
        return [apply("SequenceAt", pair, i), apply("ConcatFromSequence", pair, axis=1), apply("SequenceLength", pair)]

    type_ = t.TensorType(t.FLOAT, (2, Dim.symbol("N")))
    function = trace("g", body, [type_, type_, t.TensorType(t.INT64, ())])
    arrays = [B, B + 1, np.array(1)]
    with running(RunContext()):
        arguments = [constant(array) for array in arrays]
        for actual, expected in zip(evaluate(function, arguments), body(*arguments), strict=True):
            np.testing.assert_array_equal(actual.known, expected.known)


def test_elements_of_several_shapes_have_a_rank_at_run_time_alone() -> None:
    def body(x: Value, y: Value, i: Value) -> list[Value]:
        return [apply("Neg", apply("Transpose", apply("SequenceAt", apply("SequenceConstruct", x, y), i)))]

    types = [t.TensorType(t.FLOAT, (2,)), t.TensorType(t.FLOAT, (2, 3)), t.TensorType(t.INT64, ())]
    with pytest.raises(NeedsValueError):
        trace("g", body, types)
