"""Operators of ``com.microsoft``, or forms of them, without a CPU kernel in ONNX Runtime.

Each is compared with the composition that its schema defines, in other operators or in numpy. A test checks that ONNX
Runtime still has no kernel: a supported operator moves to ``microsoft_cases.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from sardonyx.ops.registry import all_operators
from sardonyx.ops.support import support_table
from tests.ops.agreement import assert_equal, by_onnxruntime, eager, model_of, release, traced
from tests.ops.microsoft_cases import CASES, Arrays, f, i32, mask, positive, q, s

B, S, P, N, H = 5, 3, 7, 4, 16
D = N * H


def ours(name: str, *arrays: np.ndarray | None, outputs: int = 1, **attributes: Any) -> list[np.ndarray]:
    return eager(name, arrays, opset=1, outputs=outputs, domain="com.microsoft", **attributes)


def standard(name: str, *arrays: np.ndarray | None, opset: int = 21, **attributes: Any) -> np.ndarray:
    return eager(name, arrays, opset=opset, **attributes)[0]


def softmax(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    e = np.exp(x - x.max(axes, keepdims=True))
    return np.asarray(e / e.sum(axes, keepdims=True))


def bias_softmax() -> tuple[Arrays, dict[str, Any], np.ndarray]:
    x, bias = f(B, N, S, P), f(B, 1, 1, P)
    return [x, bias], {"axis": 3, "is_inner_broadcast": 0}, softmax(x + bias, (3,))


def bias_softmax_inner() -> tuple[Arrays, dict[str, Any], np.ndarray]:
    x, bias = f(B, N, S, P), f(S, P)
    return [x, bias], {"axis": 2, "is_inner_broadcast": 1}, softmax(x + bias, (2, 3))


def bias_split_gelu() -> tuple[Arrays, dict[str, Any], np.ndarray]:
    x, bias = f(B, S, 32), f(32)
    return [x, bias], {}, (x + bias)[..., :16] * standard("Gelu", (x + bias)[..., 16:])


def group_norm() -> tuple[Arrays, dict[str, Any], np.ndarray]:
    x, gamma, beta = f(B, S, P, 32), f(32), f(32)
    y = standard("GroupNormalization", np.moveaxis(x, 3, 1).copy(), gamma, beta, num_groups=8, epsilon=1e-5)
    return [x, gamma, beta], {"groups": 8, "activation": 1}, np.moveaxis(y / (1 + np.exp(-y)), 1, 3)


def rfft() -> tuple[Arrays, dict[str, Any], np.ndarray]:
    x = f(B, 8)
    spectrum = np.fft.rfft(x)
    return [x], {"signal_ndim": 1, "onesided": 1, "normalized": 0}, np.stack([spectrum.real, spectrum.imag], -1)


def irfft() -> tuple[Arrays, dict[str, Any], np.ndarray]:
    x = f(B, 5, 2)
    x[:, [0, -1], 1] = 0  # Of real numbers, the first and the last have no imaginary part.
    return [x], {"signal_ndim": 1, "onesided": 1, "normalized": 0}, np.fft.irfft(x[..., 0] + 1j * x[..., 1])


def quantized_mean() -> tuple[Arrays, dict[str, Any], np.ndarray]:
    x, zero, other = q(B, N, 6, 9), q(), q()
    mean = standard("ReduceMean", standard("DequantizeLinear", x, s(0.1), zero), np.array([2, 3]), keepdims=1)
    expected = standard("QuantizeLinear", mean, s(0.05), other)
    return [x, s(0.1), zero, s(0.05), other], {"axes": [2, 3], "keepdims": 1}, expected


def pool_beyond_its_padding() -> tuple[Arrays, dict[str, Any], np.ndarray]:
    x, zero, other = q(B, N, 6, 9), q(), q()
    pool: dict[str, Any] = {
        "kernel_shape": [3, 3],
        "strides": [2, 2],
        "pads": [1, 1, 1, 1],
        "ceil_mode": 1,
        "count_include_pad": 1,
    }
    mean = standard("AveragePool", standard("DequantizeLinear", x, s(0.1), zero), **pool)
    expected = np.clip(np.rint(mean / np.float32(0.05) + np.float32(other)), 0, 255)
    return [x, s(0.1), zero, s(0.05), other], pool, expected


def product_by_column() -> tuple[Arrays, dict[str, Any], np.ndarray]:
    a, b, points = q(B, S, 8), q(8, 6), q(8)
    scales, others = positive(8), positive(6)
    expected = ((a.astype(float) - points) * scales) @ (b.astype(float) * others)
    return [a, b, scales, others, points], {}, expected


def packed_attention() -> tuple[Arrays, dict[str, Any], np.ndarray]:
    """Two sequences of 2 and 3 tokens, padded to 3 each."""
    offsets, tokens = np.array([[0, 1, 3], [4, 5, 2]], np.int32), [0, 1, 3, 4, 5]
    packed: list[np.ndarray] = [f(5, D), f(5, D), f(5, 24)]
    padded = []
    for x in packed:
        rows = np.zeros((6, x.shape[1]), np.float32)
        rows[tokens] = x
        padded.append(rows.reshape(2, 3, -1))
    bias = f(2 * D + 24)
    (y,) = ours("MultiHeadAttention", *padded, bias, i32(2, 3), num_heads=N)
    return [*packed, bias, offsets, i32(0, 2, 5)], {"num_heads": N}, y.reshape(6, -1)[tokens]


def heads_beside_each_other() -> tuple[Arrays, dict[str, Any], np.ndarray]:
    packed, bias = f(B, S, N, 3, H), f(3 * D)
    parts = [packed[:, :, :, i].reshape(B, S, D) for i in range(3)]
    return [packed, None, None, bias], {"num_heads": N}, ours("MultiHeadAttention", *parts, bias, num_heads=N)[0]


def keys_beside_values() -> tuple[Arrays, dict[str, Any], np.ndarray]:
    query, packed = f(B, S, D), f(B, P, N, 2, H)
    parts = [packed[:, :, :, i].reshape(B, P, D) for i in range(2)]
    return [query, packed], {"num_heads": N}, ours("MultiHeadAttention", query, *parts, num_heads=N)[0]


def decoder_beside_each_other() -> tuple[Arrays, dict[str, Any], np.ndarray]:
    x, caches, bias = f(B, 1, 3 * D), [f(B, N, P, H), f(B, N, P, H)], f(3 * D)
    expected = ours("MultiHeadAttention", *np.split(x, 3, -1), bias, None, None, *caches, num_heads=N)[0]
    return [x, None, None, None, None, *caches, None, None, None, bias], {"num_heads": N}, expected


def attention_with_past_and_bias() -> tuple[Arrays, dict[str, Any], np.ndarray]:
    x, w, past, bias = f(B, S, 8), f(8, 3 * D), f(2, B, N, P, H), f(1, N, S, P + S)
    parts = np.split(x @ w, 3, -1)
    expected = ours("MultiHeadAttention", *parts, None, None, bias, past[0], past[1], num_heads=N)[0]
    return [x, w, None, None, past, bias], {"num_heads": N}, expected


def attention_with_buffers() -> tuple[Arrays, dict[str, Any], np.ndarray]:
    x, w, past = f(B, S, 8), f(8, 3 * D), f(2, B, N, P + S, H)
    expected = ours("Attention", x, w, None, None, past[:, :, :, :P].copy(), num_heads=N)[0]
    return [x, w, None, None, past, None, i32(P)], {"num_heads": N, "past_present_share_buffer": 1}, expected


def attention_with_a_square_mask() -> tuple[Arrays, dict[str, Any], np.ndarray]:
    x, w, past, square = f(B, S, 8), f(8, 3 * D), f(2, B, N, P, H), mask(B, 1, 12, 12)
    rows = square[:, 0, P : P + S, : P + S].copy()
    expected = ours("Attention", x, w, None, rows, past, num_heads=N)[0]
    return [x, w, None, square, past], {"num_heads": N}, expected


def normalized_queries() -> tuple[Arrays, dict[str, Any], np.ndarray]:
    query, key, value, gamma, delta = f(B, S, D), f(B, S, 2 * H), f(B, S, 2 * H), f(H), f(H)

    def by_head(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        heads = x.reshape(B, S, -1, H)
        return standard("RMSNormalization", heads, scale, opset=23, epsilon=1e-6).reshape(x.shape)

    options, ends = {"num_heads": N, "kv_num_heads": 2}, [i32(*[S - 1] * B), i32(S)]
    nothing = [None] * 7
    expected = ours(
        "GroupQueryAttention", by_head(query, gamma), by_head(key, delta), value, None, None, *ends, **options
    )
    return [query, key, value, None, None, *ends, *nothing, gamma, delta], options, expected[0]


LAYERS: Arrays = [f(6, 8), f(6, 4), f(4, 16, 8), f(4, 16), f(4, 8, 16), f(4, 8)]
THIRD: Arrays = [f(4, 16, 8), f(4, 16)]
SWIGLU: dict[str, Any] = {
    "activation_type": "swiglu",
    "activation_alpha": 1.7,
    "activation_beta": 1.0,
    "swiglu_limit": 2.0,
    "k": 2,
}


def interleaved() -> np.ndarray:
    """Return the form of SwiGLU that ONNX Runtime supports."""
    x, router, w, b, *rest = LAYERS
    assert w is not None and b is not None and THIRD[0] is not None and THIRD[1] is not None
    weights = np.stack([w, THIRD[0]], 2).reshape(4, 32, 8)
    biases = np.stack([b, THIRD[1]], 2).reshape(4, 32)
    return ours("MoE", x, router, weights, biases, *rest, **SWIGLU, swiglu_fusion=1)[0]


def experts_of_three_layers() -> tuple[Arrays, dict[str, Any], np.ndarray]:
    return [*LAYERS, *THIRD], SWIGLU, interleaved()


def experts_of_halves() -> tuple[Arrays, dict[str, Any], np.ndarray]:
    x, router, w, b, *rest = LAYERS
    joined = [np.concatenate([one, other], 1) for one, other in ((w, THIRD[0]), (b, THIRD[1]))]
    return [x, router, *joined, *rest], {**SWIGLU, "swiglu_fusion": 2}, interleaved()


def gated_experts() -> tuple[Arrays, dict[str, Any], np.ndarray]:
    """SwiGLU with its default coefficients is silu times the other layer."""
    expected = ours("MoE", *LAYERS, *THIRD, activation_type="swiglu", k=2)[0]
    return [*LAYERS, *THIRD], {"activation_type": "silu", "k": 2}, expected


NO_KERNEL = {
    "BiasSoftmax": [bias_softmax, bias_softmax_inner],
    "BiasSplitGelu": [bias_split_gelu],
    "GroupNorm": [group_norm],
    "Rfft": [rfft],
    "Irfft": [irfft],
    "QLinearReduceMean": [quantized_mean],
    "PackedMultiHeadAttention": [packed_attention],
}
"""Operators with kernels for other devices only, or with none."""

REFUSED_FORMS = [
    ("MatMulIntegerToFloat", product_by_column, "input a zero point must be a scalar"),
    ("QLinearAveragePool", pool_beyond_its_padding, "it counts what windows reach beyond the padding"),
    ("MultiHeadAttention", heads_beside_each_other, "packed QKV not implemented for CPU"),
    ("MultiHeadAttention", keys_beside_values, "packed KV not implemented for CPU"),
    ("DecoderMaskedMultiHeadAttention", decoder_beside_each_other, "the bias does not broadcast; buffers are needed"),
    ("Attention", attention_with_past_and_bias, "Attention cannot have both past and attention_bias"),
    ("Attention", attention_with_buffers, "past_sequence_length is not passed on"),
    ("Attention", attention_with_a_square_mask, "4D mask in attention cpu kernel is not supported"),
    ("GroupQueryAttention", normalized_queries, "q_norm_weight is honoured by CUDA and WebGPU only"),
    ("MoE", experts_of_three_layers, "CPU MoE only supports interleaved SwiGLU format"),
    ("MoE", experts_of_halves, "CPU MoE only supports interleaved SwiGLU format"),
    ("MoE", gated_experts, "FC3 is not implemented for CPU MoE"),
]  # fmt: skip
"""Forms of operators that ONNX Runtime's kernels refuse or compute against the schema, with the reason."""

COMPOSED = [
    *((name, build, "no kernel for CPU") for name, builds in NO_KERNEL.items() for build in builds),
    *REFUSED_FORMS,
]


@pytest.mark.parametrize(("name", "build", "reason"), COMPOSED)
def test_equals_the_composition_of_its_schema(name: str, build: Any, reason: str) -> None:
    print(f"{name} is not compared with ONNX Runtime {ort.__version__}: {reason}.")
    arrays, attributes, expected = build()
    (actual,) = ours(name, *arrays, **attributes)
    integers = actual.dtype.kind in "iu"
    assert_equal([actual], [expected.astype(actual.dtype)], rtol=0 if integers else 1e-4, atol=0 if integers else 1e-5)
    if name not in ("MoE", "PackedMultiHeadAttention") and "past_present_share_buffer" not in attributes:
        symbols = {B: "B", S: "S", P: "P", P + S: "P+S"}
        shapes = [None if a is None else " ".join(symbols.get(n, str(n)) for n in a.shape) for a in arrays]
        assert_equal(traced(name, arrays, shapes, opset=1, domain="com.microsoft", **attributes), [actual])


def test_padded_queries_equal_the_valid_queries_alone() -> None:
    """The comparison is per sequence, with the valid queries and the same cache."""
    steps, before, valid, ends = 4, 12, [4, 1, 3, 0, 2], [6, 8, 2, 3, 1]
    new, past = [f(B, steps, size) for size in (D, 2 * H, 2 * H)], [f(B, 2, before, H), f(B, 2, before, H)]
    turn = [f(20, H // 2), f(20, H // 2)]
    options: dict[str, Any] = {"num_heads": N, "kv_num_heads": 2, "do_rotary": 1}
    padded: Arrays = [*new, *past, i32(*ends), i32(before), *turn, *[None] * 7, i32(*valid)]
    actual = ours("GroupQueryAttention", *padded, outputs=3, **options)
    sizes = [f"B S {D}", f"B S {2 * H}", f"B S {2 * H}", *[f"B 2 P {H}"] * 2, "B", "1", *["M 8"] * 2, *[None] * 7, "B"]
    open_ = {**options, "opset": 1, "outputs": 3, "domain": "com.microsoft"}
    assert_equal(traced("GroupQueryAttention", padded, sizes, **open_), actual)
    if release(ort.__version__) >= (1, 32):
        theirs = by_onnxruntime(model_of("GroupQueryAttention", padded, **open_), padded)
    else:
        print(f"not compared with ONNX Runtime {ort.__version__}, which has no `query_seqlens`")
        theirs = actual
    for b, (count, end) in enumerate(zip(valid, ends, strict=True)):
        assert_equal([theirs[0][b, :count]], [actual[0][b, :count]], rtol=1e-4, atol=1e-4)
        for cache, other, old in zip(actual[1:], theirs[1:], past, strict=True):
            assert_equal([cache[b, :, : end + 1]], [other[b, :, : end + 1]], rtol=1e-5, atol=1e-5)
            assert_equal([cache[b, :, : end + 1 - count]], [old[b, :, : end + 1 - count]])
        if count:
            one = [x[b : b + 1, :count] for x in new] + [x[b : b + 1, :, : end + 1 - count] for x in past]
            y, *_ = ours("GroupQueryAttention", *one, i32(end), i32(end + 1), *turn, **options)
            assert_equal([actual[0][b : b + 1, :count]], [y], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NO_KERNEL)
def test_onnx_runtime_still_has_no_kernel(name: str) -> None:
    arrays, attributes, _ = NO_KERNEL[name][0]()
    model = model_of(name, arrays, opset=1, outputs=1, domain="com.microsoft", **attributes)
    with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
        by_onnxruntime(model, arrays)


def test_every_operator_is_compared() -> None:
    """``test_ml.py`` covers ``Tokenizer``, and ``test_microsoft_generation.py`` the operators that generate tokens."""
    compared = {case.name for case in CASES} | set(NO_KERNEL)
    compared |= {"Tokenizer", "BeamSearch", "GreedySearch", "Sampling"}
    assert {row.name for row in support_table() if row.tested.startswith("compositions")} == set(NO_KERNEL)
    assert {operator.name for operator in all_operators() if operator.domain == "com.microsoft"} == compared
