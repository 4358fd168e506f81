"""Maxima and minima of zeros of both signs: -0 is below +0, in compiled code and in the interpreter."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx import Session

NUMBERS = np.array([0.0, -0.0, 1, -1, np.nan, -np.nan, np.inf, -np.inf, 1e-40, -1e-40])
DTYPES = {"float": np.float32, "double": np.float64, "float16": np.float16}


def answers(text: str, *operands: np.ndarray[Any, Any]) -> list[list[Any]]:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    feeds = {value.name: x for value, x in zip(model.graph.input, operands, strict=True)}
    return [Session(model, compile=mode, threads=1).run(None, feeds) for mode in ("off", "wait")]


def bits(x: np.ndarray[Any, Any]) -> list[Any]:
    """Return the numbers and their signs; a NaN has none."""
    return [None if np.isnan(number) else (float(number), bool(np.signbit(number))) for number in x.ravel()]


def assert_bits(text: str, *operands: np.ndarray[Any, Any], expected: Any = None) -> None:
    interpreted, compiled = answers(text, *operands)
    assert [bits(x) for x in compiled] == [bits(x) for x in interpreted]
    assert expected is None or bits(np.asarray(interpreted[0])) == bits(np.asarray(expected))


@pytest.mark.parametrize("kind", DTYPES)
def test_of_two_tensors(kind: str) -> None:
    pairs = np.array(list(itertools.product(NUMBERS, NUMBERS))).astype(DTYPES[kind])
    a, b = np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])
    assert_bits(f"g ({kind}[N] a, {kind}[N] b) => ({kind} y, {kind} z) {{ y = Max (a, b)  z = Min (a, b) }}", a, b)


def test_the_zero_does_not_depend_on_the_order() -> None:
    a, b = np.array([0.0, -0.0, -0.0], np.float32), np.array([-0.0, 0.0, -0.0], np.float32)
    assert_bits("g (float[N] a, float[N] b) => (float y) { y = Max (a, b) }", a, b, expected=[0.0, 0.0, -0.0])
    assert_bits("g (float[N] a, float[N] b) => (float y) { y = Min (a, b) }", a, b, expected=[-0.0, -0.0, -0.0])


@pytest.mark.parametrize("operator", ["Max", "Min"])
@pytest.mark.parametrize("number", ["0.0", "-0.0", "1.0"])
def test_of_a_tensor_and_a_number(operator: str, number: str) -> None:
    graph = f"{{ y = {operator} (a, c)  z = {operator} (c, a) }}"
    assert_bits(f"g (float[N] a) => (float y, float z) <float c = {{{number}}}> {graph}", NUMBERS.astype(np.float32))


def test_a_rectified_zero_is_positive() -> None:
    a = np.array([-0.0, 0.0, -2.0], np.float32)
    assert_bits("g (float[N] a) => (float y) { y = Relu (a) }", a, expected=[0.0, 0.0, 0.0])


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("axis", [0, 1])
def test_of_rows(operator: str, axis: int) -> None:
    draw = np.random.default_rng(axis)
    x = draw.choice(np.array([0.0, -0.0, -0.0, -0.0], np.float32), (9, 75))
    x[3], x[:, 4] = -0.0, 0.0
    x[5, 2], x[6, 3] = np.nan, 1
    assert_bits(f"g (float[N, M] x) => (float y) <int64[1] a = {{{axis}}}> {{ y = {operator} (x, a) }}", x)


@pytest.mark.parametrize("channels", [3, 16])
@pytest.mark.parametrize("is_blocked", [False, True])
def test_of_windows(channels: int, is_blocked: bool) -> None:
    draw = np.random.default_rng(channels)
    x = draw.choice(np.array([0.0, -0.0, -1.0, -0.0], np.float32), (1, channels, 9, 9))
    if not is_blocked:  # Blocked convolutions multiply other channels by 0.
        x[0, 0, 2, 2], x[0, 1, 3, 3] = np.nan, -np.nan
    w = np.ones((channels, 1, 1, 1), np.float32)
    # Products with a result of a convolution are blocked; the factor is positive and keeps the signs of the image.
    image = f"c = Conv <group = {channels}> (x, w)  s = Abs (c)  e = Add (s, one)  z = Mul (e, x)" if is_blocked else ""
    pool = "MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>"
    graph = f"{{ {image} y = {pool} ({'z' if is_blocked else 'x'}) }}"
    inputs = f"float[1, {channels}, 9, 9] x, float[{channels}, 1, 1, 1] w"
    assert_bits(f"g ({inputs}) => (float y) <float one = {{1}}> {graph}", x, w)


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_of_scattered_updates(reduction: str) -> None:
    x, updates = np.array([0.0, -0.0, 0.0, -0.0], np.float32), np.array([-0.0, 0.0, -0.0, 0.0, -0.0], np.float32)
    at = np.array([0, 1, 1, 2, 3])
    graph = f'{{ y = ScatterElements <reduction = "{reduction}"> (x, i, u) }}'
    assert_bits(f"g (float[4] x, int64[5] i, float[5] u) => (float y) {graph}", x, at, updates)
