"""Attention of transformers: projections, norms of heads, and latent keys and values."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.convert.weights.architecture import Disentangled, Latent
from sardonyx.convert.weights.family import LatentNames
from sardonyx.convert.weights.transformer import Rotation, TransformerBuilder
from sardonyx.errors import UnsupportedError

Cache = tuple[ir.Value, ir.Value]
"""Keys and values, [batch, key heads, positions, head size]; latent rows and rotated parts of keys of one head."""

LATENT = LatentNames()
LATENT_EPSILON = 1e-6
"""Constant of the norms of latent rows, which no configuration changes."""


class AttentionBuilder(TransformerBuilder):
    """A transformer under construction, with its attention.

    Attributes:
        position_rows: Table of relative positions, [rows, hidden]; None without.
        position_index: Row of each query and key, [queries, keys].
        temperature: Factors of queries of layers without rotation, [queries, 1]; None without.
    """

    position_rows: ir.Value | None = None
    position_index: ir.Value | None = None
    temperature: ir.Value | None = None

    def attention(
        self, i: int, x: ir.Value, cache: Cache | None, rotation: Rotation | None, mask: ir.Value
    ) -> tuple[ir.Value, Cache]:
        """Return the result of the attention, and all keys and values."""
        if self.a.latent is not None:
            return self._latent_attention(i, self.a.latent, x, cache, rotation, mask)
        q, k, v = self._projections(self.a.layers[i], x)
        if self.family.rotates_first:
            q, k = self.rotated(q, rotation), self.rotated(k, rotation)
            q, k = self._head_norms(self.a.layers[i], q, k, is_rotated=rotation is not None)
        else:
            q, k = self._head_norms(self.a.layers[i], q, k)
            q, k = self.rotated(q, rotation), self.rotated(k, rotation)
        if rotation is None and self.temperature is not None:
            q = self.node("Mul", q, self.temperature)
        if cache is not None:
            k, v = self.node("Concat", cache[0], k, axis=2), self.node("Concat", cache[1], v, axis=2)
        return self._mixed(i, q, self._repeated(k), self._repeated(v), mask, self.a.head_size), (k, v)

    def _mixed(self, i: int, q: ir.Value, k: ir.Value, v: ir.Value, mask: ir.Value, size: int) -> ir.Value:
        """Return the result of the attention to keys and values of all heads; values have `size` elements."""
        scores = self.node("MatMul", q, self.node("Transpose", k, perm=[0, 1, 3, 2]))
        if self.a.disentangled is not None:
            for part in self._position_scores(i, self.a.disentangled, q, k):
                scores = self.node("Add", scores, part)
        scores = self.limited(self.scaled(scores, self.a.attention_scale), self.a.attention_limit)
        share = self._share(i, self.node("Add", scores, mask))
        mixed = self.node("Transpose", self.node("MatMul", share, v), perm=[0, 2, 1, 3])
        width = self.a.heads * size
        mixed = self.node("Reshape", mixed, self.ints(0, 0, width))
        name = f"{self.a.layers[i]}.{self.family.names.o}"
        return self.linear(mixed, name, width, self.a.hidden, is_transposed=self.family.is_transposed)

    def _position_scores(self, i: int, kind: Disentangled, q: ir.Value, k: ir.Value) -> Iterator[ir.Value]:
        """Yield the scores of contents of queries with positions, and of positions with contents of keys."""
        assert self.position_rows is not None and self.position_index is not None
        names = self.family.names
        table = self.node("Unsqueeze", self.position_rows, self.ints(0))
        query, key = (
            (names.q, names.k) if kind.shares else ("attention.self.pos_query_proj", "attention.self.pos_key_proj")
        )
        choices = (
            (kind.contents_to_positions, q, key, False),
            (kind.positions_to_contents, k, query, True),
        )
        for is_present, contents, name, is_of_keys in choices:
            if not is_present:
                continue
            width = self.a.heads * self.a.head_size
            rows = self.linear(table, f"{self.a.layers[i]}.{name}", self.a.hidden, width)
            rows = self.node("Transpose", self._heads(rows, self.a.heads, self.a.head_size), perm=[0, 1, 3, 2])
            scores = self.node("MatMul", contents, rows)
            index = self.position_index
            if is_of_keys:
                index = self.node("Transpose", index, perm=[1, 0])
            sizes = (self.sizes_of(scores, 0, 3), self.sizes_of(contents, 2, 3))
            index = self.node("Expand", index, self.node("Concat", *sizes, axis=0))
            chosen = self.node("GatherElements", scores, index, axis=-1)
            yield self.node("Transpose", chosen, perm=[0, 1, 3, 2]) if is_of_keys else chosen

    def _latent_attention(
        self, i: int, sizes: Latent, x: ir.Value, cache: Cache | None, rotation: Rotation | None, mask: ir.Value
    ) -> tuple[ir.Value, Cache]:
        """Return the result of the attention to latent rows, and all of these with the rotated parts of keys."""
        names, heads = LATENT, self.a.heads

        def named(name: str) -> str:
            return f"{self.a.layers[i]}.{name}"

        width = heads * (sizes.plain + sizes.rotated)
        if sizes.query_rank:
            row = self.linear(x, named(names.q_down), self.a.hidden, sizes.query_rank)
            row = self.norm(row, named(names.q_norm), sizes.query_rank, LATENT_EPSILON)
            queries = self.linear(row, named(names.q_up), sizes.query_rank, width)
        else:
            queries = self.linear(x, named(self.family.names.q), self.a.hidden, width)
        queries = self._heads(queries, heads, sizes.plain + sizes.rotated)
        plain, rotated = self.nodes_of("Split", 2, queries, self.ints(sizes.plain, sizes.rotated), axis=-1)
        both = self.linear(x, named(names.down), self.a.hidden, sizes.rank + sizes.rotated)
        row, key = self.nodes_of("Split", 2, both, self.ints(sizes.rank, sizes.rotated), axis=-1)
        row = self.node("Unsqueeze", self.norm(row, named(names.norm), sizes.rank, LATENT_EPSILON), self.ints(1))
        key = self.node("Unsqueeze", key, self.ints(1))
        rotated, key = self.rotated(rotated, rotation), self.rotated(key, rotation)
        if cache is not None:
            row, key = self.node("Concat", cache[0], row, axis=2), self.node("Concat", cache[1], key, axis=2)
        expanded = self.linear(row, named(names.up), sizes.rank, heads * (sizes.plain + sizes.value))
        expanded = self._heads(self.node("Squeeze", expanded, self.ints(1)), heads, sizes.plain + sizes.value)
        keys, values = self.nodes_of("Split", 2, expanded, self.ints(sizes.plain, sizes.value), axis=-1)
        common = self.node("Expand", key, self.ints(1, heads, 1, 1))
        keys = self.node("Concat", keys, common, axis=-1)
        q = self.node("Concat", plain, rotated, axis=-1)
        return self._mixed(i, q, keys, values, mask, sizes.value), (row, key)

    def _share(self, i: int, scores: ir.Value) -> ir.Value:
        """Return the softmax of scores; a sink takes a share of its own."""
        sinks = self.family.names.sinks
        if not sinks:
            return self.node("Softmax", scores, axis=-1)
        column = self.node("Unsqueeze", self.weight(f"{self.a.layers[i]}.{sinks}", self.a.heads), self.ints(0, 2, 3))
        sizes = (self.sizes_of(scores, 0, 3), self.ints(1))
        column = self.node("Expand", column, self.node("Concat", *sizes, axis=0))
        share = self.node("Softmax", self.node("Concat", scores, column, axis=-1), axis=-1)
        return self.node("Slice", share, self.ints(0), self.ints(-1), self.ints(-1))

    def _head_norms(
        self, layer: str, q: ir.Value, k: ir.Value, *, is_rotated: bool = True
    ) -> tuple[ir.Value, ir.Value]:
        """Return queries and keys with the norms of heads that the family has."""
        q_norm, k_norm = (f"{layer}.{name}" for name in (self.family.names.q_norm, self.family.names.k_norm))
        if self.family.query_norm == "head":
            return self.norm(q, q_norm, self.a.head_size), self.norm(k, k_norm, self.a.head_size)
        if self.family.query_norm == "rotated" and is_rotated:
            size = self.a.head_size
            return self.normalized(q, size, is_centred=False), self.normalized(k, size, is_centred=False)
        if self.family.query_norm == "own":
            return self._own_norm(q, q_norm, self.a.heads), self._own_norm(k, k_norm, self.a.key_heads)
        return q, k

    def _projections(self, layer: str, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Return queries, keys and values, [batch, heads, sequence, size]."""
        names, size = self.family.names, self.a.head_size
        counts = (self.a.heads, self.a.key_heads, self.a.key_heads)
        if names.qkv and not self.checkpoint.has(f"{layer}.{names.q}.weight"):
            parts = self._fused(x, f"{layer}.{names.qkv}", counts)
        else:
            parts = [
                self.linear(x, f"{layer}.{name}", self.a.hidden, count * size, is_transposed=self.family.is_transposed)
                for name, count in zip((names.q, names.k, names.v), counts, strict=True)
            ]
        norms = (f"{layer}.{names.q_norm}", f"{layer}.{names.k_norm}", "")
        if self.family.query_norm == "row":
            parts = [
                self.norm(part, name, count * size) for part, name, count in zip(parts, norms, counts, strict=True)
            ]
        if self.a.clip:
            parts = [self.node("Clip", part, self.number(-self.a.clip), self.number(self.a.clip)) for part in parts]
        q, k, v = (self._heads(part, count, size) for part, count in zip(parts, counts, strict=True))
        return q, k, v

    def _fused(self, x: ir.Value, name: str, counts: tuple[int, int, int]) -> list[ir.Value]:
        """Return [batch, sequence, heads * size] of queries, keys and values from one matrix."""
        size, keys = self.a.head_size, self.a.key_heads
        whole = self.linear(x, name, self.a.hidden, sum(counts) * size, is_transposed=self.family.is_transposed)
        if self.family.fused == "rows":
            return self.nodes_of("Split", 3, whole, self.ints(*(count * size for count in counts)), axis=-1)
        if self.family.fused == "quarters":
            if keys != self.a.heads or keys % 4:
                raise UnsupportedError(f"{keys} heads in four parts", where=self.a.name)
            quarters = self.node("Reshape", whole, self.ints(0, 0, 4, 3 * keys // 4 * size))
            q, v, k = self.nodes_of("Split", 3, quarters, axis=-1, num_outputs=3)
            return [self.node("Reshape", part, self.ints(0, 0, -1)) for part in (q, k, v)]
        groups = self.node("Reshape", whole, self.ints(0, 0, keys, sum(counts) // keys * size))
        parts = self.nodes_of("Split", 3, groups, self.ints(*(count // keys * size for count in counts)), axis=-1)
        return [self.node("Reshape", part, self.ints(0, 0, -1)) for part in parts]

    def _own_norm(self, x: ir.Value, name: str, heads: int) -> ir.Value:
        """Return the layer norm of each head with the head's weights."""
        if self.checkpoint.has(f"{name}.weight"):
            w = self.weight(f"{name}.weight", heads, self.a.head_size)
        else:
            rows = [self.weight(f"{name}.norms.{j}.weight", self.a.head_size) for j in range(heads)]
            w = self.node("Concat", *(self.node("Unsqueeze", row, self.ints(0)) for row in rows), axis=0)
        normal = self.normalized(x, self.a.head_size, is_centred=True)
        return self.node("Mul", normal, self.node("Unsqueeze", w, self.ints(1)))

    def _heads(self, x: ir.Value, count: int, size: int) -> ir.Value:
        """Return [batch, sequence, count * size] as [batch, count, sequence, size]."""
        split = self.node("Reshape", x, self.ints(0, 0, count, size))
        return self.node("Transpose", split, perm=[0, 2, 1, 3])

    def _repeated(self, x: ir.Value) -> ir.Value:
        """Return keys or values with every head repeated for its group of queries."""
        groups = self.a.heads // self.a.key_heads
        if groups == 1:
            return x
        wide = self.node("Expand", self.node("Unsqueeze", x, self.ints(2)), self.ints(1, 1, groups, 1, 1))
        sizes = (self.sizes_of(x, 0, 1), self.ints(self.a.heads), self.sizes_of(x, 2, 4))
        return self.node("Reshape", wide, self.node("Concat", *sizes, axis=0))
