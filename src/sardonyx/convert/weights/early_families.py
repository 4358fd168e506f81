"""Decoders of other lines than Llama: GPT-2 and GPT-J, GPT-NeoX, Falcon, OPT, BLOOM, MPT."""

from __future__ import annotations

import math
from dataclasses import replace

from sardonyx.convert.weights.family import Family, Names
from sardonyx.convert.weights.fields import Fields
from sardonyx.errors import UnsupportedError

_GPT2 = Names(
    embedding="wte",
    positions="wpe",
    layer="h.{}",
    attention_norm="ln_1",
    feed_forward_norm="ln_2",
    qkv="attn.c_attn",
    o="attn.c_proj",
    up="mlp.c_fc",
    down="mlp.c_proj",
    final_norm="ln_f",
)
_GPTJ = replace(
    _GPT2,
    positions="",
    feed_forward_norm="",
    q="attn.q_proj",
    k="attn.k_proj",
    v="attn.v_proj",
    qkv="",
    o="attn.out_proj",
    up="mlp.fc_in",
    down="mlp.fc_out",
)
_NEOX = Names(
    embedding="embed_in",
    qkv="attention.query_key_value",
    o="attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    final_norm="final_layer_norm",
    head="embed_out",
)
_BLOOM = Names(
    embedding="word_embeddings",
    embedding_norm="word_embeddings_layernorm",
    layer="h.{}",
    qkv="self_attention.query_key_value",
    o="self_attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    final_norm="ln_f",
)
_OPT = Names(
    positions="embed_positions",
    attention_norm="self_attn_layer_norm",
    feed_forward_norm="final_layer_norm",
    o="self_attn.out_proj",
    up="fc1",
    down="fc2",
    final_norm="final_layer_norm",
)
_TIED = {"tie_word_embeddings": True, "layer_norm_epsilon": 1e-5}


def _refused(fields: Fields, **expected: object) -> None:
    for name, value in expected.items():
        if fields.get(name) not in (None, value):
            raise UnsupportedError(f"{name} {fields.get(name)}", where=fields.where)


def _gpt2(family: Family, fields: Fields) -> tuple[Family, Fields]:
    _refused(fields, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    return family, fields if fields.flag("scale_attn_weights", default=True) else fields.changed(attention_multiplier=1)


def _big_code(family: Family, fields: Fields) -> tuple[Family, Fields]:
    family, fields = _gpt2(family, fields)
    has_one_key = fields.flag("multi_query", default=True)
    heads = fields.integer("n_head", "num_attention_heads")
    family = replace(family, fused="rows" if has_one_key else "groups")
    return family, fields.changed(num_key_value_heads=1 if has_one_key else heads)


def _gpt_neo(family: Family, fields: Fields) -> tuple[Family, Fields]:
    """The kinds of layers, as a list or as a pattern with repetitions."""
    layers = fields.integer("num_layers", "num_hidden_layers", high=4096)
    kinds = fields.get("attention_layers")
    if kinds is None:
        pattern = fields.get("attention_types")
        try:
            kinds = [kind for cycle, count in pattern for kind in cycle * min(int(count), layers)]
        except (TypeError, ValueError) as error:
            raise fields.error("attention_types", pattern, "pairs of kinds and number") from error
    names = {"global": "full_attention", "local": "sliding_attention"}
    if not isinstance(kinds, list):
        raise fields.error("attention_layers", kinds, "a list")
    kinds = [names.get(kind, "") if isinstance(kind, str) else "" for kind in kinds]
    window = fields.integer("window_size", default=256)
    return family, fields.changed(layer_types=kinds, sliding_window=window, attention_multiplier=1)


def _neox(family: Family, fields: Fields) -> tuple[Family, Fields]:
    return replace(family, is_parallel=fields.flag("use_parallel_residual", default=True)), fields.changed(
        partial_rotary_factor=fields.get("partial_rotary_factor", "rotary_pct") or 0.25,
        rope_theta=fields.get("rope_theta", "rotary_emb_base"),
    )


def _falcon(family: Family, fields: Fields) -> tuple[Family, Fields]:
    """Three architectures: two norms of one input, one norm, or one after the other."""
    is_new = fields.flag("new_decoder_architecture")
    is_parallel = is_new or fields.flag("parallel_attn", default=True)
    heads = fields.integer("num_attention_heads", "n_head")
    names = family.names
    if is_new and fields.integer("num_ln_in_parallel_attn", default=2, high=2) == 2:
        names = replace(names, attention_norm="ln_attn", feed_forward_norm="ln_mlp")
    elif is_parallel:
        names = replace(names, feed_forward_norm="")
    keys = heads if is_new or not fields.flag("multi_query", default=True) else 1
    keys = fields.integer("num_kv_heads", default=heads, high=heads) if is_new else keys
    family = replace(family, names=names, is_parallel=is_parallel, repeats_cache=is_new)
    family = replace(family, positions="scaled alibi" if fields.flag("alibi") else "rotary")
    return family, fields.changed(num_key_value_heads=keys, hidden_act=fields.text("activation", default="gelu"))


def _opt(family: Family, fields: Fields) -> tuple[Family, Fields]:
    """Norms before or after the sums, and embeddings of another width."""
    names = family.names
    is_before = fields.flag("do_layer_norm_before", default=True)
    if not is_before or fields.flag("_remove_final_layer_norm"):
        names = replace(names, final_norm="")
    hidden = fields.integer("hidden_size")
    width = fields.integer("word_embed_proj_dim", default=hidden)
    if width != hidden:
        names = replace(names, project_in="project_in", project_out="project_out")
    norm = family.norm if fields.flag("layer_norm_elementwise_affine", default=True) else "layer without weights"
    return replace(family, names=names, norms_sums=not is_before, norm=norm), fields


def _bloom(family: Family, fields: Fields) -> tuple[Family, Fields]:
    return replace(family, sums_norms=fields.flag("apply_residual_connection_post_layernorm")), fields.changed(
        num_attention_heads=fields.integer("n_head", "num_attention_heads"), hidden_act="gelu_new"
    )


def _biogpt(family: Family, fields: Fields) -> tuple[Family, Fields]:
    return replace(family, embedding_scale=fields.flag("scale_embedding")), fields


def _mpt(family: Family, fields: Fields) -> tuple[Family, Fields]:
    attention = Fields(fields.mapping("attn_config"), fields.where)
    if not attention.flag("alibi", default=True):
        raise UnsupportedError("attn_config.alibi false", where=fields.where)
    if attention.has("qk_ln") and attention.flag("qk_ln"):
        raise UnsupportedError("attn_config.qk_ln true", where=fields.where)
    _refused(fields, norm_type="low_precision_layernorm", no_bias=True)
    return family, fields.changed(
        hidden_size=fields.integer("d_model"),
        num_hidden_layers=fields.integer("n_layers", high=4096),
        num_attention_heads=fields.integer("n_heads"),
        attention_multiplier=attention.get("softmax_scale"),
        clip_qkv=attention.get("clip_qkv"),
        alibi_bias_max=attention.get("alibi_bias_max"),
        logit_scale=None,
        hidden_act="gelu",
    )


def alibi_slopes(heads: int, most: int | None) -> list[float]:
    """Return the slope of each head; `most` is the exponent of the last slope of MPT, None for the paper's rule."""
    if most is not None:
        count = 2 ** math.ceil(math.log2(heads))
        slopes = [2.0 ** (-(i + 1) * most / count) for i in range(count)]
        return slopes if count == heads else (slopes[1::2] + slopes[::2])[:heads]
    count = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-(i + 1) * 8 / count) for i in range(count)]
    return slopes + [2.0 ** (-(2 * i + 1) * 4 / count) for i in range(heads - count)]


_GPT2_FAMILY = Family(
    names=_GPT2,
    prefixes=("transformer.",),
    norm="layer",
    positions="learned",
    is_gated=False,
    is_transposed=True,
    defaults={**_TIED, "activation_function": "gelu_new"},
    variant=_gpt2,
)
_GPTJ_FAMILY = replace(
    _GPT2_FAMILY,
    names=_GPTJ,
    positions="rotary",
    rotates_pairs=True,
    is_parallel=True,
    is_transposed=False,
    defaults={"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "rotary_dim": 64},
    variant=None,
)

EARLY_FAMILIES: dict[str, Family] = {
    "gpt2": _GPT2_FAMILY,
    "gpt_bigcode": replace(
        _GPT2_FAMILY,
        is_transposed=False,
        defaults={**_TIED, "activation_function": "gelu_pytorch_tanh"},
        variant=_big_code,
    ),
    "gpt_neo": replace(
        _GPT2_FAMILY,
        names=replace(
            _GPT2,
            q="attn.attention.q_proj",
            k="attn.attention.k_proj",
            v="attn.attention.v_proj",
            qkv="",
            o="attn.attention.out_proj",
        ),
        is_transposed=False,
        window_period=2,
        variant=_gpt_neo,
    ),
    "gptj": _GPTJ_FAMILY,
    "codegen": replace(
        _GPTJ_FAMILY,
        names=replace(_GPTJ, q="", k="", v="", qkv="attn.qkv_proj"),
        fused="quarters",
    ),
    "gpt_neox": Family(
        names=_NEOX,
        prefixes=("gpt_neox.",),
        norm="layer",
        fused="groups",
        is_gated=False,
        defaults={"layer_norm_eps": 1e-5, "hidden_act": "gelu"},
        variant=_neox,
    ),
    "falcon": Family(
        names=replace(_BLOOM, embedding_norm=""),
        prefixes=("transformer.",),
        norm="layer",
        fused="groups",
        is_gated=False,
        defaults=_TIED,
        variant=_falcon,
    ),
    "bloom": Family(
        names=_BLOOM,
        prefixes=("transformer.",),
        norm="layer",
        positions="alibi",
        fused="groups",
        is_gated=False,
        defaults=_TIED,
        variant=_bloom,
    ),
    "opt": Family(
        names=_OPT,
        prefixes=("model.decoder.", "decoder."),
        norm="layer",
        positions="learned",
        position_offset=2,
        is_gated=False,
        defaults={"tie_word_embeddings": True, "layer_norm_eps": 1e-5, "activation_function": "relu"},
        variant=_opt,
    ),
    "biogpt": Family(
        names=replace(_OPT, final_norm="layer_norm", head="output_projection"),
        prefixes=("biogpt.",),
        norm="layer",
        positions="learned",
        position_offset=2,
        is_gated=False,
        defaults={
            "tie_word_embeddings": True,
            "layer_norm_eps": 1e-12,
            "hidden_act": "gelu",
            "scale_embedding": True,
        },
        variant=_biogpt,
    ),
    "mpt": Family(
        names=Names(
            embedding="wte",
            layer="blocks.{}",
            attention_norm="norm_1",
            feed_forward_norm="norm_2",
            qkv="attn.Wqkv",
            o="attn.out_proj",
            up="ffn.up_proj",
            down="ffn.down_proj",
            final_norm="norm_f",
        ),
        prefixes=("transformer.",),
        norm="layer",
        positions="key alibi",
        is_gated=False,
        defaults={**_TIED, "alibi_bias_max": 8},
        variant=_mpt,
    ),
}
"""Families by ``model_type``."""
