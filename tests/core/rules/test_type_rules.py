"""Type rules: what they refuse, and that they agree with what numpy gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.programs import AT, random_program
from tests.random_cases import cases

from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.interpreter import evaluate
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.eval.tensor import apply, constant, function_input
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import function
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.ir.types import MapType, OptionalType, SequenceType, TensorType
from sardonyx.core.rules.assumed_sizes import same_type
from sardonyx.core.rules.type_rules import TYPE_RULES
from sardonyx.errors import ShapeError, TypeMismatchError

N, M = Dim.symbol("N"), Dim.symbol("M")


def test_every_primitive_has_a_rule() -> None:
    assert TYPE_RULES.keys() == PRIMITIVES.keys()


@settings(max_examples=cases(40), deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_types_are_what_numpy_gives_on_random_programs(seed: int) -> None:
    """Every value of a traced program has, when it is run, the element type and sizes that its rule told."""
    program = random_program(np.random.default_rng(seed))
    traced = program.traced()
    tensors = [v for v in traced.values if isinstance(v.type, TensorType)]
    every = function("every", traced.inputs, tensors, traced.level)
    for sizes, arrays in zip(AT, program.arrays, strict=True):
        with running(RunContext()):
            actual = evaluate(every, [constant(array) for array in arrays])
        for value, one in zip(tensors, actual, strict=True):
            assert one.known.dtype == t.numpy_dtype(value.type.dtype), value
            assert one.known.shape == one.type.shape
            for size, number in zip(value.type.shape or (), one.known.shape, strict=True):
                if isinstance(size, int) or size.symbols() <= sizes.keys():
                    assert (size if isinstance(size, int) else size.evaluate(sizes)) == number, value


ELEMENTWISE = [p.name for p in PRIMITIVES.values() if p.kind in ("unary", "binary")]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_results_for_every_element_type(name: str) -> None:
    accepted = 0
    for dtype in t.ALL_DTYPES:
        array = np.array([["a", "b"]], object) if dtype == t.STRING else np.ones((1, 2)).astype(t.numpy_dtype(dtype))
        with running(RunContext()):
            x = constant(array, dtype)
            operands = [x, x] if PRIMITIVES[name].kind == "binary" else [x]
            try:
                actual = apply(name, *operands)
            except TypeMismatchError:
                continue
        accepted += 1
        assert actual.known.shape == (1, 2)
        assert actual.known.dtype == t.numpy_dtype(actual.dtype)
        assert actual.dtype == (t.BOOL if name in ("equal", "less") else dtype)
    assert accepted


X = function_input(0, 0, TensorType(t.FLOAT, (N, 4)))
I = function_input(0, 1, TensorType(t.INT64, (3, 1)))  # noqa: E741
S = function_input(0, 2, SequenceType(TensorType(t.FLOAT, None)))
ZERO = L.constant(0.0, t.FLOAT)
REFUSED = {
    "axis out of range": (ShapeError, lambda: apply("reduce", X, kind="add", axes=(2,))),
    "argmax over nothing": (ShapeError, lambda: L.argmax(L.full((0,), 1.0, t.FLOAT), 0)),
    "argmax over two axes": (ShapeError, lambda: apply("reduce", X, kind="argmax", axes=(0, 1))),
    "sizes proven different": (ShapeError, lambda: apply("add", X, L.slice_(X, 1, 0, 3))),
    "ranks differ": (ShapeError, lambda: apply("add", X, ZERO)),
    "element types differ": (TypeMismatchError, lambda: X + L.cast(X, t.DOUBLE)),
    "no logarithm of integers": (TypeMismatchError, lambda: L.log(I)),
    "no sum of booleans": (TypeMismatchError, lambda: L.reduce_sum(X < 0)),
    "a sequence is no tensor": (TypeMismatchError, lambda: apply("neg", S)),
    "condition": (TypeMismatchError, lambda: apply("select", X, X, X)),
    "reshape": (ShapeError, lambda: L.reshape(L.full((2, 3), 1.0, t.FLOAT), (4,))),
    "permute": (ShapeError, lambda: apply("permute", X, axes=(0, 0))),
    "broadcast": (ShapeError, lambda: apply("broadcast", X, shape=(N, 5))),
    "slice beyond": (ShapeError, lambda: L.slice_(X, 1, 0, 5)),
    "slice beyond an open size": (ShapeError, lambda: L.slice_(X, 0, 0, N + 1)),
    "slice backward": (ShapeError, lambda: L.slice_(X, 1, 3, 2)),
    "pad of another type": (TypeMismatchError, lambda: L.pad(X, (0, 0), (0, 0), L.constant(0, t.INT64))),
    "crop of more than there is": (ShapeError, lambda: L.pad(L.full((2,), 1.0, t.FLOAT), (-2,), (-1,))),
    "concat": (ShapeError, lambda: L.concat([X, L.slice_(X, 1, 0, 3)], 0)),
    "concat of two types": (TypeMismatchError, lambda: L.concat([X, L.cast(X, t.DOUBLE)], 0)),
    "index vectors too long": (ShapeError, lambda: apply("gather", ZERO, I, batch=0)),
    "indices of floats": (TypeMismatchError, lambda: apply("gather", X, X, batch=0)),
    "updates": (ShapeError, lambda: apply("scatter", X, I, L.full((2, 4), 1.0, t.FLOAT), kind="set", batch=0)),
    "contract": (ShapeError, lambda: L.contract(X, L.slice_(X, 1, 0, 3), left=[1], right=[1])),
    "square": (ShapeError, lambda: L.determinant(L.full((2, 3), 1.0, t.FLOAT))),
    "real fft": (TypeMismatchError, lambda: L.fft(X)),
    "top of more": (ShapeError, lambda: L.top_k(X, 1, 5)),
    "bitcast": (ShapeError, lambda: L.bitcast(L.full((3,), 1.0, t.FLOAT), t.DOUBLE)),
    "bind of floats": (TypeMismatchError, lambda: L.sizes(L.reshape(L.slice_(X, 1, 0, 1), (1,)))),
    "one result": (TypeMismatchError, lambda: apply("get", X, index=0)),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name: str) -> None:
    error, make = REFUSED[name]
    with pytest.raises(error) as caught:
        make()
    assert caught.value.problem.endswith(".")


def test_types_that_may_be_the_same() -> None:
    a, b = TensorType(t.FLOAT, (N, 2)), TensorType(t.FLOAT, (M, 2))
    assert same_type(a, b)
    assert same_type(a, TensorType(t.FLOAT, None))
    assert not same_type(a, TensorType(t.FLOAT, (N, 3)))
    assert not same_type(a, TensorType(t.FLOAT, (N + 1, 2)))
    assert same_type(SequenceType(a), SequenceType(b))
    assert not same_type(SequenceType(a), OptionalType(a))
    assert not same_type(MapType(t.INT64, a), MapType(t.STRING, a))
    assert same_type(MapType(t.INT64, a), MapType(t.INT64, b))
