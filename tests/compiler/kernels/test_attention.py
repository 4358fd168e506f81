"""Fused attention against numpy, over sizes around the edges of tiles and key blocks."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import pytest
from tests.compiler.kernels.compiled import CompiledKernel

from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.kernel_builder import Index, Kernel
from sardonyx.compiler.kernels.attention import Heads, attention, scratch_bytes
from sardonyx.compiler.target.description import NAMED, Target, host
from sardonyx.compiler.tiling.attention import AttentionProblem, AttentionSchedule, choose_attention
from sardonyx.compiler.tiling.costs import ATTENTION_KEYS
from sardonyx.core.dim import Dim, evaluate
from sardonyx.core.ir.types import FLOAT

pytestmark = pytest.mark.sampled

B, H, S, L, D, W, OFFSET = (Dim.symbol(name) for name in ("b", "h", "s", "t", "d", "w", "offset"))
TARGETS = [entry for entry in (NAMED["avx2"], NAMED["avx512"]) if entry.vector_bits <= host().vector_bits] or [host()]
SCALE = 0.37
SHIFT = 3
"""A size is never negative, the difference of sizes that causality has may be."""


@dataclass(frozen=True)
class Form:
    """A compiled variant: a known width, shared heads of keys, a mask [s, t] added to scores, causality, transposes."""

    width: int | None = None
    group: int = 1
    masked: bool = False
    causal: bool = False
    transposed: bool = False


def choose(target: Target) -> AttentionSchedule:
    return choose_attention(AttentionProblem(S, L, D, W), target).schedule


@functools.cache
def compiled(target: Target, form: Form) -> CompiledKernel:
    """Q [b, s, h, d], K and V [b, h / group, t, d or w], or transposed; the result is [b, s, h, w]."""
    kernel = Kernel(target)
    e = kernel.emitter
    q, k, v, mask, out, scratch = (kernel.buffer() for _ in range(6))
    h, s, t, d = (kernel.size(size) for size in (H, S, L, D))
    width = W if form.width is None else form.width
    w, owners = kernel.size(width), e.div(h, form.group)
    lanes = target.lanes(32)

    def score(index: tuple[Index, ...], value: str, lanes_there: str | None) -> str:
        _, _, query, key = index
        where = Index(e.add(e.mul(query.base, t), key.base), 1)
        return e.let(f"fadd <{lanes} x float> {value}, {load_store.load(e, FLOAT, mask, where, lanes, lanes_there)}")

    def epilogue(index: tuple[Index, ...], value: str, lanes_there: str | None) -> None:
        batch, head, query, column = index
        row = e.add(e.mul(e.add(e.mul(batch.base, s), query.base), h), head.base)
        load_store.store(e, FLOAT, value, out, Index(e.add(e.mul(row, w), column.base), 1), lanes, lanes_there)

    def owned(pointer: str, columns: str | int) -> Heads:
        size = e.mul(t, columns)
        steps = (1, t) if form.transposed else (columns, 1)
        return Heads(pointer, FLOAT, e.mul(owners, size), size, *steps)

    items = attention(
        kernel, schedule=choose(target), batch=B, heads=H, queries=S, keys=L, depth=D, width=width,
        q=Heads(q, FLOAT, e.mul(s, e.mul(h, d)), d, e.mul(h, d), 1), k=owned(k, d), v=owned(v, w),
        epilogue=epilogue, scratch=scratch, group=form.group, scale=SCALE, score=score if form.masked else None,
        causal=OFFSET - SHIFT if form.causal else None,
    )  # fmt: skip
    return CompiledKernel(kernel, items)


def expected(q, k, v, mask, form: Form, offset: int) -> np.ndarray:
    """In float64; q [b, s, h, d], k and v [b, h / group, t, ...]."""
    q, k, v = (item.astype(np.float64) for item in (q.transpose(0, 2, 1, 3), k, v))
    k, v = (np.repeat(item, form.group, axis=1) for item in (k, v))
    scores = SCALE * (q @ k.swapaxes(2, 3))
    if form.masked:
        scores = scores + mask
    if form.causal:
        query, key = np.indices(scores.shape[2:])
        scores = np.where(key <= query + offset, scores, -np.inf)
    with np.errstate(invalid="ignore", divide="ignore"):
        weights = np.exp(scores - scores.max(axis=3, keepdims=True, initial=-np.inf))
        weights /= weights.sum(axis=3, keepdims=True)
        return (weights @ v).transpose(0, 2, 1, 3)


def run(
    target: Target, form: Form, b: int, h: int, s: int, t: int, d: int, w: int,
    parts: int = 1, mask: np.ndarray | None = None, offset: int = 0,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    rng = np.random.default_rng(s * 1009 + t)
    draw = functools.partial(rng.standard_normal, dtype=np.float32)
    q, k, v = draw((b, s, h, d)), draw((b, h // form.group, t, d)), draw((b, h // form.group, t, w))
    mask = draw((s, t)) if mask is None else mask.astype(np.float32)
    out = np.full(b * s * h * w + 64, 77, np.float32)
    scratch = np.full(parts * evaluate(scratch_bytes(choose(target), t, d, w), {}) // 4, np.nan, np.float32)
    arguments = [np.ascontiguousarray(item.swapaxes(2, 3)) if form.transposed else item for item in (k, v)]
    sizes = {"b": b, "h": h, "s": s, "t": t, "d": d, "w": w, "offset": offset + SHIFT}
    compiled(target, form)(q, *arguments, mask, out, scratch, parts=parts, **sizes)
    assert (out[-64:] == 77).all(), "written past the end"
    return out[:-64].reshape(b, s, h, w), expected(q, k, v, mask, form, offset)


def check(target: Target, form: Form, b: int, h: int, s: int, t: int, d: int, w: int, parts: int = 1, offset: int = 0):
    got, expected = run(target, form, b, h, s, t, d, w, parts, offset=offset)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-6)


FORMS = [
    Form(), Form(width=64), Form(width=20, masked=True), Form(group=2), Form(causal=True), Form(transposed=True),
    Form(masked=True, causal=True, group=3),
]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_sizes_around_the_edges_of_tiles(target: Target, form: Form) -> None:
    for s in (0, 1, 2, 5, 6, 7, 24, 25):
        for t in (1, 15, 16, 17, 64, 67):
            check(target, form, 1, form.group, s, t, 5, form.width or 1 + (s + t) % 70)
    check(target, form, 0, form.group, 3, 3, 3, form.width or 3)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_more_keys_than_a_block_in_any_split(target: Target, form: Form) -> None:
    for t in (ATTENTION_KEYS - 1, ATTENTION_KEYS, ATTENTION_KEYS + 1, 2 * ATTENTION_KEYS + 37):
        check(target, form, 2, 2 * form.group, 31, t, 16, form.width or 33, parts=3, offset=t - 31)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_causality_with_an_offset(target: Target) -> None:
    for offset in (-3, 0, 1, 600):
        got, expected = run(target, Form(causal=True), 1, 1, 9, 700, 8, 8, offset=offset)
        assert np.isnan(expected[:, : max(0, -offset)]).all()
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_keys_masked_by_minus_infinity(target: Target) -> None:
    keys = 2 * ATTENTION_KEYS + 3
    mask = np.where(np.random.default_rng(0).random((7, keys)) < 0.5, -np.inf, 0.0)
    mask[1, :ATTENTION_KEYS] = -np.inf
    mask[2, ATTENTION_KEYS:] = -np.inf
    mask[3] = -np.inf
    mask[4, :-1] = -np.inf
    got, expected = run(target, Form(width=20, masked=True), 1, 2, 7, keys, 4, 20, mask=mask)
    assert np.isnan(expected[:, 3]).all()
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_large_scores_do_not_overflow(target: Target) -> None:
    mask = np.linspace(-3e4, 3e4, 9 * 1100).reshape(9, 1100)
    got, expected = run(target, Form(width=20, masked=True), 1, 1, 9, 1100, 4, 20, mask=mask)
    np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-3)


def test_the_split_does_not_change_a_bit() -> None:
    target = TARGETS[-1]
    results = [run(target, Form(), 2, 3, 61, 130, 32, 48, parts)[0].tobytes() for parts in (1, 2, 3, 18)]
    assert len(set(results)) == 1
