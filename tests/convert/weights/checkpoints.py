"""Small checkpoints with random weights, and their answers in numpy."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

HIDDEN, HEADS, KEYS, SIZE, INNER, TOKENS = 32, 4, 2, 8, 64, 50
GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "model.layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
    "model.layers.0.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
    "model.layers.0.self_attn.q_proj.weight": "blk.0.attn_q.weight",
    "model.layers.0.self_attn.k_proj.weight": "blk.0.attn_k.weight",
    "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
    "model.layers.0.self_attn.o_proj.weight": "blk.0.attn_output.weight",
    "model.layers.0.mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
    "model.layers.0.mlp.up_proj.weight": "blk.0.ffn_up.weight",
    "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
}
"""Names of a GGUF file by those of :func:`llama_weights`."""


def llama_weights(rng: np.random.Generator) -> dict[str, Any]:
    """Return weights of one layer of Llama."""
    layer = "model.layers.0"
    shapes = {
        "model.embed_tokens.weight": (TOKENS, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (TOKENS, HIDDEN),
        f"{layer}.input_layernorm.weight": (HIDDEN,),
        f"{layer}.post_attention_layernorm.weight": (HIDDEN,),
        f"{layer}.self_attn.q_proj.weight": (HEADS * SIZE, HIDDEN),
        f"{layer}.self_attn.k_proj.weight": (KEYS * SIZE, HIDDEN),
        f"{layer}.self_attn.v_proj.weight": (KEYS * SIZE, HIDDEN),
        f"{layer}.self_attn.o_proj.weight": (HIDDEN, HEADS * SIZE),
        f"{layer}.mlp.gate_proj.weight": (INNER, HIDDEN),
        f"{layer}.mlp.up_proj.weight": (INNER, HIDDEN),
        f"{layer}.mlp.down_proj.weight": (HIDDEN, INNER),
    }
    return {name: (rng.standard_normal(shape) * 0.3).astype(np.float32) for name, shape in shapes.items()}


def write_folder(folder: Path, weights: dict[str, Any], **config: Any) -> None:
    fields = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEYS,
        "vocab_size": TOKENS,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
    }
    (folder / "config.json").write_text(json.dumps({**fields, **config}))
    safetensors.numpy.save_file(weights, folder / "model.safetensors")


def llama_logits(weights: dict[str, Any], ids: np.ndarray) -> np.ndarray:
    """Return logits of one sequence without a cache, in float64."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    layer = "model.layers.0"
    count = len(ids)
    angles = np.arange(count)[:, None] * 10000.0 ** -(np.arange(0, SIZE, 2) / SIZE)
    cosine, sine = np.cos(angles), np.sin(angles)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w[name]

    def rotated(x: np.ndarray) -> np.ndarray:
        first, second = x[..., : SIZE // 2], x[..., SIZE // 2 :]
        return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)

    def heads(x: np.ndarray, name: str, number: int) -> np.ndarray:
        return (x @ w[f"{layer}.self_attn.{name}_proj.weight"].T).reshape(count, number, SIZE).transpose(1, 0, 2)

    x = w["model.embed_tokens.weight"][ids]
    normal = norm(x, f"{layer}.input_layernorm.weight")
    q, k = rotated(heads(normal, "q", HEADS)), rotated(heads(normal, "k", KEYS))
    k, v = (np.repeat(part, HEADS // KEYS, axis=0) for part in (k, heads(normal, "v", KEYS)))
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(SIZE) + np.triu(np.full((count, count), -np.inf), 1)
    share = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (share / share.sum(-1, keepdims=True)) @ v
    x = x + mixed.transpose(1, 0, 2).reshape(count, -1) @ w[f"{layer}.self_attn.o_proj.weight"].T
    normal = norm(x, f"{layer}.post_attention_layernorm.weight")
    gate, up = (normal @ w[f"{layer}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{layer}.mlp.down_proj.weight"].T
    return norm(x, "model.norm.weight") @ w["lm_head.weight"].T


def gguf(tensors: dict[str, tuple[int, tuple[int, ...], bytes]], metadata: dict[str, Any]) -> bytes:
    """Return a GGUF file of tensors (type, sizes outermost first, data) and metadata (texts, integers, floats)."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    def entry(value: Any) -> bytes:
        if isinstance(value, str):
            return struct.pack("<I", 8) + text(value)
        return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)

    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(text(key) + entry(value) for key, value in metadata.items())
    body = b""
    for name, (kind, shape, data) in tensors.items():
        body += bytes(-len(body) % 32)
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, len(body))
        body += data
    return head + bytes(-len(head) % 32) + body


def q8_0(weight: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Return a matrix in blocks of 32 integers of 8 bits, and the elements that the blocks stand for."""
    blocks = weight.reshape(-1, 32)
    scale = (np.abs(blocks).max(1, keepdims=True) / 127).astype(np.float16)
    integers = np.round(blocks / scale.astype(np.float32)).clip(-127, 127).astype(np.int8)
    data = b"".join(s.tobytes() + q.tobytes() for s, q in zip(scale, integers, strict=True))
    return data, (integers * scale.astype(np.float32)).reshape(weight.shape)


def decoder_feeds(session: Any, ids: np.ndarray, caches: dict[str, Any], past: int) -> dict[str, Any]:
    """Return the feeds of a decoder of batch 1 after `past` positions."""
    feeds = {
        "input_ids": ids,
        "attention_mask": np.ones((1, past + ids.shape[1]), np.int64),
        "position_ids": np.arange(past, past + ids.shape[1])[None],
        **caches,
    }
    return {value.name: feeds[value.name] for value in session.get_inputs()}
