"""Scans, sorts and determinants compiled equal the interpreter's, along any axis, of any type."""

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
from sardonyx.core.ir.types import TensorType

pytestmark = pytest.mark.sampled

N, M, K = map(Dim.symbol, "NMK")
SIZES = (0, 1, 2, 7, 15, 16, 17, 31, 53)


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: t.DType) -> np.ndarray:
    """Elements with ties, and NaN among the floating-point ones."""
    x = rng.integers(-4, 5, shape)
    if t.is_float(dtype):
        return np.where(rng.random(shape) < 0.1, np.nan, x).astype(t.numpy_dtype(dtype))
    return (x % 2 if dtype == t.BOOL else x).astype(t.numpy_dtype(dtype))


@pytest.mark.parametrize("dtype", [t.FLOAT, t.DOUBLE, t.FLOAT16, t.INT32, t.UINT8], ids=lambda d: d.name.lower())
@pytest.mark.parametrize("axis", [0, 1])
def test_cumulative(axis: int, dtype: t.DType) -> None:
    kinds = ("add", "mul", "max", "min")
    function = trace(
        "f",
        lambda x: [L.cumulative(kind, x + i, axis) * x for i, kind in enumerate(kinds)],
        [TensorType(dtype, (N, M))],
    )
    program = Program.compile(function)
    assert not program.grouping.host
    assert len(program.launches) == len(kinds)
    rng = np.random.default_rng(0)
    for size in SIZES:
        x = random(rng, (3, size) if axis else (size, 19), dtype)
        assert_close(program.run([x]), computed(function, [x]))


@pytest.mark.parametrize("empty", range(3))
def test_rows_beside_an_empty_axis(empty: int) -> None:
    shape = tuple(0 if axis == empty else size for axis, size in enumerate((N, 3, K)))

    def body(x: L.Tensor) -> list[L.Tensor]:
        along = [axis for axis in range(3) if axis != empty]
        return [y for axis in along for y in (L.sort(x, axis), L.top_k(x, axis, 2), L.cumulative("add", x, axis))]

    function = trace("f", body, [TensorType(t.FLOAT16, shape)])
    program = Program.compile(function)
    assert not program.grouping.host
    x = np.zeros([2 if isinstance(size, Dim) else size for size in shape], np.float16)
    assert_close(program.run([x]), computed(function, [x]))


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", [t.FLOAT, t.DOUBLE, t.INT8, t.UINT64, t.BFLOAT16], ids=lambda d: d.name.lower())
def test_the_first_extremum(dtype: t.DType, kind: str) -> None:
    rng = np.random.default_rng(1)
    for axis in (0, 1, 2):
        function = trace(
            "f", lambda x, axis=axis: [apply("reduce", x, kind=kind, axes=(axis,))], [TensorType(dtype, (N, M, K))]
        )
        program = Program.compile(function)
        assert not program.grouping.host
        for size in SIZES[1:]:
            shape = [3, 5, 18]
            shape[axis] = size
            x = random(rng, tuple(shape), dtype)
            assert_close(program.run([x]), computed(function, [x]))


def test_nothing_has_no_extremum() -> None:
    program = Program.compile(
        trace("f", lambda x: [apply("reduce", x, kind="argmax", axes=(0,))], [TensorType(t.FLOAT, (N,))])
    )
    with pytest.raises(Fault):
        program.run([np.zeros(0, np.float32)])


@pytest.mark.parametrize("dtype", [t.FLOAT, t.FLOAT16, t.INT64, t.UINT8, t.BOOL], ids=lambda d: d.name.lower())
@pytest.mark.parametrize("descending", [False, True])
def test_sorts(dtype: t.DType, descending: bool) -> None:
    rng = np.random.default_rng(2)
    for axis in (0, 1):
        function = trace("f", lambda x, axis=axis: [L.sort(x, axis, descending)], [TensorType(dtype, (N, M))])
        program = Program.compile(function)
        assert not program.grouping.host
        for size in SIZES:
            x = random(rng, (4, size) if axis else (size, 4), dtype)
            assert_close(program.run([x]), computed(function, [x]))


LONG = {
    "random": lambda rng, n: rng.standard_normal((3, n)) * 1000,
    "rising": lambda rng, n: np.sort(rng.standard_normal((3, n)) * 1000),
    "falling": lambda rng, n: -np.sort(rng.standard_normal((3, n)) * 1000),
    "few values": lambda rng, n: rng.integers(-2, 3, (3, n)),
    "one value": lambda rng, n: np.full((3, n), 7),
}
"""Rows of every way that a buffer of the best fills up, and of digits that all have in common."""


def long(kind: str, n: int, dtype: t.DType) -> np.ndarray:
    """Rows with NaN of either sign, infinities and zeros of either sign among floating-point elements."""
    rng = np.random.default_rng(n)
    x = LONG[kind](rng, n)
    if not t.is_float(dtype):
        limits = np.iinfo(t.numpy_dtype(dtype)) if dtype != t.BOOL else None
        actual = x > 0 if limits is None else np.clip(x, max(limits.min, -(2**62)), min(limits.max, 2**62))
        actual = actual.astype(t.numpy_dtype(dtype))
        if limits is not None:
            actual[1, : n // 9], actual[2, : n // 9] = limits.min, limits.max
        return actual
    x = x.astype(t.numpy_dtype(dtype))
    for item in (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0):
        x[1:][rng.random((2, n)) < 0.05] = item
    x[2][rng.random(n) < 0.5] = -np.nan
    return x


@pytest.mark.parametrize(
    "dtype",
    [t.FLOAT, t.DOUBLE, t.FLOAT16, t.BFLOAT16, t.INT64, t.UINT64, t.INT32, t.UINT32, t.INT16, t.UINT8, t.INT8, t.BOOL],
    ids=lambda d: d.name.lower(),
)
@pytest.mark.parametrize("descending", [False, True])
def test_long_rows_are_sorted(dtype: t.DType, descending: bool) -> None:
    program = Program.compile(trace("f", lambda x: [L.sort(x, 1, descending)], [TensorType(dtype, (N, M))]))
    assert not program.grouping.host
    for kind in LONG:
        for n in (33, 127, 129, 700):
            x = long(kind, n, dtype)
            assert_close(program.run([x]), computed(program.function, [x]))


def first_of(dtype: t.DType, k: int | Dim, largest: bool, axis: int = 1) -> Program:
    def body(x: L.Tensor) -> list[L.Tensor]:
        at = L.top_k(x, axis, k, largest)
        return [at, L.gather_elements(x, at, axis), at * 2 + 1]

    program = Program.compile(trace("f", body, [TensorType(dtype, (N, M))]))
    assert not program.grouping.host
    return program


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("k", [0, 1, 3, 7, 40, 150])
@pytest.mark.parametrize("dtype", [t.FLOAT, t.INT64, t.DOUBLE, t.UINT8], ids=lambda d: d.name.lower())
def test_the_first_few(dtype: t.DType, k: int, largest: bool) -> None:
    program = first_of(dtype, k, largest)
    rng = np.random.default_rng(3)
    for size in (k, k + 1, 53, 200, 1500):
        if size >= k:
            x = random(rng, (5, size), dtype)
            assert_close(program.run([x]), computed(program.function, [x]))
    for kind in LONG:
        x = long(kind, 2500, dtype)
        assert_close(program.run([x]), computed(program.function, [x]))
    if k > 2:
        with pytest.raises(Fault):
            program.run([np.zeros((1, 2), t.numpy_dtype(dtype))])


@pytest.mark.parametrize("k", [1, 5, 200])
def test_the_first_few_of_columns(k: int) -> None:
    program = first_of(t.FLOAT, k, True, axis=0)
    for kind in LONG:
        x = np.ascontiguousarray(long(kind, 900, t.FLOAT).T)
        assert_close(program.run([x]), computed(program.function, [x]))


def test_as_many_of_the_first_as_sizes_tell() -> None:
    program = first_of(t.FLOAT, M // 10, True)
    for n in (0, 5, 10, 25, 400, 3000):
        x = long("random", n, t.FLOAT)
        assert_close(program.run([x]), computed(program.function, [x]))


def test_the_first_few_of_what_is_computed_on_the_way() -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        return [L.top_k(L.permute(L.exp(x) * 0.5, (1, 0, 2)), 2, 20, True)]

    function = trace("f", body, [TensorType(t.FLOAT, (N, M, 300))])
    x = np.random.default_rng(5).standard_normal((2, 3, 300)).astype(np.float32)
    np.testing.assert_array_equal(Program.compile(function).run([x])[0], computed(function, [x])[0])


@pytest.mark.parametrize("dtype", [t.FLOAT, t.DOUBLE], ids=lambda d: d.name.lower())
def test_determinants(dtype: t.DType) -> None:
    function = trace("f", lambda x: [L.determinant(x + 0.0)], [TensorType(dtype, (N, M, M))])
    program = Program.compile(function)
    assert not program.grouping.host
    rng = np.random.default_rng(4)
    for size in (0, 1, 2, 3, 5, 17):
        x = rng.standard_normal((3, size, size)).astype(t.numpy_dtype(dtype))
        if size > 2:
            x[1, :, 2] = x[1, :, 0]
            x[2, 0, 0] = 0
        expected = computed(function, [x])[0]
        np.testing.assert_allclose(program.run([x])[0], expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("inverse", [False, True])
def test_transforms_of_any_length(inverse: bool) -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        actual = L.fft(L.bitcast(x, t.COMPLEX64), inverse=inverse)
        return [L.bitcast(actual, t.FLOAT), actual]

    function = trace("f", body, [TensorType(t.FLOAT, (N, M, 2))])
    program = Program.compile(function)
    assert not program.grouping.host
    rng = np.random.default_rng(5)
    for size in (0, 1, 2, 3, 5, 8, 12, 16, 17, 31, 64, 100, 127, 1000, 1024):
        x = rng.standard_normal((3, size, 2)).astype(np.float32)
        pairs, numbers = program.run([x])
        arguments = x[..., 0].astype(np.complex128) + 1j * x[..., 1]
        expected = (np.fft.ifft(arguments) * size if inverse else np.fft.fft(arguments)) if size else arguments
        np.testing.assert_allclose(numbers, expected, rtol=1e-6, atol=1e-6 * max(np.abs(expected).max(initial=0), 1))
        np.testing.assert_array_equal(pairs, np.stack([numbers.real, numbers.imag], -1))
