"""Families of transformers by small configurations with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TEXT = [
    "albert",
    "apertus",
    "arcee",
    "aria_text",
    "bamba",
    "bart",
    "bert",
    "bert-generation",
    "big_bird",
    "bigbird_pegasus",
    "biogpt",
    "bitnet",
    "blenderbot",
    "blenderbot-small",
    "bloom",
    "camembert",
    "canine",
    "codegen",
    "cohere",
    "cohere2",
    "cohere2_moe",
    "convbert",
    "cpmant",
    "ctrl",
    "data2vec-text",
    "dbrx",
    "deberta",
    "deberta-v2",
    "deepseek_v2",
    "deepseek_v3",
    "diffllama",
    "distilbert",
    "doge",
    "electra",
    "ernie",
    "ernie4_5",
    "ernie4_5_moe",
    "esm",
    "eurobert",
    "exaone",
    "exaone4",
    "exaone_moe",
    "falcon",
    "falcon_mamba",
    "flaubert",
    "flex_olmo",
    "fnet",
    "fsmt",
    "funnel",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gemma3n_text",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt2",
    "gpt_bigcode",
    "gpt_neo",
    "gpt_neox",
    "gpt_neox_japanese",
    "gpt_oss",
    "gptj",
    "granite",
    "granitemoe",
    "granitemoehybrid",
    "granitemoeshared",
    "gte",
    "helium",
    "ibert",
    "internlm3",
    "jamba",
    "jetmoe",
    "led",
    "lfm2",
    "llama",
    "llama4_text",
    "longformer",
    "longt5",
    "luke",
    "m2m_100",
    "mamba",
    "mamba2",
    "marian",
    "mbart",
    "megatron-bert",
    "mistral",
    "mixtral",
    "mobilebert",
    "modernbert",
    "mpnet",
    "mpt",
    "mra",
    "mt5",
    "mvp",
    "nemotron",
    "nystromformer",
    "olmo",
    "olmo2",
    "olmoe",
    "openai-gpt",
    "opt",
    "pegasus",
    "pegasus_x",
    "persimmon",
    "phi",
    "phi3",
    "phimoe",
    "plbart",
    "prophetnet",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "recurrent_gemma",
    "reformer",
    "rembert",
    "roberta",
    "roberta-prelayernorm",
    "roc_bert",
    "roformer",
    "rwkv",
    "smollm3",
    "squeezebert",
    "stablelm",
    "starcoder2",
    "switch_transformers",
    "t5",
    "umt5",
    "xglm",
    "xlm",
    "xlm-roberta",
    "xlnet",
    "xmod",
    "yoso",
    "zamba",
    "zamba2",
]
VISION = [
    "beit",
    "bit",
    "clip_vision_model",
    "convnext",
    "convnextv2",
    "cvt",
    "data2vec-vision",
    "deit",
    "dinov2",
    "dinov2_with_registers",
    "dinov3_vit",
    "dpt",
    "efficientnet",
    "focalnet",
    "glpn",
    "hiera",
    "ijepa",
    "levit",
    "mobilenet_v1",
    "mobilenet_v2",
    "mobilevit",
    "mobilevitv2",
    "poolformer",
    "pvt",
    "pvt_v2",
    "regnet",
    "resnet",
    "segformer",
    "swiftformer",
    "swin",
    "swin2sr",
    "swinv2",
    "textnet",
    "vit",
    "vit_mae",
    "vit_msn",
    "vitdet",
    "yolos",
]
AUDIO = [
    "hubert",
    "sew",
    "unispeech",
    "wav2vec2",
    "wavlm",
    "wav2vec2-conformer",
    "data2vec-audio",
    "audio-spectrogram-transformer",
    "whisper",
]

SIZES: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 32,
    "d_model": 32,
    "n_embd": 32,
    "dim": 32,
    "emb_dim": 32,
    "embedding_size": 32,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "num_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "head_dim": 8,
    "d_kv": 8,
    "intermediate_size": 64,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "d_ff": 64,
    "n_inner": 64,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "ffn_dim": 64,
    "hidden_dim": 64,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "image_size": 64,
    "attention_window": 4,
    "state_size": 4,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 120,
    "num_kv_shared_layers": 0,
}
OWN_SIZES: dict[str, dict[str, Any]] = {
    "codegen": {"rotary_dim": 4},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"moe_num_experts": 4},
    },
    "deepseek_v2": {"num_key_value_heads": 4},
    "deepseek_v3": {"num_key_value_heads": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    "gptj": {"rotary_dim": 4},
    "reformer": {"axial_pos_embds": False, "attention_head_size": 8},
    "zamba": {"layer_types": ["linear_attention", "hybrid"] * 2, "num_hidden_layers": 4},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2, "num_hidden_layers": 4},
}
"""Sizes of families that do not run with the common ones."""
NATURAL = frozenset((
    "bit", "convnext", "convnextv2", "efficientnet", "levit", "mobilenet_v1", "mobilenet_v2", "regnet", "resnet",
    "swin", "swin2sr",
))  # fmt: skip
"""Families whose sizes are lists, used as they are."""


def _configuration(kind: str, sizes: dict[str, Any]) -> Any:
    from transformers import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[kind]
    known = config_class()
    names = set(known.to_dict()) | set(getattr(config_class, "attribute_map", {}))
    options = {
        name: value
        for name, value in sizes.items()
        if name in names and not isinstance(getattr(known, name, None), (list, tuple, dict))
    }
    return config_class(**(options | OWN_SIZES.get(kind, {}))) if sizes else known


def without_ties(model: Any) -> Any:
    """Draw the matrices of a model that begin at zero: routers of experts would choose among equal scores."""
    import torch

    for weight in model.parameters():
        if weight.dim() > 1 and not weight.any():
            torch.nn.init.normal_(weight, std=0.02)
    return model


def cases() -> dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]]:
    """Return models with example inputs, by the type of their configuration."""
    import torch
    import transformers

    def build(kind: str, inputs: Callable[[Any], tuple[Any, ...]]) -> Callable[[], tuple[Any, tuple[Any, ...]]]:
        def make() -> tuple[Any, tuple[Any, ...]]:
            torch.manual_seed(0)
            config = _configuration(kind, {} if kind in NATURAL else SIZES)
            config.use_cache = False
            config.return_dict = True
            model = without_ties(transformers.AutoModel.from_config(config).eval())
            if kind == "xmod":
                model.set_default_language("en_XX")
            return model, inputs(model)

        return make

    def tokens(model: Any) -> tuple[Any, ...]:
        ids = torch.randint(3, 100, (2, 8))
        if model.config.is_encoder_decoder:
            return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "decoder_input_ids": ids[:, :6].clone()}
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def pixels(model: Any) -> tuple[Any, ...]:
        size = getattr(model.config, "image_size", 64)
        size = size if isinstance(size, int) else size[0]
        return {"pixel_values": torch.randn(2, getattr(model.config, "num_channels", 3), size, size)}

    def sound(model: Any) -> tuple[Any, ...]:
        kind = model.config.model_type
        if kind == "whisper":
            ids = torch.randint(3, 100, (2, 6))
            features = torch.randn(2, model.config.num_mel_bins, 2 * model.config.max_source_positions)
            return {"input_features": features, "decoder_input_ids": ids}
        if kind == "audio-spectrogram-transformer":
            return {"input_values": torch.randn(2, model.config.max_length, model.config.num_mel_bins)}
        return {"input_values": torch.randn(2, 4000)}

    result = {kind: build(kind, tokens) for kind in TEXT}
    result |= {kind: build(kind, pixels) for kind in VISION}
    return result | {kind: build(kind, sound) for kind in AUDIO}
