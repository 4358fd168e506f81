"""Scans, sorts and determinants compiled equal the interpreter's, along any axis, of any type."""

from __future__ import annotations

import numpy as np
import pytest
from tests.compiler.test_program import assert_close
from tests.core.programs import computed

from sardonyx.compiler.context import Fault
from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core import types as t
from sardonyx.core.dim import Dim
from sardonyx.core.tensor import apply
from sardonyx.core.trace import trace
from sardonyx.core.types import TensorType

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
    program = Program(function)
    assert not program.schedule.host
    assert len(program.launches) == len(kinds)
    rng = np.random.default_rng(0)
    for size in SIZES:
        x = random(rng, (3, size) if axis else (size, 19), dtype)
        assert_close(program.run([x]), computed(function, [x]))


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", [t.FLOAT, t.DOUBLE, t.INT8, t.UINT64, t.BFLOAT16], ids=lambda d: d.name.lower())
def test_the_first_extremum(dtype: t.DType, kind: str) -> None:
    rng = np.random.default_rng(1)
    for axis in (0, 1, 2):
        function = trace(
            "f", lambda x, axis=axis: [apply("reduce", x, kind=kind, axes=(axis,))], [TensorType(dtype, (N, M, K))]
        )
        program = Program(function)
        assert not program.schedule.host
        for size in SIZES[1:]:
            shape = [3, 5, 18]
            shape[axis] = size
            x = random(rng, tuple(shape), dtype)
            assert_close(program.run([x]), computed(function, [x]))


def test_nothing_has_no_extremum() -> None:
    program = Program(trace("f", lambda x: [apply("reduce", x, kind="argmax", axes=(0,))], [TensorType(t.FLOAT, (N,))]))
    with pytest.raises(Fault):
        program.run([np.zeros(0, np.float32)])


@pytest.mark.parametrize("dtype", [t.FLOAT, t.FLOAT16, t.INT64, t.UINT8, t.BOOL], ids=lambda d: d.name.lower())
@pytest.mark.parametrize("descending", [False, True])
def test_sorts(dtype: t.DType, descending: bool) -> None:
    rng = np.random.default_rng(2)
    for axis in (0, 1):
        function = trace("f", lambda x, axis=axis: [L.sort(x, axis, descending)], [TensorType(dtype, (N, M))])
        program = Program(function)
        assert not program.schedule.host
        for size in SIZES:
            x = random(rng, (4, size) if axis else (size, 4), dtype)
            assert_close(program.run([x]), computed(function, [x]))


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("k", [3, 7, 40])
def test_the_first_few(k: int, largest: bool) -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        at = L.top_k(x, 1, k, largest)
        return [at, L.gather_elements(x, at, 1)]

    function = trace("f", body, [TensorType(t.FLOAT, (N, M))])
    program = Program(function)
    assert not program.schedule.host
    rng = np.random.default_rng(3)
    for size in (k, k + 1, 53, 200):
        x = random(rng, (5, size), t.FLOAT)
        assert_close(program.run([x]), computed(function, [x]))
    with pytest.raises(Fault):
        program.run([np.zeros((1, 2), np.float32)])


@pytest.mark.parametrize("dtype", [t.FLOAT, t.DOUBLE], ids=lambda d: d.name.lower())
def test_determinants(dtype: t.DType) -> None:
    function = trace("f", lambda x: [L.determinant(x + 0.0)], [TensorType(dtype, (N, M, M))])
    program = Program(function)
    assert not program.schedule.host
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
        found = L.fft(L.bitcast(x, t.COMPLEX64), inverse=inverse)
        return [L.bitcast(found, t.FLOAT), found]

    function = trace("f", body, [TensorType(t.FLOAT, (N, M, 2))])
    program = Program(function)
    assert not program.schedule.host
    rng = np.random.default_rng(5)
    for size in (0, 1, 2, 3, 5, 8, 12, 16, 17, 31, 64, 100, 127, 1000, 1024):
        x = rng.standard_normal((3, size, 2)).astype(np.float32)
        pairs, numbers = program.run([x])
        given = x[..., 0].astype(np.complex128) + 1j * x[..., 1]
        wanted = (np.fft.ifft(given) * size if inverse else np.fft.fft(given)) if size else given
        np.testing.assert_allclose(numbers, wanted, rtol=1e-6, atol=1e-6 * max(np.abs(wanted).max(initial=0), 1))
        np.testing.assert_array_equal(pairs, np.stack([numbers.real, numbers.imag], -1))
