"""Application of primitives: tensor arithmetic, folding while tracing, symbolic sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.programs import eagerly

from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.eval.tensor import broadcast_shapes, constant, function_input, sizes_of
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType
from sardonyx.errors import ShapeError, TypeMismatchError

N, M = Dim.symbol("N"), Dim.symbol("M")


def make_input(*shape: int | Dim, dtype: t.DType = t.FLOAT) -> L.Tensor:
    return function_input(0, 0, TensorType(dtype, shape))  # type: ignore[return-value]


shapes = st.lists(st.integers(0, 3), max_size=4).map(tuple)


@given(a=shapes, b=shapes)
def test_broadcasting_equals_numpy(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    try:
        expected = np.broadcast_shapes(a, b)
    except ValueError:
        with pytest.raises(ShapeError, match="do not broadcast"):
            broadcast_shapes(a, b)
    else:
        assert broadcast_shapes(a, b) == expected


@given(a=shapes, b=shapes, x=st.floats(-9, 9), y=st.floats(-9, 9))
def test_eager_arithmetic_equals_numpy(a: tuple[int, ...], b: tuple[int, ...], x: float, y: float) -> None:
    left, right = np.full(a, x), np.full(b, y)
    try:
        expected = left * 2 + right
    except ValueError:
        with pytest.raises(ShapeError):
            eagerly(lambda p, q: [p * 2 + q], [left, right])
    else:
        (actual,) = eagerly(lambda p, q: [p * 2 + q], [left, right])
        assert actual.shape == expected.shape
        np.testing.assert_array_equal(actual, expected)


def test_numbers_get_the_element_type_of_the_tensor() -> None:
    x = make_input(N, dtype=t.BFLOAT16)
    assert (x + 1).dtype == t.BFLOAT16
    assert (2.5 - x).dtype == t.BFLOAT16
    with pytest.raises(TypeMismatchError, match="equal element types"):
        _ = x + make_input(N, dtype=t.FLOAT)


def test_a_run_preserves_signed_zeros_and_nan() -> None:
    with running(RunContext()):
        x = constant(np.array([2.0, -2.0]))
        assert np.signbit((x * 0.0).known).tolist() == [False, True]
        assert np.signbit((x * -0.0).known).tolist() == [True, False]
        assert np.isnan((x * float("nan")).known).all()


@pytest.mark.parametrize("compute", [lambda x: -x, lambda x: x + 1, lambda x: L.reduce_sum(x), L.exp, lambda x: x < 1])
def test_results_without_axes_are_arrays(compute: object) -> None:
    with running(RunContext()):
        assert type(compute(constant(np.float32(2))).known) is np.ndarray  # type: ignore[operator]


def test_small_constants_are_folded_and_large_ones_recorded() -> None:
    assert (L.constant([1.0, 2.0], t.FLOAT) + 1).is_constant
    assert not (L.constant(np.ones(5000), t.FLOAT) + 1).is_constant
    assert not L.uniform((2,), t.FLOAT, seed=1.0, identity="").is_constant


def test_shape_arithmetic_stays_an_expression() -> None:
    x = make_input(N, 4, M)
    shape = L.shape_tensor(x)
    half = L.take(shape, L.constant([0, 2], t.INT64), 0) / 2
    assert sizes_of(half) == (N // 2, M // 2)
    assert sizes_of(L.reduce_product(shape)) == (4 * N * M,)
    assert sizes_of(L.concat([shape, L.constant([7], t.INT64)], 0)) == (N, 4, M, 7)
    assert L.sizes(L.cast(L.cast(shape, t.INT32), t.INT64)) == (N, 4, M)


def test_division_of_a_possibly_negative_size_is_not_symbolic() -> None:
    shape = L.shape_tensor(make_input(N))
    assert sizes_of((shape - 5) / 2) is None
    assert sizes_of(shape - 5) == (N - 5,)


@pytest.mark.parametrize(("doublings", "last"), [(40, 3 << 40), (900, None)])
def test_shapes_of_long_chains_are_walked_once(doublings: int, last: int | None) -> None:
    """Each value is read twice by the next one; beyond a depth, elements are unknown."""

    def body(n: L.Tensor) -> list[L.Tensor]:
        shape = L.concat([n, L.constant([3], t.INT64)], 0)
        for _ in range(doublings):
            shape = shape + shape
        _, known = L.sizes(shape)
        assert known == last if last is not None else isinstance(known, Dim)
        return [n]

    trace("chain", body, [TensorType(t.INT64, (1,))])


def test_known_elements_of_a_shape_are_known_beside_computed_ones() -> None:
    def body(n: L.Tensor, x: L.Tensor) -> list[L.Tensor]:
        shape = L.concat([L.size_tensor([x.shape[0], 4]), n * 2, L.constant([1], t.INT64)], 0)
        is_large = L.reduce_sum(n) > 9  # Unknown, but no known element depends on the answer.
        inferred = L.equal(shape, -1) & L.broadcast_to(L.reshape(is_large, (1,)), (4,))
        first, second, third, last = L.sizes(L.where(inferred, -2, shape))
        assert (first, second, last) == (N, 4, 1)
        assert isinstance(third, Dim) and third.symbols() != first.symbols()  # type: ignore[union-attr]
        return [n]

    trace("shape", body, [TensorType(t.INT64, (1,)), TensorType(t.FLOAT, (N,))])


def test_each_data_dependent_size_is_its_own_symbol() -> None:
    n = make_input(2, dtype=t.INT64)
    first, second = L.sizes(n)
    assert L.sizes(n) == (first, second)
    assert first is not second
    with pytest.raises(ShapeError, match="-1"):
        L.sizes(L.constant([-1], t.INT64))


def test_a_caller_that_writes_to_an_array_changes_no_equal_constant() -> None:
    array = np.full(3, 0.01, np.float32)
    first = constant(array)
    array += 1
    second = constant(np.full(3, 0.01, np.float32))
    np.testing.assert_array_equal(second.params["value"], np.full(3, 0.01, np.float32))
    np.testing.assert_array_equal(first.params["value"], second.params["value"])
