"""Cases of ``com.microsoft`` operators for the comparison with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

Arrays = list[np.ndarray | None]
rng = np.random.default_rng(11)
B, S, P, N, H = 5, 3, 7, 4, 16
D, KV = N * H, 2
OPEN = {B: "B", S: "S", P: "P", P + S: "P+S"}
"""Sizes that are open in the traced cases; no other dimension has these sizes."""


class Case(NamedTuple):
    """An operator with inputs and attributes.

    Attributes:
        name: The operator.
        arrays: The inputs.
        attributes: The attributes.
        outputs: Number of compared results.
        open: Symbols for sizes; None if values must be known while tracing.
        fixed: Inputs whose sizes stay fixed.
        tolerance: Relative and absolute tolerance of real results.
        apart: Reason for integers that differ by one; empty if they are equal.
    """

    name: str
    arrays: Arrays
    attributes: Mapping[str, Any] = {}
    outputs: int = 1
    open: Mapping[int, str] | None = OPEN
    fixed: tuple[int, ...] = ()
    tolerance: float = 1e-5
    apart: str = ""

    def __str__(self) -> str:
        shapes = ["-" if a is None else "x".join(map(str, a.shape)) for a in self.arrays]
        return f"{self.name}({', '.join([*shapes, *(f'{name}={value}' for name, value in self.attributes.items())])})"


def f(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return (np.abs(rng.standard_normal(shape)) * 0.05 + 0.01).astype(np.float32)


def q(*shape: int, dtype: Any = np.uint8) -> np.ndarray:
    limits = np.iinfo(dtype)
    if dtype == np.int8:
        # Of 7 bits: without VNNI ONNX Runtime adds products by bytes in pairs, in 16 bits, and cuts them off.
        return rng.integers(-64, 64, shape).astype(dtype)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def s(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def mask(*shape: int) -> np.ndarray:
    values = rng.integers(0, 2, shape).astype(np.int32)
    values[..., 0] = 1
    return values


def fusions() -> list[Case]:
    x, w = f(B, 3 + 1, 8, 8), f(4, 4, 3, 3)
    activations: list[dict[str, Any]] = [
        {"activation": "Relu"}, {"activation": "Tanh"}, {"activation": "Sigmoid"},
        {"activation": "LeakyRelu", "activation_params": [0.1]},
        {"activation": "Clip", "activation_params": [-0.5, 0.7]},
        {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
    ]  # fmt: skip
    return [
        *(Case("FusedConv", [x, w, f(4)], {**a, "pads": [1, 1, 1, 1]}, tolerance=1e-4) for a in activations),
        Case("FusedConv", [x, w, f(4), f(B, 4, 6, 6)], {"activation": "Relu"}, tolerance=1e-4),
        *(
            Case("MurmurHash3", [values], {"positive": positive, "seed": 7})
            for values in (np.array([["a", "bc"], ["é", "hello"]], object), i32(3, -4), np.arange(3), f(2, 3))
            for positive in (0, 1)
        ),
        Case("FusedMatMul", [f(2, B, 4, S), f(2, B, 4, 6)], {"transA": 1, "alpha": 0.5}),
        Case("FusedMatMul", [f(2, B, 4, 9), f(2, B, 6, 9)], {"transB": 1}),
        Case("FusedMatMul", [f(4, B, S, 9), f(9, B, S, 6)], {"transBatchA": 1, "transBatchB": 1}),
        Case("FusedMatMul", [f(S, B, 4, 9), f(B, 4, 9, 6)], {"transBatchA": 1}),
        Case("FusedGemm", [f(S, 4), f(9, 4), f(9)], {"transB": 1, "activation": "LeakyRelu", "activation_alpha": 0.2}),
        Case("FusedGemm", [f(S, 4), f(4, 9)], {"activation": "Relu"}),
        Case("Gelu", [f(B, S)]),
        Case("BiasGelu", [f(B, S, 4), f(4)]),
        Case("FastGelu", [f(B, S, 4), f(4)]),
        Case("FastGelu", [f(B, S, 4)]),
        Case("QuickGelu", [f(B, S, 4)]),
        Case("QuickGelu", [f(B, S, 4)], {"alpha": 1.3}),
    ]


def normalizations() -> list[Case]:
    x, ids = f(B, S, 8), rng.integers(0, 9, (B, S)).astype(np.int32)
    seg = rng.integers(0, 2, (B, S)).astype(np.int32)
    return [
        Case("SkipLayerNormalization", [x, f(B, S, 8), f(8), f(8), f(8)]),
        Case("SkipLayerNormalization", [x, f(S, 8), f(8)], {"epsilon": 1e-3}),
        Case("SkipLayerNormalization", [x, f(1, S, 8), f(8)]),
        Case("SkipSimplifiedLayerNormalization", [x, f(B, S, 8), f(8), f(8)]),
        Case("EmbedLayerNormalization", [ids, seg, f(10, 8), f(6, 8), f(2, 8), f(8), f(8), mask(B, S)],
             {"epsilon": 1e-5}, 3, fixed=(2,)),
        Case("EmbedLayerNormalization", [ids, None, f(10, 8), f(6, 8), None, f(8), f(8)], {}, 2, fixed=(2,)),
        Case("EmbedLayerNormalization", [ids, None, f(10, 8), f(6, 8), None, f(8), f(8), None, ids % 6], {}, 2,
             fixed=(2,)),
        *(
            Case("QEmbedLayerNormalization",
                 [ids, seg if has_segments else None, q(10, 8), q(6, 8), q(2, 8) if has_segments else None, q(8), q(8),
                  mask(B, S) if has_segments else None, s(0.1), s(0.2), s(0.3) if has_segments else None, s(0.02),
                  s(0.01), q(), q(), q() if has_segments else None, q(), q()], {"epsilon": 1e-5}, 2, fixed=(2,))
            for has_segments in (True, False)
        ),
    ]  # fmt: skip


def tensors() -> list[Case]:
    tokens = np.array([[1, 2, 3, 1, 2], [4, 4, 4, 4, 4]], np.int64)
    samples = {5: "Y", 7: "X"}
    return [
        Case("Pad", [f(2, 3), np.array([1, 0, 0, 2]), np.array([3.0], np.float32)], open={2: "A", 3: "B"},
             fixed=(1,)),
        Case("Pad", [f(2, 3), np.array([[1, 0, 0, 2]])], {"mode": "reflect"}, open=None),
        Case("Range", [s(1), s(9)], open=None),
        Case("Range", [np.array(1), np.array(9), np.array(3)], open=None),
        Case("ExpandDims", [f(B, S), np.array(1, np.int32)], open=None),
        Case("Trilu", [f(B, S), np.array(1)], {"upper": 0}),
        *(
            Case("GridSample", [f(2, 3, 5, 7), f(2, 4, 4, 2) * np.float32(0.8)],
                 {"mode": mode, "padding_mode": padding, "align_corners": 1}, open=samples, tolerance=1e-4)
            for mode in ("bilinear", "nearest", "bicubic") for padding in ("zeros", "border", "reflection")
        ),
        Case("Unique", [np.array([2.0, 1, 1, 3, 4, 3], np.float32)], {}, 3, open=None),
        Case("Inverse", [f(B, 4, 4)], tolerance=1e-3),
        Case("Inverse", [f(S, S)], tolerance=1e-3),
        *(
            Case("CropAndResize", [f(2, 3, 7, 9), np.abs(f(3, 4)) * np.float32(0.5), i32(0, 1, 1), i32(4, 5)],
                 {"mode": mode, "extrapolation_value": 9.0}, open={7: "Y", 9: "X"}, tolerance=1e-4)
            for mode in ("bilinear", "nearest")
        ),
        *(Case("NGramRepeatBlock", [tokens, f(2, 6)], {"ngram_size": size}, open={5: "T"}) for size in (2, 3)),
    ]  # fmt: skip


def quantized(dtype: Any) -> list[Case]:
    def z() -> np.ndarray:
        return q(dtype=dtype)

    x, y = q(B, 4, 6, 9, dtype=dtype), q(4, 1, 9, dtype=dtype)
    low = np.array(np.iinfo(dtype).min, dtype)
    pool = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
    few = "ONNX Runtime divides the sum by the windows' sizes in another order, which shows where halves are rounded"
    fused = "ONNX Runtime scales and adds without rounding between, where the processor can: one of 200,000 differs"
    fixed_point = "ONNX Runtime sums exponentials in integers of 32 bits from a table, and divides these"
    return [
        Case("QuantizeLinear", [f(B, S) * 9, s(0.1), z()]),
        Case("QuantizeLinear", [f(B, 4) * 9, positive(4), q(4, dtype=dtype)], {"axis": 1}),
        Case("QuantizeLinear", [(f(B, S, 60) * 9).astype(np.float16), np.array(0.1, np.float16), z()]),
        Case("DequantizeLinear", [x, s(0.1), z()]),
        Case("DequantizeLinear", [x, positive(4), q(4, dtype=dtype)], {"axis": 1}),
        *(
            Case(name, [x, s(a), z(), y, s(b), z(), s(c), z()], apart=reason)
            for name in ("QLinearAdd", "QLinearMul")
            for a, b, c, reason in [(0.1, 0.07, 0.09, fused), (0.25, 0.5, 0.5, "")]
        ),
        Case("QLinearWhere", [y > 9, x, s(0.5), z(), x[::-1].copy(), s(0.2), z(), s(1.0), z()]),
        Case("QLinearWhere", [x > 9, x, s(0.1), z(), y, s(0.2), z(), s(0.1), z()]),
        Case("QLinearSigmoid", [x, s(0.05), z(), s(1 / 256), z()]),
        Case("QLinearLeakyRelu", [x, s(0.5), z(), s(1.0), z()], {"alpha": 0.5}),
        Case("QLinearLeakyRelu", [x, s(0.1), None, s(0.05), None]),
        *(
            Case("QLinearAveragePool", [x, s(0.1), z(), s(0.05), z()],
                 {**pool, "channels_last": last, "count_include_pad": count, "ceil_mode": ceil}, apart=few)
            for last, count, ceil in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 0, 1), (1, 1, 0)]
        ),
        Case("QLinearAveragePool", [x, s(0.03), z(), s(0.05), z()], {"kernel_shape": [2, 2]}, apart=few),
        *(
            Case("QLinearGlobalAveragePool", [x, s(0.04), z(), s(0.013), z()], {"channels_last": last})
            for last in (0, 1)
        ),
        Case("QLinearConcat", [s(1.0), z(), x, s(0.5), z(), x[:, :2].copy(), s(1.0), z()], {"axis": 1}),
        *(
            Case("QLinearSoftmax", [x, s(scale), z(), s(1 / 256), low], {"opset_": version, "axis": axis},
                 apart=fixed_point)
            for version in (11, 13) for axis in (1, -1) for scale in (0.1, 0.01)
        ),
        Case("NhwcMaxPool", [x], {"kernel_shape": [3, 3]}),
        Case("NhwcMaxPool", [x], {"kernel_shape": [2, 3], "strides": [2, 2], "pads": [1, 1, 1, 1],
                                  "dilations": [1, 2], "ceil_mode": 1}),
    ]  # fmt: skip


def products(dtype: Any, other: Any) -> list[Case]:
    def z(kind: Any = dtype) -> np.ndarray:
        return q(dtype=kind)

    middle = np.array(0 if other == np.int8 else 120, other)
    cases: list[Case] = []
    for last in (0, 1):
        x = q(B, 4, 9, 11, dtype=dtype)
        x = np.moveaxis(x, 1, 3).copy() if last else x
        cases += [
            Case("QLinearConv", [x, s(0.02), z(), q(6, 2, 3, 3, dtype=other), s(0.01), middle, s(0.3), z(),
                                 np.arange(6, dtype=np.int32) * 200],
                 {"group": 2, "pads": [1, 1, 1, 1], "channels_last": last}),
            Case("QLinearConv", [x, s(0.02), z(), q(6, 4, 2, 2, dtype=other), positive(6), np.zeros(6, other),
                                 s(0.3), z()], {"strides": [2, 1], "channels_last": last}),
        ]  # fmt: skip
    a = q(B, 8, dtype=dtype)
    for transposed in (0, 1):
        b = q(6, 8, dtype=other) if transposed else q(8, 6, dtype=other)
        bias = np.arange(6, dtype=np.int32) * 50
        t = {"transB": transposed}
        cases += [
            Case("QGemm", [a, s(0.1), z(), b, s(0.2), z(other)], t),
            Case("QGemm", [a, s(0.1), z(), b, s(0.2), z(other), bias, s(9), z()], {**t, "alpha": 0.5}),
            Case("QGemm", [a, s(0.1), z(), b, positive(6), q(6, dtype=other), bias], t),
            Case("QGemm", [a, s(0.1), z(), b, positive(6), q(6, dtype=other), None, s(1.5), z()], t),
        ]
    a, b = q(B, S, 4, 8, dtype=dtype), q(8, 6, dtype=other)
    return [
        *cases,
        Case("MatMulIntegerToFloat", [a, b, s(0.1), s(0.2), z(), z(other), f(6)]),
        Case("MatMulIntegerToFloat", [a, b, s(0.1), f(6), z(), q(6, dtype=other)]),
        Case("MatMulIntegerToFloat", [a, b, s(0.1), s(0.2)]),
        Case("MatMulIntegerToFloat", [a, q(3, 8, 6, dtype=other), s(0.1), f(3, 1, 6), z(), q(3, 1, 6, dtype=other)]),
    ]


def dynamically_quantized(dtype: Any) -> list[Case]:
    a, b, size = f(B, S, 4, 8), q(8, 6, dtype=dtype), 4
    cases = [
        Case("DynamicQuantizeMatMul", [a, b, s(0.1), q(dtype=dtype), f(6)]),
        Case("DynamicQuantizeMatMul", [a, b, f(6), q(6, dtype=dtype)]),
        Case("DynamicQuantizeMatMul", [a * 0, b, s(0.2)]),
    ]
    for direction, n in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
        weights: Arrays = [q(n, 9, 4 * size, dtype=dtype), q(n, size, 4 * size, dtype=dtype)]
        states: Arrays = [f(n, B, size), f(n, B, size), f(n, 3 * size)]
        by_tensor: Arrays = [positive(n), np.zeros(n, dtype), positive(n), np.zeros(n, dtype)]
        by_gate: Arrays = [positive(n, 4 * size), np.zeros((n, 4 * size), dtype)] * 2
        options = {"direction": direction, "hidden_size": size}
        cases += [
            Case("DynamicQuantizeLSTM", [f(S, B, 9), *weights, f(n, 8 * size), None, *states, *by_tensor], options, 3),
            Case("DynamicQuantizeLSTM", [f(S, B, 9), *weights, None, None, None, None, None, *by_gate],
                 {**options, "input_forget": 1}, 3),
        ]  # fmt: skip
    # A step of the quantization, 0.003 at most here: with lengths, ONNX Runtime goes on with sequences that have ended,
    # and what it makes of them widens the range to which the others are quantized.
    lengths = [f(S, B, 9), *weights, f(n, 8 * size), i32(3, 1, 2, 3, 2), *states, *by_tensor]
    return [*cases, Case("DynamicQuantizeLSTM", lengths, options, 3, tolerance=3e-2)]


def blocks() -> list[Case]:
    cases = []
    for bits in (2, 4, 8):
        per_byte = 8 // bits
        for k, n, size in ((64, 6, 16), (72, 6, 32)):
            count = -(-k // size)
            b, options = q(n, count, size // per_byte), {"K": k, "N": n, "bits": bits, "block_size": size}
            packed = q(n, -(-count // per_byte))
            cases += [
                Case("MatMulNBits", [f(B, S, k), b, positive(n, count)], options, tolerance=1e-4),
                Case("MatMulNBits", [f(B, S, k), b, positive(n * count), packed.ravel(), None, f(n)], options,
                     tolerance=1e-4),
                Case("MatMulNBits", [f(B, k).astype(np.float16), b, positive(n, count).astype(np.float16), packed],
                     options, tolerance=2e-2),
            ]  # fmt: skip
            if bits == 4:
                # Of 2 bits and with `g_idx`, ONNX Runtime's answer is that of 4, also for blocks in their order; it
                # has none of 8, nor with zero points as real numbers.
                groups = rng.integers(0, count, k).astype(np.int32)
                points = positive(n, count) * 60
                cases += [
                    Case("MatMulNBits", [f(B, k), b, positive(n, count), None, groups], options, tolerance=1e-4),
                    Case("MatMulNBits", [f(B, k), b, positive(n, count), points], options, tolerance=1e-4),
                ]
    for kind, k, n in ((0, 64, 6), (1, 64, 6), (0, 48, 5), (1, 48, 5)):
        options = {"K": k, "N": n, "block_size": 16, "quant_type": kind}
        packed, largest = q(k * n // 2), positive(-(-k * n // 16))
        cases.append(Case("MatMulBnb4", [f(B, S, k), packed, largest], options, tolerance=1e-4))
    for bits in (2, 4, 8):
        per_byte = 8 // bits
        for at in (np.array([[0, 3], [-1, 2]]), i32(0, 9, -9, 1), np.array(2)):
            options = {"bits": bits, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}
            table = q(8, 48 // per_byte)
            cases += [
                Case("GatherBlockQuantized", [table, at, f(8, 3)], options, open={2: "A", 4: "A"}, fixed=(0, 2)),
                Case("GatherBlockQuantized", [table, at, f(8, 3), q(8, -(-3 // per_byte))], options,
                     open={2: "A", 4: "A"}, fixed=(0, 2, 3)),
            ]  # fmt: skip
    return cases


def attentions() -> list[Case]:
    x, w, b = f(B, S, 8), f(8, 3 * D), f(3 * D)
    past, ends = f(2, B, N, P, H), i32(2, 3, 1, 3, 2)
    both = np.concatenate([ends, i32(1, 0, 0, 2, 1)])
    of_all = np.concatenate([ends, np.arange(B + 1, dtype=np.int32) * S, np.arange(B + 1, dtype=np.int32) * S])
    cases = []
    for unidirectional in (0, 1):
        options = {"num_heads": N, "unidirectional": unidirectional}
        for m in (None, mask(B, S), mask(B, S, S), ends, both, of_all):
            open_ = None if m is not None and m.ndim == 1 else OPEN
            integers: Arrays = [q(B, S, 8), q(8, 3 * D, dtype=np.int8), b, s(0.01), s(0.01), m]
            points: Arrays = [np.array(3, np.uint8), np.array(0, np.int8)]
            cases += [
                Case("Attention", [x, w, b, m], options, open=open_, tolerance=1e-4),
                Case("QAttention", [*integers, *points], options, open=open_, tolerance=1e-4),
            ]
        q_past: Arrays = [q(B, S, 8), q(8, 3 * D), b, s(0.01), positive(3 * D), mask(B, P + S), np.array(3, np.uint8)]
        cases += [
            Case("Attention", [x, w, b, mask(B, P + S), past], options, 2, tolerance=1e-4),
            Case("Attention", [x, w, b, mask(B, S), None, f(B, 1, S, S)], {**options, "mask_filter_value": -5.0}, 2),
            Case("Attention", [x, f(8, 2 * D + 24), f(2 * D + 24)], {**options, "qkv_hidden_sizes": [D, D, 24]}),
            Case("QAttention", [*q_past, q(3 * D), past], options, 2, tolerance=1e-4),
            Case("MultiHeadAttention", [f(B, S, D), f(B, S, D), f(B, S, 24)], options),
            Case("MultiHeadAttention", [f(B, S, D), f(B, S, D), f(B, S, D), b, mask(B, P + S), None, f(B, N, P, H),
                                        f(B, N, P, H)], options, 3),
        ]  # fmt: skip
    options = {"num_heads": N}
    return [
        *cases,
        Case("MultiHeadAttention", [f(B, S, D), f(B, P, D), f(B, P, 24), f(2 * D + 24), mask(B, P)],
             {**options, "scale": 0.3}),
        Case("MultiHeadAttention", [f(B, S, D), f(B, P, D), f(B, P, 24), None, ends], options),
        Case("MultiHeadAttention", [f(B, S, D), f(B, P, D), f(B, P, 24), None, mask(B, S, P), f(1, N, S, P)], options),
        Case("MultiHeadAttention", [f(B, S, D), f(B, N, P, H), f(B, N, P, H), b], options),
        *decoders(),
        *rotary(),
    ]  # fmt: skip


def decoders() -> list[Case]:
    name, token, caches = "DecoderMaskedMultiHeadAttention", [f(B, 1, D) for _ in range(3)], [f(B, N, 12, H)] * 2
    shared: dict[str, Any] = {"num_heads": N, "past_present_share_buffer": 1}
    beams = [f(6, 1, D), f(6, 1, D), f(6, 1, D), None, None, f(6, N, 12, H), f(6, N, 12, H)]
    order = rng.integers(0, 3, (2, 3, 12)).astype(np.int32)
    return [
        Case(name, [*token, None, None, *caches, i32(P)], shared, 3),
        Case(name, [*token, mask(B, P + 1), None, *caches, i32(P), None, None, f(3 * D)], shared, 3, {B: "B"}),
        Case(name, [*token, None, f(1, N, 1, P + 1), *caches, i32(P)], shared, 3, {B: "B"}),
        Case(name, [f(B, 1, D), f(B, N, P, H), f(B, N, P, H)], {"num_heads": N}),
        Case(name, [f(B, 1, D), f(B, N, P, H), f(B, N, P, H), *[None] * 7, f(3 * D)], {"num_heads": N}),
        Case(name, [*beams, i32(P), i32(3), order], shared, 3, {6: "3*B", 2: "B"}, fixed=(7, 8)),
    ]


def rotary() -> list[Case]:
    positions, cos, sin = rng.integers(0, 20, (B, S)), f(20, 8), f(20, 8)
    cases = []
    for interleaved in (0, 1):
        options = {"interleaved": interleaved}
        part = {**options, "num_heads": N, "rotary_embedding_dim": 8}
        cases += [
            Case("RotaryEmbedding", [f(B, S, D), positions, cos, sin], options),
            Case("RotaryEmbedding", [f(B, N, S, H), positions, cos, sin], options),
            Case("RotaryEmbedding", [f(B, S, D), np.array([3]), cos, sin], options),
            Case("RotaryEmbedding", [f(B, S, D), positions, f(20, 4), f(20, 4)], part),
            Case("RotaryEmbedding", [f(B, N, S, H), np.array([3]), f(20, 4), f(20, 4)], part),
        ]
    return cases


def grouped() -> list[Case]:
    cos, sin = f(20, 8), f(20, 8)

    def case(steps: int, before: int, ends: list[int], *more: np.ndarray | None, packed: bool = False,
             outputs: int = 3, **options: Any) -> Case:  # fmt: skip
        n, kv = len(ends), KV * H
        new: Arrays = [f(n, steps, D + 2 * kv), None, None] if packed else [f(n, steps, s) for s in (D, kv, kv)]
        past: Arrays = [f(n, KV, before, H), f(n, KV, before, H)] if before else [None, None]
        turn: Arrays = [cos, sin] if options.get("do_rotary") else [None, None]
        total = np.array(max(ends) + 1, np.int32)
        arrays = [*new, *past, i32(*ends), total, *turn, *more]
        while arrays[-1] is None:
            arrays.pop()
        attributes = {"num_heads": N, "kv_num_heads": KV, **options}
        sizes = {n: "B", steps: "S", before: "P"} if before != total else {n: "B", steps: "S"}
        return Case("GroupQueryAttention", arrays, attributes, outputs, sizes if n == B else None, tolerance=1e-4)

    five, ragged = [2] * B, [6, 7, 7, 4, 7]
    sink, positions = f(N), rng.integers(0, 20, (B, 3))
    return [
        *(
            variant
            for do_rotary in (0, 1)
            for variant in [
                case(3, 0, five, do_rotary=do_rotary),
                case(3, 0, five, do_rotary=do_rotary, packed=True),
                case(3, 0, five, do_rotary=do_rotary, rotary_interleaved=1),
                case(3, 0, [2, 2, 1, 2, 0], do_rotary=do_rotary, outputs=1),
                case(1, 7, [7] * B, do_rotary=do_rotary),
                case(1, 7, ragged, do_rotary=do_rotary),
                case(1, 9, ragged, do_rotary=do_rotary),
                case(3, 4, [6], do_rotary=do_rotary),
                case(3, 9, five, do_rotary=do_rotary),
            ]
        ),
        case(3, 0, five, positions, do_rotary=1),
        case(1, 7, [7] * B, positions[:, :1].copy(), do_rotary=1),
        *(
            case(steps, before, ends, local_window_size=window)
            for window in (1, 2, 3) for steps, before, ends in [(3, 0, five), (1, 7, [7] * B), (3, 4, [6])]
        ),
        case(3, 0, five, softcap=2.0),
        case(3, 0, five, scale=0.2),
        case(3, 0, five, causal=0),
        case(3, 0, five, smooth_softmax=1),
        case(3, 0, five, None, None, sink),
        case(3, 4, [6], None, f(1, N, 3, 7), sink, softcap=1.0),
        case(3, 4, [6], None, f(1, N, 3, 7), softcap=1.0, qk_output=1, outputs=4),
        case(3, 0, five, qk_output=2, outputs=4),
    ]  # fmt: skip


def experts() -> list[Case]:
    cases = []
    for k in (1, 2):
        layers: Arrays = [f(6, 8), f(6, 4), f(4, 16, 8), f(4, 16), f(4, 8, 16), f(4, 8)]
        cases += [
            Case("MoE", layers, {"k": k, "normalize_routing_weights": n, "activation_type": name}, open={6: "T"})
            for n in (0, 1) for name in ("relu", "gelu", "silu", "identity")
        ]  # fmt: skip
        swiglu = {"activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.7, "activation_beta": 1.0}
        fused: Arrays = [f(B, S, 8), f(B * S, 4), f(4, 32, 8), f(4, 32), f(4, 8, 16), f(4, 8)]
        cases += [Case("MoE", fused, {"k": k, **swiglu, "swiglu_limit": 2.0}, open={B: "B", S: "S", B * S: "B*S"})]
    return cases


def distances() -> list[Case]:
    return [
        Case("CDist", [f(S, 4), f(6, 4)], {"metric": "euclidean"}),
        Case("CDist", [f(S, 4).astype(np.float64), f(6, 4).astype(np.float64)], {"metric": "sqeuclidean"}),
    ]


CASES = [
    *fusions(), *normalizations(), *tensors(), *quantized(np.uint8), *quantized(np.int8),
    *products(np.uint8, np.uint8), *products(np.uint8, np.int8), *products(np.int8, np.int8),
    *dynamically_quantized(np.uint8), *dynamically_quantized(np.int8), *blocks(), *attentions(), *grouped(),
    *experts(), *distances(),
]  # fmt: skip
