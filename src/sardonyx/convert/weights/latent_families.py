"""Decoders with latent attention, each as its differences from DeepSeek-V3."""

from __future__ import annotations

import math
from dataclasses import replace

from sardonyx.convert.weights.family import Experts, Family
from sardonyx.convert.weights.fields import Fields
from sardonyx.errors import UnsupportedError

_SHARED = tuple(f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down"))
_SIGMOID = Experts(
    choice="sigmoid, top",
    is_normalized=True,
    shared=_SHARED,
    correction="mlp.gate.e_score_correction_bias",
)


def _latent(family: Family, fields: Fields) -> tuple[Family, Fields]:
    """One latent head, scores by the width of whole queries and YaRN's factor, pairs or halves rotated."""
    width = fields.integer("qk_rope_head_dim") + fields.integer("qk_nope_head_dim")
    scale = width**-0.5
    name = "rope_parameters" if fields.has("rope_parameters") else "rope_scaling"
    rotary = Fields(fields.mapping(name), fields.where)
    slope = rotary.real("mscale_all_dim", default=0.0)
    if slope and rotary.text("rope_type", "type", default="default") != "default":
        factor = rotary.real("factor", low=1e-3, high=1e6)
        scale *= (0.1 * slope * math.log(factor) + 1.0) ** 2 if factor > 1 else 1.0
    if not fields.flag("rope_interleave", default=True):
        family = replace(family, rotates_pairs=False, parts_pairs=False)
    return family, fields.changed(
        head_dim=fields.integer("qk_rope_head_dim"),
        num_key_value_heads=1,
        attention_multiplier=scale,
        partial_rotary_factor=None,
    )


def _deepseek2(family: Family, fields: Fields) -> tuple[Family, Fields]:
    """Experts by softmax, of all groups or of the groups with the best experts."""
    method = fields.text("topk_method", default="greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise UnsupportedError(f"topk_method '{method}'", where=fields.where)
    if method == "greedy":
        fields = fields.changed(n_group=None, topk_group=None)
    return _latent(family, fields.changed(norm_topk_prob=None))


def _listed(family: Family, fields: Fields) -> tuple[Family, Fields]:
    """Layers with experts by their kinds; all but the first without a list."""
    count = fields.integer("num_hidden_layers", high=4096)
    kinds = fields.items("mlp_layer_types", count, ("dense", "sparse"))
    plain = [i for i, kind in enumerate(kinds) if kind == "dense"] if kinds is not None else [0]
    return _latent(family, fields.changed(mlp_only_layers=plain))


_V3 = Family(
    has_latent=True,
    rotates_pairs=True,
    parts_pairs=True,
    experts=_SIGMOID,
    defaults={
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "first_k_dense_replace": 3,
        "routed_scaling_factor": 2.5,
    },
    variant=_latent,
)

LATENT_FAMILIES: dict[str, Family] = {
    "deepseek_v3": _V3,
    "deepseek_v2": replace(
        _V3,
        parts_pairs=False,
        experts=Experts(shared=_SHARED, group_scores=1),
        defaults={
            **_V3.defaults,
            "n_routed_experts": 64,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 0,
            "routed_scaling_factor": 1.0,
        },
        variant=_deepseek2,
    ),
    "glm4_moe_lite": replace(
        _V3,
        defaults={
            "q_lora_rank": 768,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 192,
            "v_head_dim": 256,
            "n_routed_experts": 64,
            "num_experts_per_tok": 4,
            "routed_scaling_factor": 1.8,
            "rms_norm_eps": 1e-5,
        },
        variant=_listed,
    ),
    "youtu": replace(
        _V3,
        experts=None,
        defaults={name: _V3.defaults[name] for name in _V3.defaults if name.endswith(("_rank", "_dim"))}
        | {"tie_word_embeddings": True},
    ),
}
"""Families by ``model_type``."""
