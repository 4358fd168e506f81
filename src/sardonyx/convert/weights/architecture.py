"""The description of a transformer, from ``config.json`` or from the metadata of a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.errors import ModelFileError, UnsupportedError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi", "phi3", "mixtral", "gpt2", "bert")
"""Supported values of ``model_type``."""


@dataclass(frozen=True)
class Architecture:
    """Sizes and variants of a transformer.

    Attributes:
        family: See :data:`FAMILIES`.
        hidden: Width of the residual stream.
        layers: Number of layers.
        heads: Number of query heads.
        key_heads: Number of key and value heads.
        head_size: Width of a head.
        vocabulary: Number of tokens.
        epsilon: Constant of the norms.
        activation: Name of the activation.
        frequencies: Rotation per position of each pair of a rotary embedding; None without.
        rotation_scale: Factor of cosines and sines (YaRN).
        window: Sizes of the sliding window by layer, 0 for all positions.
        experts: Number of experts, 0 without.
        active_experts: Experts per token.
        attention_limit: Soft limit of attention scores, 0 without.
        logit_limit: Soft limit of logits, 0 without.
        scale: Factor of attention scores.
    """

    family: str
    hidden: int
    layers: int
    heads: int
    key_heads: int
    head_size: int
    vocabulary: int
    epsilon: float
    activation: str
    frequencies: tuple[float, ...] | None
    rotation_scale: float = 1.0
    window: tuple[int, ...] = ()
    experts: int = 0
    active_experts: int = 0
    attention_limit: float = 0.0
    logit_limit: float = 0.0
    scale: float = 0.0


def from_config(config: Mapping[str, Any], where: str) -> Architecture:
    """Return the architecture of a ``config.json``.

    Raises:
        UnsupportedError: The family or a variant has no translation.
        ModelFileError: A field is missing or out of range.
    """
    family = str(config.get("model_type", ""))
    if family not in FAMILIES:
        raise UnsupportedError(f"model_type '{family}'", where=where, remedy=f"Known are {', '.join(FAMILIES)}.")

    def number(*names: str, default: Any = None) -> Any:
        for name in names:
            if config.get(name) is not None:
                return config[name]
        if default is None:
            raise ModelFileError(f"field '{names[0]}' is missing", where=where)
        return default

    hidden, layers = int(number("hidden_size", "n_embd")), int(number("num_hidden_layers", "n_layer"))
    heads = int(number("num_attention_heads", "n_head"))
    key_heads = int(number("num_key_value_heads", default=heads))
    sizes = (hidden, layers, heads, key_heads)
    if min(sizes) < 1 or max(sizes) > 1 << 20 or heads % key_heads:
        raise ModelFileError(f"hidden size, layers, heads and key heads {sizes} are out of range", where=where)
    head_size = int(number("head_dim", default=hidden // heads))
    rotary = None if family in ("gpt2", "bert") else _rotary(config, head_size, where)
    query_scale = config.get("query_pre_attn_scalar")
    activation = str(number("hidden_activation", "hidden_act", "activation_function", default="silu"))
    if family == "gemma":
        activation = str(config.get("hidden_activation") or "gelu_pytorch_tanh")
    return Architecture(
        family,
        hidden,
        layers,
        heads,
        key_heads,
        head_size,
        int(number("vocab_size")),
        float(number("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", default=1e-6)),
        activation,
        None if rotary is None else rotary[0],
        1.0 if rotary is None else rotary[1],
        _windows(config, layers),
        int(number("num_local_experts", default=0)) if family == "mixtral" else 0,
        int(number("num_experts_per_tok", default=0)) if family == "mixtral" else 0,
        float(config.get("attn_logit_softcapping") or 0.0),
        float(config.get("final_logit_softcapping") or 0.0),
        float(query_scale or head_size) ** -0.5,
    )


def _windows(config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    window = config.get("sliding_window") or 0
    kinds = config.get("layer_types")
    if not window or (config.get("use_sliding_window") is False):
        return (0,) * layers
    if kinds:
        return tuple(int(window) if kind == "sliding_attention" else 0 for kind in kinds)
    if config.get("model_type") == "gemma2":
        return tuple(int(window) if i % 2 == 0 else 0 for i in range(layers))
    return (int(window),) * layers


def _rotary(config: Mapping[str, Any], head_size: int, where: str) -> tuple[tuple[float, ...], float]:
    """Return the frequencies of a rotary embedding and the factor of cosines."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if any(isinstance(value, Mapping) for value in scaling.values()):
        raise UnsupportedError("rotary embeddings by kind of layer", where=where)
    base = float(scaling.get("rope_theta") or config.get("rope_theta") or 10000.0)
    share = float(scaling.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0)
    width = int(head_size * share)
    frequencies = base ** -(np.arange(0, width, 2, dtype=np.float64) / width)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "linear":
        frequencies = frequencies / float(scaling["factor"])
    elif kind == "llama3":
        frequencies = _stretched(frequencies, scaling)
    elif kind != "default":
        raise UnsupportedError(f"rotary embedding of type '{kind}'", where=where)
    return tuple(frequencies.tolist()), 1.0


def _stretched(frequencies: Any, scaling: Mapping[str, Any]) -> Any:
    """Return frequencies of which slow ones are divided by a factor, and middle ones in part (Llama 3)."""
    factor, low, high = (float(scaling[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    context = float(scaling["original_max_position_embeddings"])
    length = 2 * math.pi / frequencies
    smooth = (context / length - low) / (high - low)
    middle = (1 - smooth) * frequencies / factor + smooth * frequencies
    return np.where(
        length < context / high, frequencies, np.where(length > context / low, frequencies / factor, middle)
    )


def from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], where: str) -> Architecture:
    """Return the architecture of GGUF metadata; see :func:`from_config`."""
    name = str(metadata.get("general.architecture", ""))

    def value(key: str, default: Any = None) -> Any:
        result = metadata.get(f"{name}.{key}", default)
        if result is None:
            raise ModelFileError(f"metadata '{name}.{key}' is missing", where=where)
        return result

    known = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma": "gemma", "gemma2": "gemma2"}
    if name not in known:
        raise UnsupportedError(f"architecture '{name}'", where=where, remedy=f"Known are {', '.join(known)}.")
    heads = int(value("attention.head_count"))
    hidden = int(value("embedding_length"))
    config = {
        "model_type": "mixtral" if int(metadata.get(f"{name}.expert_count", 0)) else known[name],
        "hidden_size": hidden,
        "num_hidden_layers": int(value("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(value("attention.head_count_kv", heads)),
        "head_dim": int(value("attention.key_length", hidden // max(heads, 1))),
        "vocab_size": tensors.get("token_embd.weight", (0,))[0],
        "rms_norm_eps": float(value("attention.layer_norm_rms_epsilon")),
        "rope_theta": float(value("rope.freq_base", 10000.0)),
        "hidden_act": "gelu_pytorch_tanh" if name.startswith("gemma") else "silu",
        "hidden_activation": "gelu_pytorch_tanh" if name.startswith("gemma") else None,
        "num_local_experts": int(metadata.get(f"{name}.expert_count", 0)),
        "num_experts_per_tok": int(metadata.get(f"{name}.expert_used_count", 0)),
        "sliding_window": metadata.get(f"{name}.attention.sliding_window"),
        "attn_logit_softcapping": metadata.get(f"{name}.attn_logit_softcapping"),
        "final_logit_softcapping": metadata.get(f"{name}.final_logit_softcapping"),
    }
    if f"{name}.rope.scaling.type" in metadata and metadata[f"{name}.rope.scaling.type"] not in ("none", "linear"):
        raise UnsupportedError(f"rotary embedding of type '{metadata[f'{name}.rope.scaling.type']}'", where=where)
    if metadata.get(f"{name}.rope.scaling.type") == "linear":
        config["rope_scaling"] = {"rope_type": "linear", "factor": float(value("rope.scaling.factor"))}
    return from_config(config, where)
