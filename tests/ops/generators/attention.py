"""Cases of attention and of rotary positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.generators.draw import Case, Draw
from tests.ops.generators.table import draws


@draws("Attention")
def attention(draw: Draw, name: str) -> Case:
    batch, heads, queries, keys, size = (draw.integer(1, 3) for _ in range(5))
    group, packed = draw.integer(1, 2), draw.chance(0.4)

    def operand(count: int, length: int) -> Any:
        shape = (batch, length, count * size) if packed else (batch, count, length, size)
        return draw.array(shape, special=False)

    past = draw.integer(1, 2) if draw.chance(0.3) else 0
    before = [draw.array((batch, heads, past, size), special=False) if past else None for _ in range(2)]
    mask_shape = draw.pick((queries, keys + past), (1, heads * group, queries, keys + past))
    mask = draw.maybe(lambda: draw.array(mask_shape, draw.pick(np.float32, np.bool_), special=False), 0.4)
    options: dict[str, Any] = draw.options(is_causal=draw.integer(0, 1), scale=0.3, softcap=draw.pick(0.0, 2.0))
    if packed:
        options |= {"q_num_heads": heads * group, "kv_num_heads": heads}
    inputs = [operand(heads * group, queries), operand(heads, keys), operand(heads, keys), mask, *before]
    outputs = 3 if past else 1
    if draw.chance(0.2):
        outputs, options["qk_matmul_output_mode"] = 4, draw.integer(0, 3)
    return Case(name, draw.pick(23, 24), inputs, options, outputs)


@draws("RotaryEmbedding")
def rotary(draw: Draw, name: str) -> Case:
    batch, heads, length, half = (draw.integer(1, 3) for _ in range(4))
    rest = 2 * draw.integer(0, 1)
    size, packed = 2 * half + rest, draw.chance(0.4)
    x = draw.array((batch, length, heads * size) if packed else (batch, heads, length, size), special=False)
    options: dict[str, Any] = draw.options(interleaved=draw.integer(0, 1))
    if packed:
        options["num_heads"] = heads
    if rest:
        options["rotary_embedding_dim"] = 2 * half
    if draw.chance(0.5):
        caches = [draw.array((6, half), special=False) for _ in range(2)]
        positions = draw.numbers.integers(0, 6, (batch, length)).astype(np.int64)
        return Case(name, 23, [x, *caches, positions], options)
    return Case(name, 23, [x, *[draw.array((batch, length, half), special=False) for _ in range(2)]], options)


@draws("LinearAttention")
def linear(draw: Draw, name: str) -> Case:
    batch, length, heads, group, size = (draw.integer(1, 3) for _ in range(5))
    rule = draw.pick("linear", "gated", "delta", "gated_delta")
    shapes = [(batch, length, heads * group * size), (batch, length, heads * size), (batch, length, heads * 2)]
    q, k, v = (draw.array(shape, special=False) / 3 for shape in shapes)
    state = draw.maybe(lambda: draw.array((batch, heads, size, 2), special=False))
    decay = -draw.positive((batch, length, heads * size)) if "gated" in rule else None
    beta = draw.positive((batch, length, heads)) if "delta" in rule else None
    options = {"q_num_heads": heads * group, "kv_num_heads": heads, "update_rule": rule} | draw.options(scale=0.5)
    return Case(name, 27, [q, k, v, state, decay, beta], options, 2)
