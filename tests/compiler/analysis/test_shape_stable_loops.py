"""Loops whose state keeps its sizes as far as numbers tell are native; where it does not, results are the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from tests.compiler.program_checks import restored_copy
from tests.core.programs import computed

import sardonyx
from sardonyx.compiler import pipeline
from sardonyx.compiler.call.stepwise import Call
from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.ir.types import TensorType
from sardonyx.core.transform.simplify import simplify

K, M = Dim.symbol("K"), Dim.symbol("M")
COUNT = TensorType(t.INT64, ())


def recurrence(*, counted: bool) -> Function:
    """A state of K that becomes one of M, or stays as it is: a batch of which nothing is known."""

    def whole(start: L.Tensor, x: L.Tensor, most: L.Tensor) -> list[L.Tensor]:
        def step(i: L.Tensor, s: L.Tensor) -> tuple[L.Tensor, list[L.Tensor], list[L.Tensor]]:
            new = L.tanh(s + x)
            return (L.reduce_sum(new) < L.full((), 50, t.FLOAT)) if counted else None, [new], [new * 2]  # type: ignore[return-value]

        (last,), (rows,) = L.loop(most, None, [start], step)
        return [last - 1, rows + 1]

    types = [TensorType(t.FLOAT, (K,)), TensorType(t.FLOAT, (M,)), COUNT]
    return simplify(trace("f", whole, types))


def interpreted(program: Program, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return a function that counts the loops interpreted since its last call."""
    seen: list[object] = []
    before = Call.interpret

    def counting(call: Call, value: Value) -> None:
        if call.program is program:
            seen.append(value)
        before(call, value)

    monkeypatch.setattr(Call, "interpret", counting)

    def newly_interpreted() -> int:
        number = len(seen)
        seen.clear()
        return number

    return newly_interpreted


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("counted", [False, True])
def test_it_is_native_where_sizes_stay(counted: bool, restored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    function = recurrence(counted=counted)
    program = Program.compile(function)
    assert not program.host
    if restored:
        program = restored_copy(program)
        monkeypatch.setattr(pipeline, "compile_bodies", None)
    loops = interpreted(program, monkeypatch)
    rng = np.random.default_rng(0)
    # Of what is collected in no iterations, nobody knows the sizes.
    for k, m, trips, by_interpreter in (
        (5, 5, 4, 0),
        (1, 7, 3, 1),
        (1, 1, 3, 0),
        (9, 1, 2, 0),
        (5, 5, 0, 1),
        (1, 7, 0, 1),
    ):
        arrays = [rng.random(k, np.float32), rng.random(m, np.float32), np.array(trips)]
        for _ in range(2):
            for actual, expected in zip(program.run(arrays), computed(function, arrays), strict=True):
                assert actual.shape == expected.shape
                np.testing.assert_allclose(actual, expected, rtol=1e-5)
            assert loops() == by_interpreter


@pytest.mark.parametrize("more", [3, M])
def test_state_that_grows(more: int | Dim) -> None:
    def whole(start: L.Tensor, x: L.Tensor, most: L.Tensor) -> list[L.Tensor]:
        return list(L.loop(most, None, [start], lambda i, s: (None, [L.concat([s, x], 0)], []))[0])

    types = [TensorType(t.FLOAT, (K,)), TensorType(t.FLOAT, (more,)), COUNT]
    function = simplify(trace("f", whole, types))
    program = Program.compile(function)
    # Where nothing is added the state keeps its size.
    assert [value.op for value in program.host] == (["loop", "get"] if more == 3 else [])
    for size in (3,) if more == 3 else (0, 2):
        arrays = [np.zeros(2, np.float32), np.ones(size, np.float32), np.array(4)]
        np.testing.assert_array_equal(program.run(arrays)[0], computed(function, arrays)[0])


def test_state_that_grows_from_a_known_size() -> None:
    def whole(x: L.Tensor, most: L.Tensor) -> list[L.Tensor]:
        return list(L.loop(most, None, [L.full((0,), 0, t.FLOAT)], lambda i, s: (None, [L.concat([s, x], 0)], []))[0])

    function = simplify(trace("f", whole, [TensorType(t.FLOAT, (1,)), COUNT]))
    for trips in (0, 3):
        arrays = [np.ones(1, np.float32), np.array(trips)]
        np.testing.assert_array_equal(Program.compile(function).run(arrays)[0], np.ones(trips))


@pytest.mark.parametrize("size", [5, 1])
def test_it_is_one_kernel_for_a_profile(size: int) -> None:
    text = """<ir_version: 9, opset_import: ["": 18]>
    g (float[K] s, float[M] x, int64 most) => (float[?] last) {
        yes = Constant <value = bool {1}> ()
        last = Loop (most, yes, s) <body = step (int64 i, bool c, float[?] a) => (bool d, float[?] b) {
            d = Identity (c)
            b = Add (a, x)
        }>
    }"""
    model = onnx.parser.parse_model(text)
    (body,) = (attribute.g for attribute in model.graph.node[-1].attribute)
    for value in (body.input[2], body.output[1], model.graph.output[0]):
        value.type.tensor_type.ClearField("shape")
    session = sardonyx.Session(model, compile="wait")
    feeds = {"s": np.zeros(size, np.float32), "x": np.ones(5, np.float32), "most": np.array(4)}
    profile = session.profile(feeds, runs=1)
    assert [kernel.note.title for kernel in profile.kernels] == ["loop"]
    assert not profile.interpreted
    np.testing.assert_array_equal(session.run(None, feeds)[0], np.full(5, 4))


def test_other_weights_are_a_program_of_their_own() -> None:
    function = recurrence(counted=False)
    assert Program.compile(function).reweighted(function) is None
