"""GGUF files of recorded cases, with the changes that the converters of llama.cpp make to weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sardonyx.convert.weights.architecture import Architecture, from_config
from tests.convert.weights.checkpoints import gguf
from tests.convert.weights.logits import drawn

_ROLES = {
    "embedding": "token_embd",
    "positions": "position_embd",
    "embedding_norm": "token_embd_norm",
    "attention_norm": "attn_norm",
    "attention_result_norm": "post_attention_norm",
    "feed_forward_norm": "ffn_norm",
    "feed_forward_result_norm": "post_ffw_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "qkv": "attn_qkv",
    "o": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "gate_up": "ffn_up",
    "down": "ffn_down",
    "final_norm": "output_norm",
    "head": "output",
}


def _paired(array: Any, heads: int) -> Any:
    """Return rows of heads with neighbouring pairs in place of halves."""
    return array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def _in_rows(array: Any, a: Architecture) -> Any:
    """Return queries, keys and values one after another, from groups by head of keys."""
    groups = array.reshape(a.key_heads, -1, a.head_size, *array.shape[1:])
    parts = (groups[:, :-2], groups[:, -2], groups[:, -1])
    return np.concatenate([part.reshape(-1, *array.shape[1:]) for part in parts])


CHANGES: dict[str, Callable[[str, Any, Architecture], Any]] = {
    "llama": lambda name, w, a: _paired(w, a.heads if "_q." in name else a.key_heads) if "attn_" in name[-13:] else w,
    "gemma": lambda name, w, a: w + 1 if "norm" in name else w,
    "nemotron": lambda name, w, a: w + 1 if name.endswith("norm.weight") else w,
    "gpt2": lambda name, w, a: w.T if w.ndim == 2 and name.startswith("blk.") else w,
    "fused": lambda name, w, a: _in_rows(w, a) if "attn_qkv" in name else w,
}
ARCHITECTURES = {
    "llama": ("llama", "llama"),
    "mixtral": ("llama", "llama"),
    "qwen2": ("qwen2", ""),
    "qwen3": ("qwen3", ""),
    "qwen3_moe": ("qwen3moe", ""),
    "gemma": ("gemma", "gemma"),
    "phi": ("phi2", ""),
    "phi3": ("phi3", ""),
    "stablelm": ("stablelm", ""),
    "nemotron": ("nemotron", "nemotron"),
    "gpt2": ("gpt2", "gpt2"),
    "gpt_bigcode": ("starcoder", ""),
    "gpt_neox": ("gptneox", "fused"),
    "falcon": ("falcon", "fused"),
    "bloom": ("bloom", "fused"),
    "mpt": ("mpt", ""),
    "cohere": ("command-r", ""),
    "olmo": ("olmo", "llama"),
    "olmo2": ("olmo2", ""),
    "granite": ("granite", "llama"),
    "glm4": ("glm4", ""),
}
"""Architecture of the file and the kind of changes, by case."""


def gguf_of(case: str, recording: dict[str, Any]) -> bytes:
    """Return the GGUF file of a recorded case."""
    name, change = ARCHITECTURES[case]
    config = recording["config"]
    a = from_config(config, case)
    tensors: dict[str, Any] = {}
    experts: dict[str, dict[int, Any]] = {}
    for stored, shape in recording["shapes"].items():
        weight = drawn(stored, shape)
        if ".experts." in stored:
            layer, rest = stored.split("layers.")[1].split(".", 1)
            number, part = rest.split(".experts.")[1].removesuffix(".weight").split(".")
            kind = {"w1": "gate", "w2": "down", "w3": "up"}.get(part, part.removesuffix("_proj"))
            experts.setdefault(f"blk.{layer}.ffn_{kind}_exps.weight", {})[int(number)] = weight
            continue
        renamed = _renamed(stored, a)
        is_rotated = change != "llama" or ".attn_q." in renamed or ".attn_k." in renamed
        changed = CHANGES[change](renamed, weight, a) if change and is_rotated else weight
        tensors[renamed] = (0, changed.shape, np.ascontiguousarray(changed, np.float32).tobytes())
    for renamed, parts in experts.items():
        whole = np.stack([parts[i] for i in sorted(parts)])
        tensors[renamed] = (0, whole.shape, whole.tobytes())
    return gguf(tensors, {"general.architecture": name, **_metadata(name, config, a)})


def _renamed(stored: str, a: Architecture) -> str:
    for prefix in a.family.prefixes:
        stored = stored.removeprefix(prefix)
    base, suffix = stored.rsplit(".", 1)
    for i, layer in enumerate(a.layers):
        if base.startswith(f"{layer}."):
            inner = base.removeprefix(f"{layer}.")
            if a.family.experts is not None and inner == a.family.experts.router:
                return f"blk.{i}.ffn_gate_inp.{suffix}"
            return f"blk.{i}.{_role(inner, a)}.{suffix}"
    return f"{_role(base, a)}.{suffix}"


def _role(name: str, a: Architecture) -> str:
    return next(_ROLES[role] for role, value in vars(a.family.names).items() if value == name and role in _ROLES)


def _metadata(name: str, config: dict[str, Any], a: Architecture) -> dict[str, Any]:
    rotary = config.get("rope_parameters") or {}
    values = {
        "block_count": len(a.layers),
        "embedding_length": a.hidden,
        "attention.head_count": a.heads,
        "attention.head_count_kv": a.key_heads,
        "attention.key_length": a.head_size,
        "attention.layer_norm_rms_epsilon": a.epsilon,
        "attention.layer_norm_epsilon": a.epsilon,
        "context_length": 64,
        "rope.freq_base": rotary.get("rope_theta"),
        "rope.dimension_count": int(a.head_size * rotary.get("partial_rotary_factor", 1.0)) if rotary else None,
        "expert_count": a.experts or None,
        "expert_used_count": a.active_experts or None,
        "logit_scale": 1 / a.logit_scale if name == "granite" else (a.logit_scale if a.logit_scale != 1 else None),
        "attention.scale": a.attention_scale if name == "granite" else None,
        "embedding_scale": a.embedding_scale if name == "granite" else None,
        "residual_scale": a.residual_scale if name == "granite" else None,
        "attention.clamp_kqv": a.clip or None,
        "attention.max_alibi_bias": a.alibi_exponent,
        "attention.sliding_window": config.get("sliding_window"),
    }
    return {f"{name}.{key}": value for key, value in values.items() if value is not None}
