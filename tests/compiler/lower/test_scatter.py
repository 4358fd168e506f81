"""Scatters compiled equal the interpreter's: duplicates in order, indices out of range a fault."""

from __future__ import annotations

import numpy as np
import pytest
from tests.compiler.program_checks import assert_close
from tests.core.programs import computed

from sardonyx.compiler.call.fault import Fault
from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.tensor import apply
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import TensorType

N, M, K = map(Dim.symbol, "NMK")
KINDS = ("set", "add", "mul", "min", "max")


def scattering(kind: str, batch: int, *types: TensorType) -> Function:
    def body(x: L.Tensor, at: L.Tensor, updates: L.Tensor) -> list[L.Tensor]:
        return [apply("scatter", x, at, updates, kind=kind, batch=batch)]

    return trace("f", body, types)


@pytest.mark.parametrize("dtype", [t.FLOAT, t.INT8, t.DOUBLE, t.FLOAT16], ids=lambda d: d.name.lower())
@pytest.mark.parametrize("kind", KINDS)
def test_rows(kind: str, dtype: t.DType) -> None:
    function = scattering(
        kind, 0, TensorType(dtype, (N, M)), TensorType(t.INT64, (K, 1)), TensorType(dtype, (K, M))
    )  # fmt: skip
    program = Program.compile(function)
    assert not program.grouping.host
    rng = np.random.default_rng(0)
    for n, m, k in ((3, 1, 7), (4, 15, 9), (5, 16, 3), (2, 17, 5), (1, 33, 0), (7, 40, 20)):
        x, updates = (rng.integers(1, 4, shape).astype(t.numpy_dtype(dtype)) for shape in ((n, m), (k, m)))
        arrays = [x, rng.integers(0, n, (k, 1)), updates]
        stored = x.copy()
        assert_close(program.run(arrays), computed(function, arrays))
        np.testing.assert_array_equal(x, stored)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rest", [(), (3,), (2, 2)], ids=str)
def test_rows_of_each_matrix_of_a_batch(rest: tuple[int, ...], kind: str) -> None:
    types = TensorType(t.FLOAT, (N, M, *rest)), TensorType(t.INT32, (N, K, 1)), TensorType(t.FLOAT, (N, K, *rest))
    function = scattering(kind, 1, *types)
    program = Program.compile(function)
    assert not program.grouping.host
    rng = np.random.default_rng(1)
    for n, m, k in ((1, 3, 2), (18, 5, 7), (2, 1, 3)):
        x, updates = (rng.standard_normal((n, rows, *rest)).astype(np.float32) for rows in (m, k))
        arrays = [x, rng.integers(0, m, (n, k, 1), np.int32), updates]
        assert_close(program.run(arrays), computed(function, arrays))


def test_elements_and_whole_tensors() -> None:
    function = scattering("add", 0, TensorType(t.FLOAT, (N, M)), TensorType(t.INT64, (K, 2)), TensorType(t.FLOAT, (K,)))
    x, at, y = np.ones((3, 5), np.float32), np.array([[0, 1], [2, 4], [0, 1]]), np.array([1, 2, 3], np.float32)
    assert_close(Program.compile(function).run([x, at, y]), computed(function, [x, at, y]))
    function = scattering(
        "set", 0, TensorType(t.FLOAT, (N,)), TensorType(t.INT64, (K, 0)), TensorType(t.FLOAT, (K, N))
    )  # fmt: skip
    arrays = [np.ones(5, np.float32), np.zeros((2, 0), np.int64), np.arange(10, dtype=np.float32).reshape(2, 5)]
    assert_close(Program.compile(function).run(arrays), [arrays[2][1]])


@pytest.mark.parametrize("wrong", [-1, 3])
def test_an_index_out_of_range_is_a_fault(wrong: int) -> None:
    types = TensorType(t.FLOAT, (N, M)), TensorType(t.INT64, (K, 1)), TensorType(t.FLOAT, (K, M))
    program = Program.compile(scattering("set", 0, *types))
    x, y = np.zeros((3, 20), np.float32), np.ones((2, 20), np.float32)
    with pytest.raises(Fault):
        program.run([x, np.array([[0], [wrong]]), y])
    with pytest.raises(Fault):
        program.run([x[:0], np.array([[0], [0]]), y])
    assert program.run([x, np.array([[0], [1]]), y])[0].sum() == 40


def test_scattering_does_not_tell_how_many_threads_there_were() -> None:
    types = TensorType(t.FLOAT, (N, M)), TensorType(t.INT64, (K, 1)), TensorType(t.FLOAT, (K, M))
    function = scattering("add", 0, *types)
    rng = np.random.default_rng(3)
    arrays = [
        rng.standard_normal((50, 300)).astype(np.float32),
        rng.integers(0, 50, (400, 1)),
        rng.standard_normal((400, 300)).astype(np.float32),
    ]
    one, two = (Program.compile(function, threads=threads).run(arrays) for threads in (1, 2))
    np.testing.assert_array_equal(one, two)


def assigned(x: L.Tensor, starts: list[int], steps: list[int], updates: L.Tensor) -> L.Tensor:
    """``x`` with a part of it replaced, as exporters write it: with an index for every element."""
    shape = updates.shape
    positions = [
        L.unsqueeze(L.iota(shape, axis) * step + start, [-1])
        for axis, (start, step) in enumerate(zip(starts, steps, strict=True))
    ]
    return apply("scatter", x, L.concat(positions, -1), updates, kind="set", batch=0)


def test_assignments_to_slices_are_parts_written_over_one_copy() -> None:
    def body(x: L.Tensor, y: L.Tensor) -> list[L.Tensor]:
        x = assigned(x * 2.0, [0, 1, 3], [1, 2, 1], y)
        x = assigned(x, [1, 0, 20], [1, 1, 1], L.slice_(y, 0, 0, 1, 1) * -1.0)
        return [assigned(x, [0, 0, 0], [1, 1, 7], L.slice_(y, 2, 0, 4, 1))]

    function = trace("f", body, [TensorType(t.FLOAT, (2, 5, 40)), TensorType(t.FLOAT, (2, 2, 19))])
    program = Program.compile(function)
    assert [launch.title for launch in program.launches] == ["part of scatter"] * 4
    rng = np.random.default_rng(4)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((2, 5, 40), (2, 2, 19))]
    assert_close(program.run(arrays), computed(function, arrays))


def test_what_is_read_between_two_assignments_is_as_it_was_then() -> None:
    def body(x: L.Tensor, y: L.Tensor) -> list[L.Tensor]:
        x = assigned(x, [0, 2], [1, 1], y)
        return [assigned(x, [0, 0], [1, 1], L.slice_(L.reverse(x, [1]), 1, 0, 3, 1) * 3.0)]

    function = trace("f", body, [TensorType(t.FLOAT, (3, 8)), TensorType(t.FLOAT, (3, 6))])
    arrays = [np.arange(24, dtype=np.float32).reshape(3, 8), np.ones((3, 6), np.float32)]
    assert_close(Program.compile(function).run(arrays), computed(function, arrays))


def test_an_assignment_out_of_range_is_a_fault() -> None:
    def body(x: L.Tensor, y: L.Tensor) -> list[L.Tensor]:
        return [assigned(x, [4], [1], y)]

    program = Program.compile(trace("f", body, [TensorType(t.FLOAT, (6,)), TensorType(t.FLOAT, (3,))]))
    with pytest.raises(Fault):
        program.run([np.zeros(6, np.float32), np.zeros(3, np.float32)])
