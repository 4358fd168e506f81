"""The answers of transformers to the inputs of the proof."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.convert.imported import Answers, Feeds
from sardonyx.convert.weights.architecture import Architecture
from sardonyx.errors import EvaluationError


def transformers_answers(
    folder: Path,
    architecture: Architecture,
    gguf: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> tuple[Callable[[Feeds], Answers] | None, str]:
    """Return the function from feeds to answers of transformers, or None and the reason.

    Args:
        folder: The folder of the weights.
        architecture: Sizes and family.
        gguf: Name of a GGUF file in the folder; None for safetensors.
        config: Fields of its configuration, which transformers reads in part.
    """
    absent = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if absent:
        return None, f"{' and '.join(absent)} not installed: pip install sardonyx[transformers]"
    import torch
    import transformers

    model: Any = None
    # Falcon's plain attention adds ALiBi twice: to the scores, and with the mask.
    attention = "sdpa" if architecture.family.positions == "scaled alibi" else "eager"

    def loaded() -> Any:
        nonlocal model
        if model is None:
            kind = getattr(transformers, "AutoModel" if architecture.family.is_encoder else "AutoModelForCausalLM")
            options: dict[str, Any] = {}
            if config is not None:
                options = {"gguf_file": gguf, "config": transformers.AutoConfig.for_model(**config)}
            read, information = kind.from_pretrained(
                folder,
                local_files_only=True,
                dtype=torch.float32,
                attn_implementation=attention,
                output_loading_info=True,
                **options,
            )
            missing = sorted(name for name in information["missing_keys"] if not name.startswith("pooler."))
            if missing:
                raise ValueError(f"it does not find {', '.join(missing[:3])} in the file")
            model = read.eval()
        for part in model.modules():
            _forget_length(part)
        return model

    def run(feeds: Feeds) -> Answers:
        try:
            tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in feeds.items()}
            with torch.no_grad():
                if architecture.family.is_encoder:
                    return _encoded(loaded(), tensors)
                return _decoded(loaded(), tensors, architecture)
        except (RuntimeError, ValueError, IndexError, ImportError, OSError, KeyError, AssertionError) as error:
            raise EvaluationError(f"transformers refuses: {error}", where=str(folder)) from error

    return run, ""


def _forget_length(part: Any) -> None:
    """Reset a dynamic rotary embedding: the module keeps frequencies of the longest call."""
    if hasattr(part, "max_seq_len_cached") and hasattr(part, "original_inv_freq"):
        part.max_seq_len_cached = part.original_max_seq_len
        part.inv_freq.copy_(part.original_inv_freq)


def _encoded(model: Any, tensors: Mapping[str, Any]) -> dict[str, Any]:
    result = model(**tensors)
    answer = {"last_hidden_state": result.last_hidden_state.numpy()}
    if getattr(result, "pooler_output", None) is not None:
        answer["pooler_output"] = result.pooler_output.numpy()
    return answer


def _decoded(model: Any, tensors: Mapping[str, Any], architecture: Architecture) -> dict[str, Any]:
    from transformers import DynamicCache

    repeats = architecture.heads // architecture.key_heads if architecture.family.repeats_cache else 1
    past = tensors["past_key_values.0.key"].shape[2]
    if tensors["attention_mask"].shape[1] != past + tensors["input_ids"].shape[1]:
        raise ValueError("attention_mask: expected as many columns as past and new tokens")
    cache = DynamicCache()
    if past:
        for i in range(len(architecture.layers)):
            key, value = (
                tensors[f"past_key_values.{i}.{part}"].repeat_interleave(repeats, 1) for part in ("key", "value")
            )
            cache.update(key, value, i)
    inputs = {name: tensor for name, tensor in tensors.items() if not name.startswith("past_key_values.")}
    result = model(**inputs, past_key_values=cache, use_cache=True)
    answer = {"logits": result.logits.numpy()}
    layers: Sequence[Any] = cache.layers
    for i, layer in enumerate(layers):
        keys, values = layer.keys[:, ::repeats], layer.values[:, ::repeats]
        answer[f"present.{i}.key"], answer[f"present.{i}.value"] = keys.numpy(), values.numpy()
    return answer
