"""More families of transformers, by small configurations: image and text, video, speech, series."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from convert_sources.transformers import SIZES, without_ties

TEXT = [
    "afmoe",
    "clip_text_model",
    "cwm",
    "hrm_text",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "imagegpt",
    "jais2",
    "jina_embeddings_v3",
    "kimi_linear",
    "layoutlm",
    "markuplm",
    "mimo_v2_flash",
    "minimax",
    "minimax_m2",
    "ministral",
    "ministral3",
    "modernbert-decoder",
    "nanochat",
    "nemotron_h",
    "nllb-moe",
    "nomic_bert",
    "olmo3",
    "olmo_hybrid",
    "qwen3_5_text",
    "qwen3_next",
    "qwen3_5_moe_text",
    "seed_oss",
    "solar_open",
    "splinter",
    "t5gemma",
    "tapas",
    "vaultgemma",
    "xlm-roberta-xl",
    "xlstm",
]
IMAGES = [
    "aimv2_vision_model",
    "chinese_clip_vision_model",
    "dinov3_convnext",
    "hgnet_v2",
    "internvl_vision",
    "maskformer-swin",
    "mlcd_vision_model",
    "pixio",
    "radio",
    "rf_detr",
    "sam_vision_model",
    "sapiens2",
    "siglip_vision_model",
    "tipsv2_vision_model",
]
VIDEOS = ["timesformer", "videomae", "vivit", "vjepa2"]
PAIRS = [
    "altclip",
    "blip",
    "chinese_clip",
    "clip",
    "clipseg",
    "flava",
    "groupvit",
    "metaclip_2",
    "owlv2",
    "owlvit",
    "siglip",
    "vilt",
]
SOUND = ["dac", "encodec", "moonshine", "sew-d", "speech_to_text", "unispeech-sat", "wav2vec2-bert"]
SERIES = ["patchtsmixer", "patchtst"]
FEATURES = {"parakeet_encoder": 80}
"""Encoders of spectrograms, with the number of bands."""

MORE: dict[str, Any] = {
    **SIZES,
    "projection_dim": 16,
    "num_queries": 6,
    "patch_size": 16,
    "decoder_hidden_dim": 32,
    "encoder_hidden_dim": 32,
    "hidden_dim": 32,
    "image_size": 64,
    "num_mel_bins": 80,
    "num_frames": 4,
    "mamba_expand": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "max_source_positions": 64,
    "max_target_positions": 64,
}


def _configuration(config_class: Any, kind: str) -> Any:
    """Return a small configuration, parts of composed ones included."""
    known = config_class()
    names = set(known.to_dict()) | set(getattr(config_class, "attribute_map", {}))
    options = {
        name: value
        for name, value in MORE.items()
        if name in names and not isinstance(getattr(known, name, None), (list, tuple, dict))
    }
    for name, part in getattr(config_class, "sub_configs", {}).items():
        value = getattr(known, name, None)
        if value is not None and inspect.isclass(part) and hasattr(value, "to_dict"):
            options[name] = _configuration(type(value), kind).to_dict()
    return config_class(**options)


def _tokens(model: Any, size: int = 8) -> dict[str, Any]:
    import torch

    ids = torch.randint(3, 100, (2, size))
    accepted = inspect.signature(model.forward).parameters
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if getattr(model.config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = ids[:, :6].clone()
    if "bbox" in accepted:
        inputs["bbox"] = torch.randint(0, 400, (2, size, 2)).repeat(1, 1, 2)
        inputs["bbox"][..., 2:] += 50
    return {name: value for name, value in inputs.items() if name in accepted or "kwargs" in accepted}


def _pixels(model: Any) -> dict[str, Any]:
    import torch

    config = model.config
    config = getattr(config, "vision_config", config)
    size = getattr(config, "image_size", 64)
    size = size if isinstance(size, int) else size[0]
    return {"pixel_values": torch.rand(2, getattr(config, "num_channels", 3), size, size)}


def _series(model: Any) -> dict[str, Any]:
    import torch

    config = model.config
    return {"past_values": torch.randn(2, config.context_length, config.num_input_channels)}


def _sound(model: Any) -> dict[str, Any]:
    import torch

    kind = model.config.model_type
    if kind in FEATURES:
        return {"input_features": torch.randn(2, 64, FEATURES[kind])}
    if kind == "wav2vec2-bert":
        return {"input_features": torch.randn(2, 40, 160)}
    if kind == "speech_to_text":
        return {"input_features": torch.randn(2, 40, 80), "decoder_input_ids": torch.randint(3, 100, (2, 5))}
    if kind in ("dac", "encodec"):
        return {"input_values": torch.randn(2, 1, 3200)}
    if kind == "moonshine":
        return {"input_values": torch.randn(2, 4000), "decoder_input_ids": torch.randint(3, 100, (2, 5))}
    return {"input_values": torch.randn(2, 4000)}


def cases() -> dict[str, Callable[[], tuple[Any, dict[str, Any]]]]:
    """Return models with example inputs, by the type of their configuration."""
    import torch
    import transformers

    def build(kind: str, inputs: Callable[[Any], dict[str, Any]]) -> Callable[[], tuple[Any, dict[str, Any]]]:
        def make() -> tuple[Any, dict[str, Any]]:
            torch.manual_seed(0)
            config = _configuration(transformers.CONFIG_MAPPING[kind], kind)
            config.return_dict = True
            config.use_cache = False
            model = without_ties(transformers.AutoModel.from_config(config).eval())
            examples = inputs(model)
            with torch.no_grad():
                model(**examples)
            return model, examples

        return make

    def video(model: Any) -> dict[str, Any]:
        name = "pixel_values_videos" if model.config.model_type == "vjepa2" else "pixel_values"
        size = getattr(model.config, "image_size", 0) or model.config.crop_size
        return {name: torch.rand(2, getattr(model.config, "num_frames", 4), 3, size, size)}

    result: dict[str, Any] = {kind: build(kind, _tokens) for kind in TEXT}
    result |= {kind: build(kind, _pixels) for kind in IMAGES}
    result |= {kind: build(kind, video) for kind in VIDEOS}
    result |= {kind: build(kind, lambda model: {**_tokens(model), **_pixels(model)}) for kind in PAIRS}
    result |= {kind: build(kind, _sound) for kind in (*SOUND, *FEATURES)}
    return result | {kind: build(kind, _series) for kind in SERIES}
