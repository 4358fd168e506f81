"""The value of primitives: against numpy where it has them, and against plain loops where it has not."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.programs import eagerly
from tests.random_cases import cases

from sardonyx.core import language as L
from sardonyx.core.eval.tensor import apply
from sardonyx.core.ir import types as t
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.rules.numpy_rules import NUMPY_RULES
from sardonyx.errors import ExecutionError

seeds = st.integers(0, 2**32 - 1)


def test_every_primitive_but_control_and_names_has_a_rule() -> None:
    named = {"constant", "input", "bind", "cond", "loop", "call", "host", "get"}
    assert NUMPY_RULES.keys() == PRIMITIVES.keys() - named


@given(a=st.integers(-(2**31), 2**31 - 1), b=st.integers(-(2**31), 2**31 - 1).filter(bool))
def test_integer_division_rounds_toward_zero(a: int, b: int) -> None:
    x, y = np.array([a], np.int64), np.array([b], np.int64)
    quotient, rest = eagerly(lambda x, y: [x / y, L.remainder(x, y)], [x, y])
    assert quotient[0] == (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)
    assert rest[0] == math.fmod(a, b)


def test_division_of_integers_by_zero_names_the_place() -> None:
    with pytest.raises(ExecutionError, match=r"divided by zero, at \[1\]"):
        eagerly(lambda x, y: [x / y], [np.ones(3, np.int32), np.array([1, 0, 1], np.int32)])


def test_sixteen_bit_floats_are_rounded_once() -> None:
    x = np.array([1.0, 3.0], t.numpy_dtype(t.BFLOAT16))
    (actual,) = eagerly(lambda x: [L.exp(x)], [x])
    assert actual.tolist() == np.exp(x.astype(np.float32)).astype(x.dtype).tolist()
    ones = np.ones(4096, np.float16)
    assert eagerly(lambda x: [L.reduce_sum(x)], [ones])[0] == 4096


@pytest.mark.parametrize("kind", ["add", "mul", "max", "min"])
def test_reductions_of_nothing_give_the_identity(kind: str) -> None:
    (actual,) = eagerly(lambda x: [apply("reduce", x, kind=kind, axes=(0,))], [np.empty((0, 2))])
    assert actual.tolist() == [{"add": 0, "mul": 1, "max": -math.inf, "min": math.inf}[kind]] * 2


def test_the_first_of_equals_is_chosen() -> None:
    x = np.array([1.0, 3.0, 3.0, 1.0])
    most, least, order, down, top = eagerly(
        lambda x: [L.argmax(x, 0), L.argmin(x, 0), L.sort(x, 0), L.sort(x, 0, True), L.top_k(x, 0, 2)], [x]
    )
    assert (most, least) == (1, 0)
    assert order.tolist() == [0, 3, 1, 2]
    assert down.tolist() == [1, 2, 0, 3]
    assert top.tolist() == [1, 2]


@settings(max_examples=cases(25), deadline=None)
@given(seed=seeds)
def test_contract_is_einsum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((2, 3, 4, 5)), rng.standard_normal((4, 2, 5, 6))
    (actual,) = eagerly(lambda x, y: [L.contract(x, y, batch=[(0, 1)], left=[3, 2], right=[2, 0])], [x, y])
    np.testing.assert_allclose(actual, np.einsum("abcd,cade->abe", x, y), rtol=1e-12, atol=1e-12)


def test_contract_of_bytes_sums_exactly_in_32_bits() -> None:
    x = np.full((1, 1 << 16), -128, np.int8)
    (actual,) = eagerly(lambda x: [L.contract(x, x, left=[1], right=[1], dtype=t.INT32)], [x])
    assert actual.tolist() == [[1 << 30]]


@settings(max_examples=cases(40), deadline=None)
@given(seed=seeds)
def test_convolve_is_its_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    channels, n = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    space, kernel = rng.integers(1, 6, n).tolist(), rng.integers(1, 4, n).tolist()
    strides, base, dilation = (rng.integers(1, 3, n).tolist() for _ in range(3))
    padding = [tuple(pair) for pair in rng.integers(-1, 4, (n, 2)).tolist()]
    x, w = rng.standard_normal((2, 2, channels, *space)), rng.standard_normal((2, 3, channels, *kernel))
    wide = [(s - 1) * b + 1 + low + high for s, b, (low, high) in zip(space, base, padding, strict=True)]
    out = [(s - (d * (k - 1) + 1)) // p + 1 for s, d, k, p in zip(wide, dilation, kernel, strides, strict=True)]
    if min(wide) < 0 or min(out) < 0:
        return
    expected = np.zeros((2, 2, 3, *out))
    for o, k in itertools.product(itertools.product(*map(range, out)), itertools.product(*map(range, kernel))):
        at = [i * s + j * d - low for i, j, s, d, (low, _) in zip(o, k, strides, dilation, padding, strict=True)]
        if all(p % b == 0 and 0 <= p // b < size for p, b, size in zip(at, base, space, strict=True)):
            row = x[(..., *(p // b for p, b in zip(at, base, strict=True)))]
            expected[(..., *o)] += np.einsum("gnc,gmc->gnm", row, w[(..., *k)])
    params = {"strides": tuple(strides), "padding": tuple(padding), "base_dilation": tuple(base)}
    (actual,) = eagerly(
        lambda x, w: [apply("convolve", x, w, **params, kernel_dilation=tuple(dilation), dtype=t.DOUBLE)], [x, w]
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@settings(max_examples=cases(40), deadline=None)
@given(seed=seeds, kind=st.sampled_from(["add", "max", "min", "argmax", "argmin"]))
def test_reduce_window_is_its_definition(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(-3, 3, (2, 5, 6)).astype(np.float64)
    window, strides, dilation = rng.integers(1, 3, (3, 2)).tolist()
    padding = [(1, 1), (0, 1)] if min(window) > 1 else [(0, 0), (0, 0)]
    (actual,) = eagerly(
        lambda x: [L.reduce_window(kind, x, window, strides=strides, padding=padding, dilation=dilation)], [x]
    )
    for o in np.ndindex(*actual.shape[1:]):
        positions = [
            tuple(i * s + j * d - low for i, j, s, d, (low, _) in zip(o, k, strides, dilation, padding, strict=True))
            for k in np.ndindex(*window)
        ]
        inside = [at for at in positions if all(0 <= p < size for p, size in zip(at, x.shape[1:], strict=True))]
        for batch in range(2):
            values = [x[(batch, *at)] for at in inside]
            best = {"add": sum, "argmax": max, "argmin": min}.get(kind) or {"max": max, "min": min}[kind]
            expected = best(values)
            if kind.startswith("arg"):
                first = inside[values.index(expected)]
                expected = first[0] * x.shape[2] + first[1]
            assert actual[(batch, *o)] == expected


@pytest.mark.parametrize("kind", ["set", "add", "mul", "min", "max"])
def test_scatter_takes_updates_in_order(kind: str) -> None:
    x = np.array([[2.0, 3.0], [4.0, 5.0]])
    at, updates = np.array([[1], [0], [1]]), np.array([[1.0, 9.0], [2.0, 2.0], [3.0, 3.0]])
    (actual,) = eagerly(lambda x, at, u: [L.scatter_nd(x, at, u, kind)], [x, at, updates])
    expected = x.copy()
    combine = {"set": lambda a, b: b, "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}[kind]
    for (row,), update in zip(at, updates, strict=True):
        expected[row] = combine(expected[row], update)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("index", [-3, 2])
def test_an_index_out_of_range_is_refused(index: int) -> None:
    with pytest.raises(ExecutionError, match="out of range for an axis of 2"):
        eagerly(lambda x, at: [L.gather_nd(x, at)], [np.zeros((2, 3)), np.array([[index]])])


def test_pad_between_and_crop() -> None:
    (actual,) = eagerly(lambda x: [L.pad(x, [1, -1], [0, 2], 9.0, [1, 0])], [np.arange(4.0).reshape(2, 2)])
    assert actual.tolist() == [[9, 9, 9], [1, 9, 9], [9, 9, 9], [3, 9, 9]]


@pytest.mark.parametrize("text", ["1", "-7", "2.5", "inf", "nan", "1e3"])
def test_texts_become_numbers_and_back(text: str) -> None:
    words = np.array([text], object)
    (actual,) = eagerly(lambda x: [L.cast(x, t.DOUBLE)], [words])
    np.testing.assert_equal(actual[0], float(text))


def test_a_text_that_is_no_number_is_refused() -> None:
    with pytest.raises(ExecutionError, match="'abc' to float"):
        eagerly(lambda x: [L.cast(x, t.FLOAT)], [np.array(["abc"], object)])


def test_shifts_by_all_bits_leave_the_sign() -> None:
    x = np.array([-8, 8], np.int8)
    up, down = eagerly(lambda x: [L.shift_left(x, x * 0 + 9), L.shift_right(x, x * 0 + 9)], [x])
    assert up.tolist() == [0, 0]
    assert down.tolist() == [-1, 0]


def test_transform_there_and_back() -> None:
    x = np.exp(1j * np.arange(6.0)).reshape(2, 3)
    there, back = eagerly(lambda x: [L.fft(x), L.fft(L.fft(x), inverse=True)], [x])
    np.testing.assert_allclose(there, np.fft.fft(x), rtol=1e-12)
    np.testing.assert_allclose(back, 3 * x, rtol=1e-12)
