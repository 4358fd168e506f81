"""Encoders like BERT, each as its differences."""

from __future__ import annotations

from dataclasses import replace

from sardonyx.convert.weights.family import Family, Names
from sardonyx.convert.weights.fields import Fields
from sardonyx.errors import UnsupportedError

_BERT = Names(
    embedding="embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    token_types="embeddings.token_type_embeddings",
    embedding_norm="embeddings.LayerNorm",
    layer="encoder.layer.{}",
    attention_norm="attention.output.LayerNorm",
    feed_forward_norm="output.LayerNorm",
    q="attention.self.query",
    k="attention.self.key",
    v="attention.self.value",
    o="attention.output.dense",
    up="intermediate.dense",
    down="output.dense",
    final_norm="",
    head="",
    pooler="pooler.dense",
)
_DISTILBERT = replace(
    _BERT,
    token_types="",
    layer="transformer.layer.{}",
    attention_norm="sa_layer_norm",
    feed_forward_norm="output_layer_norm",
    q="attention.q_lin",
    k="attention.k_lin",
    v="attention.v_lin",
    o="attention.out_lin",
    up="ffn.lin1",
    down="ffn.lin2",
    pooler="",
)
_ALBERT = replace(
    _BERT,
    project_in="encoder.embedding_hidden_mapping_in",
    layer="encoder.albert_layer_groups.{}.albert_layers.{}",
    attention_norm="attention.LayerNorm",
    feed_forward_norm="full_layer_layer_norm",
    q="attention.query",
    k="attention.key",
    v="attention.value",
    o="attention.dense",
    up="ffn",
    down="ffn_output",
    pooler="pooler",
)
_MPNET = replace(
    _BERT,
    token_types="",
    attention_norm="attention.LayerNorm",
    q="attention.attn.q",
    k="attention.attn.k",
    v="attention.attn.v",
    o="attention.attn.o",
)
_MEGATRON = replace(
    _BERT,
    embedding_norm="",
    attention_norm="attention.ln",
    feed_forward_norm="ln",
    final_norm="encoder.ln",
)
_BEFORE = replace(
    _BERT,
    attention_norm="attention.LayerNorm",
    feed_forward_norm="intermediate.LayerNorm",
    final_norm="LayerNorm",
)
_LARGEST = replace(
    _BERT,
    embedding_norm="",
    attention_norm="attention.self_attn_layer_norm",
    feed_forward_norm="LayerNorm",
    final_norm="encoder.LayerNorm",
)
_MODERN = Names(
    embedding="embeddings.tok_embeddings",
    embedding_norm="embeddings.norm",
    attention_norm="attn_norm",
    feed_forward_norm="mlp_norm",
    qkv="attn.Wqkv",
    o="attn.Wo",
    gate_up="mlp.Wi",
    down="mlp.Wo",
    final_norm="final_norm",
    head="",
)
_NOMIC = replace(
    _BERT,
    positions="",
    embedding_norm="emb_ln",
    layer="encoder.layers.{}",
    attention_norm="norm1",
    feed_forward_norm="norm2",
    qkv="attn.Wqkv",
    o="attn.out_proj",
    gate="mlp.fc12",
    up="mlp.fc11",
    down="mlp.fc2",
    pooler="",
)


_DEBERTA = replace(
    _BERT,
    q="attention.self.query_proj",
    k="attention.self.key_proj",
    v="attention.self.value_proj",
    position_q="attention.self.pos_query_proj",
    position_k="attention.self.pos_key_proj",
    pooler="",
)


def _bert(family: Family, fields: Fields) -> tuple[Family, Fields]:
    kind = fields.get("position_embedding_type")
    if kind not in (None, "absolute"):
        raise UnsupportedError(f"position_embedding_type '{kind}'", where=fields.where)
    for name in ("is_decoder", "add_cross_attention"):
        if fields.get(name):
            raise UnsupportedError(f"{name} of an encoder", where=fields.where)
    return family, fields


def position_scores(fields: Fields) -> list[str]:
    """Return the kinds of scores with positions: c2p for contents of queries, p2c for contents of keys."""
    kinds = fields.get("pos_att_type") or []
    parts = [kind.strip() for kind in kinds.lower().split("|")] if isinstance(kinds, str) else kinds
    if not isinstance(parts, list) or any(part not in ("c2p", "p2c") for part in parts):
        raise fields.error("pos_att_type", kinds, "a list of c2p and p2c")
    return parts


def _deberta(family: Family, fields: Fields) -> tuple[Family, Fields]:
    """Scores by contents and distances, with embeddings that are in part optional."""
    if not fields.flag("relative_attention"):
        raise UnsupportedError("relative_attention false", where=fields.where)
    if fields.integer("conv_kernel_size", default=0, low=0):
        raise UnsupportedError("conv_kernel_size", where=fields.where)
    hidden = fields.integer("hidden_size")
    if fields.integer("embedding_size", default=hidden) != hidden:
        raise UnsupportedError("embedding_size other than hidden_size", where=fields.where)
    heads = fields.integer("num_attention_heads", high=1 << 14)
    names = family.names
    if not fields.flag("position_biased_input", default=True):
        names = replace(names, positions="")
    if not fields.integer("type_vocab_size", default=0, low=0):
        names = replace(names, token_types="")
    count = 1 + len(set(position_scores(fields)))
    size = fields.integer("attention_head_size", default=hidden // heads)
    return replace(family, names=names), fields.changed(
        attention_multiplier=(size * count) ** -0.5, head_dim=size, num_key_value_heads=None
    )


def _ernie(family: Family, fields: Fields) -> tuple[Family, Fields]:
    if fields.flag("use_task_id"):
        raise UnsupportedError("use_task_id true", where=fields.where)
    return _bert(family, fields)


def _distilbert(family: Family, fields: Fields) -> tuple[Family, Fields]:
    if fields.get("sinusoidal_pos_embds"):
        # The file holds the table of sines, as a weight.
        fields = fields.changed(sinusoidal_pos_embds=False)
    return _bert(family, fields.changed(hidden_size=fields.integer("dim"), hidden_act=fields.get("activation")))


def _electra(family: Family, fields: Fields) -> tuple[Family, Fields]:
    hidden = fields.integer("hidden_size")
    width = fields.integer("embedding_size", default=128)
    names = replace(family.names, project_in="embeddings_project" if width != hidden else "")
    return _bert(replace(family, names=names), fields)


def _modern(family: Family, fields: Fields) -> tuple[Family, Fields]:
    """Windows by a period that begins with a layer without one, half of them on each side."""
    layers = fields.integer("num_hidden_layers", high=4096)
    period = fields.integer("global_attn_every_n_layers", default=3)
    kinds = fields.get("layer_types")
    kinds = kinds or ["sliding_attention" if i % period else "full_attention" for i in range(layers)]
    window = fields.integer("local_attention", default=128, low=2) // 2
    bases = {
        "rope_theta": fields.get("global_rope_theta") or 160000.0,
        "rope_local_base_freq": fields.get("local_rope_theta") or 10000.0,
    }
    return family, fields.changed(layer_types=kinds, sliding_window=window, **bases)


BERT = Family(
    names=_BERT,
    prefixes=("bert.",),
    is_encoder=True,
    norm="layer",
    norms_sums=True,
    positions="learned",
    is_gated=False,
    defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-12},
    variant=_bert,
)
_ROBERTA = replace(BERT, prefixes=("roberta.",), counts_tokens=True, defaults={**BERT.defaults, "pad_token_id": 1})

ENCODER_FAMILIES: dict[str, Family] = {
    "bert": BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "data2vec-text": replace(_ROBERTA, prefixes=("data2vec_text.",)),
    "roberta-prelayernorm": replace(_ROBERTA, names=_BEFORE, prefixes=("roberta_prelayernorm.",), norms_sums=False),
    "xlm-roberta-xl": replace(_ROBERTA, names=_LARGEST, norms_sums=False),
    "ernie": replace(BERT, prefixes=("ernie.",), variant=_ernie),
    "distilbert": replace(
        BERT,
        names=_DISTILBERT,
        prefixes=("distilbert.",),
        defaults={"activation": "gelu", "layer_norm_eps": 1e-12},
        variant=_distilbert,
    ),
    "electra": replace(BERT, names=replace(_BERT, pooler=""), prefixes=("electra.",), variant=_electra),
    "albert": replace(
        BERT,
        names=_ALBERT,
        prefixes=("albert.",),
        shares_layers=True,
        defaults={"hidden_act": "gelu_new", "layer_norm_eps": 1e-12},
    ),
    "mpnet": replace(
        BERT,
        names=_MPNET,
        prefixes=("mpnet.",),
        positions="relative",
        counts_tokens=True,
        defaults={**BERT.defaults, "pad_token_id": 1},
    ),
    "deberta-v2": replace(
        BERT,
        names=_DEBERTA,
        prefixes=("deberta.",),
        masks_embeddings=True,
        positions="disentangled",
        defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-7},
        variant=_deberta,
    ),
    "megatron-bert": replace(BERT, names=_MEGATRON, norms_sums=False),
    "modernbert": Family(
        names=_MODERN,
        is_encoder=True,
        norm="layer",
        has_local_rotary=True,
        window_period=1,
        defaults={"hidden_activation": "gelu", "norm_eps": 1e-5},
        variant=_modern,
    ),
    "nomic_bert": replace(
        BERT,
        names=_NOMIC,
        prefixes=("model.",),
        positions="rotary",
        is_gated=True,
        defaults={"hidden_act": "silu", "layer_norm_eps": 1e-12, "rope_theta": 1000.0},
    ),
}
"""Families by ``model_type``."""
