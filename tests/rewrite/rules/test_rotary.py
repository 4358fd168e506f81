"""Random graphs around rotary embeddings, of halves and of pairs, and near misses."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rewrite.fuzz import GraphMaker, generator, run_many
from tests.rewrite.models import transformed


@generator("fuse_rotary_embedding")
def rotary_embeddings(g: GraphMaker) -> None:
    g.opset, g.special = g.pick([23, 23, 24, 21]), False
    batch, heads, length, half = g.int(1, 3), g.int(1, 3), g.int(1, 3), g.int(1, 3)
    x = g.input((batch, heads, length, 2 * half), dynamic=g.chance(0.2))
    if g.chance():
        angles = g.input((g.pick([batch, batch, 1]), length, half), dynamic=False)
        both = g.node("Concat", angles, angles, axis=g.pick([-1, 2]))
        cos, sin = (g.node("Unsqueeze", g.node(op, both), g.ints(1)) for op in ("Cos", "Sin"))
    else:
        table = g.rng.standard_normal((length, half))
        table = np.concatenate([table, table if g.chance(0.8) else -table], axis=1)
        lead = g.pick([(), (1, 1), (1,)])
        cos, sin = (g.const(f(table).reshape(*lead, *table.shape), "float32") for f in (np.cos, np.sin))
    if g.chance():
        first, second = g.node("Split", x, g.ints(half, half), axis=g.pick([-1, 3]), n_outputs=2)
    else:
        first = g.node("Slice", x, g.ints(0), g.ints(half), g.ints(3))
        second = g.node("Slice", x, g.ints(half), g.ints(2**63 - 1), g.ints(-1))
    g.read_again(first, 0.1)
    rotated = g.node("Concat", g.node("Neg", second), first, axis=-1)
    crossed = g.node("Mul", rotated, sin) if g.chance() else g.node("Mul", sin, rotated)
    straight = g.node("Mul", x, cos) if g.chance() else g.node("Mul", cos, x)
    g.output(g.node("Add", *((straight, crossed) if g.chance() else (crossed, straight))))


def _even_and_odd(g: GraphMaker, x: str, shape: tuple[int, ...]) -> tuple[str, str]:
    """Return the elements at even and at odd indices of the last axis."""
    kind = g.int(0, 2)
    if kind == 0:
        end = g.pick([2**63 - 1, shape[-1]])
        start = g.pick([0, 0, 0, 1])
        return (
            g.node("Slice", x, g.ints(start), g.ints(end), g.ints(g.pick([-1, 3])), g.ints(2)),
            g.node("Slice", x, g.ints(1), g.ints(end), g.ints(3), g.ints(2)),
        )
    pairs = g.node("Reshape", x, g.ints(*shape[:-1], shape[-1] // 2, 2))
    if kind == 1:
        return g.node("Gather", pairs, g.const(0), axis=-1), g.node("Gather", pairs, g.const(g.pick([1, -1])), axis=4)
    first, second = g.node("Split", pairs, g.ints(1, 1), axis=-1, n_outputs=2)
    return g.node("Squeeze", first, g.ints(-1)), g.node("Squeeze", second, g.ints(4))


def _interleave(g: GraphMaker, first: str, second: str, shape: tuple[int, ...]) -> str:
    parts = [g.node("Unsqueeze", part, g.ints(g.pick([-1, 4]))) for part in (first, second)]
    joined = g.node("Concat", *parts, axis=g.pick([-1, -1, 4, 4, 3]))
    g.read_again(joined, 0.05)
    return g.node("Reshape", joined, g.ints(*shape))


def _sum(g: GraphMaker, a: str, b: str) -> str:
    return g.node("Add", *((a, b) if g.chance() else (b, a)))


def _product(g: GraphMaker, a: str, b: str) -> str:
    return g.node("Mul", *((a, b) if g.chance() else (b, a)))


@generator("fuse_rotary_embedding")
def pairs_rotated_by_repeated_angles(g: GraphMaker) -> None:
    """The form of GPT-J: each cosine is repeated, side by side."""
    g.opset, g.special = g.pick([23, 23, 24, 21]), False
    batch, heads, length, half = g.int(1, 3), g.int(1, 3), g.int(1, 3), g.int(1, 3)
    shape = (batch, heads, length, 2 * half)
    x = g.input(shape, dynamic=False)
    if g.chance():
        angles = g.input((batch, length, half), dynamic=False)
        waves = [g.node(op, angles) for op in ("Cos", "Sin")]
        cos, sin = (_twice(g, wave, (batch, length, half)) for wave in waves)
    else:
        table = np.repeat(g.rng.standard_normal((length, half)), 2, axis=1)
        if g.chance(0.15):
            table = table[:, ::-1] * np.arange(2 * half)
        lead = g.pick([(), (1, 1), (1,)])
        cos, sin = (g.const(f(table).reshape(*lead, *table.shape), "float32") for f in (np.cos, np.sin))
    first, second = _even_and_odd(g, x, shape)
    rotated = _interleave(g, g.node("Neg", second), first, shape)
    g.output(_sum(g, _product(g, x, cos), _product(g, rotated, sin)))


def _twice(g: GraphMaker, wave: str, shape: tuple[int, ...]) -> str:
    """Return every element of the last axis twice, with an axis for heads."""
    batch, length, half = shape
    apart = g.node("Unsqueeze", wave, g.ints(-1))
    kind = g.int(0, 2)
    if kind == 0:
        wide = g.node("Concat", apart, apart, axis=-1)
    elif kind == 1:
        wide = g.node("Tile", apart, g.ints(1, 1, 1, 2))
    else:
        wide = g.node("Expand", apart, g.ints(batch, length, half, 2))
    if g.chance():
        return g.node("Reshape", wide, g.ints(batch, 1, length, 2 * half))
    return g.node("Unsqueeze", g.node("Reshape", wide, g.ints(batch, length, 2 * half)), g.ints(1))


@generator("fuse_rotary_embedding/partial_rotary_embedding")
def first_part_of_heads(g: GraphMaker) -> None:
    """Rotate a part of a head's width, with heads as second or third axis."""
    g.opset, g.special = g.pick([23, 23, 24]), False
    batch, heads, length, half, rest = g.int(1, 3), g.int(1, 3), g.int(2, 4), g.int(1, 3), g.int(0, 3)
    third = g.chance()
    shape = (batch, length, heads, 2 * half + rest) if third else (batch, heads, length, 2 * half + rest)
    if third and g.chance():
        flat = g.input((batch, length, heads * shape[3]), dynamic=False)
        x = g.node("Reshape", flat, g.ints(0, 0, heads, -1))
    else:
        x = g.input(shape, dynamic=False)
    part, tail = x, None
    if rest and g.chance(0.7):
        part, tail = g.node("Split", x, g.ints(2 * half, rest), axis=g.pick([-1, 3]), n_outputs=2)
    elif rest:
        part = g.node("Slice", x, g.ints(0), g.ints(2 * half), g.ints(3))
        tail = g.node("Slice", x, g.ints(2 * half), g.ints(2**63 - 1), g.ints(g.pick([-1, 3])))
    length_axis = g.pick([1 if third else 2] * 6 + [1, 2])
    size = length if length_axis == (1 if third else 2) else heads
    if g.chance():
        angles = g.input((batch, size, half), dynamic=False)
        both = g.node("Concat", angles, angles, axis=-1)
        cos, sin = (g.node("Unsqueeze", g.node(op, both), g.ints(3 - length_axis)) for op in ("Cos", "Sin"))
    else:
        table = np.tile(g.rng.standard_normal((size, half)), 2)
        wide = (1, size, 1, 2 * half) if length_axis == 1 else (1, 1, size, 2 * half)
        cos, sin = (g.const(f(table).reshape(wide), "float32") for f in (np.cos, np.sin))
    first, second = g.node("Split", part, g.ints(half, half), axis=-1, n_outputs=2)
    rotated = g.node("Concat", g.node("Neg", second), first, axis=-1)
    y = _sum(g, _product(g, part, cos), _product(g, rotated, sin))
    g.read_again(y, 0.05)
    if tail is not None:
        y = g.node("Concat", *((y, tail) if g.chance(0.9) else (tail, y)), axis=g.pick([-1, 3]))
    g.output(g.node("Transpose", y, perm=[0, 2, 1, 3]) if third and g.chance() else y)


@generator("fuse_rotary_embedding/rotary_pairs")
def pairs_as_complex_numbers(g: GraphMaker) -> None:
    """The form of Llama: pairs are complex numbers, multiplied by another."""
    g.opset, g.special = g.pick([23, 23, 24, 21]), False
    batch, heads, length, half = g.int(1, 3), g.int(1, 3), g.int(1, 3), g.int(1, 3)
    shape = (batch, heads, length, 2 * half)
    x = g.input(shape, dynamic=False)
    lead = g.pick([(), (1,), (1, 1), (batch, 1), (batch, heads)])
    make = g.weight if g.chance() else lambda size: g.input(size, dynamic=False)
    # Where heads stand third, the rows of angles have an axis of size 1 for them.
    third = g.chance(0.3)
    wide = (*g.pick([(), (1,), (batch,)]), heads, 1, half) if third else (*lead, length, half)
    cos, sin = (make(wide) for _ in range(2))
    a, b = _even_and_odd(g, x, shape)
    real = g.node("Sub", _product(g, a, cos), _product(g, b, sin if g.chance(0.95) else cos))
    imaginary = _sum(g, _product(g, a, sin), _product(g, b, cos))
    g.read_again(real, 0.05)
    g.output(_interleave(g, real, imaginary, shape))


@pytest.mark.parametrize(
    "label",
    [
        "fuse_rotary_embedding",
        "fuse_rotary_embedding/rotary_pairs",
        "fuse_rotary_embedding/partial_rotary_embedding",
    ],
)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 200 if label.endswith("partial_rotary_embedding") else 100)


def test_part_of_a_head_is_rotated_by_one_operator() -> None:
    """The form of GPT-NeoX, with heads after the length."""
    engine = transformed(
        """g (float[2, 5, 12] q) => (float[2, 5, 2, 6] y) {
            x = Reshape(q, parted) r, rest = Split<axis = -1>(x, sizes)
            a, b = Split<axis = -1, num_outputs = 2>(r) n = Neg(b) t = Concat<axis = -1>(n, a)
            rc = Mul(r, c) ts = Mul(t, s) z = Add(rc, ts) y = Concat<axis = -1>(z, rest) }""",
        23,
        parted=np.array([0, 0, 2, 6]),
        sizes=np.array([4, 2]),
        c=np.tile(np.cos(np.arange(10.0).reshape(1, 5, 1, 2)), 2).astype(np.float32),
        s=np.tile(np.sin(np.arange(10.0).reshape(1, 5, 1, 2)), 2).astype(np.float32),
    )
    operators = [node.op_type for node in engine.model.graph]
    assert operators == ["RotaryEmbedding", "Reshape"]


_PAIRS = """g (float[2, 3, 4, 6] x, float[4, 3] c, float[4, 3] s) => (float[2, 3, 4, 6] y) {{
    a = Slice(x, zero, end, last, two)
    b = Slice(x, one, end, last, two)
    ac = Mul(a, c)
    bs = Mul(b, s)
    re = Sub({real})
    as = Mul(a, s)
    bc = Mul(b, c)
    im = Add(as, bc)
    reu = Unsqueeze(re, last)
    imu = Unsqueeze(im, last)
    ri = Concat<axis = -1>(reu, imu)
    y = Reshape(ri, shape)
}}"""

_INTS = {
    name: np.array([value], np.int64)
    for name, value in (("zero", 0), ("one", 1), ("two", 2), ("end", 2**63 - 1), ("last", -1))
}


@pytest.mark.parametrize(("real", "fires"), [("ac, bs", True), ("bs, ac", False)])
def test_pairs_are_rotated_forward_only(real: str, fires: bool) -> None:
    engine = transformed(_PAIRS.format(real=real), 23, shape=np.array([2, 3, 4, 6]), **_INTS)
    operators = [node.op_type for node in engine.model.graph]
    assert ("RotaryEmbedding" in operators) == fires
    if fires:
        assert len(operators) <= 5


def test_pairs_need_their_operator_set() -> None:
    engine = transformed(_PAIRS.format(real="ac, bs"), 18, shape=np.array([2, 3, 4, 6]), **_INTS)
    assert engine.refused["fuse_rotary_embedding/rotary_pairs", "y"] == "needs opset 23"
