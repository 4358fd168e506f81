"""Decoders like Llama, each as its differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sardonyx.convert.weights.family import Experts, Family, Names
from sardonyx.convert.weights.fields import Fields

_AFTER = Names(
    attention_norm="",
    attention_result_norm="post_attention_layernorm",
    feed_forward_norm="",
    feed_forward_result_norm="post_feedforward_layernorm",
)
_AROUND = Names(
    attention_result_norm="post_attention_layernorm",
    feed_forward_norm="pre_feedforward_layernorm",
    feed_forward_result_norm="post_feedforward_layernorm",
)
_PHI = Names(
    o="self_attn.dense",
    q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm",
    feed_forward_norm="",
    up="mlp.fc1",
    down="mlp.fc2",
    final_norm="final_layernorm",
)
_BLOCK = Experts(router="block_sparse_moe.gate", expert="block_sparse_moe.experts.{}", gate="w1", up="w3", down="w2")
_GRANITE = Experts(
    router="block_sparse_moe.router.layer",
    gate_up="block_sparse_moe.input_linear.weight",
    downs="block_sparse_moe.output_linear.weight",
    choice="top, softmax",
)
_SIGMOID = Experts(
    choice="sigmoid, top",
    is_normalized=True,
    shared=tuple(f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")),
    correction="mlp.gate.e_score_correction_bias",
)
_GEMMA = {"tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh", "head_dim": 256}


def _qwen(family: Family, fields: Fields) -> tuple[Family, Fields]:
    """Windows only on request, and not in the first layers."""
    if not fields.flag("use_sliding_window"):
        return replace(family, window_period=0), fields
    return family, fields


def _qwen2_moe(family: Family, fields: Fields) -> tuple[Family, Fields]:
    """Every second of the first layers has a window, on request."""
    first = fields.integer("max_window_layers", low=0, high=1 << 30)
    return _qwen(family, _with_kinds(fields, lambda i: not i % 2 and i < first))


def _qwen3_moe(family: Family, fields: Fields) -> tuple[Family, Fields]:
    """All layers have a window, on request."""
    return _qwen(family, fields.changed(max_window_layers=0, layer_types=None))


def _smollm3(family: Family, fields: Fields) -> tuple[Family, Fields]:
    """Layers without rotation have a window, on request."""
    count = fields.integer("num_hidden_layers", high=4096)
    listed = fields.items("no_rope_layers", count, (0, 1))
    period = fields.integer("no_rope_layer_interval", default=4)
    rotates = listed or [int((i + 1) % period != 0) for i in range(count)]
    return _qwen(family, _with_kinds(fields, lambda i: not rotates[i]))


def _cwm(family: Family, fields: Fields) -> tuple[Family, Fields]:
    """Of four layers, the first has no window."""
    return family, _with_kinds(fields, lambda i: i % 4 != 0)


def _with_kinds(fields: Fields, is_windowed: Callable[[int], bool]) -> Fields:
    """Return fields with the kinds of layers, where a configuration does not list them."""
    if fields.has("layer_types"):
        return fields
    count = fields.integer("num_hidden_layers", high=4096)
    kinds = ["sliding_attention" if is_windowed(i) else "full_attention" for i in range(count)]
    return fields.changed(layer_types=kinds)


def _gemma(family: Family, fields: Fields) -> tuple[Family, Fields]:
    """``hidden_act`` of old configurations is not what the model computes."""
    return family, fields.changed(hidden_activation=fields.get("hidden_activation") or "gelu_pytorch_tanh")


def _phimoe(family: Family, fields: Fields) -> tuple[Family, Fields]:
    """LongRoPE without its long factors, and factors of cosines by the number of positions."""
    name = "rope_parameters" if fields.has("rope_parameters") else "rope_scaling"
    parameters = fields.mapping(name)
    if "short_factor" not in parameters:
        return family, fields
    return family, fields.changed(**{name: {**parameters, "long_factor": parameters["short_factor"]}})


def _stablelm(family: Family, fields: Fields) -> tuple[Family, Fields]:
    is_parallel = fields.flag("use_parallel_residual")
    names = replace(family.names, feed_forward_norm="" if is_parallel else family.names.feed_forward_norm)
    family = replace(family, names=names, is_parallel=is_parallel)
    return replace(family, query_norm="own" if fields.flag("qk_layernorm") else ""), fields


def _granite_shared(family: Family, fields: Fields) -> tuple[Family, Fields]:
    """The shared expert is optional."""
    assert family.experts is not None
    if fields.integer("shared_intermediate_size", default=0, low=0):
        return family, fields
    return replace(family, experts=replace(family.experts, shared=())), fields


def _llama4(family: Family, fields: Fields) -> tuple[Family, Fields]:
    """Chunks in layers with rotation, experts in listed layers; norms of rotated queries and temperature on request."""
    count = fields.integer("num_hidden_layers", high=4096)
    period = fields.integer("no_rope_layer_interval", default=4)
    listed = fields.items("no_rope_layers", count, (0, 1)) if fields.get("no_rope_layers") else None
    rotates = listed or [int((i + 1) % period != 0) for i in range(count)]
    size = fields.integer("attention_chunk_size", default=0, low=0, high=1 << 30)
    kinds = fields.items("layer_types", count, ("chunked_attention", "full_attention"))
    if kinds is None:
        kinds = tuple("chunked_attention" if one and size else "full_attention" for one in rotates)
    step = fields.integer("interleave_moe_layer_step", default=1)
    chosen = fields.get("moe_layers")
    if chosen is None:
        chosen = list(range(step - 1, count, step))
    if not isinstance(chosen, list):
        raise fields.error("moe_layers", chosen, "a list")
    has_norms = fields.flag("use_qk_norm", default=True)
    return replace(family, query_norm="rotated" if has_norms else ""), fields.changed(
        no_rope_layers=list(rotates),
        sliding_window=size,
        layer_types=["sliding_attention" if kind == "chunked_attention" else kind for kind in kinds],
        mlp_only_layers=[i for i in range(count) if i not in chosen],
        temperature_tuning=bool(fields.get("attn_temperature_tuning")),
    )


def _glm_moe(family: Family, fields: Fields) -> tuple[Family, Fields]:
    return replace(family, query_norm="head" if fields.flag("use_qk_norm") else ""), fields


def _dots(family: Family, fields: Fields) -> tuple[Family, Fields]:
    """Shared experts are one network, of as many widths; weights are divided on request alone."""
    return family, fields if fields.has("norm_topk_prob") else fields.changed(norm_topk_prob=False)


def _cohere(family: Family, fields: Fields) -> tuple[Family, Fields]:
    return replace(family, query_norm="own" if fields.flag("use_qk_norm") else ""), fields


def _query_layer_norm(family: Family, fields: Fields) -> tuple[Family, Fields]:
    return replace(family, query_norm="head" if fields.flag("qk_layernorm") else ""), fields


def _persimmon(family: Family, fields: Fields) -> tuple[Family, Fields]:
    return _query_layer_norm(family, fields.changed(num_key_value_heads=None))


LLAMA = Family()
_WINDOW = {"sliding_window": 4096}
_QWEN = {**_WINDOW, "max_window_layers": 28}
_QWEN2 = replace(LLAMA, window_period=1, defaults=_QWEN, variant=_qwen)
_QWEN3 = replace(_QWEN2, query_norm="head", defaults={**_QWEN, "head_dim": 128})
_OLMO2 = replace(LLAMA, names=_AFTER, query_norm="row", defaults={"rms_norm_eps": 1e-5})
_GLM = replace(
    LLAMA,
    names=replace(LLAMA.names, gate_up="mlp.gate_up_proj"),
    rotates_pairs=True,
    defaults={"partial_rotary_factor": 0.5, "head_dim": 128, "rms_norm_eps": 1.5625e-07},
)
_COHERE = replace(
    LLAMA,
    names=replace(LLAMA.names, feed_forward_norm=""),
    norm="layer",
    is_parallel=True,
    rotates_pairs=True,
    defaults={"tie_word_embeddings": True, "layer_norm_eps": 1e-5, "logit_scale": 0.0625, "rope_theta": 500000.0},
    variant=_cohere,
)
_GEMMA1 = replace(LLAMA, norm="rms + 1", embedding_scale=True, defaults=_GEMMA, variant=_gemma)
_GEMMA2 = replace(
    _GEMMA1,
    names=_AROUND,
    window_period=2,
    defaults={
        **_GEMMA,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
)
_MIXTRAL = replace(
    LLAMA,
    window_period=1,
    experts=replace(_BLOCK, is_normalized=True),
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2},
)
_PERSIMMON = Names(
    qkv="self_attn.query_key_value",
    o="self_attn.dense",
    q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    final_norm="final_layernorm",
)

LLAMA_FAMILIES: dict[str, Family] = {
    "llama": LLAMA,
    "mistral": replace(LLAMA, window_period=1, defaults=_WINDOW),
    "ministral": replace(LLAMA, window_period=1, defaults=_WINDOW),
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
    "qwen2_moe": replace(
        _QWEN2,
        experts=Experts(
            shared=tuple(f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")),
            shared_gate="mlp.shared_expert_gate",
        ),
        defaults={**_QWEN, "num_experts": 60, "num_experts_per_tok": 4},
        variant=_qwen2_moe,
    ),
    "qwen3_moe": replace(
        _QWEN3,
        experts=Experts(),
        defaults={**_WINDOW, "num_experts": 128, "num_experts_per_tok": 8},
        variant=_qwen3_moe,
    ),
    "mixtral": _MIXTRAL,
    "phimoe": replace(
        _MIXTRAL,
        norm="layer",
        experts=replace(_BLOCK, choice="sparse mixer"),
        defaults={**_MIXTRAL.defaults, "num_local_experts": 16, "router_jitter_noise": 0.01},
        variant=_phimoe,
    ),
    "olmo": replace(LLAMA, norm="layer without weights", defaults={"layer_norm_eps": 1e-5}),
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, window_period=4, has_local_rotary=True, defaults={**_OLMO2.defaults, **_WINDOW}),
    "olmoe": replace(
        LLAMA,
        query_norm="row",
        experts=Experts(),
        defaults={"rms_norm_eps": 1e-5, "num_experts": 64, "num_experts_per_tok": 8},
    ),
    "granite": LLAMA,
    "granitemoe": replace(LLAMA, experts=_GRANITE, defaults={"num_local_experts": 8, "num_experts_per_tok": 2}),
    "granitemoeshared": replace(
        LLAMA,
        experts=replace(_GRANITE, shared=("shared_mlp.input_linear", "shared_mlp.output_linear")),
        defaults={"num_local_experts": 8, "num_experts_per_tok": 2},
        variant=_granite_shared,
    ),
    "cwm": replace(
        LLAMA,
        window_period=4,
        defaults={"sliding_window": 8192, "head_dim": 128, "rope_theta": 1e6},
        variant=_cwm,
    ),
    "jais2": replace(LLAMA, norm="layer", is_gated=False, defaults={"layer_norm_eps": 1e-5, "hidden_act": "relu2"}),
    "hunyuan_v1_dense": replace(
        LLAMA,
        names=replace(LLAMA.names, q_norm="self_attn.query_layernorm", k_norm="self_attn.key_layernorm"),
        query_norm="head",
        rotates_first=True,
        defaults={"rms_norm_eps": 1e-5},
    ),
    "glm4_moe": replace(
        LLAMA,
        experts=_SIGMOID,
        defaults={
            "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 0.5,
            "n_routed_experts": 128,
            "num_experts_per_tok": 8,
            "first_k_dense_replace": 1,
        },
        variant=_glm_moe,
    ),
    "dots1": replace(
        LLAMA,
        query_norm="head",
        window_period=1,
        experts=_SIGMOID,
        defaults={**_WINDOW, "max_window_layers": 62},
        variant=_dots,
    ),
    "gpt_oss": replace(
        LLAMA,
        names=replace(LLAMA.names, sinks="self_attn.sinks"),
        window_period=2,
        experts=Experts(router="mlp.router", choice="top, softmax", is_interleaved=True),
        defaults={
            "rms_norm_eps": 1e-5,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "sliding_window": 128,
            "head_dim": 64,
            "rope_theta": 150000.0,
        },
    ),
    "llama4_text": replace(
        LLAMA,
        names=replace(
            LLAMA.names, gate="feed_forward.gate_proj", up="feed_forward.up_proj", down="feed_forward.down_proj"
        ),
        rotates_pairs=True,
        rotates_first=True,
        rotary_layers="listed",
        window_period=1,
        has_chunks=True,
        experts=Experts(
            router="feed_forward.router",
            gate_up="feed_forward.experts.gate_up_proj",
            downs="feed_forward.experts.down_proj",
            choice="top, sigmoid",
            shared=tuple(f"feed_forward.shared_expert.{part}_proj" for part in ("gate", "up", "down")),
            is_transposed=True,
        ),
        defaults={
            "rms_norm_eps": 1e-5,
            "rope_theta": 5e5,
            "head_dim": 128,
            "num_local_experts": 16,
            "num_experts_per_tok": 1,
            "attention_chunk_size": 8192,
            "attn_temperature_tuning": True,
            "floor_scale": 8192,
            "attn_scale": 0.1,
        },
        variant=_llama4,
    ),
    "stablelm": replace(
        LLAMA,
        names=replace(LLAMA.names, q_norm="self_attn.q_layernorm", k_norm="self_attn.k_layernorm"),
        norm="layer",
        defaults={"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25},
        variant=_stablelm,
    ),
    "starcoder2": replace(
        LLAMA,
        names=replace(LLAMA.names, up="mlp.c_fc", down="mlp.c_proj"),
        norm="layer",
        is_gated=False,
        window_period=1,
        defaults={"tie_word_embeddings": True, "norm_epsilon": 1e-5, "hidden_act": "gelu_pytorch_tanh"},
    ),
    "cohere": _COHERE,
    "cohere2": replace(
        _COHERE,
        window_period=4,
        rotary_layers="windowed",
        defaults={**_COHERE.defaults, "rope_theta": 10000.0, "sliding_window": 4096},
    ),
    "glm": _GLM,
    "glm4": replace(
        _GLM,
        names=replace(
            _GLM.names,
            attention_result_norm="post_self_attn_layernorm",
            feed_forward_result_norm="post_mlp_layernorm",
        ),
    ),
    "gemma": _GEMMA1,
    "gemma2": _GEMMA2,
    "vaultgemma": replace(
        _GEMMA2,
        names=Names(feed_forward_norm="pre_feedforward_layernorm"),
    ),
    "gemma3_text": replace(
        _GEMMA2,
        query_norm="head",
        window_period=6,
        has_local_rotary=True,
        defaults={**_GEMMA, "sliding_window": 4096, "query_pre_attn_scalar": 256, "rope_theta": 1e6},
    ),
    "phi": replace(
        LLAMA,
        names=_PHI,
        norm="layer",
        is_parallel=True,
        is_gated=False,
        defaults={"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "hidden_act": "gelu_new"},
        variant=_query_layer_norm,
    ),
    "phi3": replace(
        LLAMA,
        names=replace(LLAMA.names, qkv="self_attn.qkv_proj", gate_up="mlp.gate_up_proj"),
        window_period=1,
        defaults={"rms_norm_eps": 1e-5},
    ),
    "nemotron": replace(
        LLAMA,
        norm="layer + 1",
        is_gated=False,
        defaults={"norm_eps": 1e-5, "hidden_act": "relu2", "partial_rotary_factor": 0.5},
    ),
    "persimmon": replace(
        LLAMA,
        names=_PERSIMMON,
        norm="layer",
        fused="groups",
        is_gated=False,
        defaults={
            "layer_norm_eps": 1e-5,
            "hidden_act": "relu2",
            "partial_rotary_factor": 0.5,
            "qk_layernorm": True,
        },
        variant=_persimmon,
    ),
    "smollm3": replace(
        LLAMA,
        rotary_layers="listed",
        window_period=1,
        defaults={"tie_word_embeddings": True, "rope_theta": 2e6},
        variant=_smollm3,
    ),
    "exaone4": replace(
        LLAMA,
        names=_AFTER,
        query_norm="head",
        rotary_layers="windowed",
        window_period=4,
        defaults={"rms_norm_eps": 1e-5, **_WINDOW},
    ),
    "ernie4_5": replace(
        LLAMA,
        rotates_pairs=True,
        defaults={"tie_word_embeddings": True, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "head_dim": 128},
    ),
    "seed_oss": replace(LLAMA, defaults={"head_dim": 128}),
    "arcee": replace(LLAMA, is_gated=False, defaults={"rms_norm_eps": 1e-5, "hidden_act": "relu2"}),
    "helium": replace(LLAMA, rotates_pairs=True, defaults={"rms_norm_eps": 1e-8, "rope_theta": 1e5, "head_dim": 128}),
    "internlm2": replace(
        LLAMA,
        names=Names(
            embedding="tok_embeddings",
            attention_norm="attention_norm",
            feed_forward_norm="ffn_norm",
            qkv="attention.wqkv",
            o="attention.wo",
            gate="feed_forward.w1",
            up="feed_forward.w3",
            down="feed_forward.w2",
            head="output",
        ),
        fused="groups",
    ),
    "internlm3": LLAMA,
}
"""Families by ``model_type``."""
