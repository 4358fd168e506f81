"""Families by the architecture of a GGUF file, with the changes that the converters to GGUF make to the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sardonyx.convert.weights.architecture import FAMILIES, Architecture, from_fields
from sardonyx.convert.weights.family import Experts, Family, Names
from sardonyx.convert.weights.fields import Fields
from sardonyx.convert.weights.gguf import GgufFile
from sardonyx.errors import ModelFileError, UnsupportedError

_NAMES = Names(
    embedding="token_embd",
    positions="position_embd",
    embedding_norm="token_embd_norm",
    layer="blk.{}",
    attention_norm="attn_norm",
    attention_result_norm="post_attention_norm",
    feed_forward_norm="ffn_norm",
    feed_forward_result_norm="post_ffw_norm",
    q="attn_q",
    k="attn_k",
    v="attn_v",
    qkv="attn_qkv",
    o="attn_output",
    q_norm="attn_q_norm",
    k_norm="attn_k_norm",
    gate="ffn_gate",
    up="ffn_up",
    gate_up="ffn_up",
    down="ffn_down",
    final_norm="output_norm",
    head="output",
)
_LARGEST_GEMMAS = (46, 62)
"""Layers of Gemma 2 and 3 with 27B parameters: scores are divided by the root of width / heads."""
_EXPERTS = Experts(
    router="ffn_gate_inp",
    gates="ffn_gate_exps.weight",
    ups="ffn_up_exps.weight",
    downs="ffn_down_exps.weight",
    gate_up="ffn_gate_up_exps.weight",
)


@dataclass(frozen=True)
class GgufFamily:
    """An architecture of GGUF files.

    Attributes:
        name: ``model_type`` of the family in transformers.
        family: The family, with the changes of the converters.
        has_pairs: True if rotated pairs of queries and keys are neighbours, unlike in transformers' files.
        change: Returns the family by fields and tensors.
    """

    name: str
    family: Family
    has_pairs: bool = False
    change: Callable[[Family, Fields, GgufFile], tuple[Family, Fields]] | None = None


def _has(file: GgufFile, name: str) -> bool:
    return f"blk.0.{name}.weight" in file.shapes


def _falcon(family: Family, fields: Fields, file: GgufFile) -> tuple[Family, Fields]:
    has_two = _has(file, "attn_norm_2")
    first, second = ("attn_norm_2", "attn_norm") if has_two else ("attn_norm", "")
    names = replace(family.names, attention_norm=first, feed_forward_norm=second)
    return replace(family, names=names, is_parallel=True, variant=None, repeats_cache=has_two), fields.changed(
        hidden_act="gelu"
    )


def _stablelm(family: Family, fields: Fields, file: GgufFile) -> tuple[Family, Fields]:
    is_parallel, has_norms = not _has(file, "ffn_norm"), _has(file, "attn_q_norm")
    return family, fields.changed(use_parallel_residual=is_parallel, qk_layernorm=has_norms)


def _cohere(family: Family, fields: Fields, file: GgufFile) -> tuple[Family, Fields]:
    return family, fields.changed(use_qk_norm=_has(file, "attn_q_norm"))


def _gemma2(family: Family, fields: Fields, file: GgufFile) -> tuple[Family, Fields]:
    """The scale of scores of the largest model, whose number of layers tells it."""
    if fields.get("num_hidden_layers") in _LARGEST_GEMMAS:
        width = fields.integer("hidden_size") / fields.integer("num_attention_heads")
        fields = fields.changed(query_pre_attn_scalar=width)
    return family, fields


def _gemma3(family: Family, fields: Fields, file: GgufFile) -> tuple[Family, Fields]:
    return _gemma2(family, fields.changed(rope_local_base_freq=10000.0), file)


def _granite(family: Family, fields: Fields, file: GgufFile) -> tuple[Family, Fields]:
    return family, fields.changed(logits_scaling=fields.get("logit_scale"), logit_scale=None)


def _mpt(family: Family, fields: Fields, file: GgufFile) -> tuple[Family, Fields]:
    if "position_embd.weight" in file.shapes or _has(file, "attn_q_norm"):
        raise UnsupportedError("MPT with learned positions or norms of queries", where=fields.where)
    return replace(family, variant=None), fields.changed(hidden_act="gelu")


def _without_variant(family: Family, fields: Fields, file: GgufFile) -> tuple[Family, Fields]:
    return replace(family, variant=None), fields


def _neox(family: Family, fields: Fields, file: GgufFile) -> tuple[Family, Fields]:
    is_parallel = fields.flag("use_parallel_residual", default=True)
    return replace(family, variant=None, is_parallel=is_parallel), fields


def _bloom(family: Family, fields: Fields, file: GgufFile) -> tuple[Family, Fields]:
    return replace(family, variant=None), fields.changed(hidden_act="gelu_new")


GGUF_FAMILIES: dict[str, GgufFamily] = {
    "llama": GgufFamily("llama", FAMILIES["llama"], has_pairs=True),
    "qwen2": GgufFamily("qwen2", replace(FAMILIES["qwen2"], defaults={}), change=_without_variant),
    "qwen2moe": GgufFamily("qwen2_moe", FAMILIES["qwen2_moe"]),
    "qwen3": GgufFamily("qwen3", FAMILIES["qwen3"]),
    "qwen3moe": GgufFamily("qwen3_moe", replace(FAMILIES["qwen3_moe"], experts=Experts(is_normalized=True))),
    "gemma": GgufFamily("gemma", replace(FAMILIES["gemma"], norm="rms")),
    "gemma2": GgufFamily("gemma2", replace(FAMILIES["gemma2"], norm="rms"), change=_gemma2),
    "gemma3": GgufFamily("gemma3_text", replace(FAMILIES["gemma3_text"], norm="rms"), change=_gemma3),
    "phi2": GgufFamily("phi", FAMILIES["phi"]),
    "phi3": GgufFamily("phi3", replace(FAMILIES["phi3"], window_period=0)),
    "stablelm": GgufFamily("stablelm", FAMILIES["stablelm"], change=_stablelm),
    "starcoder2": GgufFamily("starcoder2", replace(FAMILIES["starcoder2"], window_period=0)),
    "nemotron": GgufFamily("nemotron", replace(FAMILIES["nemotron"], norm="layer")),
    "gpt2": GgufFamily("gpt2", replace(FAMILIES["gpt2"], is_transposed=False)),
    "starcoder": GgufFamily("gpt_bigcode", FAMILIES["gpt_bigcode"], change=_without_variant),
    "gptneox": GgufFamily("gpt_neox", replace(FAMILIES["gpt_neox"], fused="rows"), change=_neox),
    "falcon": GgufFamily("falcon", replace(FAMILIES["falcon"], fused="rows"), change=_falcon),
    "bloom": GgufFamily("bloom", replace(FAMILIES["bloom"], fused="rows"), change=_bloom),
    "mpt": GgufFamily("mpt", FAMILIES["mpt"], change=_mpt),
    "command-r": GgufFamily("cohere", FAMILIES["cohere"], change=_cohere),
    "cohere2": GgufFamily("cohere2", FAMILIES["cohere2"], change=_cohere),
    "olmo": GgufFamily("olmo", FAMILIES["olmo"], has_pairs=True),
    "olmo2": GgufFamily("olmo2", FAMILIES["olmo2"]),
    "granite": GgufFamily("granite", FAMILIES["granite"], has_pairs=True, change=_granite),
    "glm4": GgufFamily("glm4", FAMILIES["glm4"]),
}
"""Rows by ``general.architecture``."""

_KEYS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rope_theta": "rope.freq_base",
    "max_position_embeddings": "context_length",
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "logit_scale": "logit_scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention.scale",
    "clip_qkv": "attention.clamp_kqv",
    "use_parallel_residual": "use_parallel_residual",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "norm_topk_prob": "expert_weights_norm",
}


@dataclass(frozen=True)
class GgufDescription:
    """The description of a GGUF file.

    Attributes:
        architecture: Sizes and variants.
        has_pairs: See :class:`GgufFamily`.
        config: The fields of the configuration that transformers needs.
    """

    architecture: Architecture
    has_pairs: bool
    config: Mapping[str, Any]


def from_gguf(file: GgufFile) -> GgufDescription:
    """Return the description of a GGUF file.

    Raises:
        UnsupportedError: The architecture or a variant has no translation.
        ModelFileError: A value is missing or out of range.
    """
    where, metadata = file.where, file.metadata
    name = str(metadata.get("general.architecture", ""))
    if name not in GGUF_FAMILIES:
        remedy = f"Known are {', '.join(GGUF_FAMILIES)}."
        raise UnsupportedError(f"architecture '{name}'", where=where, remedy=remedy)
    row = GGUF_FAMILIES[name]
    values = {field: _scalar(metadata, f"{name}.{key}", where) for field, key in _KEYS.items()}
    values = {field: value for field, value in values.items() if value is not None}
    if "rms_norm_eps" not in values and "layer_norm_eps" not in values:
        raise ModelFileError(f"metadata '{name}.attention.layer_norm_rms_epsilon' is missing", where=where)
    values["vocab_size"] = file.shapes.get("token_embd.weight", (0,))[0]
    values["tie_word_embeddings"] = "output.weight" not in file.shapes
    values |= _rotary_values(name, file)
    family = replace(row.family, names=_renamed(row.family.names), prefixes=())
    if row.family.experts or values.get("num_experts"):
        family = replace(family, experts=_experts(row.family.experts))
        layers = range(min(int(values["num_hidden_layers"]), len(file.shapes))) if "num_hidden_layers" in values else ()
        values["mlp_only_layers"] = [i for i in layers if f"blk.{i}.ffn_gate_inp.weight" not in file.shapes]
    # Defaults of fields that only transformers' files have; sizes come from the file alone.
    defaults = {key: value for key, value in family.defaults.items() if key not in _FROM_FILE}
    fields = Fields(values, where, defaults)
    if row.change is not None:
        family, fields = row.change(family, fields, file)
    if family.positions == "rotary" and _scalar(metadata, f"{name}.attention.value_length", where) not in (
        None,
        fields.get("head_dim"),
    ):
        raise UnsupportedError("values of another size than keys", where=where)
    architecture = from_fields(name, family, fields)
    return GgufDescription(architecture, row.has_pairs, _config(row, architecture, fields, file))


def _config(row: GgufFamily, architecture: Architecture, fields: Fields, file: GgufFile) -> dict[str, Any]:
    """Return the configuration in the words of transformers, whose own reader leaves out most of the metadata."""
    name = "mixtral" if row.name == "llama" and architecture.family.experts else row.name
    config = {"model_type": name, "pad_token_id": None, **fields.present()}
    config["norm_topk_prob"] = architecture.normalizes_experts
    if "query_pre_attn_scalar" in row.family.defaults:
        config["query_pre_attn_scalar"] = round(architecture.attention_scale**-2)
    has_bias = "blk.0.attn_q.bias" in file.shapes or "blk.0.attn_qkv.bias" in file.shapes
    config |= dict.fromkeys(("use_qkv_bias", "attention_bias", "use_bias", "bias"), has_bias)
    if row.name == "falcon":
        config |= {
            "new_decoder_architecture": architecture.family.repeats_cache,
            "num_kv_heads": architecture.key_heads,
        }
    widths = {"intermediate_size": "ffn_up", "moe_intermediate_size": "ffn_up_exps"}
    widths |= {"shared_expert_intermediate_size": "ffn_up_shexp"}
    for field, tensor in widths.items():
        shape = file.shapes.get(f"blk.0.{tensor}.weight")
        if shape:
            config[field] = shape[-2] // (2 if architecture.family.names.gate_up else 1)
    if "moe_intermediate_size" in config:
        config.setdefault("intermediate_size", config["moe_intermediate_size"])
    rotary = config.pop("rope_parameters", None) or {"rope_type": "default"}
    if "original_max_position_embeddings" in rotary:
        config["original_max_position_embeddings"] = rotary["original_max_position_embeddings"]
    rotary["rope_theta"] = fields.get("rope_theta") or 10000.0
    if config.get("rotary_dim"):
        rotary["partial_rotary_factor"] = config.pop("rotary_dim") / architecture.head_size
    local = {"rope_type": "default", "rope_theta": config.pop("rope_local_base_freq", None)}
    config["rope_parameters"] = (
        {"full_attention": rotary, "sliding_attention": local} if architecture.family.has_local_rotary else rotary
    )
    return config


_FROM_FILE = frozenset(
    {
        "head_dim",
        "rotary_dim",
        "partial_rotary_factor",
        "query_pre_attn_scalar",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "tie_word_embeddings",
    }
)


def _scalar(metadata: Mapping[str, Any], key: str, where: str) -> Any:
    """Return a value as a Python scalar; a list by layer must have one value."""
    value = metadata.get(key)
    if isinstance(value, np.ndarray):
        if value.size == 0 or (value != value.flat[0]).any():
            raise UnsupportedError(f"metadata '{key}' differs by layer", where=where)
        value = value.flat[0].item()
    return value


def _renamed(names: Names) -> Names:
    """Return the names of GGUF for the weights that a family has."""
    roles = {role: value if getattr(names, role) else "" for role, value in vars(_NAMES).items()}
    return replace(_NAMES, **roles)


def _experts(experts: Experts | None) -> Experts:
    base = experts or Experts(is_normalized=True)
    shared = tuple(f"ffn_{part}_shexp" for part in ("gate", "up", "down")) if base.shared else ()
    return replace(
        _EXPERTS,
        choice=base.choice,
        is_normalized=base.is_normalized,
        shared=shared,
        shared_gate="ffn_gate_inp_shexp" if base.shared_gate else "",
    )


def _rotary_values(name: str, file: GgufFile) -> dict[str, Any]:
    """Return the fields of the rotary embedding."""
    metadata, where = file.metadata, file.where
    values: dict[str, Any] = {"rotary_dim": _scalar(metadata, f"{name}.rope.dimension_count", where)}
    kind = metadata.get(f"{name}.rope.scaling.type", "none")
    parameters: dict[str, Any] = {}
    tables = {
        part: np.asarray(file.tensor(f"rope_{part}.weight"), np.float64).tolist()
        for part in ("factors_short", "factors_long", "freqs")
        if f"rope_{part}.weight" in file.shapes
    }
    if "factors_short" in tables and "factors_long" in tables:
        parameters = {
            "rope_type": "longrope",
            "short_factor": tables["factors_short"],
            "long_factor": tables["factors_long"],
            "attention_factor": _scalar(metadata, f"{name}.rope.scaling.attn_factor", where),
        }
    elif "freqs" in tables:
        table = tables["freqs"]
        parameters = {"rope_type": "longrope", "short_factor": table, "long_factor": table, "attention_factor": 1.0}
        # Both tables are one, so that any limit serves.
        parameters["original_max_position_embeddings"] = 2
    elif kind in ("linear", "yarn"):
        parameters = {"rope_type": kind, "factor": _scalar(metadata, f"{name}.rope.scaling.factor", where)}
    elif kind not in ("none", "longrope"):
        raise UnsupportedError(f"rotary embedding of type '{kind}'", where=where)
    original = _scalar(metadata, f"{name}.rope.scaling.original_context_length", where)
    if parameters and original is not None:
        parameters["original_max_position_embeddings"] = original
    values["rope_parameters"] = parameters or None
    return values
