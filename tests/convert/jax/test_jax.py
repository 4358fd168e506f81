"""Functions of JAX become models with the sizes open that the function admits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.errors import OptionError, UnsupportedError

jax = pytest.importorskip("jax", reason="jax is not installed")
jnp, lax = jax.numpy, jax.lax
RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 5)).astype(np.float32)
IMAGE = RNG.standard_normal((2, 8, 8, 3)).astype(np.float32)
KERNEL = RNG.standard_normal((3, 3, 3, 4)).astype(np.float32)
LAYOUT = ("NHWC", "HWIO", "NHWC")

CASES: dict[str, tuple[Callable[..., Any], Any]] = {
    "attention": (lambda x: jax.nn.softmax(x @ x.T) @ x, X),
    "convolution": (lambda x: lax.conv_general_dilated(x, KERNEL, (2, 2), "SAME", dimension_numbers=LAYOUT), IMAGE),
    "transposed convolution": (lambda x: lax.conv_transpose(x, KERNEL, (2, 2), "SAME"), IMAGE),
    "pooling": (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"), IMAGE),
    "indices": (lambda x: (x[:, [0, 2]], jnp.sort(x, 1), jnp.take_along_axis(x, jnp.argsort(x, 1), 1)), X),
    "scatter": (lambda x: x.at[:, jnp.array([1, 1, 3])].add(2.0), X),
    "scan": (lambda x: lax.scan(lambda c, e: (jnp.tanh(c + e), c), jnp.zeros(x.shape[1]), x, reverse=True), X),
    "loop": (lambda x: lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, s[1] * 1.5 + 1), (0, x)), X),
    "loops of elements": (
        lambda x: jax.vmap(
            lambda v: lax.while_loop(lambda s: s[0].sum() > 0.3, lambda s: (s[0] * 0.5, s[1] + 1), (v, 0))
        )(x * x),
        X,
    ),
    "gradient of pooling": (
        jax.grad(lambda x: (lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 2, 1), (1, 2, 2, 1), "SAME") ** 2).sum()),
        IMAGE,
    ),
    "derivatives of digamma": (lambda x: [jax.scipy.special.polygamma(n, x * x + 0.5) for n in range(4)], X),
    "three diagonals": (lambda x: lax.linalg.tridiagonal_solve(x[0], x[1] + 9, x[2], x.T), X),
    "almost the largest": (lambda x: (lax.approx_max_k(x, 2), lax.approx_min_k(x, 2, reduction_dimension=0)), X),
    "branches": (lambda x: lax.switch(jnp.int32(x.sum() > 0), [lambda v: v, lambda v: v * 2], x), X),
    "spectrum": (lambda x: jnp.abs(jnp.fft.rfft(x)), X),
    "inverse spectrum": (lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * 2, 5), X),
    "linear system": (lambda x: jnp.linalg.solve(x @ x.T + jnp.eye(3), x), X),
    "random numbers of a known key": (lambda x: x + jax.random.normal(jax.random.key(0), x.shape), X),
    "inverse error function": (lambda x: lax.erf_inv(0.9 * jnp.tanh(x)), X),
    "gamma functions": (lambda x: (lax.lgamma(x * x + 0.1), lax.digamma(x * x + 1)), X),
    "Bessel functions": (lambda x: (lax.bessel_i0e(x), lax.bessel_i1e(x)), X),
    "shifts": (lambda x: (lambda i: (i << 1, i >> 1))((9 * x).astype(int)), X),
    "common divisors": (lambda x: (lambda i: (jnp.gcd(i, 6), i % 3, lax.rem(i, i - 1)))((9 * x).astype(int)), X),
    "counted bits": (lambda x: (lambda i: (lax.clz(i), lax.population_count(i)))((9 * x).astype(int)), X),
    "rounding to fewer bits": (lambda x: lax.reduce_precision(x, 8, 7), X),
    "several keys": (lambda x: lax.sort(((x > 0).astype(int), x), num_keys=2), X),
    "a reduction over no axes": (lambda x: (x.sum(axis=()), (x > 0).any(axis=())), X),
    "groups of the batch": (
        lambda x: lax.conv_general_dilated(x, KERNEL.T[:2], (1, 1), "SAME", batch_group_count=2),
        IMAGE.transpose(0, 3, 1, 2),
    ),
    "QR": (jnp.linalg.qr, X.T.copy()),
    "eigenvalues": (lambda x: jnp.linalg.eigvalsh(x @ x.T), X),
    "singular values": (lambda x: jnp.linalg.svd(x, compute_uv=False), X),
    "large and small complex numbers": (
        lambda x: tuple(
            part
            for z in (x * 1e30 + 1j * x[::-1] * 1e30, x * 1e-30 + 1j * x[::-1] * 1e-30)
            for w in (jnp.sqrt(z), z / (z[::-1] * 2), lax.rsqrt(z))
            for part in (w.real, w.imag, jnp.abs(z))
        ),
        X,
    ),
    "complex functions": (
        lambda x: tuple(
            part
            for z in (x + 1j * x[::-1],)
            for w in (
                z**2.5,
                z**-2,
                jnp.sin(z),
                jnp.cos(z),
                jnp.tan(z),
                jnp.sinh(z),
                jnp.cosh(z),
                jnp.tanh(z),
                jnp.sign(z),
            )
            for part in (w.real, w.imag)
        ),
        X,
    ),
    "powers of zero": (lambda x: (lambda z: (z.real, z.imag))(jnp.where(x > 0, x, 0) ** jnp.array([2.5 + 0j])), X),
    "zeta": (lambda x: jax.scipy.special.zeta(jnp.abs(x) + 1.5, jnp.abs(x[::-1]) + 0.5), X),
    "incomplete beta of a scalar": (lambda x: jax.scipy.special.betainc(jnp.abs(x) + 0.5, 2.0, jax.nn.sigmoid(x)), X),
    "complex roots": (lambda x: (lambda z: (z.real, z.imag))(jnp.sqrt(x + 1j * x.sum(1, keepdims=True))), X),
    "complex quotients": (lambda x: (jnp.exp(1j * x) / (1 + 1j * x) @ x.T).real, X),
    "gradient": (jax.grad(lambda x: (jnp.tanh(x) ** 2).sum()), X),
    "complex results": (lambda x: jnp.fft.fft(x), X),
    "complex inputs": (lambda z: (z * 2, jnp.abs(z)), (X + 1j * X[::-1]).astype(np.complex64)),
    "complex states": (lambda x: lax.scan(lambda c, r: (c * jnp.exp(1j * r), c.real), jnp.ones(5, complex), x)[1], X),
    "a known key within a function": (lambda x: jax.random.permutation(jax.random.key(1), x), X),
    "a choice": (lambda x: jax.random.choice(jax.random.key(1), x, (2,), replace=False), X),
    "a seed": (lambda s: jax.random.normal(jax.random.PRNGKey(s), (4,)), np.uint32(5)),
    "a key of four words": (
        lambda k: jax.random.normal(jax.random.split(jax.random.wrap_key_data(k, impl="rbg"), 3)[1], (3, 5)),
        np.array([5, 6, 0xFFFFFFFF, 7], np.uint32),
    ),
    "an unsafe key of four words": (
        lambda k: jax.random.permutation(jax.random.wrap_key_data(k, impl="unsafe_rbg"), X),
        np.array([1, 2, 3, 4], np.uint32),
    ),
    "bytes of a generator": (
        lambda s: jax.lax.rng_bit_generator(s, (7,), np.uint8),
        np.array([1, 2, 0xFFFFFFFF, 0xFFFFFFFF], np.uint32),
    ),
    "a key": (lambda k: jax.random.uniform(jax.random.fold_in(jax.random.split(k)[1], 3), (4,)), jax.random.key(2)),
    "keys of steps": (
        lambda s: lax.scan(
            lambda k, _: (jax.random.split(k)[0], jax.random.bits(k, (3,))), jax.random.key(s), None, length=3
        )[1],
        np.uint32(1),
    ),
    "keys of rows": (
        lambda x: x + jax.vmap(lambda k: jax.random.uniform(k))(jax.random.split(jax.random.key(0), 5)),
        X,
    ),
    "a print": (lambda x: (jax.debug.print("{s}", s=x.sum()), x * 2)[1], X),
    "a print in a loop": (
        lambda x: lax.fori_loop(0, 3, lambda i, c: (jax.debug.callback(lambda v: None, c), c * 2)[1], x),
        X,
    ),
    "windows of products": (
        lambda x: lax.reduce_window(x, np.float32(1), lax.mul, (1, 2, 3, 1), (1, 1, 2, 1), "SAME"),
        IMAGE,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_function_is_proved(name: str) -> None:
    function, example = CASES[name]
    report = sardonyx.convert(function, (example,), framework="jax").report
    assert report.verdict.status == "proved", report.verdict.reason


def test_open_sizes_are_those_with_which_the_function_can_be_traced() -> None:
    def fixed_width(x: Any) -> Any:
        return x.reshape(-1, 5) @ np.ones((5, 2), np.float32)

    report = sardonyx.convert(fixed_width, (X,), framework="jax").report
    assert set(report.sizes) == {"batch"}
    assert len(report.sizes["batch"]) > 1


def test_sizes_that_a_function_branches_on_are_fixed() -> None:
    bits = np.random.default_rng(0).random((3, 20)) > 0.5
    report = sardonyx.convert(jnp.packbits, (bits,), framework="jax").report
    assert report.verdict.status == "proved"
    assert [attempt.outcome for attempt in report.attempts][:1] == ["different"]
    assert not report.sizes


def test_a_primitive_without_translation_is_named_with_its_line() -> None:
    def decomposed(x: Any) -> Any:
        return jnp.linalg.eigvals(x[:3, :3]).real

    with pytest.raises(UnsupportedError, match=r"(?s)(test_jax\.py|jax).*primitive '\w+' has no translation"):
        sardonyx.convert(decomposed, (X,), framework="jax")


def test_complex_results_are_pairs_as_the_report_notes() -> None:
    converted = sardonyx.convert(jnp.fft.fft, (X,), framework="jax")
    assert "complex numbers and keys among inputs and outputs are pairs on a last axis" in converted.report.notes
    assert list(converted.model.graph.outputs[0].shape)[-1] == 2


def test_texts_are_no_examples() -> None:
    with pytest.raises(OptionError, match="expected arrays of numbers"):
        sardonyx.convert(lambda x: x, ("text",), framework="jax")


def test_a_function_needs_examples() -> None:
    with pytest.raises(OptionError, match="needs example inputs"):
        sardonyx.convert(lambda x: x, framework="jax")


def test_a_matrix_without_cholesky_factor_has_nan_in_place_of_the_factor() -> None:
    matrix = np.array([[1, 2, 3], [2, 1, 0], [3, 0, 5]], np.float32)
    result = sardonyx.convert(jnp.linalg.cholesky, (matrix,), framework="jax")
    assert result.report.verdict.status == "proved", result.report.verdict.reason
    answer = sardonyx.Session(result.model).run(None, {result.model.graph.inputs[0].name: matrix})[0]
    np.testing.assert_array_equal(answer, jnp.linalg.cholesky(matrix))


def test_elements_are_replaced_by_a_function_of_themselves() -> None:
    rows = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    result = sardonyx.convert(lambda x: x.at[..., -1].apply(jnp.tanh), (rows,), framework="jax")
    assert result.report.verdict.status == "proved", result.report.verdict.reason


def test_numbers_are_rounded_to_any_bits_of_the_mantissa() -> None:
    numbers = np.array([1.0, 1 + 2**-11, 1 + 3 * 2**-11, -3.14159, 1e-30, 65504.7], np.float32)
    result = sardonyx.convert(lambda x: lax.reduce_precision(x, 8, 10), (numbers,), framework="jax")
    assert result.report.verdict.status == "proved", result.report.verdict.reason
    answer = sardonyx.Session(result.model).run(None, {result.model.graph.inputs[0].name: numbers})[0]
    np.testing.assert_array_equal(answer, lax.reduce_precision(numbers, 8, 10))
