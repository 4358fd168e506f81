"""Programs of TensorFlow: one function of tensors each, with a signature and the limits of its inputs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

tf = importlib.import_module("tensorflow")
nn, linalg, image, signal, math = tf.nn, tf.linalg, tf.image, tf.signal, tf.math


@dataclass(frozen=True)
class Program:
    """A function, with the shapes and types of its inputs."""

    function: Callable[..., Any]
    inputs: tuple[tuple[tuple[int | None, ...], str], ...]

    def signature(self) -> list[Any]:
        """Return the specifications of the inputs, named `a`, `b`, …"""
        return [tf.TensorSpec(shape, dtype, name="abcdefgh"[index]) for index, (shape, dtype) in enumerate(self.inputs)]


PROGRAMS: dict[str, Program] = {}
_constants = np.random.default_rng(1)


def weight(*shape: int) -> Any:
    """Return constant numbers of a shape."""
    return tf.constant(_constants.standard_normal(shape).astype(np.float32) * 0.3)


def add(name: str, function: Callable[..., Any], *inputs: Any) -> None:
    """Register a program; an input is a shape, in float32, or a pair of shape and type."""
    pairs = tuple(item if isinstance(item[-1], str) else (item, "float32") for item in inputs)
    PROGRAMS[name] = Program(function, pairs)


ROWS, OPEN, MAPS, INDICES = (4, 6), (None, 6), (1, 8, 8, 3), ((5,), "int32")

# Elements.
add(
    "arithmetic",
    lambda a, b: (a + b, a - b, a * b, a / (b * b + 1), tf.math.floordiv(a, b), tf.math.floormod(a, b)),
    OPEN,
    OPEN,
)
add("broadcast-six", lambda a, b: a * b + tf.maximum(a, b), (1, 2, 3, 4, 1, 2), (2, 1, 3, 1, 5, 2))
add(
    "integers",
    lambda a, b: (a + b, a * b, a // (b + 1), a % (b + 1), tf.bitwise.bitwise_xor(a, b), tf.bitwise.left_shift(a, b)),
    (ROWS, "int32"),
    (ROWS, "int32"),
)
add(
    "integers-wide",
    lambda a, b: (a + b, a * b, tf.maximum(a, b), tf.abs(a - b), a // (b + 1)),
    (ROWS, "int64"),
    (ROWS, "int64"),
)
add("right-shift", lambda a, b: tf.bitwise.right_shift(a * 9, b), (ROWS, "int32"), (ROWS, "int32"))
add(
    "comparisons",
    lambda a, b: (a < b, a >= b, tf.equal(a, b), a != b, (a > 0) & (b > 0), tf.math.logical_xor(a > 0, b > 0)),
    OPEN,
    OPEN,
)
add(
    "exponentials",
    lambda a: (
        tf.exp(a),
        tf.math.log(a * a + 1),
        tf.math.log1p(a * a),
        tf.math.expm1(a),
        tf.sqrt(a * a),
        tf.math.rsqrt(a * a + 1),
    ),
    OPEN,
)
add("trigonometry", lambda a: (tf.sin(a), tf.cos(a), tf.tan(a), tf.sinh(a), tf.atan(a), tf.math.atan2(a, a + 2)), OPEN)
add(
    "rounding",
    lambda a: (tf.floor(3 * a), tf.math.ceil(3 * a), tf.round(3 * a), tf.cast(3 * a, tf.int32), tf.sign(a)),
    OPEN,
)
add(
    "powers",
    lambda a: (a**2, a**3, tf.abs(a) ** 0.3, tf.pow(2.0, a), tf.math.squared_difference(a, 1.0), 1 / (a * a + 1)),
    OPEN,
)
add("error-functions", lambda a: (nn.gelu(a, approximate=True), tf.math.erf(a)), OPEN)
add(
    "activations",
    lambda a: (
        nn.relu(a),
        nn.relu6(a),
        nn.elu(a),
        nn.selu(a),
        nn.leaky_relu(a, 0.1),
        tf.tanh(a),
        tf.sigmoid(a),
        nn.softplus(a),
        nn.softsign(a),
        nn.silu(a),
        a * nn.relu6(a + 3) / 6,
    ),
    OPEN,
)
add("softmaxes", lambda a: (nn.softmax(a), nn.log_softmax(a), nn.softmax(a, 0), tf.reduce_logsumexp(a, 1)), OPEN)
add(
    "clips",
    lambda a: (tf.clip_by_value(a, -0.5, 1.0), tf.clip_by_norm(a, 1.0), tf.minimum(tf.maximum(a, 0.0), 1.0)),
    OPEN,
)
add(
    "not-numbers",
    lambda a: (tf.math.is_nan(a), tf.math.is_finite(a), tf.where(tf.math.is_inf(1 / a), 0.0, a)),
    OPEN,
)
add(
    "casts",
    lambda a: (
        tf.cast(a, tf.int32),
        tf.cast(a > 0, tf.float32),
        tf.cast(tf.cast(a, tf.int64), tf.float32),
        tf.cast(tf.cast(a * 5, tf.int8), tf.int32),
        tf.cast(a, tf.float16),
    ),
    OPEN,
)
add(
    "selections",
    lambda a, b: (tf.where(a > 0, a, b), tf.where(a > b, 1.0, b), tf.where(a[:, :1] > 0, a, b)),
    OPEN,
    OPEN,
)

# Reductions and order.
add(
    "reductions",
    lambda a: (
        tf.reduce_sum(a),
        tf.reduce_mean(a, 0),
        tf.reduce_max(a, 1, keepdims=True),
        tf.reduce_min(a),
        tf.reduce_prod(a, 1),
        tf.math.reduce_std(a, 1),
    ),
    OPEN,
)
add(
    "logic-reductions",
    lambda a: (tf.reduce_all(a > 0, 1), tf.reduce_any(a > 1, 0), tf.math.count_nonzero(a > 0, 1)),
    OPEN,
)
add("cumulative", lambda a: (tf.cumsum(a, 1), tf.cumsum(a, 0, exclusive=True, reverse=True)), OPEN)
add("cumulative-product", lambda a: tf.math.cumprod(a, 1), ROWS)
add("arg-extremes", lambda a: (tf.argmax(a, 1), tf.argmin(a, 0), tf.argmax(a, -1, output_type=tf.int32)), OPEN)
add("top-k", lambda a: math.top_k(a, 3), OPEN)
add("sorted", lambda a: (tf.sort(a, 1), tf.argsort(a, 1, "DESCENDING")), OPEN)
add("unique", lambda a: tf.unique(a), INDICES)
add("segment-sum", lambda a: math.segment_sum(a, tf.constant([0, 0, 1, 2])), ROWS)
add(
    "unsorted-segments",
    lambda a, b: (
        math.unsorted_segment_sum(a, b, 4),
        math.unsorted_segment_max(a, b, 4),
        math.unsorted_segment_min(a, b, 4),
        math.unsorted_segment_prod(a, b, 4),
    ),
    (5, 3),
    INDICES,
)
add("bucketize", lambda a: tf.raw_ops.Bucketize(input=a, boundaries=[-1.0, 0.0, 0.5]), ROWS)
add("bincount", lambda a: math.bincount(a, minlength=5, maxlength=5), INDICES)

# Movement.
add(
    "reshapes",
    lambda a: (tf.reshape(a, [-1]), tf.reshape(a, [-1, 2, 3]), tf.transpose(a), a[:, None], tf.squeeze(a[None], 0)),
    OPEN,
)
add("slices", lambda a: (a[1:, ::2], a[::-1], a[..., -1], a[:, 2:-1], a[1, None], tf.slice(a, [0, 1], [-1, 3])), ROWS)
add(
    "slices-computed",
    lambda a, b: (a[b[0] :], tf.slice(a, [b[1], 0], [1, 4]), a[:, : b[2] + 1]),
    (6, 6),
    ((3,), "int32"),
)
add(
    "joins",
    lambda a, b: (
        tf.concat([a, b], 0),
        tf.stack([a, b], 1),
        *tf.split(a, 3, 1),
        *tf.split(a, [1, 5], 1),
        *tf.unstack(a, axis=1)[:2],
    ),
    OPEN,
    OPEN,
)
add(
    "pads",
    lambda a: (
        tf.pad(a, [[0, 1], [2, 0]]),
        tf.pad(a, [[1, 1], [1, 2]], constant_values=3.0),
        tf.pad(a, [[1, 1], [2, 2]], "REFLECT"),
        tf.pad(a, [[1, 1], [2, 2]], "SYMMETRIC"),
    ),
    ROWS,
)
add(
    "tiles",
    lambda a: (
        tf.tile(a, [2, 1]),
        tf.repeat(a, 2, 1),
        tf.broadcast_to(a, [3, 4, 6]),
        tf.reverse(a, [1]),
        tf.roll(a, 2, 1),
    ),
    ROWS,
)
add(
    "gathers",
    lambda a, b: (tf.gather(a, b), tf.gather(a, b, axis=1), tf.gather_nd(a, tf.stack([b % 4, b], 1))),
    ROWS,
    INDICES,
)
add("gather-batches", lambda a, b: tf.gather(a, b, batch_dims=1), (2, 4, 3), ((2, 5), "int32"))
add(
    "scatters",
    lambda a, b: (
        tf.scatter_nd(b[:, None], a, [6, 3]),
        tf.tensor_scatter_nd_update(tf.zeros([6, 3]), b[:2, None], a[:2]),
    ),
    (5, 3),
    INDICES,
)
add(
    "scatter-extremes",
    lambda a, b: (
        tf.tensor_scatter_nd_max(tf.zeros([6, 3]), b[:, None], a),
        tf.tensor_scatter_nd_add(tf.ones([6, 3]), b[:, None], a),
    ),
    (5, 3),
    INDICES,
)
add("one-hot", lambda a: (tf.one_hot(a, 4), tf.one_hot(a, 4, 2.0, -1.0, 0)), INDICES)
add("masks", lambda a: (tf.boolean_mask(a, a[:, 0] > 0), tf.where(a > 0)), OPEN)
add(
    "ranges",
    lambda a: (
        tf.range(tf.shape(a)[0]),
        tf.range(0.0, a[0, 0] ** 2 + 1, 0.5),
        tf.fill(tf.shape(a), 2.0),
        tf.eye(4),
        tf.linspace(0.0, 1.0, 5),
    ),
    OPEN,
)
add(
    "shape-arithmetic",
    lambda a: (tf.shape(a), tf.size(a), tf.rank(a), tf.zeros_like(a), tf.reshape(a, [tf.shape(a)[0] * 2, 3])),
    OPEN,
)
add("meshgrid", lambda a, b: tf.meshgrid(a, b), ((3,), "float32"), ((4,), "float32"))
add(
    "bands",
    lambda a: (
        linalg.band_part(a, 1, 0),
        linalg.diag(a[0]),
        linalg.diag_part(a[:, :4]),
        linalg.set_diag(a[:, :4], a[0, :4]),
    ),
    ROWS,
)
add(
    "space-depth",
    lambda a: (
        tf.nn.space_to_depth(a, 2),
        tf.nn.depth_to_space(tf.concat([a, a, a, a], 3), 2),
        tf.space_to_batch(a, [2, 2], [[0, 0], [2, 2]]),
    ),
    MAPS,
)
add("reverse-sequence", lambda a, b: tf.reverse_sequence(a, b, seq_axis=1), (3, 5, 2), ((3,), "int32"))
add(
    "sparse-to-dense",
    lambda a: tf.raw_ops.SparseToDense(
        sparse_indices=[[0, 1], [2, 3]], output_shape=[4, 6], sparse_values=a[0, :2], default_value=0.0
    ),
    ROWS,
)
add("embedding", lambda a: nn.embedding_lookup(weight(8, 3), a), INDICES)

# Products and images.
add(
    "products",
    lambda a, b: (
        a @ tf.transpose(b),
        tf.matmul(a, b, transpose_b=True),
        tf.einsum("ij,kj->ik", a, b),
        tf.tensordot(a, b, [[1], [1]]),
    ),
    OPEN,
    ROWS,
)
add(
    "batched-products",
    lambda a, b: (a @ b, tf.einsum("bij,bjk->bki", a, b), tf.matmul(a, b[:1])),
    (None, 4, 5),
    (None, 5, 3),
)
add("dense", lambda a: nn.relu(a @ weight(6, 8) + weight(8)) @ weight(8, 3), OPEN)
add("convolution-same", lambda a: nn.relu(nn.conv2d(a, weight(3, 3, 3, 4), 2, "SAME") + weight(4)), (None, 9, 8, 3))
add("convolution-dilated", lambda a: nn.conv2d(a, weight(3, 3, 3, 4), 1, "VALID", dilations=2), MAPS)
add("convolution-grouped", lambda a: nn.conv2d(a, weight(3, 3, 2, 6), 1, "SAME"), (1, 8, 8, 6))
add("convolution-depthwise", lambda a: nn.relu6(nn.depthwise_conv2d(a, weight(3, 3, 3, 2), [1, 2, 2, 1], "SAME")), MAPS)
add("convolution-transposed", lambda a: nn.conv2d_transpose(a, weight(3, 3, 4, 3), [1, 16, 16, 4], 2, "SAME"), MAPS)
add("convolution-line", lambda a: nn.conv1d(a, weight(3, 3, 4), 2, "SAME"), (2, 9, 3))
add("convolution-volume", lambda a: nn.conv3d(a, weight(2, 3, 3, 2, 4), [1, 1, 2, 2, 1], "SAME"), (1, 4, 6, 6, 2))
add(
    "convolution-volume-transposed",
    lambda a: nn.conv3d_transpose(a, weight(2, 2, 2, 3, 2), [1, 8, 8, 8, 3], 2, "SAME"),
    (1, 4, 4, 4, 2),
)
add("convolution-open", lambda a: nn.conv2d(a, weight(3, 3, 3, 4), 1, "SAME") + 1, (1, None, None, 3))
add(
    "pools",
    lambda a: (
        nn.max_pool2d(a, 3, 2, "SAME"),
        nn.avg_pool2d(a, 3, 2, "SAME"),
        nn.avg_pool2d(a, 2, 2, "VALID"),
        tf.reduce_mean(a, [1, 2]),
    ),
    MAPS,
)
add("pool-powers", lambda a: (tf.sqrt(nn.avg_pool2d(a * a, 2, 1, "VALID")), nn.max_pool(a, 2, 2, "VALID")), MAPS)
add("pool-arguments", lambda a: nn.max_pool_with_argmax(a, 2, 2, "VALID"), MAPS)
add("local-response", lambda a: nn.local_response_normalization(a, 1, 1.0, 0.5, 0.75), (1, 4, 4, 6))
add(
    "resize-linear",
    lambda a: (
        image.resize(a, [12, 5]),
        tf.compat.v1.image.resize_bilinear(a, [4, 4], align_corners=True),
        tf.compat.v1.image.resize_bilinear(a, [5, 5]),
    ),
    MAPS,
)
add(
    "resize-nearest",
    lambda a: (
        image.resize(a, [12, 5], "nearest"),
        tf.compat.v1.image.resize_nearest_neighbor(a, [5, 5], align_corners=True),
    ),
    MAPS,
)
add("resize-cubic", lambda a: image.resize(a, [12, 12], "bicubic"), MAPS)
add(
    "crop-and-resize",
    lambda a: image.crop_and_resize(a, [[0.1, 0.2, 0.7, 0.9]], [0], [4, 4]),
    MAPS,
)
add(
    "patches",
    lambda a: image.extract_patches(a, [1, 3, 3, 1], [1, 2, 2, 1], [1, 1, 1, 1], "SAME"),
    MAPS,
)
add(
    "colours",
    lambda a: (image.rgb_to_grayscale(tf.sigmoid(a)), image.flip_left_right(a), image.per_image_standardization(a)),
    MAPS,
)
add(
    "suppression",
    lambda a, b: image.non_max_suppression(tf.concat([a, a + tf.abs(b[:, None]) + 1], 1), b, 3, 0.5),
    (6, 2),
    (6,),
)
add(
    "suppression-padded",
    lambda a, b: image.non_max_suppression_padded(tf.concat([a, a + 1], 1), b, 4, 0.3, pad_to_max_output_size=True),
    (6, 2),
    (6,),
)
add(
    "suppression-soft",
    lambda a, b: image.non_max_suppression_with_scores(tf.concat([a, a + 1], 1), b, 3, 0.5, soft_nms_sigma=0.5),
    (6, 2),
    (6,),
)
add(
    "batch-normalized",
    lambda a: nn.batch_normalization(
        nn.conv2d(a, weight(3, 3, 3, 4), 1, "SAME"), weight(4), weight(4) ** 2 + 1, weight(4), weight(4), 1e-3
    ),
    MAPS,
)
add(
    "layer-normalized",
    lambda a: (lambda m: (a - m[0]) * tf.math.rsqrt(m[1] + 1e-5))(nn.moments(a, [1], keepdims=True)),
    OPEN,
)
add("attention", lambda a: nn.softmax(tf.einsum("bqd,bkd->bqk", a, a) / 2.0) @ a, (None, 5, 4))
add("spectrum", lambda a: tf.abs(signal.rfft2d(a)), (1, 8, 8))
add("spectrum-line", lambda a: tf.abs(signal.rfft(a)), (2, 16))
add("complex", lambda a, b: (tf.math.real(tf.complex(a, b)), tf.abs(tf.complex(a, b))), ROWS, ROWS)
add("stft", lambda a: tf.abs(signal.stft(a, 16, 8)), (1, 64))
add("mfcc-parts", lambda a: signal.dct(a), (2, 16))
add("cholesky", lambda a: linalg.cholesky(a @ tf.transpose(a) + tf.eye(4)), (4, 4))
add("inverse", lambda a: (linalg.inv(a + 4 * tf.eye(4)), linalg.det(a)), (4, 4))


# Control flow and state.
def _loop(a: Any) -> Any:
    return tf.while_loop(lambda i, s: i < 5, lambda i, s: (i + 1, s * 0.5 + tf.cast(i, tf.float32)), (0, a))[1]


def _loop_on_data(a: Any) -> Any:
    return tf.while_loop(lambda s: tf.reduce_sum(tf.abs(s)) > 0.1, lambda s: (s * 0.5,), (a,))[0]


def _loop_of_rows(a: Any) -> Any:
    return tf.map_fn(lambda row: tf.sort(row) * 2.0, a)


def _nested(a: Any) -> Any:
    def body(i: Any, s: Any) -> Any:
        return i + 1, tf.cond(tf.reduce_sum(s) > 0, lambda: s * 0.5, lambda: s + 1.0)

    return tf.while_loop(lambda i, s: i < 4, body, (0, a))[1]


def _collected(a: Any) -> Any:
    array = tf.TensorArray(tf.float32, 4, element_shape=(6,))
    loop = tf.while_loop(
        lambda i, t: i < 4, lambda i, t: (i + 1, t.write(i, a[i] * tf.cast(i, tf.float32))), (0, array)
    )
    return loop[1].stack()


def _scanned(a: Any) -> Any:
    return tf.scan(lambda total, row: total * 0.5 + row, a)


add("condition", lambda a: tf.cond(tf.reduce_sum(a) > 0, lambda: a * 2, lambda: a - 1), OPEN)
add("condition-captures", lambda a, b: tf.cond(b[0, 0] > 0, lambda: a @ weight(6, 3), lambda: b[:, :3] * 2), ROWS, ROWS)
add("loop", _loop, OPEN)
add("loop-on-data", _loop_on_data, ROWS)
add("loop-of-rows", _loop_of_rows, ROWS)
add("loop-nested", _nested, ROWS)
add("loop-collects", _collected, ROWS)
add("scan", _scanned, ROWS)
add("random-of-known-seed", lambda a: a + tf.random.stateless_normal([4, 6], [1, 2]), ROWS)
