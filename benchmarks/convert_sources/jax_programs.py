"""Further programs of JAX: random numbers, numeric methods, networks in plain JAX and of packages."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from convert_sources.jax import IMAGE, LONG, SQUARE, X, Y, jax, jnp, lax, nn, rand, random

Case = Callable[[], tuple[Any, tuple[Any, ...]]]
_programs: dict[str, Case] = {}
KEY = random.key(7)


def cases() -> dict[str, Case]:
    """Return functions with example inputs, by name."""
    return {**_programs, **_modules()}


def add(name: str, function: Any, *inputs: Any) -> None:
    """Register a function with its inputs."""
    _programs[name] = lambda: (function, inputs)


def program(*inputs: Any) -> Callable[[Any], Any]:
    """Register a function of several lines with its inputs."""

    def register(function: Any) -> Any:
        add(function.__name__, function, *inputs)
        return function

    return register


# Random numbers of known keys.
add("choice", lambda x: (random.choice(KEY, x, (3,)), random.choice(KEY, 10, (4,), replace=False)), X[0])
add("choice_weighted", lambda x, p: random.choice(KEY, x, (5,), p=nn.softmax(p)), X, X[:, 0].copy())
add("choice_weighted_once", lambda x, p: random.choice(KEY, x, (3,), replace=False, p=nn.softmax(p)), X, X[:, 0].copy())
add("choice_of_axis", lambda x: random.choice(KEY, x, (2,), axis=1), X)
add("permutations", lambda x: (random.permutation(KEY, x), random.permutation(KEY, x, axis=1, independent=True)), X)
add("categorical", lambda x: random.categorical(KEY, x), X)
add("categorical_many", lambda x: random.categorical(KEY, x, axis=-1, shape=(3, 4)), X)
add("gumbel_top_k", lambda x: lax.top_k(x + random.gumbel(KEY, x.shape), 2)[1], X)
add("integers_at_random", lambda x: x + random.randint(KEY, (4, 6), 0, 9), X)
add(
    "laplace",
    lambda x: (x + random.laplace(KEY, (4, 6)), x + random.cauchy(KEY, (4, 6)), random.rademacher(KEY, (6,)) * x),
    X,
)
add("truncated", lambda x: x * random.truncated_normal(KEY, -1.0, 1.5, (4, 6)), X)
add(
    "exponential",
    lambda x: (x * random.exponential(KEY, (6,)), x * random.gumbel(KEY, (6,)), x * random.logistic(KEY, (6,))),
    X,
)
add("gamma_draws", lambda x: x * random.gamma(KEY, 2.5, (6,)), X)
add("beta_draws", lambda x: (x * random.beta(KEY, 2.0, 3.0, (6,)), random.dirichlet(KEY, jnp.ones(6)) * x), X)
add("poisson_draws", lambda x: x + random.poisson(KEY, 3.0, (6,)), X)
add("normal_of_covariance", lambda x: random.multivariate_normal(KEY, x[:, 0], jnp.eye(4)), X)
add("orthogonal", lambda x: x @ jnp.abs(random.orthogonal(KEY, 6)), X)
add("ball", lambda x: x + random.ball(KEY, 6), X)
add("split_keys", lambda x: x + jax.vmap(lambda k: random.normal(k, (6,)))(random.split(KEY, 4)), X)
add("folded_keys", lambda x: x + random.uniform(random.fold_in(KEY, 3), (6,), minval=-1, maxval=2), X)
add("key_of_input", lambda x, s: x + random.normal(random.PRNGKey(s), (6,)), X, np.uint32(5))
add("dropout_by_hand", lambda x: jnp.where(random.bernoulli(KEY, 0.7, x.shape), x / 0.7, 0), X)


add("key_as_input", lambda x, k: x + random.uniform(random.split(k)[0], (6,)), X, random.key(3))
add(
    "keys_of_steps",
    lambda x, k: lax.scan(lambda s, r: (random.split(s)[0], r + random.normal(s, (6,))), k, x)[1],
    X,
    random.key(3),
)
add(
    "keys_of_rows",
    lambda x, i: jax.vmap(lambda r, n: r * random.bernoulli(random.fold_in(random.key(0), n), 0.5, (6,)))(x, i),
    X,
    LONG[:4],
)
add(
    "key_on_branches",
    lambda x, s: lax.cond(
        x.sum() > 0, lambda k: random.uniform(k, (6,)), lambda k: random.normal(k, (6,)), random.key(s)
    ),
    X,
    np.uint32(9),
)
add("choice_of_input_key", lambda x, s: random.choice(random.key(s), x, (3,), replace=False), X, np.uint32(1))
add(
    "complex_states", lambda x: lax.scan(lambda c, r: (c * jnp.exp(1j * r), jnp.real(c)), jnp.ones(6, complex), x)[1], X
)
add("complex_inputs", lambda z: (z * 2, jnp.abs(z)), (X + 1j * Y).astype(np.complex64))


# Derivatives and control.
@jax.custom_vjp
def _clipped(x: Any) -> Any:
    return jnp.clip(x, -1, 1)


_clipped.defvjp(lambda x: (_clipped(x), x), lambda x, g: (g * (jnp.abs(x) < 2),))
add("custom_backward", lambda x: (_clipped(x), jax.grad(lambda v: (_clipped(v) ** 2).sum())(x)), X)
add("value_and_gradient", lambda p, x: jax.value_and_grad(lambda w: ((x @ w) ** 2).mean())(p), rand(6, 3), X)
add("tangents", lambda x, t: jax.jvp(lambda v: jnp.sin(v) * v, (x,), (t,)), X, Y)
add("cotangents", lambda x, t: jax.vjp(lambda v: jnp.tanh(v) @ v.T, x)[1](t @ t.T), X, Y)
add("linearized", lambda x, t: jax.linearize(lambda v: nn.softmax(v), x)[1](t), X, Y)
add(
    "gradient_of_scan",
    lambda x: jax.grad(lambda v: lax.scan(lambda c, r: (jnp.tanh(c + r), c * r), v[0], v)[1].sum())(x),
    X,
)
add("gradient_of_sort", lambda x: jax.grad(lambda v: (jnp.sort(v, 1) * jnp.arange(6)).sum())(x), X)
add("gradient_of_gather", lambda x, i: jax.grad(lambda v: (v[i % 4] ** 2).sum())(x), X, LONG)
add(
    "gradient_of_pool",
    lambda x: jax.grad(lambda v: lax.reduce_window(v, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID").sum())(x),
    IMAGE,
)
add("gradient_of_normalized", lambda x: jax.grad(lambda v: nn.standardize(v).max())(x), X)
add("gradient_of_cholesky", lambda a: jax.grad(lambda v: jnp.linalg.cholesky(v @ v.T + jnp.eye(4)).sum())(a), SQUARE)
add(
    "while_of_pairs",
    lambda x: lax.while_loop(
        lambda s: (s[0] < 7) & (s[1].sum() < 50), lambda s: (s[0] + 1, s[1] * 1.5 + 1), (0, jnp.abs(x))
    ),
    X,
)
add(
    "scan_with_condition",
    lambda x: lax.scan(lambda c, r: (lax.cond(r.sum() > 0, lambda: c + r, lambda: c - r), c), x[0], x),
    X,
)
add("scan_unrolled", lambda x: lax.scan(lambda c, r: (c * 0.9 + r, jnp.sin(c)), x[0], x, unroll=2), X)
add("scan_of_count", lambda x: lax.scan(lambda c, _: (c @ c.T @ c * 0.01, c[0, 0]), x, None, length=3), X)
add("vmap_of_scan", lambda x: jax.vmap(lambda r: lax.scan(lambda c, v: (c + v, c * v), 0.0, r)[1])(x), X)
add("vmap_of_condition", lambda x: jax.vmap(lambda r: lax.cond(r.sum() > 0, jnp.sin, jnp.cos, r))(x), X)
add(
    "vmap_of_while",
    lambda x: jax.vmap(lambda r: lax.while_loop(lambda v: v.sum() > 0.5, lambda v: v * 0.5, jnp.abs(r)))(x),
    X,
)
add("vmap_of_slices", lambda x, i: jax.vmap(lambda r, n: lax.dynamic_slice(r, (n,), (3,)))(x, i), X, LONG[:4])
add(
    "vmap_of_updates",
    lambda x, i: jax.vmap(lambda r, n: lax.dynamic_update_slice(r, jnp.ones(2), (n,)))(x, i),
    X,
    LONG[:4],
)
add("vmap_of_gathers", lambda x, i: jax.vmap(lambda r: r[i])(x), X, LONG)
add("vmap_of_scatters", lambda x, i: jax.vmap(lambda r: r.at[i].add(1.0))(x), X, LONG)
add("vmap_of_cholesky", lambda a: jax.vmap(lambda v: jnp.linalg.cholesky(v @ v.T + jnp.eye(3)))(a), rand(4, 3, 3))
add("vmap_of_solve", lambda a, b: jnp.linalg.solve(a + 3 * jnp.eye(3), b), rand(4, 3, 3), rand(4, 3, 2))
add(
    "nested_jit",
    lambda x: jax.jit(lambda v: jax.jit(jnp.tanh)(v) + functools.reduce(lambda a, b: a * 0.5 + b, [v] * 4))(x),
    X,
)
add("stop_gradient", lambda x: x - lax.stop_gradient(x.mean(0)) + lax.optimization_barrier(x), X)


@program(X[:, :4].copy())
def newton(a: Any) -> Any:
    """Return an inverse by Newton's iteration."""
    matrix = a @ a.T + 2 * jnp.eye(4)
    start = matrix.T / (jnp.abs(matrix).sum(0).max() * jnp.abs(matrix).sum(1).max())
    return lax.fori_loop(0, 20, lambda _, v: v @ (2 * jnp.eye(4) - matrix @ v), start)


@program(X)
def sinkhorn(x: Any) -> Any:
    """Return a doubly stochastic matrix in the log domain."""

    def step(_: Any, log: Any) -> Any:
        log = log - nn.logsumexp(log, 1, keepdims=True)
        return log - nn.logsumexp(log, 0, keepdims=True)

    return jnp.exp(lax.fori_loop(0, 8, step, x))


@program(X)
def runge_kutta(x: Any) -> Any:
    """Return the states of an oscillator by fixed steps."""

    def slope(v: Any) -> Any:
        return jnp.stack([v[1], -v[0] + 0.1 * (1 - v[0] ** 2) * v[1]])

    def step(v: Any, _: Any) -> Any:
        h = 0.1
        a = slope(v)
        b = slope(v + h / 2 * a)
        c = slope(v + h / 2 * b)
        d = slope(v + h * c)
        v = v + h / 6 * (a + 2 * b + 2 * c + d)
        return v, v

    return lax.scan(step, x[:2], None, length=6)[1]


@program(rand(5, 4), rand(4, 4), LONG)
def viterbi(emissions: Any, transitions: Any, _: Any) -> Any:
    """Return the best path through a lattice."""

    def step(score: Any, row: Any) -> Any:
        total = score[:, None] + transitions + row
        return total.max(0), total.argmax(0)

    score, back = lax.scan(step, emissions[0], emissions[1:])
    _, path = lax.scan(lambda s, b: (b[s], b[s]), score.argmax(), back, reverse=True)
    return score.max(), path


@program(rand(7, 3))
def kmeans(points: Any) -> Any:
    """Return centres after some steps of k-means."""

    def step(_: Any, centres: Any) -> Any:
        nearest = jnp.argmin(((points[:, None] - centres) ** 2).sum(-1), 1)
        marks = nn.one_hot(nearest, 3)
        return marks.T @ points / jnp.maximum(marks.sum(0), 1)[:, None]

    return lax.fori_loop(0, 5, step, points[:3])


# Types, shapes, linear algebra.
add(
    "four_bits",
    lambda x: ((x * 3).astype(jnp.int4).astype(jnp.float32), (jnp.abs(x) * 3).astype(jnp.uint4).astype(jnp.int32)),
    X,
)
add(
    "bfloat16",
    lambda x: (
        nn.gelu(x.astype(jnp.bfloat16)).astype(jnp.float32),
        (x.astype(jnp.bfloat16) * 2).sum(1).astype(jnp.float32),
    ),
    X,
)
add("float8", lambda x: x.astype(jnp.float8_e4m3fn).astype(jnp.float32), X)
add("float16_products", lambda x: x.astype(jnp.float16) @ x.T.astype(jnp.float16), X)
add(
    "mixed_products",
    lambda x, i: (
        lax.dot_general(
            i[None].astype(jnp.int8),
            i[:, None].astype(jnp.int8),
            (((1,), (0,)), ((), ())),
            preferred_element_type=jnp.int32,
        )
        + x.sum()
    ),
    X,
    LONG,
)
add(
    "bits",
    lambda i: (lax.clz(i), lax.population_count(i.astype(jnp.uint32)), lax.shift_right_logical(-i, 3), i << 2),
    LONG,
)
add(
    "complex_products",
    lambda x, y: (lambda z: (jnp.real(z @ z.conj().T), jnp.imag(jnp.einsum("ij,kj->ik", z, z))))(x + 1j * y),
    X,
    Y,
)
add(
    "complex_functions",
    lambda x, y: (
        lambda z: (
            jnp.abs(jnp.sqrt(z)),
            jnp.real(jnp.log(z)),
            jnp.imag(z**2),
            jnp.real(jnp.sin(z)),
            jnp.real(jnp.tanh(z)),
        )
    )(x + 1j * y),
    X,
    Y,
)
add("complex_results", lambda x, y: jnp.fft.fft(x + 1j * y), X, Y)
add(
    "fourier_many",
    lambda x: (
        jnp.abs(jnp.fft.fftn(x)),
        jnp.abs(jnp.fft.rfft2(x)),
        jnp.fft.irfft2(jnp.fft.rfft2(x)),
        jnp.fft.hfft(x, 6),
    ),
    X,
)
add("fourier_convolution", lambda x, y: jax.scipy.signal.fftconvolve(x, y, mode="same"), X, Y)
add("spectrogram", lambda x: jnp.abs(jax.scipy.signal.stft(x, nperseg=8)[2]), rand(40))
add("window_products", lambda x: jax.scipy.signal.convolve2d(x, jnp.ones((2, 2)), mode="same"), X)
add("cosine_transform", lambda x: jax.scipy.fft.dct(x, norm="ortho"), X)
add("triangular", lambda a, b: jax.scipy.linalg.solve_triangular(jnp.triu(a) + 3 * jnp.eye(4), b, trans=1), SQUARE, X)
add(
    "cholesky_solve",
    lambda a, b: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a @ a.T + jnp.eye(4)), b),
    SQUARE,
    X,
)
add("lu_products", lambda a: (lambda order, low, high: order @ low @ high)(*jax.scipy.linalg.lu(a)), SQUARE)
add("eigen_functions", lambda a: (lambda w, v: (v * jnp.exp(-jnp.abs(w))) @ v.T)(*jnp.linalg.eigh(a @ a.T)), SQUARE)
add("low_rank", lambda a: (lambda u, s, v: (u[:, :2] * s[:2]) @ v[:2])(*jnp.linalg.svd(a, full_matrices=False)), X)
add("polar", lambda a: (lambda u, _, v: u @ v)(*jnp.linalg.svd(a)), SQUARE)
add(
    "norms",
    lambda a: (
        jnp.linalg.norm(a, 2),
        jnp.linalg.norm(a, "nuc"),
        jnp.linalg.norm(a, jnp.inf, 1),
        jnp.linalg.cond(a[:, :4]),
    ),
    X,
)
add(
    "toeplitz",
    lambda x: (jax.scipy.linalg.toeplitz(x[0]), jax.scipy.linalg.block_diag(x, x[:2]), jnp.vander(x[0], 4)),
    X,
)
add("einsum_paths", lambda x, y, z: jnp.einsum("ij,jk,kl->il", x, y.T, z), X, Y, rand(4, 3))
add("einsum_diagonals", lambda a: (jnp.einsum("ii->i", a), jnp.einsum("ij->", a), jnp.einsum("ij->ji", a)), SQUARE)
add(
    "segment_statistics",
    lambda x, i: (
        jax.ops.segment_min(x.T, i, 6),
        jax.ops.segment_prod(x.T, i, 6),
        jax.ops.segment_sum(x.T, jnp.sort(i), 6, indices_are_sorted=True),
    ),
    X,
    LONG,
)
add(
    "graph_attention",
    lambda x, i: (lambda e: jax.ops.segment_sum(nn.softmax(e)[:, None] * x.T, i, 6))(x.sum(0)),
    X,
    LONG,
)
add("sorted_by_two", lambda x, i: lax.sort((i, x[0], x[1]), num_keys=2), X, LONG)
add(
    "sorted_text_of_numbers",
    lambda x: (jnp.sort(x.ravel())[::-1], jnp.partition(x, 2, 1)[:, :2].sum(1), jnp.argsort(x, stable=True)),
    X,
)
add("ranks", lambda x: jax.scipy.stats.rankdata(x[0]), X)
add(
    "set_functions",
    lambda i: (jnp.isin(i, jnp.array([1, 3])), jnp.unique_counts(i, size=6), jnp.setdiff1d(i, jnp.array([3]), size=4)),
    LONG,
)
add(
    "cumulative_products",
    lambda x: (jnp.cumulative_sum(x, axis=1), jnp.nancumsum(x, 0), lax.cumprod(x, 1, reverse=True)),
    X,
)
add(
    "strided_pads",
    lambda x: (
        lax.pad(x, 1.0, ((0, 0, 2), (-1, 2, 0))),
        jnp.pad(x, 2, mode="symmetric"),
        jnp.pad(x, 1, mode="linear_ramp"),
        jnp.pad(x, 1, mode="mean"),
    ),
    X,
)
add(
    "argument_lookups",
    lambda x: (
        jnp.take_along_axis(x, x.argmax(1)[:, None], 1),
        jnp.put_along_axis(x, x.argmin(1)[:, None], 0.0, 1, inplace=False),
    ),
    X,
)
add(
    "apply_along",
    lambda x: (
        jnp.apply_along_axis(lambda r: r / r.max(), 1, x),
        jnp.vectorize(lambda a, b: a * b.sum(), signature="(),(n)->()")(x[0], x.T),
    ),
    X,
)
add(
    "piecewise",
    lambda x: (
        jnp.piecewise(x, [x < -1, x > 1], [-1.0, 1.0, lambda v: v**3]),
        jnp.choose(jnp.array([0, 1, 0, 1, 0, 1]), [x[0], x[1]], mode="clip"),
    ),
    X,
)
add(
    "special_functions",
    lambda x: (
        jax.scipy.special.betainc(2.0, 3.0, nn.sigmoid(x)),
        jax.scipy.special.gammainc(2.0, jnp.abs(x)),
        jax.scipy.special.ndtri(nn.sigmoid(x)),
        jax.scipy.special.xlogy(x, jnp.abs(x)),
        jax.scipy.special.zeta(2 + jnp.abs(x), 1.0),
    ),
    X,
)
add(
    "log_densities",
    lambda x: (
        jax.scipy.stats.norm.logpdf(x),
        jax.scipy.stats.t.logpdf(x, 3),
        jax.scipy.stats.gamma.logpdf(jnp.abs(x), 2),
        jax.scipy.stats.norm.cdf(x),
    ),
    X,
)
add(
    "losses",
    lambda x, y: (
        nn.log_sigmoid(x) * nn.sigmoid(y),
        nn.softmax(x) * (nn.log_softmax(x) - nn.log_softmax(y)),
        jnp.where(jnp.abs(x - y) < 1, (x - y) ** 2 / 2, jnp.abs(x - y) - 0.5),
    ),
    X,
    Y,
)
add(
    "convolution_flipped",
    lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "OIHW", "NCHW")),
    IMAGE,
    rand(4, 3, 3, 3),
)
add(
    "convolution_local",
    lambda x, k: lax.conv_general_dilated_local(x, k, (1,), "VALID", (3,)),
    rand(2, 3, 6),
    rand(4, 9, 4),
)
add("window_product", lambda x: lax.reduce_window(jnp.abs(x), 1.0, lax.mul, (1, 2, 2, 1), (1, 1, 1, 1), "SAME"), IMAGE)
add(
    "scatter_windows",
    lambda x: lax.scatter_add(
        x, jnp.array([[1], [3]]), jnp.ones((2, 2, 6)), lax.ScatterDimensionNumbers((1, 2), (), (0,)), mode="clip"
    ),
    X,
)
add(
    "out_of_bounds",
    lambda x, i: (x.at[i + 2].get(mode="fill", fill_value=-1.0), x.at[i + 2].set(0.0, mode="drop")),
    X,
    LONG,
)
add(
    "flash_attention",
    lambda q, k: nn.dot_product_attention(q, k, k, bias=jnp.ones((1, 1, 5, 7)), scale=0.3),
    rand(2, 5, 4, 8),
    rand(2, 7, 4, 8),
)


# Networks in plain JAX.
@program({"w": [rand(6, 8), rand(8, 8), rand(8, 3)], "b": [rand(8), rand(8), rand(3)]}, X)
def perceptron(p: Any, x: Any) -> Any:
    """Return dense layers with residuals."""
    h = nn.silu(x @ p["w"][0] + p["b"][0])
    h = h + nn.silu(h @ p["w"][1] + p["b"][1])
    return h @ p["w"][2] + p["b"][2]


@program(rand(3, 5, 8), rand(8, 24) * 0.3, rand(8, 8) * 0.3)
def causal_attention(x: Any, w: Any, o: Any) -> Any:
    """Return a causal attention with rotary embeddings."""
    batch, length, width = x.shape
    q, k, v = jnp.split(x @ w, 3, -1)
    q, k, v = (t.reshape(batch, length, 2, width // 2) for t in (q, k, v))
    angle = jnp.arange(length)[:, None] / 100 ** (jnp.arange(2) / 2)

    def turn(t: Any) -> Any:
        a, b = t[..., ::2], t[..., 1::2]
        c, s = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
        return jnp.stack([a * c - b * s, a * s + b * c], -1).reshape(t.shape)

    scores = jnp.einsum("bqhd,bkhd->bhqk", turn(q), turn(k)) / 2
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), v).reshape(x.shape) @ o


@program(rand(2, 6, 4), rand(4, 4) * 0.3, rand(4))
def state_space(x: Any, a: Any, d: Any) -> Any:
    """Return a selective state-space layer by an associative scan."""
    gate = nn.sigmoid(x @ a)

    def combine(p: Any, q: Any) -> Any:
        return p[0] * q[0], q[0] * p[1] + q[1]

    _, state = lax.associative_scan(combine, (gate, x * (1 - gate)), axis=1)
    return state * d


@program(rand(5, 8), rand(8, 3), rand(3, 8, 6) * 0.3)
def mixture_of_experts(x: Any, router: Any, experts: Any) -> Any:
    """Return a mixture of two experts for each token."""
    weight, index = lax.top_k(nn.softmax(x @ router), 2)
    outputs = jnp.einsum("td,edo->teo", x, experts)
    chosen = jnp.take_along_axis(outputs, index[..., None], 1)
    return (chosen * (weight / weight.sum(-1, keepdims=True))[..., None]).sum(1)


def _modules() -> dict[str, Case]:
    """Return networks of equinox, haiku and linen; those of a package that is not installed are left out."""
    result: dict[str, Case] = {}
    for package, make in (("equinox", _equinox), ("haiku", _haiku), ("flax.linen", _linen)):
        try:
            module = importlib.import_module(package)
        except ImportError:
            continue
        result |= {f"{package}.{name}": case for name, case in make(module).items()}
    return result


def _equinox(eqx: Any) -> dict[str, Case]:
    key = random.PRNGKey(0)

    def network(build: Callable[[], Any], x: Any) -> Case:
        def case() -> tuple[Any, tuple[Any, ...]]:
            module = build()
            return jax.vmap(lambda row: module(row)), (x,)

        return case

    e = eqx.nn
    return {
        "mlp": network(lambda: e.MLP(6, 3, 8, 2, key=key), X),
        "convolution": network(
            lambda: e.Sequential([e.Conv2d(3, 4, 3, key=key), e.Lambda(nn.relu), e.MaxPool2d(2)]), rand(2, 3, 8, 8)
        ),
        "attention": network(
            lambda: (lambda m: lambda x: m(x, x, x))(e.MultiheadAttention(2, 8, key=key)), rand(2, 5, 8)
        ),
        "lstm": network(
            lambda: (
                lambda m: (
                    lambda x: lax.scan(lambda s, r: (lambda n: (n, n[0]))(m(r, s)), (jnp.zeros(5), jnp.zeros(5)), x)[1]
                )
            )(e.LSTMCell(4, 5, key=key)),
            rand(2, 6, 4),
        ),
        "norms": network(lambda: e.Sequential([e.LayerNorm(6), e.RMSNorm(6), e.PReLU(), e.Dropout(inference=True)]), X),
        "embedding": network(lambda: e.Embedding(9, 4, key=key), LONG),
    }


def _haiku(hk: Any) -> dict[str, Case]:
    def network(build: Callable[[Any], Any], x: Any) -> Case:
        def case() -> tuple[Any, tuple[Any, ...]]:
            pure = hk.without_apply_rng(hk.transform(build))
            parameters = pure.init(random.PRNGKey(0), x)
            return (lambda v: pure.apply(parameters, v)), (x,)

        return case

    return {
        "mlp": network(lambda x: hk.nets.MLP([8, 3])(x), X),
        "convolution": network(
            lambda x: hk.MaxPool((2, 2), (2, 2), "SAME")(nn.relu(hk.Conv2D(4, 3, stride=2)(x))), IMAGE
        ),
        "lstm": network(
            lambda x: hk.dynamic_unroll(hk.LSTM(5), x, hk.LSTM(5).initial_state(2), time_major=False)[0], rand(2, 6, 4)
        ),
        "norms": network(lambda x: hk.GroupNorm(1)(hk.LayerNorm(-1, True, True)(x)), IMAGE),
        "transposed": network(lambda x: hk.Conv2DTranspose(2, 3, stride=2)(x), IMAGE),
    }


def _linen(linen: Any) -> dict[str, Case]:
    def network(module: Any, x: Any) -> Case:
        def case() -> tuple[Any, tuple[Any, ...]]:
            variables = module.init(random.PRNGKey(0), x)
            return (lambda v: module.apply(variables, v)), (x,)

        return case

    return {
        "mlp": network(linen.Sequential([linen.Dense(8), nn.gelu, linen.Dense(3)]), X),
        "convolution": network(
            linen.Sequential([linen.Conv(4, (3, 3), strides=2), linen.GroupNorm(2), nn.relu]), IMAGE
        ),
        "attention": network(linen.MultiHeadDotProductAttention(num_heads=2), rand(2, 5, 8)),
        "lstm": network(linen.RNN(linen.OptimizedLSTMCell(5)), rand(2, 6, 4)),
        "weight_normalized": network(linen.WeightNorm(linen.Dense(3)), X),
    }
