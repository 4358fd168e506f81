"""Logits of transformers for small models of every family, recorded once.

    python -m tests.convert.weights.logits

writes ``logits.json.xz`` with the installed transformers: for each case its configuration, the sizes of its weights,
and answers. Weights are drawn from their names, so that no file of weights is needed.
"""

from __future__ import annotations

import json
import lzma
import zlib
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).parent / "logits.json.xz"
IDS = np.array([[3, 7, 1, 49, 20, 5, 33]])
"""Token ids of every case; the last one is a multiple of no window."""


def drawn(name: str, shape: list[int]) -> Any:
    """Return the weight of a name: norms about 1, biases and matrices about 0."""
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    numbers = generator.standard_normal(shape)
    is_scale = len(shape) == 1 and name.endswith("weight")
    return (numbers * (0.2 if len(shape) == 1 else 0.25) + is_scale).astype(np.float32)


def recorded() -> dict[str, Any]:
    """Return the recorded cases by name."""
    cases: dict[str, Any] = json.loads(lzma.decompress(FILE.read_bytes()))
    return cases


_TOKENS = {"vocab_size": 61, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SIZES = {
    **_TOKENS,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
_OLD = {**_TOKENS, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
_GPT2 = {**_TOKENS, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
_ENCODER = {
    **{name: value for name, value in _SIZES.items() if name != "num_key_value_heads"},
    "pad_token_id": 1,
    "max_position_embeddings": 40,
}
_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
_EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_ROUTED = {
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_group": 3,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
}
_LATENT = {
    **{name: value for name, value in _SIZES.items() if name != "num_key_value_heads"},
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "num_key_value_heads": 4,
}
_GRANITE = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.4,
    "logits_scaling": 2.0,
}


def _rope(kind: str, **fields: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10000.0, **fields}


_YARN = _rope("yarn", factor=4.0, original_max_position_embeddings=16)
_LONG = _rope(
    "longrope",
    short_factor=[1.0, 1.1, 1.2, 1.3],
    long_factor=[2.0, 2.3, 2.6, 2.9],
    original_max_position_embeddings=6,
    factor=4.0,
)
_LLAMA3 = _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _SIZES),
    "llama biases": ("llama", {**_SIZES, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama head size": ("llama", {**_SIZES, "head_dim": 12}),
    "llama linear": ("llama", {**_SIZES, "rope_parameters": _rope("linear", factor=2.0)}),
    "llama dynamic": (
        "llama",
        {**_SIZES, "max_position_embeddings": 6, "rope_parameters": _rope("dynamic", factor=2.0)},
    ),
    "llama yarn": ("llama", {**_SIZES, "rope_parameters": _YARN}),
    "llama yarn with options": (
        "llama",
        {
            **_SIZES,
            "rope_parameters": {
                **_YARN,
                "beta_fast": 16,
                "beta_slow": 2,
                "mscale": 0.7,
                "mscale_all_dim": 1.1,
                "truncate": False,
            },
        },
    ),
    "llama llama3": ("llama", {**_SIZES, "rope_parameters": _LLAMA3}),
    "llama longrope": ("llama", {**_SIZES, "rope_parameters": _LONG}),
    "mistral": ("mistral", {**_SIZES, "sliding_window": 4}),
    "mistral without window": ("mistral", {**_SIZES, "sliding_window": None}),
    "ministral": ("ministral", {**_SIZES, "sliding_window": 4, "layer_types": _MIXED, "head_dim": 8}),
    "qwen2": ("qwen2", _SIZES),
    "qwen2 window": ("qwen2", {**_SIZES, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    "qwen3": ("qwen3", {**_SIZES, "head_dim": 16, "tie_word_embeddings": True}),
    "qwen2_moe": ("qwen2_moe", {**_SIZES, **_EXPERTS, "shared_expert_intermediate_size": 40}),
    "qwen2_moe every second": (
        "qwen2_moe",
        {
            **_SIZES,
            **_EXPERTS,
            "shared_expert_intermediate_size": 40,
            "norm_topk_prob": True,
            "decoder_sparse_step": 2,
        },
    ),
    "qwen3_moe": (
        "qwen3_moe",
        {**_SIZES, **_EXPERTS, "head_dim": 8, "norm_topk_prob": True, "mlp_only_layers": [1]},
    ),
    "mixtral": ("mixtral", {**_SIZES, **_EXPERTS, "sliding_window": None}),
    "phimoe": ("phimoe", {**_SIZES, **_EXPERTS, "attention_bias": True, "lm_head_bias": True}),
    "phimoe longrope": (
        "phimoe",
        {**_SIZES, **_EXPERTS, "rope_parameters": {**_LONG, "short_mscale": 1.2, "long_mscale": 1.3}},
    ),
    "olmo": ("olmo", {**_SIZES, "clip_qkv": 0.3}),
    "olmo2": ("olmo2", _SIZES),
    "olmo3": ("olmo3", {**_SIZES, "sliding_window": 4, "layer_types": _MIXED}),
    "olmoe": ("olmoe", {**_SIZES, **_EXPERTS}),
    "granite": ("granite", {**_SIZES, **_GRANITE}),
    "granitemoe": ("granitemoe", {**_SIZES, **_GRANITE, **_EXPERTS}),
    "granitemoeshared": ("granitemoeshared", {**_SIZES, **_GRANITE, **_EXPERTS, "shared_intermediate_size": 40}),
    "granitemoeshared without shared": (
        "granitemoeshared",
        {**_SIZES, **_GRANITE, **_EXPERTS, "shared_intermediate_size": 0},
    ),
    "cwm": ("cwm", {**_SIZES, "head_dim": 8, "sliding_window": 4, "layer_types": _MIXED}),
    "jais2": ("jais2", {**_SIZES, "head_dim": 8}),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", {**_SIZES, "head_dim": 8}),
    "glm4_moe": ("glm4_moe", {**_SIZES, **_ROUTED, "head_dim": 8, "use_qk_norm": True, "attention_bias": True}),
    "glm4_moe one group": ("glm4_moe", {**_SIZES, **_ROUTED, "n_group": 1, "topk_group": 1, "head_dim": 8}),
    "dots1": ("dots1", {**_SIZES, **_ROUTED, "head_dim": 8, "sliding_window": 4, "layer_types": _MIXED}),
    "gpt_oss": (
        "gpt_oss",
        {
            **_SIZES,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "head_dim": 8,
            "sliding_window": 4,
            "layer_types": _MIXED,
            "rope_parameters": {**_YARN, "truncate": False},
            "attention_bias": True,
        },
    ),
    "llama4_text": (
        "llama4_text",
        {
            **_SIZES,
            "head_dim": 8,
            "num_hidden_layers": 4,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 40,
            "attention_chunk_size": 4,
            "floor_scale": 2,
        },
    ),
    "llama4_text without norms": (
        "llama4_text",
        {
            **_SIZES,
            "head_dim": 8,
            "num_local_experts": 4,
            "intermediate_size_mlp": 40,
            "use_qk_norm": False,
            "attn_temperature_tuning": False,
            "no_rope_layers": [1, 0, 1],
            "attention_chunk_size": 3,
            "moe_layers": [0, 2],
            "rope_parameters": _LLAMA3,
        },
    ),
    "deepseek_v2": ("deepseek_v2", {**_LATENT, **_ROUTED, "topk_method": "greedy"}),
    "deepseek_v2 groups": (
        "deepseek_v2",
        {
            **_LATENT,
            **_ROUTED,
            "q_lora_rank": None,
            "topk_method": "group_limited_greedy",
            "rope_parameters": {**_YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
        },
    ),
    "deepseek_v3": ("deepseek_v3", {**_LATENT, **_ROUTED, "attention_bias": True}),
    "deepseek_v3 halves": (
        "deepseek_v3",
        {
            **_LATENT,
            **_ROUTED,
            "q_lora_rank": None,
            "rope_interleave": False,
            "norm_topk_prob": False,
            "rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "glm4_moe_lite": (
        "glm4_moe_lite",
        {**_LATENT, **_ROUTED, "mlp_layer_types": ["dense", "sparse", "dense"], "rms_norm_eps": 1e-4},
    ),
    "youtu": ("youtu", {**_LATENT, "pad_token_id": None}),  # Loading draws the row of padding anew.
    "vaultgemma": (
        "vaultgemma",
        {**_SIZES, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 12, "layer_types": _MIXED},
    ),
    "codegen": ("codegen", {**_GPT2, "rotary_dim": 4}),
    "data2vec-text": ("data2vec-text", _ENCODER),
    "roberta-prelayernorm": ("roberta-prelayernorm", _ENCODER),
    "xlm-roberta-xl": ("xlm-roberta-xl", _ENCODER),
    "ernie": ("ernie", {**_ENCODER, "pad_token_id": 0}),
    "stablelm": ("stablelm", {**_SIZES, "use_qkv_bias": True}),
    "stablelm parallel": (
        "stablelm",
        {
            **_SIZES,
            "use_parallel_residual": True,
            "qk_layernorm": True,
            "rope_parameters": _rope("default", partial_rotary_factor=0.5),
        },
    ),
    "starcoder2": ("starcoder2", {**_SIZES, "use_bias": True, "sliding_window": 4}),
    "cohere": ("cohere", {**_SIZES, "logit_scale": 0.3}),
    "cohere norms": ("cohere", {**_SIZES, "use_qk_norm": True, "attention_bias": True}),
    "cohere2": ("cohere2", {**_SIZES, "sliding_window": 4, "layer_types": _MIXED}),
    "glm": ("glm", {**_SIZES, "head_dim": 8, "attention_bias": True}),
    "glm4": ("glm4", {**_SIZES, "head_dim": 8, "attention_bias": True}),
    "gemma": ("gemma", {**_SIZES, "head_dim": 8}),
    "gemma2": (
        "gemma2",
        {
            **_SIZES,
            "head_dim": 8,
            "sliding_window": 4,
            "query_pre_attn_scalar": 12,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3_text": (
        "gemma3_text",
        {**_SIZES, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 12, "layer_types": _MIXED},
    ),
    "gemma3_text linear": (
        "gemma3_text",
        {
            **_SIZES,
            "head_dim": 8,
            "sliding_window": 4,
            "layer_types": _MIXED,
            "rope_parameters": {
                "full_attention": _rope("linear", factor=8.0),
                "sliding_attention": _rope("default"),
            },
        },
    ),
    "phi": ("phi", _SIZES),
    "phi norms": ("phi", {**_SIZES, "qk_layernorm": True}),
    "phi3": ("phi3", _SIZES),
    "phi3 longrope": ("phi3", {**_SIZES, "rope_parameters": _LONG, "original_max_position_embeddings": 6}),
    "nemotron": ("nemotron", _SIZES),
    "persimmon": ("persimmon", _SIZES),
    "persimmon without norms": ("persimmon", {**_SIZES, "qk_layernorm": False}),
    "smollm3": ("smollm3", {**_SIZES, "no_rope_layers": [1, 0, 1]}),
    "smollm3 windows": (
        "smollm3",
        {**_SIZES, "no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 3},
    ),
    "exaone4": ("exaone4", {**_SIZES, "sliding_window": 4, "layer_types": _MIXED}),
    "ernie4_5": ("ernie4_5", {**_SIZES, "use_bias": True, "head_dim": 8}),
    "seed_oss": ("seed_oss", {**_SIZES, "head_dim": 8}),
    "arcee": ("arcee", {**_SIZES, "head_dim": 8}),
    "helium": ("helium", {**_SIZES, "head_dim": 8}),
    "gpt_neox": ("gpt_neox", {**_OLD, "intermediate_size": 48, "max_position_embeddings": 64}),
    "gpt_neox serial": (
        "gpt_neox",
        {
            **_OLD,
            "intermediate_size": 48,
            "use_parallel_residual": False,
            "attention_bias": False,
            "rope_parameters": _rope("default", partial_rotary_factor=1.0),
        },
    ),
    "gptj": ("gptj", {**_GPT2, "rotary_dim": 4}),
    "falcon": ("falcon", {**_OLD, "alibi": False}),
    "falcon two norms": ("falcon", {**_OLD, "num_kv_heads": 2, "new_decoder_architecture": True, "bias": True}),
    "falcon one norm": (
        "falcon",
        {**_OLD, "num_kv_heads": 2, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
    ),
    "falcon serial": ("falcon", {**_OLD, "multi_query": False, "parallel_attn": False, "alibi": True, "bias": True}),
    "falcon six heads": ("falcon", {**_OLD, "hidden_size": 48, "num_attention_heads": 6, "alibi": True}),
    "opt": ("opt", {**_OLD, "ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 64}),
    "opt norms of sums": (
        "opt",
        {
            **_OLD,
            "ffn_dim": 48,
            "word_embed_proj_dim": 16,
            "max_position_embeddings": 64,
            "do_layer_norm_before": False,
        },
    ),
    "biogpt": ("biogpt", {**_OLD, "intermediate_size": 48, "max_position_embeddings": 64}),
    "bloom": ("bloom", {**_TOKENS, "hidden_size": 32, "n_layer": 3, "n_head": 4}),
    "bloom sums of norms": (
        "bloom",
        {
            **_TOKENS,
            "hidden_size": 48,
            "n_layer": 2,
            "n_head": 6,
            "apply_residual_connection_post_layernorm": True,
        },
    ),
    "mpt": ("mpt", {**_TOKENS, "d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": 64}),
    "mpt six heads": (
        "mpt",
        {
            **_TOKENS,
            "d_model": 48,
            "n_layers": 2,
            "n_heads": 6,
            "max_seq_len": 64,
            "attn_config": {"clip_qkv": 0.3, "softmax_scale": 0.4},
        },
    ),
    "gpt2": ("gpt2", _GPT2),
    "gpt_neo": (
        "gpt_neo",
        {
            **_TOKENS,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
            "max_position_embeddings": 64,
        },
    ),
    "gpt_bigcode": ("gpt_bigcode", _GPT2),
    "gpt_bigcode many keys": ("gpt_bigcode", {**_GPT2, "multi_query": False}),
    "bert": ("bert", {**_ENCODER, "pad_token_id": 0}),
    "roberta": ("roberta", _ENCODER),
    "xlm-roberta": ("xlm-roberta", _ENCODER),
    "camembert": ("camembert", _ENCODER),
    "distilbert": (
        "distilbert",
        {"vocab_size": 61, "dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 40},
    ),
    "electra": ("electra", {**_ENCODER, "embedding_size": 16}),
    "electra without projection": ("electra", {**_ENCODER, "embedding_size": 32}),
    "albert": ("albert", {**_ENCODER, "embedding_size": 16}),
    "albert groups": (
        "albert",
        {**_ENCODER, "num_hidden_layers": 4, "embedding_size": 16, "num_hidden_groups": 2, "inner_group_num": 2},
    ),
    "mpnet": ("mpnet", _ENCODER),
    "modernbert": (
        "modernbert",
        {
            **_ENCODER,
            "global_attn_every_n_layers": 2,
            "local_attention": 6,
            "cls_token_id": 1,
            "sep_token_id": 2,
        },
    ),
    "deberta-v2": (
        "deberta-v2",
        {
            **_ENCODER,
            "pad_token_id": 0,
            "relative_attention": True,
            "position_buckets": 4,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
            "type_vocab_size": 0,
        },
    ),
    "deberta-v2 one kind": (
        "deberta-v2",
        {
            **_ENCODER,
            "pad_token_id": 0,
            "relative_attention": True,
            "max_relative_positions": 5,
            "pos_att_type": ["c2p"],
            "type_vocab_size": 2,
        },
    ),
    "megatron-bert": ("megatron-bert", _ENCODER),
    "nomic_bert": ("nomic_bert", _ENCODER),
}
"""``model_type`` and fields of the configuration by name of the case."""


def record() -> dict[str, Any]:
    """Return the answers of the installed transformers to all cases."""
    import tempfile

    import torch
    from safetensors.numpy import load_file
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    from sardonyx.convert.weights.architecture import FAMILIES

    result = {}
    for case, (kind, fields) in CASES.items():
        is_encoder = FAMILIES[kind].is_encoder
        plain = "sdpa" if kind == "falcon" else "eager"
        source: Any = AutoModel if is_encoder else AutoModelForCausalLM
        configuration = AutoConfig.for_model(kind, **fields)
        with tempfile.TemporaryDirectory() as folder:
            source.from_config(configuration, dtype=torch.float32).save_pretrained(folder)
            shapes = {name: list(array.shape) for name, array in load_file(f"{folder}/model.safetensors").items()}
            write(Path(folder), json.loads(Path(folder, "config.json").read_text()), shapes)
            config = json.loads(Path(folder, "config.json").read_text())
            model = source.from_pretrained(folder, dtype=torch.float32, attn_implementation=plain).eval()
            with torch.no_grad():
                answer = model(torch.from_numpy(IDS), attention_mask=torch.ones(IDS.shape, dtype=torch.int64))
        numbers = answer.last_hidden_state if is_encoder else answer.logits
        result[case] = {"config": config, "shapes": shapes, "last": numbers[0, -1].tolist()}
    return result


def write(folder: Path, config: dict[str, Any], shapes: dict[str, list[int]]) -> None:
    """Write a folder with a configuration and drawn weights."""
    import safetensors.numpy

    (folder / "config.json").write_text(json.dumps(config))
    weights = {name: drawn(name, shape) for name, shape in shapes.items()}
    safetensors.numpy.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    FILE.write_bytes(lzma.compress(json.dumps(record()).encode(), preset=9))
