"""A family of transformers as its differences from Llama: names of weights, and variants of the layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sardonyx.convert.weights.fields import Fields

Norm = Literal["rms", "rms + 1", "layer", "layer + 1", "layer without weights"]
"""Kinds of norms; ``+ 1`` where the weight is stored less 1."""


@dataclass(frozen=True)
class Names:
    """Names of the weights, without the prefix of the base model; empty if the family has no such weight.

    Attributes:
        embedding: Rows of tokens.
        positions: Rows of learned positions.
        token_types: Rows of token types.
        embedding_norm: Norm of the sum of these rows.
        project_in: Linear map from the width of the embedding to that of the layers.
        project_out: Linear map back.
        layer: Prefix of a layer, with its number as ``{}``.
        attention_norm: Norm of the input of the attention; of its sum if :attr:`Family.norms_sums`.
        attention_result_norm: Norm of the attention's result, before the sum.
        feed_forward_norm: Norm of the input of the feed-forward network; of its sum if :attr:`Family.norms_sums`.
        feed_forward_result_norm: Norm of the network's result, before the sum.
        q: Queries.
        k: Keys.
        v: Values.
        qkv: Queries, keys and values as one matrix.
        o: Result of the attention.
        q_norm: Norm of queries.
        k_norm: Norm of keys.
        position_q: Map of relative positions to queries, if it is not that of contents.
        position_k: Map of relative positions to keys.
        sinks: A score of each head, whose share of the softmax no value has.
        gate: Gate of the feed-forward network.
        up: First matrix of the network.
        gate_up: Gate and first matrix as one.
        down: Second matrix of the network.
        final_norm: Norm after the last layer.
        head: Map to logits.
        pooler: Map of the first token, of encoders.
    """

    embedding: str = "embed_tokens"
    positions: str = ""
    token_types: str = ""
    embedding_norm: str = ""
    project_in: str = ""
    project_out: str = ""
    layer: str = "layers.{}"
    attention_norm: str = "input_layernorm"
    attention_result_norm: str = ""
    feed_forward_norm: str = "post_attention_layernorm"
    feed_forward_result_norm: str = ""
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    qkv: str = ""
    o: str = "self_attn.o_proj"
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    position_q: str = ""
    position_k: str = ""
    sinks: str = ""
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    gate_up: str = ""
    down: str = "mlp.down_proj"
    final_norm: str = "norm"
    head: str = "lm_head"
    pooler: str = ""


@dataclass(frozen=True)
class LatentNames:
    """Names of the weights of latent attention, below the layer.

    Attributes:
        q_down: Map of the input to a short row, from which queries are made.
        q_norm: Norm of this row.
        q_up: Map of the row to queries.
        down: Map of the input to the latent row of keys and values, and to the rotated part of all keys.
        norm: Norm of the latent row.
        up: Map of the latent row to keys and values.
    """

    q_down: str = "self_attn.q_a_proj"
    q_norm: str = "self_attn.q_a_layernorm"
    q_up: str = "self_attn.q_b_proj"
    down: str = "self_attn.kv_a_proj_with_mqa"
    norm: str = "self_attn.kv_a_layernorm"
    up: str = "self_attn.kv_b_proj"


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: names below the layer, and the choice of experts.

    Attributes:
        router: Map to a score for each expert.
        expert: Prefix of an expert, with its number as ``{}``.
        gate: Gate of an expert.
        up: First matrix of an expert.
        down: Second matrix of an expert.
        gate_up: Gates and first matrices of all experts as one tensor, [experts, 2 * inner, hidden].
        downs: Second matrices of all experts, [experts, hidden, inner].
        choice: Order of choice and softmax; ``"sparse mixer"`` has a softmax over close scores for each choice;
            ``"sigmoid, top"`` chooses by sigmoids plus :attr:`correction`, of the best groups of experts;
            ``"top, sigmoid"`` weighs the inputs of experts, not their results.
        is_normalized: True if chosen weights are divided by their sum; the field ``norm_topk_prob`` has precedence.
        gates: Gates of all experts as one tensor, [experts, inner, hidden].
        ups: First matrices of all experts.
        shared: Gate, first and second matrix of an expert that sees every token, or gate and first matrix as one and
            the second; empty without one.
        shared_gate: Map to the logit of the shared expert's weight.
        correction: Addends of the scores of experts, for their choice alone.
        group_scores: Number of scores of a group, the best, whose sum ranks the group.
        is_transposed: True if the tensors of all experts are stored [in, out].
        is_interleaved: True if the tensors of all experts are stored [in, out] with biases, gates and first matrices
            alternate, and the activation is GPT-OSS's.
    """

    router: str = "mlp.gate"
    expert: str = "mlp.experts.{}"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    gate_up: str = "mlp.experts.gate_up_proj"
    downs: str = "mlp.experts.down_proj"
    choice: Literal["softmax, top", "top, softmax", "sparse mixer", "sigmoid, top", "top, sigmoid"] = "softmax, top"
    is_normalized: bool = False
    gates: str = ""
    ups: str = ""
    shared: tuple[str, ...] = ()
    shared_gate: str = ""
    correction: str = ""
    group_scores: int = 2
    is_transposed: bool = False
    is_interleaved: bool = False


@dataclass(frozen=True)
class Family:
    """Variants of a family; the defaults are those of Llama.

    Attributes:
        names: Names of the weights.
        prefixes: Prefixes of the base model that a file may have.
        is_encoder: True for encoders: no cache, every token attends to all tokens.
        norm: Kind of the norms.
        norms_sums: True if norms follow the sums (BERT).
        sums_norms: True if the norm's result is added, not its input (BLOOM's option).
        is_parallel: True if attention and feed-forward network have the same input; both norms apply to it if the
            feed-forward network has one.
        masks_embeddings: True if embeddings of tokens that are padding are 0, and these attend to nothing (DeBERTa).
        positions: ALiBi counts known tokens, ``"key alibi"`` all keys; ``"scaled alibi"`` is multiplied by the scale of
            scores, and rounded to bfloat16. ``"relative"`` adds a bias by distance to learned positions;
            ``"disentangled"`` has scores of contents and of distances.
        position_offset: Number of the row of the first learned position.
        counts_tokens: True if learned positions of encoders count the tokens that are no padding.
        shares_layers: True if layers are inner layers of groups, and those of a group share their weights (ALBERT).
        rotates_pairs: True if neighbouring elements are rotated, not halves.
        parts_pairs: True if the rotated pairs become halves, first elements before second ones.
        has_latent: True for latent attention: the cache has one short row for keys and values of all heads.
        rotary_layers: Layers with rotary embedding: ``"windowed"`` for those with a sliding window, ``"listed"`` by
            the field ``no_rope_layers``.
        has_local_rotary: True if layers with a window have a rotary embedding of their own.
        query_norm: Norms of queries and keys: of a head with common weights, of all heads as one row, of a head
            with its own weights, or ``"rotated"`` without weights in layers with rotation.
        rotates_first: True if norms of queries and keys follow their rotation.
        fused: Order of queries, keys and values in one matrix: ``"groups"`` by head of keys, ``"quarters"`` queries,
            values and keys in four parts.
        is_gated: True for a feed-forward network with gate.
        is_transposed: True if matrices are stored [in, out].
        repeats_cache: True if the source's cache repeats keys and values for the heads of queries.
        experts: Mixture of experts, if any.
        window_period: Each layer with a number that this divides has no window; 1 if all have one; 0 without windows.
        has_chunks: True if a layer with a window attends to the positions of the own chunk of that size.
        embedding_scale: True if embeddings are multiplied by the root of the width.
        defaults: Values of fields that a configuration may leave out.
        variant: Returns the family and the fields by options of the configuration.
    """

    names: Names = field(default_factory=Names)
    prefixes: tuple[str, ...] = ("model.",)
    is_encoder: bool = False
    norm: Norm = "rms"
    norms_sums: bool = False
    sums_norms: bool = False
    is_parallel: bool = False
    masks_embeddings: bool = False
    positions: Literal["rotary", "learned", "alibi", "scaled alibi", "key alibi", "relative", "disentangled"] = "rotary"
    position_offset: int = 0
    counts_tokens: bool = False
    shares_layers: bool = False
    rotates_pairs: bool = False
    parts_pairs: bool = False
    has_latent: bool = False
    rotary_layers: Literal["all", "windowed", "listed"] = "all"
    has_local_rotary: bool = False
    query_norm: Literal["", "head", "row", "own", "rotated"] = ""
    rotates_first: bool = False
    fused: Literal["rows", "groups", "quarters"] = "rows"
    is_gated: bool = True
    is_transposed: bool = False
    repeats_cache: bool = False
    experts: Experts | None = None
    window_period: int = 0
    has_chunks: bool = False
    embedding_scale: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    variant: Callable[[Family, Fields], tuple[Family, Fields]] | None = None
