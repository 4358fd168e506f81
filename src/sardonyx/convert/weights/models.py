"""Decoders and encoders as ONNX models.

A decoder has inputs ``input_ids`` and ``position_ids`` [batch, sequence], ``attention_mask`` [batch, past + sequence],
and for each layer ``past_key_values.N.key`` and ``.value`` [batch, key heads, past, head size]; outputs are ``logits``,
``present.N.key`` and ``present.N.value``. Latent attention has latent rows [batch, 1, past, rank] in place of keys,
and the rotated parts of keys in place of values. Decoders with ALiBi have no ``position_ids``. Other exporters of
decoders use the same names.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from sardonyx.convert.weights.architecture import Architecture, Disentangled
from sardonyx.convert.weights.checkpoint import Checkpoint
from sardonyx.convert.weights.early_families import alibi_slopes
from sardonyx.convert.weights.layers import LayersBuilder
from sardonyx.convert.weights.transformer import FLOAT, HIDDEN_SCORE, INT64

BOOL = ir.DataType.BOOL


def transformer_model(architecture: Architecture, checkpoint: Checkpoint) -> ir.Model:
    """Return the model of an architecture.

    Raises:
        ModelFileError: A weight is missing or has other sizes.
        UnsupportedError: A variant has no translation.
    """
    kind = Encoder if architecture.family.is_encoder else Decoder
    return kind(architecture, checkpoint).model()


class Decoder(LayersBuilder):
    """A decoder under construction."""

    def model(self) -> ir.Model:
        """Return the decoder."""
        names, a = self.family.names, self.a
        ids = self.input("input_ids", INT64, "batch", "sequence")
        mask = self.input("attention_mask", INT64, "batch", "past + sequence")
        positions = self.input("position_ids", INT64, "batch", "sequence") if has_positions(a) else None
        sizes = ("batch", a.key_heads, "past")
        key_width, value_width = a.cache_widths
        caches = [
            (
                self.input(f"past_key_values.{i}.key", FLOAT, *sizes, key_width),
                self.input(f"past_key_values.{i}.value", FLOAT, *sizes, value_width),
            )
            for i in range(len(a.layers))
        ]
        x = self._embedded(ids, positions)
        masks = {window: self._mask(ids, mask, window) for window in sorted(set(a.windows))}
        rotations = self.rotations(positions) if positions is not None else [None] * len(a.layers)
        if a.temperature is not None:
            self.temperature = self._temperature(ids, mask, *a.temperature)
        for i, cache in enumerate(caches):
            x, (key, value) = self.layer(i, x, cache, rotations[i], masks[a.windows[i]])
            for part, present, width in (("key", key, key_width), ("value", value, value_width)):
                self.output(f"present.{i}.{part}", present, "batch", a.key_heads, "past + sequence", width)
        x = self.norm(x, names.final_norm, a.hidden)
        width = self._embedding_width()
        if names.project_out:
            x = self.linear(x, names.project_out, a.hidden, width)
        if a.is_tied:
            logits = self.product(x, self.weight(f"{names.embedding}.weight", a.vocabulary, width))
        else:
            logits = self.linear(x, names.head, width, a.vocabulary)
        logits = self.limited(self.scaled(logits, a.logit_scale), a.logit_limit)
        presents, self.outputs = self.outputs, []
        self.output("logits", logits, "batch", "sequence", a.vocabulary)
        self.outputs += presents
        return self.finished()

    def _embedding_width(self) -> int:
        names = self.family.names
        if not names.project_in:
            return self.a.hidden
        return int(self.checkpoint.tensor(f"{names.embedding}.weight").shape[-1])

    def _embedded(self, ids: ir.Value, positions: ir.Value | None) -> ir.Value:
        names, a = self.family.names, self.a
        width = self._embedding_width()
        x = self.node("Gather", self.weight(f"{names.embedding}.weight", a.vocabulary, width), ids)
        x = self.scaled(x, float(np.float32(a.embedding_scale)))
        x = self.norm(x, names.embedding_norm, width)
        if names.project_in:
            x = self.linear(x, names.project_in, width, a.hidden)
        if names.positions and positions is not None:
            if self.family.position_offset:
                positions = self.node("Add", positions, self.integer(self.family.position_offset))
            x = self.node("Add", x, self.node("Gather", self.table(names.positions), positions))
        return x

    def table(self, name: str) -> ir.Value:
        """Return rows of learned positions, as many as the file has."""
        rows = len(self.checkpoint.tensor(f"{name}.weight"))
        return self.weight(f"{name}.weight", rows, self.a.hidden)

    def _mask(self, ids: ir.Value, mask: ir.Value, window: int) -> ir.Value:
        """Return scores to add [batch, 1 or heads, sequence, total]: 0 or ALiBi for positions up to the own one."""
        total, length = self.size_of(mask, 1), self.size_of(ids, 1)
        keys = self.node("Range", self.integer(0), total, self.integer(1))
        queries = self.node("Range", self.node("Sub", total, length), total, self.integer(1))
        queries = self.node("Unsqueeze", queries, self.ints(1))
        visible = self.node("LessOrEqual", keys, queries)
        if window and self.family.has_chunks:
            visible = self.node("And", visible, self._is_of_chunk(mask, keys, queries, window))
        elif window:
            oldest = self.node("Sub", queries, self.integer(window))
            visible = self.node("And", visible, self.node("Greater", keys, oldest))
        known = self.node("Cast", self.node("Unsqueeze", mask, self.ints(1, 2)), to=BOOL)
        score = self._alibi(mask, keys, total)
        return self.node("Where", self.node("And", visible, known), score, self.number(HIDDEN_SCORE))

    def _is_of_chunk(self, mask: ir.Value, keys: ir.Value, queries: ir.Value, size: int) -> ir.Value:
        """Return True for keys of the query's chunk, [batch, 1, queries, keys]; chunks begin after padding."""
        is_before = self.node("Equal", self.node("CumSum", mask, self.integer(1)), self.integer(0))
        start = self.node("ReduceSum", self.node("Cast", is_before, to=INT64), self.ints(1), keepdims=1)
        start = self.node("Unsqueeze", start, self.ints(1, 2))
        chunks = [self.node("Div", self.node("Sub", one, start), self.integer(size)) for one in (keys, queries)]
        return self.node("Equal", *chunks)

    def _temperature(self, ids: ir.Value, mask: ir.Value, slope: float, step: float) -> ir.Value:
        """Return factors of queries that grow by the logarithm of the position, [queries, 1] (Llama 4)."""
        total = self.size_of(mask, 1)
        numbers = self.node("Range", self.node("Sub", total, self.size_of(ids, 1)), total, self.integer(1))
        numbers = self.node("Cast", self.node("Add", numbers, self.integer(1)), to=FLOAT)
        steps = self.node("Floor", self.node("Div", numbers, self.number(step)))
        growth = self.node("Log", self.node("Add", steps, self.number(1.0)))
        factors = self.node("Add", self.node("Mul", growth, self.number(slope)), self.number(1.0))
        return self.node("Unsqueeze", factors, self.ints(1))

    def _alibi(self, mask: ir.Value, keys: ir.Value, total: ir.Value) -> ir.Value:
        """Return the score of each position by its distance, [batch or 1, heads, 1, total]; 0 without ALiBi."""
        kind = self.family.positions
        if "alibi" not in kind:
            return self.number(0.0)
        slopes = np.array(alibi_slopes(self.a.heads, self.a.alibi_exponent))[:, None, None]
        if kind == "key alibi":
            distances = self.node("Sub", keys, self.node("Sub", total, self.integer(1)))
            return self.node("Mul", self.node("Cast", distances, to=FLOAT), self.constant(slopes, np.float32))
        counts = self.node("Sub", self.node("CumSum", mask, self.integer(1)), self.integer(1))
        counts = self.node("Unsqueeze", self.node("Mul", counts, mask), self.ints(1, 2))
        if kind == "alibi":
            return self.node("Mul", self.node("Cast", counts, to=FLOAT), self.constant(slopes, np.float32))
        factors = self._bfloat16(self.constant(slopes, np.float32))
        rounded = self._bfloat16(self.node("Mul", self._bfloat16(self.node("Cast", counts, to=FLOAT)), factors))
        return self.scaled(rounded, self.a.attention_scale)

    def _bfloat16(self, x: ir.Value) -> ir.Value:
        return self.node("Cast", self.node("Cast", x, to=ir.DataType.BFLOAT16), to=FLOAT)


def has_positions(architecture: Architecture) -> bool:
    """Return True if the model has an input of positions."""
    return "alibi" not in architecture.family.positions


class Encoder(LayersBuilder):
    """An encoder under construction."""

    def model(self) -> ir.Model:
        """Return the encoder."""
        names, a = self.family.names, self.a
        ids = self.input("input_ids", INT64, "batch", "sequence")
        mask = self.input("attention_mask", INT64, "batch", "sequence")
        positions = self.node("Range", self.integer(0), self.size_of(ids, 1), self.integer(1))
        x = self._embedded(ids, positions)
        if self.family.masks_embeddings:
            x = self.node("Mul", x, self.node("Cast", self.node("Unsqueeze", mask, self.ints(2)), to=FLOAT))
        if a.disentangled is not None:
            self._set_positions(a.disentangled, positions)
        scores = {window: self._mask(mask, positions, window) for window in sorted(set(a.windows))}
        rotations = self.rotations(self.node("Unsqueeze", positions, self.ints(0)))
        windows = a.windows * (len(a.layers) // len(a.windows))
        rotations = rotations * (len(a.layers) // len(a.windows))
        for i in range(len(a.layers)):
            x, _ = self.layer(i, x, None, rotations[i], scores[windows[i]])
        x = self.norm(x, names.final_norm, a.hidden)
        self.output("last_hidden_state", x, "batch", "sequence", a.hidden)
        if names.pooler and self.checkpoint.has(f"{names.pooler}.weight"):
            first = self.node("Gather", x, self.integer(0), axis=1)
            pooled = self.node("Tanh", self.linear(first, names.pooler, a.hidden, a.hidden))
            self.output("pooler_output", pooled, "batch", a.hidden)
        return self.finished()

    def _embedded(self, ids: ir.Value, positions: ir.Value) -> ir.Value:
        names, a = self.family.names, self.a
        table = self.checkpoint.tensor(f"{names.embedding}.weight")
        width = int(table.shape[-1]) if names.project_in else a.hidden
        x = self.node("Gather", self.weight(f"{names.embedding}.weight", a.vocabulary, width), ids)
        if names.token_types:
            kinds = self.input("token_type_ids", INT64, "batch", "sequence")
            rows = len(self.checkpoint.tensor(f"{names.token_types}.weight"))
            x = self.node("Add", x, self.node("Gather", self.weight(f"{names.token_types}.weight", rows, width), kinds))
        if names.positions:
            if self.family.counts_tokens:
                positions = self._counted(ids)
            rows = len(self.checkpoint.tensor(f"{names.positions}.weight"))
            learned = self.node("Gather", self.weight(f"{names.positions}.weight", rows, width), positions)
            x = self.node("Add", x, learned)
        x = self.norm(x, names.embedding_norm, width)
        return self.linear(x, names.project_in, width, a.hidden) if names.project_in else x

    def _counted(self, ids: ir.Value) -> ir.Value:
        """Return the number of tokens up to each that are no padding, plus the padding's number."""
        is_padding = self.node("Equal", ids, self.integer(self.a.padding))
        known = self.node("Cast", self.node("Not", is_padding), to=INT64)
        counts = self.node("Mul", self.node("CumSum", known, self.integer(1)), known)
        return self.node("Add", counts, self.integer(self.a.padding))

    def _mask(self, mask: ir.Value, positions: ir.Value, window: int) -> ir.Value:
        """Return scores to add, that [batch, heads, sequence, sequence] broadcast to."""
        known = self.node("Cast", self.node("Unsqueeze", mask, self.ints(1, 2)), to=BOOL)
        if self.family.masks_embeddings:
            known = self.node("And", known, self.node("Transpose", known, perm=[0, 1, 3, 2]))
        distances = self.node("Sub", positions, self.node("Unsqueeze", positions, self.ints(1)))
        if window:
            near = self.node("LessOrEqual", self.node("Abs", distances), self.integer(window))
            known = self.node("And", known, near)
        scores = self.node("Where", known, self.number(0.0), self.number(HIDDEN_SCORE))
        return self.node("Add", scores, self._bias(distances)) if self.family.positions == "relative" else scores

    def _set_positions(self, kind: Disentangled, positions: ir.Value) -> None:
        """Set the table of relative positions, and the row of each query and key."""
        rows = self.weight("encoder.rel_embeddings.weight", kind.rows, self.a.hidden)
        self.position_rows = self.norm(rows, "encoder.LayerNorm" if kind.normalizes else "", self.a.hidden)
        half, most = kind.rows // 2, kind.most
        rows_of_distances = [_log_bucket(d, kind.buckets, most) if kind.buckets else d for d in range(-most, most + 1)]
        table = self.constant(np.clip(np.array(rows_of_distances) + half, 0, kind.rows - 1), np.int64)
        distances = self.node("Sub", self.node("Unsqueeze", positions, self.ints(1)), positions)
        near = self.node("Clip", distances, self.integer(-most), self.integer(most))
        self.position_index = self.node("Gather", table, self.node("Add", near, self.integer(most)))

    def _bias(self, distances: ir.Value) -> ir.Value:
        """Return the learned bias of each distance, [heads, sequence, sequence]."""
        name, most = "encoder.relative_attention_bias.weight", 128
        buckets = self.checkpoint.tensor(name).shape[0]
        table = self.constant([_bucket(d, buckets, most) for d in range(-most, most + 1)], np.int64)
        near = self.node("Clip", distances, self.integer(-most), self.integer(most))
        index = self.node("Gather", table, self.node("Add", near, self.integer(most)))
        rows = self.node("Gather", self.weight(name, buckets, self.a.heads), index)
        return self.node("Transpose", rows, perm=[2, 0, 1])


def _bucket(distance: int, buckets: int, most: int) -> int:
    """Return the bucket of a distance: exact for near ones, then by the logarithm (T5)."""
    half = buckets // 2
    first, size = (half if distance > 0 else 0), abs(distance)
    exact = half // 2
    if size < exact:
        return first + size
    share = np.float32(np.log(np.float32(size) / np.float32(exact))) / np.float32(math.log(most / exact))
    return first + min(exact + int(np.float32(share) * np.float32(half - exact)), half - 1)


def _log_bucket(distance: int, buckets: int, most: int) -> int:
    """Return the bucket of a distance: exact for near ones, then by the logarithm (DeBERTa)."""
    middle, size = buckets // 2, abs(distance)
    if size <= middle or size < 2:
        return distance
    share = np.log(np.float32(size / middle)) / np.log(np.float32((most - 1) / middle))
    far = int(np.ceil(np.float32(share) * np.float32(middle - 1))) + middle
    return far if distance > 0 else -far
