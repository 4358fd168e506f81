"""Programs of JAX and networks of Flax: arithmetic, indexing, control flow, linear algebra, layers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

jax = importlib.import_module("jax")
jnp, lax, nn, random = jax.numpy, jax.lax, jax.nn, jax.random
Case = Callable[[], tuple[Any, tuple[Any, ...]]]
_programs: dict[str, Case] = {}
_GENERATOR = np.random.default_rng(0)


def cases() -> dict[str, Case]:
    """Return functions with example inputs, by name."""
    return {**_programs, **_flax()}


def rand(*shape: int) -> Any:
    """Return random numbers of a shape."""
    return _GENERATOR.standard_normal(shape).astype(np.float32)


X, Y, SQUARE, IMAGE = rand(4, 6), rand(4, 6), rand(4, 4), rand(2, 8, 8, 3)
LONG = np.array([3, 1, 3, 0, 1, 5], np.int32)
LAYOUT = ("NHWC", "HWIO", "NHWC")


def program(*inputs: Any) -> Callable[[Any], Any]:
    """Register a function with its inputs."""

    def register(function: Any) -> Any:
        _programs[function.__name__] = lambda: (function, inputs)
        return function

    return register


def short(name: str, function: Any, *inputs: Any) -> None:
    """Register a function of one line."""
    _programs[name] = lambda: (function, inputs)


short(
    "arithmetic", lambda x, y: (x + y, x - y, x * y, x / y, x // y, x % y, jnp.fmod(x, y), x**2, jnp.abs(x) ** y), X, Y
)
short("integers", lambda i: (i // 2, i % 3, -i // 2, i << 1, i >> 1, i & 3, i | 8, i ^ 5, ~i, i**2, abs(-i)), LONG)
short("unsigned", lambda i: (i.astype("uint8") + 250, i.astype("uint32") >> 1, lax.population_count(i)), LONG)
short("comparisons", lambda x, y: (x < y, x >= y, (x > 0) & (y > 0), ~(x != y), jnp.isclose(x, y), jnp.sign(x)), X, Y)
short(
    "exponentials", lambda x: (jnp.exp(x), jnp.log(x * x), jnp.exp2(x), jnp.log1p(x * x), jnp.expm1(x), jnp.cbrt(x)), X
)
short(
    "trigonometry",
    lambda x: (jnp.sin(x), jnp.tan(x), jnp.arctan(x), jnp.sinh(x), jnp.arccosh(1 + x * x), jnp.sinc(x)),
    X,
)
short(
    "special",
    lambda x: (lax.erf(x), lax.erf_inv(0.9 * nn.tanh(x)), jax.scipy.special.logit(nn.sigmoid(x))),
    X,
)
short("gamma", lambda x: (lax.lgamma(x * x + 0.1), lax.digamma(x * x + 0.5), jax.scipy.special.gammaln(x * x + 1)), X)
short("bessel", lambda x: (lax.bessel_i0e(x), lax.bessel_i1e(x), jnp.i0(x)), X)
short("atan2_hypot", lambda x, y: (jnp.arctan2(x, y), jnp.hypot(x, y), jnp.logaddexp(x, y), jnp.copysign(x, y)), X, Y)
short(
    "rounding",
    lambda x: (jnp.floor(3 * x), jnp.ceil(3 * x), jnp.round(3 * x), jnp.trunc(3 * x), jnp.rint(x), jnp.round(x, 1)),
    X,
)
short("nextafter", lambda x, y: jnp.nextafter(x, y), X, Y)
short("not_numbers", lambda x: (jnp.isnan(x), jnp.nan_to_num(jnp.sqrt(x)), jnp.nansum(jnp.log(x)), jnp.isinf(1 / x)), X)
short(
    "activations",
    lambda x: (
        nn.gelu(x),
        nn.gelu(x, approximate=False),
        nn.silu(x),
        nn.elu(x),
        nn.softplus(x),
        nn.selu(x),
        nn.relu6(x),
        nn.mish(x),
        nn.glu(x),
        nn.celu(x),
        nn.hard_swish(x),
        nn.squareplus(x),
    ),
    X,
)
short(
    "softmaxes",
    lambda x: (
        nn.softmax(x),
        nn.log_softmax(x, 0),
        nn.logsumexp(x, 1),
        nn.standardize(x),
        nn.one_hot(jnp.argmax(x, 1), 6),
    ),
    X,
)
short("attention", lambda x: nn.dot_product_attention(x, x, x, is_causal=True), rand(2, 5, 4, 8))
short(
    "attention_mask",
    lambda x, m: nn.dot_product_attention(x, x, x, mask=m[:, None, None, :]),
    rand(2, 5, 4, 8),
    rand(2, 5) > -1,
)
short("grouped_attention", lambda q, k: nn.dot_product_attention(q, k, k), rand(2, 5, 4, 8), rand(2, 7, 2, 8))
short(
    "reductions",
    lambda x: (x.sum(), x.mean(0), x.max(1), x.min(), x.prod(1), x.std(0), x.var(1, ddof=1), jnp.ptp(x, 1)),
    X,
)
short(
    "logic_reductions",
    lambda x: ((x > 0).all(1), (x > 0).any(0), jnp.count_nonzero(x > 0, 1), jnp.argmax(x), jnp.argmin(x, 1)),
    X,
)
short(
    "cumulative",
    lambda x: (
        jnp.cumsum(x, 1),
        jnp.cumprod(x, 0),
        lax.cummax(x, 1),
        lax.cumlogsumexp(x, 0),
        lax.cummin(x, 0, reverse=True),
    ),
    X,
)
short(
    "statistics",
    lambda x: (
        jnp.median(x, 1),
        jnp.quantile(x, 0.3, 0),
        jnp.percentile(x, jnp.array([20.0, 70.0]), 1),
        jnp.corrcoef(x),
    ),
    X,
)
short(
    "averages",
    lambda x, y: (
        jnp.average(x, 1, jnp.abs(y)),
        jnp.cov(x),
        jnp.trapezoid(x, axis=1),
        jnp.diff(x, 2),
        jnp.gradient(x, axis=1),
    ),
    X,
    Y,
)
short(
    "products",
    lambda x, y: (
        x @ y.T,
        jnp.einsum("ij,kj->ik", x, y),
        jnp.tensordot(x, y, 1 and [[1], [1]]),
        jnp.outer(x[0], y[0]),
        jnp.vdot(x, y),
        jnp.inner(x, y),
    ),
    X,
    Y,
)
short(
    "batched_products",
    lambda x, y: (jnp.matmul(x, y), jnp.einsum("bij,bjk,bk->bi", x, y, y[:, 0])),
    rand(3, 4, 5),
    rand(3, 5, 6),
)
short(
    "kron_cross",
    lambda x, y: (jnp.kron(x[:2], y[:2]), jnp.cross(x[:, :3], y[:, :3]), jnp.trace(x), jnp.diag(x[0])),
    X,
    Y,
)
short(
    "shapes",
    lambda x: (
        x.reshape(-1),
        x.T,
        x[:, None],
        jnp.moveaxis(x[None], 0, 2),
        jnp.tile(x, (2, 1)),
        jnp.repeat(x, 2, 1),
        x.ravel()[::2],
    ),
    X,
)
short(
    "joins",
    lambda x, y: (
        jnp.concatenate([x, y]),
        jnp.stack([x, y], 1),
        jnp.hstack([x, y]),
        *jnp.split(x, 3, 1),
        jnp.block([[x, y], [y, x]]),
    ),
    X,
    Y,
)
short(
    "pads",
    lambda x: (
        jnp.pad(x, 1),
        jnp.pad(x, ((0, 1), (2, 0)), mode="reflect"),
        jnp.pad(x, 1, mode="edge"),
        jnp.pad(x, 2, mode="wrap"),
        lax.pad(x, 0.0, ((1, -1, 1), (0, 2, 0))),
    ),
    X,
)
short(
    "rolls",
    lambda x: (jnp.roll(x, 2, 1), jnp.flip(x, 0), jnp.rot90(x), jnp.swapaxes(x, 0, 1), jnp.triu(x), jnp.tril(x, -1)),
    X,
)
short("slices", lambda x: (x[1:3, ::2], x[::-1], x[..., -1], x[:, [0, 2]], x[[1, 2], [0, 3]], x[:, None, 2:]), X)
short(
    "gathers",
    lambda x, i: (x[i % 4], jnp.take(x, i, 1, mode="clip"), jnp.take_along_axis(x, jnp.argsort(x, 1), 1), x[i % 4, i]),
    X,
    LONG,
)
short(
    "dynamic_slices",
    lambda x, i: (
        lax.dynamic_slice(x, (i, 0), (2, 3)),
        lax.dynamic_index_in_dim(x, i, 1),
        lax.dynamic_update_slice(x, x[:2, :2] * 0, (i, i)),
    ),
    X,
    np.int32(1),
)
short(
    "scatters",
    lambda x, i: (
        x.at[i % 4].set(1.0),
        x.at[i % 4, i].add(2.0),
        x.at[:, i].multiply(3.0),
        x.at[i % 4].max(0.5),
        x.at[i % 4].min(0.5),
    ),
    X,
    LONG,
)
short(
    "segments",
    lambda x, i: (jax.ops.segment_sum(x.T, i, 6), jax.ops.segment_max(x.T, i, 6), jnp.bincount(i, length=6)),
    X,
    LONG,
)
short(
    "masks",
    lambda x: (
        jnp.where(x > 0, x, -1.0),
        jnp.nonzero(x > 0, size=9, fill_value=0),
        jnp.select([x > 1, x > 0], [x, x * 2], 7.0),
    ),
    X,
)
short(
    "sorts",
    lambda x: (
        jnp.sort(x, 1),
        jnp.argsort(x, 0),
        lax.top_k(x, 3),
        jnp.sort(x, descending=True),
        jnp.lexsort((x[0], x[1])),
    ),
    X,
)
short("sort_pairs", lambda x, i: lax.sort((i, x[0]), num_keys=1), X, LONG)
short(
    "searches",
    lambda x, y: (
        jnp.searchsorted(jnp.sort(x[0]), y[0]),
        jnp.digitize(y, jnp.array([-1.0, 0, 1])),
        jnp.interp(y, jnp.sort(x[0]), x[1]),
    ),
    X,
    Y,
)
short("uniques", lambda i: jnp.unique(i, size=6, return_inverse=True), LONG)
short(
    "histograms",
    lambda x: (jnp.histogram(x, 5, (-2, 2)), jnp.convolve(x[0], x[1]), jnp.correlate(x[0], x[1], "same")),
    X,
)
short(
    "polynomials",
    lambda x: (
        jnp.polyval(jnp.array([1.0, 2, 3]), x),
        jnp.vander(x[0], 3),
        jnp.linspace(0, x[0, 0], 5),
        jnp.meshgrid(x[0], x[1]),
    ),
    X,
)
short(
    "types",
    lambda x: (
        x.astype("float16"),
        x.astype(int),
        (x > 0).astype("float32"),
        lax.bitcast_convert_type(x, "int32"),
        x.astype("bfloat16").astype("float32"),
    ),
    X,
)
short("half_precision", lambda x: (x.astype("bfloat16") @ x.T.astype("bfloat16")).astype("float32"), X)
short(
    "convolution_same",
    lambda x, k: lax.conv_general_dilated(x, k, (2, 2), "SAME", dimension_numbers=LAYOUT),
    IMAGE,
    rand(3, 3, 3, 4),
)
short(
    "convolution_groups",
    lambda x, k: lax.conv_general_dilated(
        x, k, (1, 1), "VALID", rhs_dilation=(2, 2), dimension_numbers=LAYOUT, feature_group_count=3
    ),
    IMAGE,
    rand(3, 3, 1, 6),
)
short(
    "convolution_input_dilated",
    lambda x, k: lax.conv_general_dilated(
        x, k, (1, 1), ((2, 2), (1, 3)), lhs_dilation=(2, 3), dimension_numbers=LAYOUT
    ),
    IMAGE,
    rand(3, 3, 3, 4),
)
short("convolution_transposed", lambda x, k: lax.conv_transpose(x, k, (2, 2), "SAME"), IMAGE, rand(3, 3, 3, 4))
short(
    "convolution_1d",
    lambda x, k: lax.conv_general_dilated(x, k, (1,), [(2, 0)], dimension_numbers=("NWC", "WIO", "NWC")),
    rand(2, 9, 3),
    rand(3, 3, 4),
)
short("convolution_3d", lambda x, k: lax.conv(x, k, (1, 1, 1), "SAME"), rand(1, 2, 4, 5, 6), rand(3, 2, 3, 3, 3))
short(
    "convolution_batch_groups",
    lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME", batch_group_count=2),
    rand(4, 3, 5, 5),
    rand(4, 3, 3, 3),
)
short("window_max", lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"), IMAGE)
short(
    "window_sum",
    lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID", window_dilation=(1, 2, 2, 1)),
    IMAGE,
)
short("patches", lambda x: lax.conv_general_dilated_patches(x, (3, 3), (2, 2), "SAME", dimension_numbers=LAYOUT), IMAGE)
short(
    "resizes",
    lambda x: (
        jax.image.resize(x, (2, 16, 12, 3), "bilinear"),
        jax.image.resize(x, (2, 5, 5, 3), "nearest"),
        jax.image.resize(x, (2, 4, 4, 3), "cubic"),
    ),
    IMAGE,
)
short(
    "map_coordinates",
    lambda x, c: jax.scipy.ndimage.map_coordinates(x, [c[0] * 2, c[1] * 2], 1, mode="nearest"),
    X,
    np.abs(Y),
)
short("branches", lambda x: lax.cond(x.sum() > 0, lambda v: v * 2, lambda v: v - 1, x), X)
short("switches", lambda x, i: lax.switch(i, [lambda v: v, lambda v: v * 2, lambda v: -v], x), X, np.int32(2))
short("fori", lambda x: lax.fori_loop(0, 5, lambda i, v: v * 0.5 + i, x), X)
short("while_on_data", lambda x: lax.while_loop(lambda v: jnp.abs(v).max() > 1e-2, lambda v: v * 0.5, x), X)
short("scans", lambda x: lax.scan(lambda c, r: (jnp.tanh(c * 0.5 + r), c.sum()), x[0], x), X)
short("scan_reverse", lambda x: lax.scan(lambda c, r: (c + r, c), x[0] * 0, x, reverse=True), X)
short("maps", lambda x: lax.map(lambda r: (r - r.mean()) / r.std(), x), X)
short(
    "associative_scans",
    lambda x: (lax.associative_scan(jnp.add, x), lax.associative_scan(jnp.maximum, x, reverse=True)),
    X,
)
short(
    "vmaps",
    lambda x, y: (jax.vmap(jnp.dot)(x, y), jax.vmap(jax.vmap(lambda a, b: a * b + 1, (0, None)), (0, 0))(x, y[:, 0])),
    X,
    Y,
)
short(
    "gradients",
    lambda x: (jax.grad(lambda v: (nn.gelu(v) ** 2).sum())(x), jax.vmap(jax.grad(lambda r: r.prod()))(x)),
    X,
)
short(
    "jacobians",
    lambda x: (jax.jacfwd(lambda v: jnp.sin(v) * v.sum())(x[0]), jax.hessian(lambda v: (v**3).sum())(x[0])),
    X,
)
short(
    "convolution_gradient",
    lambda x, k: jax.grad(lambda w: (lax.conv(x, w, (2, 2), "SAME") ** 2).sum())(k),
    rand(2, 3, 8, 8),
    rand(4, 3, 3, 3),
)
short("checkpointed", lambda x: jax.checkpoint(lambda v: jnp.sin(jnp.cos(v)))(x) + jax.jit(jnp.square)(x), X)
short(
    "linear_systems",
    lambda a, x: (jnp.linalg.solve(a @ a.T + jnp.eye(4), x), jnp.linalg.inv(a @ a.T + jnp.eye(4)), jnp.linalg.det(a)),
    SQUARE,
    X,
)
short(
    "cholesky",
    lambda a: (
        jnp.linalg.cholesky(a @ a.T + jnp.eye(4)),
        jax.scipy.linalg.solve_triangular(jnp.tril(a) + 3 * jnp.eye(4), a, lower=True),
    ),
    SQUARE,
)
short("qr_products", lambda a: (lambda q, r: (q @ r, jnp.abs(r)))(*jnp.linalg.qr(a)), X.T.copy())
short("eigenvalues", lambda a: (lambda w, v: (w, jnp.abs(v)))(*jnp.linalg.eigh(a + a.T)), SQUARE)
short("singular_values", lambda a: (jnp.linalg.svd(a, compute_uv=False), jnp.linalg.matrix_rank(a)), X)
short("least_squares", lambda a, b: jnp.linalg.lstsq(a, b)[0], rand(6, 3), rand(6, 2))
short("pseudo_inverse", lambda a: jnp.linalg.pinv(a), rand(6, 3))
short(
    "matrix_functions",
    lambda a: (
        jax.scipy.linalg.expm(a * 0.3),
        jnp.linalg.matrix_power(a, 3),
        jnp.linalg.slogdet(a),
        jnp.linalg.norm(a),
    ),
    SQUARE,
)
short(
    "fourier",
    lambda x: (
        jnp.abs(jnp.fft.fft(x)),
        jnp.fft.rfft(x).real,
        jnp.fft.irfft(jnp.fft.rfft(x) * 2, 6),
        jnp.abs(jnp.fft.fft2(x)),
    ),
    X,
)
short(
    "fourier_shift",
    lambda x: (jnp.fft.fftshift(x, 1), jnp.fft.ifft(jnp.fft.fft(x)).real, jnp.angle(jnp.fft.fft(x)[:, 1:3])),
    X,
)
short(
    "complex_numbers",
    lambda x, y: (lambda z: (z * z.conj() + jnp.exp(1j * z) / (1 + jnp.abs(z))).real)(lax.complex(x, y)),
    X,
    Y,
)
short(
    "random_of_known_key",
    lambda x: x + random.normal(random.key(0), x.shape) + random.uniform(random.PRNGKey(1), x.shape),
    X,
)
short(
    "random_choice",
    lambda x: (random.permutation(random.key(0), 6), random.bernoulli(random.key(1), 0.3, (4, 6)) * x),
    X,
)
short(
    "rotary",
    lambda x: (
        lambda a, f: jnp.concatenate(
            [x[..., :4] * jnp.cos(f) - x[..., 4:] * jnp.sin(f), x[..., :4] * jnp.sin(f) + x[..., 4:] * jnp.cos(f)], -1
        )
    )(0, jnp.arange(x.shape[1])[:, None] / 100 ** (jnp.arange(4) / 4)),
    rand(2, 5, 8),
)
short(
    "trees",
    lambda p, x: {"y": x @ p["w"] + p["b"], "z": [x.sum(), {"n": x.shape[0] * jnp.ones(2)}]},
    {"w": rand(6, 3), "b": rand(3)},
    X,
)
short(
    "experts",
    lambda x, w: jnp.einsum(
        "te,eto->to", nn.softmax(lax.top_k(x, 2)[0]) @ jnp.ones((2, 3)), jnp.einsum("ti,eio->eto", x, w)
    ),
    X,
    rand(3, 6, 5),
)
short(
    "ragged_products", lambda x, w, n: lax.ragged_dot(x, w, n), rand(6, 4), rand(3, 4, 5), np.array([2, 1, 3], np.int32)
)
short("reduce_any_function", lambda x: lax.reduce(x, np.float32(1), lambda a, b: a * b, (1,)), X)
short("precision_of_reduction", lambda x: lax.reduce_precision(x, 5, 10), X)
short(
    "clamps",
    lambda x: (jnp.clip(x, -1, 1), lax.clamp(-0.5, x, 0.5), jnp.minimum(x, 0), jnp.heaviside(x, 0.5), jnp.fmax(x, 0)),
    X,
)


@jax.custom_jvp
def _straight(x: Any) -> Any:
    return jnp.where(x > 0, 1.0, -1.0)


_straight.defjvps(lambda tangent, _, x: tangent * 2 * x)
short("custom_gradient", lambda x: (_straight(x), jax.grad(lambda v: _straight(v).sum())(x)), X)


def _flax() -> dict[str, Case]:
    """Return networks of Flax's nnx, by name; none if Flax is not installed."""
    try:
        nnx = importlib.import_module("flax.nnx")
    except ImportError:
        return {}

    def network(*parts: Callable[[Any], Any]) -> Callable[[], Any]:
        def build() -> Any:
            rngs = nnx.Rngs(0)
            model = nnx.Sequential(*(part(rngs) for part in parts))
            model.eval()
            return model

        return build

    networks = {
        "flax.mlp": (
            network(lambda r: nnx.Linear(6, 8, rngs=r), lambda r: nnx.relu, lambda r: nnx.Linear(8, 3, rngs=r)),
            X,
        ),
        "flax.convolutions": (
            network(
                lambda r: nnx.Conv(3, 4, (3, 3), strides=2, rngs=r),
                lambda r: nnx.BatchNorm(4, use_running_average=True, rngs=r),
                lambda r: nnx.relu,
                lambda r: nnx.ConvTranspose(4, 2, (3, 3), strides=(2, 2), rngs=r),
                lambda r: lambda x: nnx.avg_pool(x, (2, 2), strides=(2, 2)),
                lambda r: nnx.GroupNorm(2, num_groups=2, rngs=r),
            ),
            IMAGE,
        ),
        "flax.norms": (
            network(
                lambda r: nnx.LayerNorm(6, rngs=r), lambda r: nnx.RMSNorm(6, rngs=r), lambda r: nnx.Dropout(0.5, rngs=r)
            ),
            X,
        ),
        "flax.embedding": (network(lambda r: nnx.Embed(9, 5, rngs=r), lambda r: nnx.Linear(5, 2, rngs=r)), LONG),
        "flax.attention": (network(lambda r: nnx.MultiHeadAttention(2, 8, decode=False, rngs=r)), rand(2, 5, 8)),
        "flax.lstm": (network(lambda r: nnx.RNN(nnx.LSTMCell(6, 5, rngs=r))), rand(2, 7, 6)),
        "flax.gru": (network(lambda r: nnx.RNN(nnx.GRUCell(6, 5, rngs=r))), rand(2, 7, 6)),
        "flax.bidirectional": (
            network(
                lambda r: nnx.Bidirectional(
                    nnx.RNN(nnx.SimpleCell(6, 5, rngs=r)), nnx.RNN(nnx.SimpleCell(6, 5, rngs=r))
                )
            ),
            rand(2, 7, 6),
        ),
    }
    return {name: (lambda build=build, x=x: (build(), (x,))) for name, (build, x) in networks.items()}
