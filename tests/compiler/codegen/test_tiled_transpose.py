"""Transposing maps equal the interpreter's results to the bit: any order of axes, sizes that blocks do not divide."""

from __future__ import annotations

import dataclasses
import itertools
import operator

import numpy as np
import pytest
from tests.core.programs import computed

from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import Target, host
from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import TensorType

pytestmark = pytest.mark.sampled

N, M, K = map(Dim.symbol, "NMK")
DTYPES = [t.FLOAT, t.DOUBLE, t.FLOAT16, t.UINT8, t.INT16, t.INT64, t.BOOL]


def transposing(axes: tuple[int, ...], *sizes: object, dtype: t.DType = t.FLOAT) -> Function:
    return trace("f", lambda x: [L.permute(x, axes)], [TensorType(dtype, sizes)])  # type: ignore[arg-type]


def wide() -> Target:
    """Return this machine's target with vectors of twice as many lanes."""
    return dataclasses.replace(host(), vector_bits=2 * host().vector_bits)


def checked(function: Function, arrays: list[np.ndarray], target: Target | None = None) -> Program:
    """Return the compiled function, after a comparison of its results with the interpreter's."""
    program = Program.compile(function, target=target)
    assert not program.grouping.host
    for actual, expected in zip(program.run(arrays), computed(function, arrays), strict=True):
        np.testing.assert_array_equal(actual, expected)
    return program


def numbers(dtype: t.DType, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 200, shape).astype(t.numpy_dtype(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name.lower())
@pytest.mark.parametrize("shape", [(1, 1), (3, 40), (40, 3), (8, 8), (9, 8), (17, 31), (64, 130), (131, 65)], ids=str)
def test_matrices(shape: tuple[int, ...], dtype: t.DType) -> None:
    x = numbers(dtype, shape)
    checked(transposing((1, 0), *shape, dtype=dtype), [x])
    checked(transposing((1, 0), *shape, dtype=dtype), [x], wide())


@pytest.mark.parametrize("axes", [*itertools.permutations(range(4))], ids=str)
def test_axes_in_any_order(axes: tuple[int, ...]) -> None:
    checked(transposing(axes, 9, 16, 2, 11), [numbers(t.FLOAT, (9, 16, 2, 11))])


@pytest.mark.parametrize("dtype", [t.FLOAT, t.UINT8], ids=lambda dtype: dtype.name.lower())
def test_open_sizes(dtype: t.DType) -> None:
    program = Program.compile(transposing((1, 0), N, M, dtype=dtype))
    batches = Program.compile(transposing((0, 2, 1), N, 12, M, dtype=dtype))
    for n, m in itertools.product((0, 1, 7, 8, 9, 70, 129), repeat=2):
        x, y = numbers(dtype, (n, m)), numbers(dtype, (n, 12, m))
        np.testing.assert_array_equal(program.run([x])[0], x.T)
        np.testing.assert_array_equal(batches.run([y])[0], y.swapaxes(1, 2))


def test_operands_in_different_axis_orders_are_one_launch() -> None:
    def body(x: L.Tensor, y: L.Tensor, scale: L.Tensor) -> list[L.Tensor]:
        across = L.permute(L.maximum(x, 0), (0, 2, 1))
        return [L.permute(across * scale + y, (1, 0, 2)) - L.permute(x, (2, 0, 1))]

    sizes = [(3, 20, 40), (3, 40, 20), (20,)]
    function = trace("f", body, [TensorType(t.FLOAT, size) for size in sizes])
    program = checked(function, [numbers(t.FLOAT, size) for size in sizes])
    assert len(program.launches) == 1


def test_slices_reversals_and_concatenations_of_transposed_operands() -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        across = L.permute(L.slice_(L.reverse(x, [0]), 0, 1, 30), (1, 0))
        patches = L.permute(L.reshape(x, (4, 8, 3, 16)), (0, 2, 1, 3))
        return [across, L.reshape(patches, (12, 128)), L.concat([across, across + 1], 1)]

    function = trace("f", body, [TensorType(t.FLOAT, (32, 48))])
    checked(function, [numbers(t.FLOAT, (32, 48))])


@pytest.mark.parametrize("dtype", [t.FLOAT, t.DOUBLE, t.UINT8, t.BOOL], ids=lambda dtype: dtype.name.lower())
@pytest.mark.parametrize("times", [2, 3, 4, 5, 8])
def test_last_axes_too_short_for_a_vector(times: int, dtype: t.DType) -> None:
    for width in (5, 13, 16, 70):
        x = numbers(dtype, (3, times, width))
        checked(transposing((0, 2, 1), 3, times, width, dtype=dtype), [x])
        repeated = trace("f", lambda x: [L.repeat(x, 2, times)], [TensorType(dtype, x.shape)])
        checked(repeated, [x])
        checked(repeated, [x], wide())


@pytest.mark.parametrize("times", [2, 3, 4, 8])
def test_maps_of_repeated_elements(times: int) -> None:
    def body(x: L.Tensor, y: L.Tensor) -> list[L.Tensor]:
        return [L.repeat(L.repeat(x, 1, times), 2, times) + y]

    wider, known = (1, times, times), [(2, 5, 16), (2, 3, 7)]
    cases: list[tuple[tuple[Size, ...], list[tuple[int, ...]]]] = [(item, [item]) for item in known]
    cases.append(((N, M, K), [(1, 1, 1), (2, 3, 4), (1, 2, 9), *known]))
    for sizes, runs in cases:
        types = [TensorType(t.FLOAT, sizes), TensorType(t.FLOAT, tuple(map(operator.mul, sizes, wider)))]
        program = Program.compile(trace("f", body, types))
        for shape in runs:
            x, y = numbers(t.FLOAT, shape), numbers(t.FLOAT, tuple(map(operator.mul, shape, wider)))
            np.testing.assert_array_equal(program.run([x, y])[0], x.repeat(times, 1).repeat(times, 2) + y)


def test_gathered_rows_are_one_launch() -> None:
    types = [TensorType(t.FLOAT, (9, 20)), TensorType(t.INT64, (2, 3))]
    function = trace("f", lambda x, i: [L.take(x, i, 0)], types)
    rows = np.array([[0, -9, 8], [3, -1, 3]])
    assert len(checked(function, [numbers(t.FLOAT, (9, 20)), rows]).launches) == 1
