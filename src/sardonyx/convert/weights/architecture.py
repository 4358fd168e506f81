"""The description of a transformer, from ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sardonyx.convert.weights.early_families import EARLY_FAMILIES
from sardonyx.convert.weights.encoder_families import ENCODER_FAMILIES, position_scores
from sardonyx.convert.weights.family import Family
from sardonyx.convert.weights.fields import Fields
from sardonyx.convert.weights.latent_families import LATENT_FAMILIES
from sardonyx.convert.weights.llama_families import LLAMA_FAMILIES
from sardonyx.convert.weights.rotary import Rotary, rotary_of
from sardonyx.errors import ModelFileError, UnsupportedError

FAMILIES: dict[str, Family] = {
    **LLAMA_FAMILIES,
    **LATENT_FAMILIES,
    **EARLY_FAMILIES,
    **ENCODER_FAMILIES,
}
"""Families by ``model_type``."""

MOST_LAYERS = 4096
FULL, WINDOWED = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Latent:
    """Sizes of latent attention.

    Attributes:
        query_rank: Width of the row from which queries are made; 0 if they are made from the input.
        rank: Width of the row from which keys and values are made.
        rotated: Elements of queries and keys that are rotated.
        plain: Other elements of queries and keys, of each head.
        value: Elements of a value.
    """

    query_rank: int
    rank: int
    rotated: int
    plain: int
    value: int


@dataclass(frozen=True)
class Disentangled:
    """Scores of contents and of relative positions (DeBERTa).

    Attributes:
        rows: Number of rows of the table of positions; half of them are for keys after the query.
        buckets: Number of the rows of one side for distances up to `most`, far ones in common; 0 for one row each.
        most: Largest distance with a row.
        contents_to_positions: True if contents of queries have scores with positions.
        positions_to_contents: True if positions have scores with contents of keys.
        shares: True if the maps of contents apply to positions too.
        normalizes: True if the table is normalized.
    """

    rows: int
    buckets: int
    most: int
    contents_to_positions: bool
    positions_to_contents: bool
    shares: bool
    normalizes: bool


@dataclass(frozen=True)
class Architecture:
    """Sizes and variants of a transformer.

    Attributes:
        name: ``model_type``.
        family: Variants of the family.
        hidden: Width of the residual stream.
        layers: Prefix of the weights of each layer.
        heads: Number of query heads.
        key_heads: Number of key and value heads.
        head_size: Width of a head.
        vocabulary: Number of tokens.
        epsilon: Constant of the norms.
        activation: Name of the activation.
        rotary: Rotary embedding of each layer, None without.
        windows: Sizes of the sliding window by layer, 0 for all positions.
        is_tied: True if logits are products with the embedding.
        has_experts: True for layers with a mixture of experts.
        experts: Number of experts.
        active_experts: Experts per token.
        normalizes_experts: True if weights of chosen experts are divided by their sum.
        groups: Groups of experts.
        active_groups: Groups of which experts are chosen.
        expert_scale: Factor of the experts' weights.
        gate_limit: Limit of gates, of alternating ones.
        gate_slope: Factor of the gates in their sigmoid.
        jitter: Share of a score within which the sparse mixer compares scores.
        attention_limit: Soft limit of attention scores, 0 without.
        logit_limit: Soft limit of logits, 0 without.
        attention_scale: Factor of attention scores.
        embedding_scale: Factor of embeddings.
        residual_scale: Factor of results before sums.
        logit_scale: Factor of logits.
        clip: Limit of queries, keys and values, 0 without.
        padding: Number of the padding token, of encoders.
        alibi_exponent: Exponent of the last slope of MPT, None for the paper's slopes.
        latent: Sizes of latent attention, None for any other.
        disentangled: Scores of relative positions, None without.
        temperature: Slope and step of the factors of queries by position, in layers without rotation; None without.
    """

    name: str
    family: Family
    hidden: int
    layers: tuple[str, ...]
    heads: int
    key_heads: int
    head_size: int
    vocabulary: int
    epsilon: float
    activation: str
    rotary: tuple[Rotary | None, ...]
    windows: tuple[int, ...]
    is_tied: bool
    has_experts: tuple[bool, ...] = field(default=())
    experts: int = 0
    active_experts: int = 0
    normalizes_experts: bool = False
    groups: int = 1
    active_groups: int = 1
    expert_scale: float = 1.0
    gate_limit: float = 7.0
    gate_slope: float = 1.702
    jitter: float = 0.0
    attention_limit: float = 0.0
    logit_limit: float = 0.0
    attention_scale: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    clip: float = 0.0
    padding: int = 0
    alibi_exponent: int | None = None
    latent: Latent | None = None
    disentangled: Disentangled | None = None
    temperature: tuple[float, float] | None = None

    @property
    def cache_widths(self) -> tuple[int, int]:
        """Widths of cached keys and values, or of latent rows and rotated parts of keys."""
        return (self.latent.rank, self.latent.rotated) if self.latent else (self.head_size, self.head_size)


def from_config(config: Any, where: str) -> Architecture:
    """Return the architecture of a ``config.json``.

    Raises:
        UnsupportedError: The family or a variant has no translation.
        ModelFileError: A field is missing or out of range.
    """
    if not isinstance(config, Mapping):
        raise ModelFileError("expected a JSON object", where=where)
    name = Fields(config, where).text("model_type", default="")
    if name not in FAMILIES:
        raise UnsupportedError(f"model_type '{name}'", where=where, remedy=f"Known are {', '.join(FAMILIES)}.")
    if config.get("quantization_config") is not None:
        raise UnsupportedError("quantized weights (quantization_config)", where=where)
    family = FAMILIES[name]
    return from_fields(name, family, Fields(config, where, family.defaults))


def from_fields(name: str, family: Family, fields: Fields) -> Architecture:
    """Return the architecture of a family with the sizes of fields; see :func:`from_config`."""
    if family.variant is not None:
        family, fields = family.variant(family, fields)
    count = fields.integer("num_hidden_layers", "n_layer", "num_layers", "n_layers", high=MOST_LAYERS)
    hidden = fields.integer("hidden_size", "n_embd")
    heads = fields.integer("num_attention_heads", "n_head", "num_heads", "n_heads", high=1 << 14)
    key_heads = fields.integer("num_key_value_heads", default=heads, high=1 << 14)
    if heads % key_heads:
        raise ModelFileError(f"{heads} heads are not a multiple of {key_heads} key heads", where=fields.where)
    if not fields.has("head_dim") and hidden % heads:
        raise ModelFileError(f"hidden size {hidden} is not a multiple of {heads} heads", where=fields.where)
    head_size = fields.integer("head_dim", default=hidden // heads, high=1 << 14)
    windows = _windows(family, fields, count)
    experts = family.experts
    number = fields.integer("num_local_experts", "num_experts", "n_routed_experts", high=1 << 12) if experts else 0
    groups = fields.integer("n_group", default=1, high=max(number, 1)) if experts else 1
    if number % groups:
        raise ModelFileError(f"{number} experts are not a multiple of {groups} groups", where=fields.where)
    active_groups = fields.integer("topk_group", default=1, high=groups) if experts else 1
    if experts and active_groups < groups and number // groups < experts.group_scores:
        problem = f"{groups} groups of {number // groups} experts, expected at least {experts.group_scores} in each"
        raise ModelFileError(problem, where=fields.where)
    query_scale = fields.real("query_pre_attn_scalar", default=head_size, low=1e-6)
    return Architecture(
        name,
        family,
        hidden,
        _layers(family, fields, count),
        heads,
        key_heads,
        head_size,
        fields.integer("vocab_size", high=1 << 24),
        fields.real(
            "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps", default=1e-6, high=1.0
        ),
        fields.text("hidden_activation", "hidden_act", "activation_function", default="silu"),
        _rotary(family, fields, windows, head_size),
        windows,
        fields.flag("tie_word_embeddings"),
        _expert_layers(family, fields, count),
        number,
        fields.integer("num_experts_per_tok", high=number) if experts else 0,
        fields.flag("norm_topk_prob", default=experts.is_normalized) if experts else False,
        groups,
        active_groups,
        fields.real("routed_scaling_factor", default=1.0),
        fields.real("swiglu_limit", default=7.0),
        fields.real("swiglu_alpha", default=1.702),
        fields.real("router_jitter_noise", default=0.0),
        fields.real("attn_logit_softcapping", default=0.0),
        fields.real("final_logit_softcapping", default=0.0),
        fields.real("attention_multiplier", default=query_scale**-0.5),
        hidden**0.5 if family.embedding_scale else fields.real("embedding_multiplier", default=1.0),
        fields.real("residual_multiplier", default=1.0),
        fields.real("logit_scale", default=1.0) / fields.real("logits_scaling", default=1.0, low=1e-9),
        fields.real("clip_qkv", default=0.0),
        fields.integer("pad_token_id", default=0, low=0, high=1 << 24) if family.counts_tokens else 0,
        fields.integer("alibi_bias_max", high=64) if family.positions == "key alibi" else None,
        _latent(fields) if family.has_latent else None,
        _disentangled(fields) if family.positions == "disentangled" else None,
        (fields.real("attn_scale"), fields.real("floor_scale", low=1e-6)) if fields.get("temperature_tuning") else None,
    )


def _disentangled(fields: Fields) -> Disentangled:
    kinds = position_scores(fields)
    most = fields.integer("max_relative_positions", default=-1, low=-1, high=1 << 20)
    most = most if most > 0 else fields.integer("max_position_embeddings", high=1 << 20)
    buckets = max(fields.integer("position_buckets", default=-1, low=-1, high=1 << 20), 0)
    if buckets:
        fields.integer("position_buckets", low=2, high=1 << 20)  # Half of them are for near distances.
    return Disentangled(
        2 * (buckets or most),
        buckets,
        most,
        "c2p" in kinds,
        "p2c" in kinds,
        fields.flag("share_att_key"),
        "layer_norm" in fields.text("norm_rel_ebd", default="none").lower(),
    )


def _latent(fields: Fields) -> Latent:
    names = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    return Latent(fields.integer("q_lora_rank", default=0, low=0), *(fields.integer(name) for name in names))


def _layers(family: Family, fields: Fields, count: int) -> tuple[str, ...]:
    """Return the prefix of each layer; layers of a group share theirs."""
    if not family.shares_layers:
        return tuple(family.names.layer.format(i) for i in range(count))
    groups = fields.integer("num_hidden_groups", default=1, high=count)
    inner = fields.integer("inner_group_num", default=1, high=MOST_LAYERS // count)
    numbers = [(int(i / (count / groups)), j) for i in range(count) for j in range(inner)]
    return tuple(family.names.layer.format(group, j) for group, j in numbers)


def _windows(family: Family, fields: Fields, count: int) -> tuple[int, ...]:
    window = fields.integer("sliding_window", default=0, low=0, high=1 << 30) if family.window_period else 0
    if not window:
        return (0,) * count
    kinds = fields.items("layer_types", count, (FULL, WINDOWED))
    if kinds is not None:
        return tuple(window if kind == WINDOWED else 0 for kind in kinds)
    if family.window_period == 1:
        first = fields.integer("max_window_layers", default=0, low=0, high=1 << 30)
        return tuple(window if i >= first else 0 for i in range(count))
    names = ("sliding_window_pattern", "_sliding_window_pattern")
    period = fields.integer(*names, default=family.window_period)
    return tuple(window if (i + 1) % period else 0 for i in range(count))


def _rotary(family: Family, fields: Fields, windows: tuple[int, ...], head_size: int) -> tuple[Rotary | None, ...]:
    if family.positions != "rotary":
        return (None,) * len(windows)
    name = "rope_parameters" if fields.has("rope_parameters") else "rope_scaling"
    parameters = fields.mapping(name)
    kinds = {kind: parameters.get(kind) for kind in (FULL, WINDOWED)}
    if any(isinstance(part, Mapping) for part in kinds.values()):
        parts = {kind: rotary_of(fields, part or {}, head_size) for kind, part in kinds.items()}
    else:
        whole = rotary_of(fields, parameters, head_size)
        local = whole
        if family.has_local_rotary:
            base = fields.get("rope_local_base_freq") or fields.get("rope_theta")
            local = rotary_of(fields, {"rope_theta": base}, head_size)
        parts = {FULL: whole, WINDOWED: local}
    listed = fields.get("no_rope_layers") if family.rotary_layers == "listed" else None
    if listed is None and family.rotary_layers == "listed":
        period = fields.integer("no_rope_layer_interval", default=4)
        listed = [int((i + 1) % period != 0) for i in range(len(windows))]
    elif listed is not None:
        listed = fields.items("no_rope_layers", len(windows), (0, 1))
    rotates_all = family.rotary_layers == "all" or (family.rotary_layers == "windowed" and not any(windows))
    return tuple(
        parts[WINDOWED if window else FULL] if rotates_all or (listed[i] if listed else window) else None
        for i, window in enumerate(windows)
    )


def _expert_layers(family: Family, fields: Fields, count: int) -> tuple[bool, ...]:
    if family.experts is None:
        return (False,) * count
    plain = fields.get("mlp_only_layers") or []
    if not isinstance(plain, list):
        raise fields.error("mlp_only_layers", plain, "a list")
    step = fields.integer("decoder_sparse_step", default=1)
    first = fields.integer("first_k_dense_replace", default=0, low=0, high=MOST_LAYERS)
    return tuple(i >= first and i not in plain and (i + 1) % step == 0 for i in range(count))
