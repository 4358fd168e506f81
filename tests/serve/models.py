"""Small models for tests of serving."""

from __future__ import annotations

from pathlib import Path

import onnx

from sardonyx import Session
from sardonyx.serve import Ensemble, EnsembleStep
from sardonyx.serve.protocol.limits import Limits

HEAD = '<ir_version: 9, opset_import: ["": 18]> '

NETS = {
    "net": "net (float[N, 4] x) => (float[N, 2] y) <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> { y = MatMul(x, w) }",
    "weighted": "net (float[N, 2] x) => (float[N, 2] y, float[N, 2] z) <float[2] a = {1, 1}, float[2] b = {1, 1}>"
    " { y = Mul(x, a) z = Mul(x, b) }",
    "add_sub": "net (int32[N, 16] INPUT0, int32[N, 16] INPUT1) => (int32[N, 16] OUTPUT0, int32[N, 16] OUTPUT1)"
    " { OUTPUT0 = Add(INPUT0, INPUT1) OUTPUT1 = Sub(INPUT0, INPUT1) }",
    "strings": "net (string[N, 2] x) => (string[N, 2] y) { y = Identity(x) }",
    "doubled": "net (float[N, W] x) => (float[N, W] y) { y = Add(x, x) }",
    "half": "net (float16[N, 2] x) => (float16[N, 2] y) { y = Add(x, x) }",
    "ragged": "net (float[N, 3, H] x) => (float[N, 3, 1] y) <int64[1] axes = {2}>"
    " { y = ReduceMean<keepdims=1>(x, axes) }",
    "batch_mean": "net (float[N, 2] x) => (float[N, 2] y) <int64[1] axes = {0}>"
    " { m = ReduceMean<keepdims=1>(x, axes) y = Sub(x, m) }",
    "batch_sort": "net (float[N] x) => (float[N] y) <int64[1] k = {1}>"
    " { n = Shape(x) y, i = TopK<axis=0>(x, n) }",
    "fixed": "net (float[1, 2] x) => (float[1, 2] y) { y = Neg(x) }",
    "gather": "net (float[N, 4] x, int64[N, 1] i) => (float[N, 1] y) { y = GatherElements<axis=1>(x, i) }",
    "huge": "net (float[N, 1] x, int64[2] s) => (float[A, B] y) { y = Expand(x, s) }",
    "accumulate": "net (float[N, 1] x, float[N, 1] state) => (float[N, 1] y, float[N, 1] next)"
    " { y = Add(x, state) next = Identity(y) }",
    "joined": "net (float[T] x, float[N] ends) => (float[N] sum, float[T] less)"
    " <int64 zero = {0}, int64 one = {1}, int64[1] axis = {1}> {"
    " last = Cast<to=7>(ends) total = Size(x) at = Range(zero, total, one) row = Unsqueeze(last, axis)"
    " before = Less(at, row) upto = Cast<to=1>(before) sums = MatMul(upto, x)"
    " front = Constant<value_ints=[1, 0]>() earlier = Pad(sums, front) head = Shape(sums)"
    " from = Constant<value_ints=[0]>() shifted = Slice(earlier, from, head) sum = Sub(sums, shifted) less = Neg(x) }",
    "joined_mean": "net (float[T] x, int64[N] counts) => (float[N] y) <int64[1] axes = {0}>"
    " { mean = ReduceMean<keepdims=1>(x, axes) sizes = Shape(counts) y = Expand(mean, sizes) }",
    "sums": "net (float[N, 1, 2, W] x, float[N] s) => (float[N, 1, 2, W] y, float[N] t)"
    " <int64[3] axes = {1, 2, 3}, float one = {1}> { u = Unsqueeze(s, axes) y = Add(x, u) t = Add(s, one) }",
    "slow": "net (float[N, 128, 128] x) => (float[N, 128, 128] y)"
    " { a = MatMul(x, x) b = MatMul(a, x) c = MatMul(b, x) d = MatMul(c, x) y = MatMul(d, x) }",
}  # fmt: skip
"""Models in the text form of onnx, by name."""

ENSEMBLES = {
    "pipe": Ensemble(
        [EnsembleStep("doubled", {"x": "x"}, {"y": "mid"}), EnsembleStep("net", {"x": "mid"}, {"y": "y"})], ["x"], ["y"]
    ),
    "branched": Ensemble(
        [
            EnsembleStep("weighted", {"x": "x"}, {"y": "left", "z": "right"}),
            EnsembleStep("weighted", {"x": "left"}, {"y": "y"}),
            EnsembleStep("doubled", {"x": "right"}, {"y": "z"}),
        ],
        ["x"], ["z", "y"],
    ),
}  # fmt: skip
"""Ensembles of these models, by name."""


def proto(name: str) -> onnx.ModelProto:
    """Return a model."""
    return onnx.parser.parse_model(HEAD + NETS[name])


def session(name: str, compile: str = "off") -> Session:
    """Return a session with one thread and the limits of a server."""
    limits = Limits()
    return Session(
        proto(name), compile=compile, threads=1, max_memory=limits.run_bytes, timeout=limits.run_seconds,
        max_loop_iterations=limits.loop_iterations,
    )  # fmt: skip


def save(name: str, path: Path) -> Path:
    """Write a model to a file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(proto(name), path)
    return path


def maps(kind: str, text: str) -> str:
    """Return pairs of names, written `inner: outer, …`, as a configuration writes them."""
    pairs = [part.split(": ") for part in text.split(", ") if part]
    return " ".join(f'{kind} {{ key: "{key}" value: "{value}" }}' for key, value in pairs)


def steps(*parts: tuple[str, str, str]) -> str:
    """Return the steps of an ensemble as a configuration writes them."""
    texts = [
        f'step {{ model_name: "{model}" model_version: -1 {maps("input_map", i)} {maps("output_map", o)} }}'
        for model, i, o in parts
    ]
    return f"ensemble_scheduling {{ {' '.join(texts)} }}\n"
