"""Decoders and encoders as ONNX nodes over a checkpoint's weights.

A decoder has inputs ``input_ids`` and ``position_ids`` [batch, sequence], ``attention_mask`` [batch, past + sequence],
and for each layer ``past_key_values.N.key`` and ``.value`` [batch, key heads, past, head size]; outputs are ``logits``,
``present.N.key`` and ``present.N.value``. Other exporters of decoders use the same names.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.convert.graph_builder import GraphBuilder, Names
from sardonyx.convert.weights.architecture import Architecture
from sardonyx.convert.weights.gguf import Blocks
from sardonyx.errors import UnsupportedError

OPSET = 21
FLOAT = ir.DataType.FLOAT
_HIDDEN_SCORE = float(np.finfo(np.float32).min)
"""Score of positions that are not attended to, as transformers has it."""


class Transformer(GraphBuilder):
    """A transformer under construction.

    Args:
        architecture: Sizes and variants.
        checkpoint: Weights by name, with ``tensor`` and ``has``.
    """

    def __init__(self, architecture: Architecture, checkpoint: Any) -> None:
        super().__init__(Names())
        self.a = architecture
        self.checkpoint = checkpoint
        self.inputs: list[ir.Value] = []
        self.outputs: list[ir.Value] = []

    def model(self) -> ir.Model:
        """Return the model of the architecture.

        Raises:
            ModelFileError: A weight is missing or has other sizes.
            UnsupportedError: A variant has no translation.
        """
        if self.a.family == "bert":
            self._encoder()
        else:
            self._decoder()
        graph = ir.Graph(
            self.inputs,
            self.outputs,
            nodes=self.nodes,
            initializers=list(self.initializers.values()),
            opset_imports={"": OPSET},
            name=self.a.family,
        )
        return ir.Model(graph, ir_version=10, producer_name="sardonyx")

    # Inputs, outputs, constants

    def _input(self, name: str, dtype: ir.DataType, *sizes: int | str) -> ir.Value:
        value = ir.Value(name=self.names.fresh(name), type=ir.TensorType(dtype), shape=ir.Shape(sizes))
        self.inputs.append(value)
        return value

    def _output(self, name: str, value: ir.Value, *sizes: int | str) -> None:
        result = self.node("Identity", value)
        result.name, result.type, result.shape = name, ir.TensorType(FLOAT), ir.Shape(sizes)
        self.outputs.append(result)

    def ints(self, *numbers: int) -> ir.Value:
        """Return an int64 vector."""
        return self.constant(list(numbers), np.int64)

    def number(self, value: float) -> ir.Value:
        """Return a float32 scalar."""
        return self.constant(value, np.float32)

    def weight(self, name: str) -> ir.Value:
        """Return a weight in float32: as stored, converted, or dequantized from its blocks."""
        tensor = self.checkpoint.tensor(name)
        if isinstance(tensor, Blocks):
            return self._dequantized(tensor, name)
        value = self.initializer(ir.tensor(tensor), name)
        return value if tensor.dtype == np.float32 else self.node("Cast", value, to=FLOAT)

    def _dequantized(self, blocks: Blocks, name: str) -> ir.Value:
        integers = self.initializer(ir.tensor(blocks.integers), name)
        scales = self.initializer(ir.tensor(blocks.scales), f"{name}.scales")
        axis = blocks.integers.ndim - 1
        return self.node("DequantizeLinear", integers, scales, axis=axis, block_size=blocks.size)

    def linear(self, x: ir.Value, name: str, *, is_transposed: bool = False) -> ir.Value:
        """Return x @ transpose(weight) + bias, if there is one; `is_transposed` for weights [in, out]."""
        w = self.weight(f"{name}.weight")
        result = self.node("MatMul", x, w if is_transposed else self.node("Transpose", w, perm=[1, 0]))
        return self.node("Add", result, self.weight(f"{name}.bias")) if self.checkpoint.has(f"{name}.bias") else result

    def norm(self, x: ir.Value, name: str) -> ir.Value:
        """Return the layer norm, or the root-mean-square norm of families that have no means."""
        if self.a.family in ("gpt2", "bert", "phi"):
            w, b = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
            return self.node("LayerNormalization", x, w, b, axis=-1, epsilon=self.a.epsilon)
        w = self.weight(f"{name}.weight")
        if self.a.family.startswith("gemma"):
            w = self.node("Add", w, self.number(1.0))
        square = self.node("ReduceMean", self.node("Mul", x, x), self.ints(-1), keepdims=1)
        root = self.node("Sqrt", self.node("Add", square, self.number(self.a.epsilon)))
        return self.node("Mul", self.node("Div", x, root), w)

    def activated(self, x: ir.Value) -> ir.Value:
        """Return the activation of the architecture."""
        match self.a.activation:
            case "silu" | "swish":
                return self.node("Mul", x, self.node("Sigmoid", x))
            case "gelu":
                return self.node("Gelu", x)
            case "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast":
                return self.node("Gelu", x, approximate="tanh")
            case "relu":
                return self.node("Relu", x)
        raise UnsupportedError(f"activation '{self.a.activation}'", where=self.a.family)

    # Attention

    def heads(self, x: ir.Value, count: int) -> ir.Value:
        """Return [batch, sequence, count * size] as [batch, count, sequence, size]."""
        split = self.node("Reshape", x, self.ints(0, 0, count, self.a.head_size))
        return self.node("Transpose", split, perm=[0, 2, 1, 3])

    def merged(self, x: ir.Value) -> ir.Value:
        """Return [batch, heads, sequence, size] as [batch, sequence, heads * size]."""
        joined = self.node("Transpose", x, perm=[0, 2, 1, 3])
        return self.node("Reshape", joined, self.ints(0, 0, self.a.heads * self.a.head_size))

    def attention(self, q: ir.Value, k: ir.Value, v: ir.Value, mask: ir.Value) -> ir.Value:
        """Return softmax(q kᵀ scale + mask) v; keys and values are repeated for groups of heads."""
        groups = self.a.heads // self.a.key_heads
        if groups > 1:
            k, v = self.repeated(k, groups), self.repeated(v, groups)
        scores = self.node("MatMul", q, self.node("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self.node("Mul", scores, self.number(self.a.scale or self.a.head_size**-0.5))
        scores = self.limited(scores, self.a.attention_limit)
        return self.node("MatMul", self.node("Softmax", self.node("Add", scores, mask), axis=-1), v)

    def limited(self, x: ir.Value, limit: float) -> ir.Value:
        """Return limit * tanh(x / limit), or x if the limit is 0."""
        if not limit:
            return x
        return self.node("Mul", self.node("Tanh", self.node("Div", x, self.number(limit))), self.number(limit))

    def repeated(self, x: ir.Value, groups: int) -> ir.Value:
        """Return every head `groups` times in a row."""
        wide = self.node("Unsqueeze", x, self.ints(2))
        wide = self.node("Expand", wide, self.ints(1, 1, groups, 1, 1))
        shape = self.node("Shape", x)
        batch, rest = (
            self.node("Slice", shape, self.ints(0), self.ints(1)),
            self.node("Slice", shape, self.ints(2), self.ints(4)),
        )
        return self.node("Reshape", wide, self.node("Concat", batch, self.ints(self.a.heads), rest, axis=0))

    def rotated(self, x: ir.Value, cosine: ir.Value, sine: ir.Value) -> ir.Value:
        """Return [batch, heads, sequence, size] with the leading pairs rotated by position."""
        width = 2 * len(self.a.frequencies or ())
        head, tail = x, None
        if width < self.a.head_size:
            head, tail = self.nodes_of("Split", 2, x, self.ints(width, self.a.head_size - width), axis=-1)
        first, second = self.nodes_of("Split", 2, head, axis=-1, num_outputs=2)
        left = self.node("Sub", self.node("Mul", first, cosine), self.node("Mul", second, sine))
        right = self.node("Add", self.node("Mul", second, cosine), self.node("Mul", first, sine))
        result = self.node("Concat", left, right, axis=-1)
        return result if tail is None else self.node("Concat", result, tail, axis=-1)

    # Decoders

    def _decoder(self) -> None:
        ids = self._input("input_ids", ir.DataType.INT64, "batch", "sequence")
        mask = self._input("attention_mask", ir.DataType.INT64, "batch", "past + sequence")
        positions = self._input("position_ids", ir.DataType.INT64, "batch", "sequence")
        caches = []
        for i in range(self.a.layers):
            sizes = ("batch", self.a.key_heads, "past", self.a.head_size)
            caches.append([self._input(f"past_key_values.{i}.{part}", FLOAT, *sizes) for part in ("key", "value")])
        embedding = "transformer.wte.weight" if self.a.family == "gpt2" else "model.embed_tokens.weight"
        x = self.node("Gather", self.weight(embedding), ids)
        if self.a.family == "gpt2":
            x = self.node("Add", x, self.node("Gather", self.weight("transformer.wpe.weight"), positions))
        if self.a.family.startswith("gemma"):
            x = self.node("Mul", x, self.number(float(np.float32(self.a.hidden**0.5))))
        rotation = self._rotation(positions)
        masks = {window: self._mask(ids, mask, window) for window in set(self.a.window or (0,))}
        for i, (key, value) in enumerate(caches):
            window = self.a.window[i] if self.a.window else 0
            x = self._layer(i, x, key, value, rotation, masks[window])
        final = {"gpt2": "transformer.ln_f", "phi": "model.final_layernorm"}.get(self.a.family, "model.norm")
        x = self.norm(x, final)
        head = "lm_head" if self.checkpoint.has("lm_head.weight") else embedding.removesuffix(".weight")
        logits = self.limited(self.linear(x, head), self.a.logit_limit)
        presents = self.outputs
        self.outputs = []
        self._output("logits", logits, "batch", "sequence", self.a.vocabulary)
        self.outputs += presents

    def _rotation(self, positions: ir.Value) -> tuple[ir.Value, ir.Value] | None:
        """Return cosines and sines [batch, 1, sequence, pairs]."""
        if self.a.frequencies is None:
            return None
        column = self.node("Unsqueeze", self.node("Cast", positions, to=FLOAT), self.ints(1, 3))
        angle = self.node("Mul", column, self.constant(np.array(self.a.frequencies), np.float32))
        return self.node("Cos", angle), self.node("Sin", angle)

    def _mask(self, ids: ir.Value, mask: ir.Value, window: int) -> ir.Value:
        """Return scores to add [batch, 1, sequence, total]: 0 for positions up to the own one."""
        total = self.node("Squeeze", self.node("Shape", mask, start=1), self.ints(0))
        length = self.node("Squeeze", self.node("Shape", ids, start=1), self.ints(0))
        one = self.constant(1, np.int64)
        keys = self.node("Range", self.constant(0, np.int64), total, one)
        queries = self.node("Range", self.node("Sub", total, length), total, one)
        queries = self.node("Unsqueeze", queries, self.ints(1))
        visible = self.node("LessOrEqual", keys, queries)
        if window:
            oldest = self.node("Sub", queries, self.constant(window, np.int64))
            visible = self.node("And", visible, self.node("Greater", keys, oldest))
        known = self.node("Cast", self.node("Unsqueeze", mask, self.ints(1, 2)), to=ir.DataType.BOOL)
        return self.node("Where", self.node("And", visible, known), self.number(0.0), self.number(_HIDDEN_SCORE))

    def _layer(
        self,
        i: int,
        x: ir.Value,
        key: ir.Value,
        value: ir.Value,
        rotation: tuple[ir.Value, ir.Value] | None,
        mask: ir.Value,
    ) -> ir.Value:
        is_gpt2 = self.a.family == "gpt2"
        name = f"transformer.h.{i}" if is_gpt2 else f"model.layers.{i}"
        normal = self.norm(x, f"{name}.ln_1" if is_gpt2 else f"{name}.input_layernorm")
        q, k, v = self._projections(name, normal)
        if rotation is not None:
            q, k = self.rotated(q, *rotation), self.rotated(k, *rotation)
        k, v = self.node("Concat", key, k, axis=2), self.node("Concat", value, v, axis=2)
        for part, present in (("key", k), ("value", v)):
            self._output(f"present.{i}.{part}", present, "batch", self.a.key_heads, "past + sequence", self.a.head_size)
        mixed = self.merged(self.attention(q, k, v, mask))
        if is_gpt2:
            x = self.node("Add", x, self.linear(mixed, f"{name}.attn.c_proj", is_transposed=True))
            inner = self.activated(self.linear(self.norm(x, f"{name}.ln_2"), f"{name}.mlp.c_fc", is_transposed=True))
            return self.node("Add", x, self.linear(inner, f"{name}.mlp.c_proj", is_transposed=True))
        if self.a.family == "phi":
            inner = self.activated(self.linear(normal, f"{name}.mlp.fc1"))
            branches = self.node(
                "Add", self.linear(mixed, f"{name}.self_attn.dense"), self.linear(inner, f"{name}.mlp.fc2")
            )
            return self.node("Add", branches, x)
        mixed = self.linear(mixed, f"{name}.self_attn.o_proj")
        if self.a.family == "gemma2":
            x = self.node("Add", x, self.norm(mixed, f"{name}.post_attention_layernorm"))
            inner = self._feed_forward(name, self.norm(x, f"{name}.pre_feedforward_layernorm"))
            return self.node("Add", x, self.norm(inner, f"{name}.post_feedforward_layernorm"))
        x = self.node("Add", x, mixed)
        return self.node("Add", x, self._feed_forward(name, self.norm(x, f"{name}.post_attention_layernorm")))

    def _projections(self, name: str, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Return queries, keys and values, [batch, heads, sequence, size]."""
        counts = (self.a.heads, self.a.key_heads, self.a.key_heads)
        if self.a.family in ("gpt2", "phi3"):
            is_gpt2 = self.a.family == "gpt2"
            whole = self.linear(
                x, f"{name}.attn.c_attn" if is_gpt2 else f"{name}.self_attn.qkv_proj", is_transposed=is_gpt2
            )
            sizes = self.ints(*(count * self.a.head_size for count in counts))
            parts = self.nodes_of("Split", 3, whole, sizes, axis=-1)
        else:
            parts = [self.linear(x, f"{name}.self_attn.{part}_proj") for part in "qkv"]
        q, k, v = (self.heads(part, count) for part, count in zip(parts, counts, strict=True))
        if self.a.family == "qwen3":
            q, k = self.norm(q, f"{name}.self_attn.q_norm"), self.norm(k, f"{name}.self_attn.k_norm")
        return q, k, v

    def _feed_forward(self, name: str, x: ir.Value) -> ir.Value:
        if self.a.experts:
            return self._experts(f"{name}.block_sparse_moe", x)
        if self.a.family == "phi3":
            gate, up = self.nodes_of("Split", 2, self.linear(x, f"{name}.mlp.gate_up_proj"), axis=-1, num_outputs=2)
        else:
            gate, up = self.linear(x, f"{name}.mlp.gate_proj"), self.linear(x, f"{name}.mlp.up_proj")
        return self.linear(self.node("Mul", self.activated(gate), up), f"{name}.mlp.down_proj")

    def _experts(self, name: str, x: ir.Value) -> ir.Value:
        """Return the weighted sum of the best experts; others see every token with weight 0."""
        share = self.node("Softmax", self.linear(x, f"{name}.gate"), axis=-1)
        best, index = self.nodes_of("TopK", 2, share, self.ints(self.a.active_experts), axis=-1)
        best = self.node("Div", best, self.node("ReduceSum", best, self.ints(-1), keepdims=1))
        zeros = self.node("Mul", share, self.number(0.0))
        weights = self.node("ScatterElements", zeros, index, best, axis=-1)
        total: ir.Value | None = None
        for j in range(self.a.experts):
            gate, up = self.linear(x, f"{name}.experts.{j}.w1"), self.linear(x, f"{name}.experts.{j}.w3")
            part = self.linear(self.node("Mul", self.activated(gate), up), f"{name}.experts.{j}.w2")
            part = self.node("Mul", part, self.node("Gather", weights, self.ints(j), axis=-1))
            total = part if total is None else self.node("Add", total, part)
        assert total is not None
        return total

    # Encoders

    def _encoder(self) -> None:
        prefix = "bert." if self.checkpoint.has("bert.embeddings.word_embeddings.weight") else ""
        ids = self._input("input_ids", ir.DataType.INT64, "batch", "sequence")
        mask = self._input("attention_mask", ir.DataType.INT64, "batch", "sequence")
        kinds = self._input("token_type_ids", ir.DataType.INT64, "batch", "sequence")
        embeddings = f"{prefix}embeddings"
        x = self.node("Gather", self.weight(f"{embeddings}.word_embeddings.weight"), ids)
        x = self.node("Add", x, self.node("Gather", self.weight(f"{embeddings}.token_type_embeddings.weight"), kinds))
        length = self.node("Squeeze", self.node("Shape", ids, start=1), self.ints(0))
        positions = self.node("Range", self.constant(0, np.int64), length, self.constant(1, np.int64))
        x = self.node("Add", x, self.node("Gather", self.weight(f"{embeddings}.position_embeddings.weight"), positions))
        x = self.norm(x, f"{embeddings}.LayerNorm")
        known = self.node("Cast", self.node("Unsqueeze", mask, self.ints(1, 2)), to=ir.DataType.BOOL)
        scores = self.node("Where", known, self.number(0.0), self.number(_HIDDEN_SCORE))
        for i in range(self.a.layers):
            name = f"{prefix}encoder.layer.{i}"
            parts = [self.linear(x, f"{name}.attention.self.{part}") for part in ("query", "key", "value")]
            q, k, v = (self.heads(part, self.a.heads) for part in parts)
            mixed = self.linear(self.merged(self.attention(q, k, v, scores)), f"{name}.attention.output.dense")
            x = self.norm(self.node("Add", x, mixed), f"{name}.attention.output.LayerNorm")
            inner = self.activated(self.linear(x, f"{name}.intermediate.dense"))
            x = self.norm(self.node("Add", x, self.linear(inner, f"{name}.output.dense")), f"{name}.output.LayerNorm")
        self._output("last_hidden_state", x, "batch", "sequence", self.a.hidden)
        if self.checkpoint.has(f"{prefix}pooler.dense.weight"):
            first = self.node("Gather", x, self.constant(0, np.int64), axis=1)
            self._output(
                "pooler_output", self.node("Tanh", self.linear(first, f"{prefix}pooler.dense")), "batch", self.a.hidden
            )
