"""Layers of transformers: feed-forward networks and mixtures of experts around the attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from sardonyx.convert.weights.attention import AttentionBuilder, Cache
from sardonyx.convert.weights.blocks import Blocks
from sardonyx.convert.weights.family import Experts
from sardonyx.convert.weights.transformer import Rotation
from sardonyx.errors import ModelFileError, UnsupportedError


class LayersBuilder(AttentionBuilder):
    """A transformer under construction, with its layers."""

    def layer(
        self, i: int, x: ir.Value, cache: Cache | None, rotation: Rotation | None, mask: ir.Value
    ) -> tuple[ir.Value, Cache]:
        """Return the result of a layer, and all its keys and values.

        Args:
            i: Number of the layer.
            x: Residual stream, [batch, sequence, hidden].
            cache: Keys and values of former positions.
            rotation: Cosines and sines; None without.
            mask: Scores to add, that [batch, heads, sequence, positions] broadcast to.
        """
        names, hidden, layer = self.family.names, self.a.hidden, self.a.layers[i]

        def named(name: str) -> str:
            return f"{layer}.{name}" if name else ""

        if self.family.norms_sums:
            mixed, cache = self.attention(i, x, cache, rotation, mask)
            x = self.norm(self._sum(x, mixed), named(names.attention_norm), hidden)
            inner = self.feed_forward(i, x)
            return self.norm(self._sum(x, inner), named(names.feed_forward_norm), hidden), cache
        attention_norm = named(names.attention_norm)
        if i == 0 and self.family.is_encoder and not self.checkpoint.has(f"{attention_norm}.weight"):
            attention_norm = ""
        normal = self.norm(x, attention_norm, hidden)
        mixed, cache = self.attention(i, normal, cache, rotation, mask)
        mixed = self.norm(mixed, named(names.attention_result_norm), hidden)
        if self.family.is_parallel:
            own = self.norm(x, named(names.feed_forward_norm), hidden) if names.feed_forward_norm else normal
            return self._sum(x, self.node("Add", mixed, self.feed_forward(i, own))), cache
        x = self._sum(normal if self.family.sums_norms else x, mixed)
        normal = self.norm(x, named(names.feed_forward_norm), hidden)
        inner = self.norm(self.feed_forward(i, normal), named(names.feed_forward_result_norm), hidden)
        return self._sum(normal if self.family.sums_norms else x, inner), cache

    def _sum(self, x: ir.Value, result: ir.Value) -> ir.Value:
        return self.node("Add", x, self.scaled(result, self.a.residual_scale))

    # Feed-forward networks

    def feed_forward(self, i: int, x: ir.Value) -> ir.Value:
        """Return the result of a layer's feed-forward network."""
        names, layer = self.family.names, self.a.layers[i]
        if self.family.experts is not None and self.a.has_experts[i]:
            return self._experts(self.family.experts, layer, x)
        if not self.family.is_gated:
            inner = self.activated(self._outward(x, f"{layer}.{names.up}", self._inner_size(f"{layer}.{names.up}")))
            return self._inward(inner, f"{layer}.{names.down}")
        if names.gate_up:
            size = self._inner_size(f"{layer}.{names.gate_up}")
            both = self._outward(x, f"{layer}.{names.gate_up}", size)
            gate, up = self.nodes_of("Split", 2, both, axis=-1, num_outputs=2)
        else:
            size = self._inner_size(f"{layer}.{names.up}")
            gate, up = (self._outward(x, f"{layer}.{name}", size) for name in (names.gate, names.up))
        return self._inward(self.node("Mul", self.activated(gate), up), f"{layer}.{names.down}")

    def _inner_size(self, name: str) -> int:
        """Return the outer size of a matrix: the width of a network is that of its weights."""
        shape = self.checkpoint.tensor(f"{name}.weight").shape
        if len(shape) != 2:
            raise ModelFileError(f"tensor '{name}.weight' has sizes {list(shape)}", where=self.checkpoint.where)
        return int(shape[1 if self.family.is_transposed else 0])

    def _outward(self, x: ir.Value, name: str, size: int) -> ir.Value:
        return self.linear(x, name, self.a.hidden, size, is_transposed=self.family.is_transposed)

    def _inward(self, x: ir.Value, name: str) -> ir.Value:
        shape = self.checkpoint.tensor(f"{name}.weight").shape
        inner = int(shape[0 if self.family.is_transposed else -1]) if len(shape) == 2 else 0
        return self.linear(x, name, inner, self.a.hidden, is_transposed=self.family.is_transposed)

    # Mixtures of experts

    def _experts(self, experts: Experts, layer: str, x: ir.Value) -> ir.Value:
        """Return the weighted sum of the best experts; others see every token with weight 0."""
        scores = self.linear(x, f"{layer}.{experts.router}", self.a.hidden, self.a.experts)
        match experts.choice:
            case "sparse mixer":
                weights = self._sparse_mixer(scores)
            case "sigmoid, top":
                weights = self._corrected(experts, f"{layer}.{experts.correction}", scores)
            case _:
                weights = self._chosen(experts, scores)
        total: ir.Value | None = None
        for j in range(self.a.experts):
            weight = self.node("Gather", weights, self.ints(j), axis=-1)
            if experts.choice == "top, sigmoid":
                part = self._expert(experts, layer, j, self.node("Mul", x, weight))
            else:
                part = self.node("Mul", self._expert(experts, layer, j, x), weight)
            total = part if total is None else self.node("Add", total, part)
        assert total is not None
        if not experts.shared:
            return total
        names = [f"{layer}.{name}" for name in experts.shared]
        size = self._inner_size(names[0])
        outward = [self._outward(x, name, size) for name in names[:-1]]
        gate, up = outward if len(outward) == 2 else self.nodes_of("Split", 2, outward[0], axis=-1, num_outputs=2)
        common = self._inward(self.node("Mul", self.activated(gate), up), names[-1])
        if experts.shared_gate:
            logit = self.linear(x, f"{layer}.{experts.shared_gate}", self.a.hidden, 1)
            common = self.node("Mul", self.node("Sigmoid", logit), common)
        return self.node("Add", total, common)

    def _chosen(self, experts: Experts, scores: ir.Value) -> ir.Value:
        """Return the weight of each expert, 0 for those that are not among the best."""
        is_first = experts.choice == "softmax, top"
        share = self.node("Softmax", scores, axis=-1) if is_first else scores
        if self.a.active_groups < self.a.groups:
            share = self._of_best_groups(experts, share)
        best, index = self.nodes_of("TopK", 2, share, self.ints(self.a.active_experts), axis=-1)
        if not is_first:
            is_sigmoid = experts.choice == "top, sigmoid"
            best = self.node("Sigmoid", best) if is_sigmoid else self.node("Softmax", best, axis=-1)
        elif self.a.normalizes_experts:
            best = self.node("Div", best, self.node("ReduceSum", best, self.ints(-1), keepdims=1))
        return self._scattered(scores, index, self.scaled(best, self.a.expert_scale))

    def _corrected(self, experts: Experts, correction: str, scores: ir.Value) -> ir.Value:
        """Return the weight of each expert: the sigmoids of those whose corrected ones are best, in the best groups."""
        share = self.node("Sigmoid", scores)
        ranked = self.node("Add", share, self.weight(correction, self.a.experts))
        if self.a.active_groups < self.a.groups:
            ranked = self._of_best_groups(experts, ranked)
        _, index = self.nodes_of("TopK", 2, ranked, self.ints(self.a.active_experts), axis=-1)
        best = self.node("GatherElements", share, index, axis=-1)
        if self.a.normalizes_experts:
            total = self.node("ReduceSum", best, self.ints(-1), keepdims=1)
            best = self.node("Div", best, self.node("Add", total, self.number(1e-20)))
        return self._scattered(scores, index, self.scaled(best, self.a.expert_scale))

    def _of_best_groups(self, experts: Experts, ranked: ir.Value) -> ir.Value:
        """Return 0 for experts outside of the groups with the largest sums of their best scores, as the source does.

        More experts than these groups have may be chosen: the others count with a weight of 0.
        """
        members = self.a.experts // self.a.groups
        groups = self.node("Reshape", ranked, self.ints(0, 0, self.a.groups, members))
        best, _ = self.nodes_of("TopK", 2, groups, self.ints(experts.group_scores), axis=-1)
        sums = self.node("ReduceSum", best, self.ints(-1), keepdims=0)
        _, index = self.nodes_of("TopK", 2, sums, self.ints(self.a.active_groups), axis=-1)
        ones = self.node("Expand", self.number(1.0), self.node("Shape", index))
        chosen = self.node("Cast", self._scattered(sums, index, ones), to=ir.DataType.BOOL)
        masked = self.node("Where", self.node("Unsqueeze", chosen, self.ints(-1)), groups, self.number(0.0))
        return self.node("Reshape", masked, self.ints(0, 0, self.a.experts))

    def _scattered(self, scores: ir.Value, index: ir.Value, values: ir.Value) -> ir.Value:
        zeros = self.node("Expand", self.number(0.0), self.node("Shape", scores))
        return self.node("ScatterElements", zeros, index, values, axis=-1)

    def _sparse_mixer(self, scores: ir.Value) -> ir.Value:
        """Return the weights of two experts: each the share of the best among close scores, of those that remain."""
        if self.a.active_experts != 2:
            raise UnsupportedError(f"{self.a.active_experts} experts of a sparse mixer", where=self.a.name)
        remaining, indices, values = scores, [], []
        lowest = self.number(-np.inf)
        for _ in range(2):
            best, index = self.nodes_of("TopK", 2, remaining, self.ints(1), axis=-1)
            size = self.node("Max", self.node("Abs", scores), best)
            distance = self.node("Div", self.node("Sub", best, scores), size)
            is_far = self.node("Greater", distance, self.number(2 * self.a.jitter))
            share = self.node("Softmax", self.node("Where", is_far, lowest, remaining), axis=-1)
            values.append(self.node("GatherElements", share, index, axis=-1))
            indices.append(index)
            gone = self.node("Expand", lowest, self.node("Shape", index))
            remaining = self.node("ScatterElements", remaining, index, gone, axis=-1)
        index, best = self.node("Concat", *indices, axis=-1), self.node("Concat", *values, axis=-1)
        return self._scattered(scores, index, best)

    def _expert(self, experts: Experts, layer: str, j: int, x: ir.Value) -> ir.Value:
        """Return the result of one expert for all tokens."""
        own = f"{layer}.{experts.expert.format(j)}"
        if experts.is_interleaved:
            return self._interleaved(experts, layer, j, x)
        if self.checkpoint.has(f"{own}.{experts.up}.weight"):
            size = self._inner_size(f"{own}.{experts.up}")
            gate, up = (self._outward(x, f"{own}.{name}", size) for name in (experts.gate, experts.up))
            return self._inward(self.node("Mul", self.activated(gate), up), f"{own}.{experts.down}")
        if experts.gates and self.checkpoint.has(f"{layer}.{experts.gates}"):
            names = [f"{layer}.{name}" for name in (experts.gates, experts.ups, experts.downs)]
            *outward, down = (self._slice(name, j) for name in names)
            gate, up = (self.product(x, self.stored(part, f"{own}.{i}")) for i, part in enumerate(outward))
        else:
            both, down = (self._slice(f"{layer}.{name}", j) for name in (experts.gate_up, experts.downs))
            out = 1 if experts.is_transposed else 0
            if both.shape[out] != 2 * down.shape[1 - out]:
                sizes = f"{list(both.shape)} and {list(down.shape)}"
                raise ModelFileError(f"an expert of '{layer}' has sizes {sizes}", where=self.checkpoint.where)
            product = self.product(x, self.stored(both, f"{own}.gate_up"), is_transposed=experts.is_transposed)
            gate, up = self.nodes_of("Split", 2, product, axis=-1, num_outputs=2)
        inner = self.node("Mul", self.activated(gate), up)
        return self.product(inner, self.stored(down, f"{own}.down"), is_transposed=experts.is_transposed)

    def _interleaved(self, experts: Experts, layer: str, j: int, x: ir.Value) -> ir.Value:
        """Return the result of an expert whose gates and first rows alternate, with GPT-OSS's limits."""
        both, down = (self._slice(f"{layer}.{name}", j) for name in (experts.gate_up, experts.downs))
        own = f"{layer}.{experts.expert.format(j)}"
        widths = {"gate_up": both.shape[1], "down": down.shape[1]}
        names = {"gate_up": experts.gate_up, "down": experts.downs}
        biases = {
            part: self.node(
                "Gather", self.weight(f"{layer}.{name}_bias", self.a.experts, widths[part]), self.integer(j), axis=0
            )
            for part, name in names.items()
        }
        product = self.product(x, self.stored(both, f"{own}.gate_up"), biases["gate_up"], is_transposed=True)
        pairs = self.node("Reshape", product, self.ints(0, 0, -1, 2))
        gate, up = (self.node("Gather", pairs, self.integer(part), axis=-1) for part in range(2))
        limit = self.number(self.a.gate_limit)
        gate = self.node("Min", gate, limit)
        up = self.node("Clip", up, self.number(-self.a.gate_limit), limit)
        gate = self.node("Mul", gate, self.node("Sigmoid", self.scaled(gate, self.a.gate_slope)))
        inner = self.node("Mul", self.node("Add", up, self.number(1.0)), gate)
        return self.product(inner, self.stored(down, f"{own}.down"), biases["down"], is_transposed=True)

    def _slice(self, name: str, j: int) -> npt.NDArray[Any] | Blocks:
        """Return the matrix of one expert from the tensor of all."""
        whole = self.checkpoint.tensor(name)
        if len(whole.shape) != 3 or whole.shape[0] != self.a.experts or self.a.hidden not in whole.shape[1:]:
            problem = f"tensor '{name}' has sizes {list(whole.shape)}, expected {self.a.experts} matrices"
            raise ModelFileError(problem, where=self.checkpoint.where)
        return whole[j]
