"""Every family answers as transformers does, whole and from a cache; bad configurations end in named errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.convert.imported import Options
from sardonyx.convert.weights.architecture import FAMILIES, from_config
from sardonyx.convert.weights.fields import Fields
from sardonyx.convert.weights.importer import ways
from sardonyx.convert.weights.rotary import rotary_of
from sardonyx.errors import ModelFileError, SardonyxError, UnsupportedError
from tests.convert.weights.checkpoints import decoder_feeds, llama_weights, write_folder
from tests.convert.weights.logits import CASES, IDS, recorded, write

RECORDED = recorded()


@pytest.mark.sampled
@pytest.mark.parametrize("case", CASES)
def test_a_family_answers_as_transformers_does(case: str, tmp_path: Path) -> None:
    recording = RECORDED[case]
    write(tmp_path, recording["config"], recording["shapes"])
    model = sardonyx.convert(str(tmp_path), verify=False).model
    session = sardonyx.Session(model, compile="off")
    expected = np.array(recording["last"], np.float32)
    scale = np.abs(expected).max()
    if FAMILIES[CASES[case][0]].is_encoder:
        feeds = {"input_ids": IDS, "attention_mask": np.ones_like(IDS), "token_type_ids": np.zeros_like(IDS)}
        hidden = session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()})[0]
        np.testing.assert_allclose(hidden[0, -1], expected, atol=2e-5 * scale)
        return
    empty = {
        value.name: np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
        for value in session.get_inputs()
        if value.name.startswith("past_key_values.")
    }
    names = [value.name.replace("present", "past_key_values") for value in session.get_outputs()[1:]]
    whole = session.run(None, decoder_feeds(session, IDS, empty, 0))
    np.testing.assert_allclose(whole[0][0, -1], expected, atol=2e-5 * scale)
    first = session.run(None, decoder_feeds(session, IDS[:, :4], empty, 0))
    rest = session.run(None, decoder_feeds(session, IDS[:, 4:], dict(zip(names, first[1:], strict=True)), 4))
    if "dynamic" not in case and "longrope" not in case:
        # Keys that were rotated before the number of positions exceeded the limit keep their rotation.
        np.testing.assert_allclose(rest[0][0, -1], expected, atol=2e-5 * scale)


def test_every_family_has_a_case() -> None:
    without_transformers = {"internlm2", "internlm3"}
    assert {kind for kind, _ in CASES.values()} == set(FAMILIES) - without_transformers


def test_examples_of_encoders_have_token_types_that_the_checkpoint_has(tmp_path: Path) -> None:
    recording = RECORDED["xlm-roberta-xl"]
    write(tmp_path, recording["config"], recording["shapes"])
    assert recording["shapes"]["embeddings.token_type_embeddings.weight"][0] == 1
    (way,) = ways(str(tmp_path), Options())
    assert all(not example["token_type_ids"].any() for example in way.read().examples)


def test_groups_of_experts_share_the_experts_evenly(tmp_path: Path) -> None:
    recording = RECORDED["glm4_moe"]
    write(tmp_path, {**recording["config"], "n_group": 4}, recording["shapes"])
    with pytest.raises(ModelFileError, match="6 experts are not a multiple of 4 groups"):
        sardonyx.convert(str(tmp_path), verify=False)


def test_groups_have_as_many_experts_as_their_rank_needs(tmp_path: Path) -> None:
    recording = RECORDED["deepseek_v3"]
    write(tmp_path, {**recording["config"], "n_group": 6, "topk_group": 2}, recording["shapes"])
    with pytest.raises(ModelFileError, match="6 groups of 1 experts, expected at least 2 in each"):
        sardonyx.convert(str(tmp_path), verify=False)


def test_more_experts_than_the_best_groups_have_weigh_nothing(tmp_path: Path) -> None:
    recording = RECORDED["deepseek_v2 groups"]
    answers = []
    for chosen in (2, 3):  # One group of two experts.
        folder = tmp_path / str(chosen)
        folder.mkdir()
        write(folder, {**recording["config"], "topk_group": 1, "num_experts_per_tok": chosen}, recording["shapes"])
        session = sardonyx.Session(sardonyx.convert(str(folder), verify=False).model)
        empty = {
            value.name: np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
            for value in session.get_inputs()
            if value.name.startswith("past_key_values.")
        }
        answers.append(session.run(None, decoder_feeds(session, IDS, empty, 0))[0])
    assert np.isfinite(answers[0]).all()
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-5)


def test_the_cache_of_latent_attention_is_one_short_row(tmp_path: Path) -> None:
    recording = RECORDED["deepseek_v3"]
    write(tmp_path, recording["config"], recording["shapes"])
    model = sardonyx.convert(str(tmp_path), verify=False).model
    shapes = {value.name: value.shape for value in model.graph.inputs}
    rank, rotated = recording["config"]["kv_lora_rank"], recording["config"]["qk_rope_head_dim"]
    assert list(shapes["past_key_values.0.key"])[1:] == [1, "past", rank]
    assert list(shapes["past_key_values.0.value"])[1:] == [1, "past", rotated]


@pytest.mark.parametrize("method", ["noaux_tc", ""])
def test_an_unknown_choice_of_experts_is_refused(tmp_path: Path, method: str) -> None:
    recording = RECORDED["deepseek_v2"]
    write(tmp_path, {**recording["config"], "topk_method": method}, recording["shapes"])
    with pytest.raises(UnsupportedError, match=f"topk_method '{method}'"):
        sardonyx.convert(str(tmp_path), verify=False)


def test_one_bucket_of_positions_is_refused() -> None:
    with pytest.raises(ModelFileError, match="position_buckets"):
        from_config({**RECORDED["deberta-v2"]["config"], "position_buckets": 1}, "config.json")


@pytest.mark.parametrize("case", ["smollm3 windows", "llama4_text", "gpt_oss", "cwm"])
def test_kinds_of_layers_follow_from_other_fields(case: str) -> None:
    config = {name: value for name, value in RECORDED[case]["config"].items() if name != "layer_types"}
    expected = from_config(RECORDED[case]["config"], "config.json")
    if case == "cwm":  # Of four layers, the first has no window; the case lists other kinds.
        assert from_config(config, "config.json").windows == (0, 4, 4)
        return
    assert from_config(config, "config.json").windows == expected.windows


def test_fused_rows_by_key_head_are_those_of_llama(tmp_path: Path) -> None:
    weights = llama_weights(np.random.default_rng(2))
    layer, size = "model.layers.0", 8
    q, k, v = (weights.pop(f"{layer}.self_attn.{part}_proj.weight") for part in "qkv")
    parts = (q.reshape(2, 2 * size, -1), k.reshape(2, size, -1), v.reshape(2, size, -1))
    names = {
        "model.embed_tokens.weight": "model.tok_embeddings.weight",
        "lm_head.weight": "output.weight",
        f"{layer}.input_layernorm.weight": f"{layer}.attention_norm.weight",
        f"{layer}.post_attention_layernorm.weight": f"{layer}.ffn_norm.weight",
        f"{layer}.self_attn.o_proj.weight": f"{layer}.attention.wo.weight",
        f"{layer}.mlp.gate_proj.weight": f"{layer}.feed_forward.w1.weight",
        f"{layer}.mlp.up_proj.weight": f"{layer}.feed_forward.w3.weight",
        f"{layer}.mlp.down_proj.weight": f"{layer}.feed_forward.w2.weight",
    }
    fused = {names.get(name, name): array for name, array in weights.items()}
    fused[f"{layer}.attention.wqkv.weight"] = np.concatenate(parts, 1).reshape(-1, q.shape[1])
    for part, array in zip("qkv", (q, k, v), strict=True):
        weights[f"{layer}.self_attn.{part}_proj.weight"] = array
    answers = []
    for kind, arrays in (("llama", weights), ("internlm2", fused)):
        folder = tmp_path / kind
        folder.mkdir()
        write_folder(folder, arrays, model_type=kind)
        session = sardonyx.Session(sardonyx.convert(str(folder), verify=False).model, compile="off")
        empty = dict.fromkeys(
            (f"past_key_values.0.{part}" for part in ("key", "value")), np.zeros((1, 2, 0, 8), np.float32)
        )
        answers.append(session.run(["logits"], decoder_feeds(session, IDS, empty, 0))[0])
    np.testing.assert_allclose(answers[1], answers[0], atol=1e-6)


BAD_FIELDS: list[dict[str, Any]] = [
    {"num_hidden_layers": 10**9},
    {"num_hidden_layers": 0},
    {"num_hidden_layers": "3"},
    {"num_hidden_layers": True},
    {"hidden_size": 10**12},
    {"hidden_size": -32},
    {"hidden_size": None},
    {"hidden_size": [32]},
    {"num_attention_heads": 10**9},
    {"num_attention_heads": 5},
    {"num_key_value_heads": 3},
    {"head_dim": 10**9},
    {"head_dim": 7},
    {"vocab_size": 10**15},
    {"rms_norm_eps": "small"},
    {"rms_norm_eps": float("nan")},
    {"rope_theta": 0},
    {"rope_theta": float("inf")},
    {"rope_scaling": 3},
    {"rope_scaling": {"rope_type": "linear"}},
    {"rope_scaling": {"rope_type": "linear", "factor": 0}},
    {"rope_scaling": {"rope_type": "unheard"}},
    {"rope_scaling": {"rope_type": "llama3", "factor": 8}},
    {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0] * 4}},
    {"rope_scaling": {"rope_type": "longrope", "short_factor": ["a"] * 4, "long_factor": [1.0] * 4}},
    {"rope_scaling": {"rope_type": "yarn", "factor": 1e300}},
    {"partial_rotary_factor": 2.0},
    {"partial_rotary_factor": 1e-9},
    {"hidden_act": "unheard"},
    {"hidden_act": 3},
    {"tie_word_embeddings": "yes"},
    {"quantization_config": {"quant_method": "gptq"}},
    {"model_type": 3},
    {"model_type": "gpt_neo", "attention_types": [[["global"], 10**12]]},
    {"model_type": "gpt_neo", "attention_types": 4},
    {"model_type": "mistral", "sliding_window": "all"},
    {"model_type": "ministral", "sliding_window": 4, "layer_types": ["sliding_attention"] * 9},
    {"model_type": "mixtral", "num_local_experts": 10**9},
    {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3},
    {"model_type": "qwen2_moe", "mlp_only_layers": 5},
    {"model_type": "albert", "inner_group_num": 10**9},
    {"model_type": "bert", "position_embedding_type": "relative_key"},
    {"model_type": "falcon", "num_kv_heads": 10**9, "new_decoder_architecture": True},
    {"model_type": "mpt", "attn_config": 4},
]


@pytest.mark.parametrize("fields", BAD_FIELDS, ids=lambda fields: json.dumps(fields)[:60])
def test_bad_configurations_end_in_named_errors(fields: dict[str, Any], tmp_path: Path) -> None:
    write_folder(tmp_path, llama_weights(np.random.default_rng(0)), **fields)
    with pytest.raises((ModelFileError, UnsupportedError)):
        sardonyx.convert(str(tmp_path), verify=False)


def test_a_configuration_that_is_no_object_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, llama_weights(np.random.default_rng(0)))
    for text in ("[]", "3", "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ModelFileError):
            sardonyx.convert(str(tmp_path), verify=False)


def test_a_weight_of_other_sizes_is_named(tmp_path: Path) -> None:
    weights = llama_weights(np.random.default_rng(0))
    weights["model.layers.0.self_attn.k_proj.weight"] = np.zeros((24, 32), np.float32)
    write_folder(tmp_path, weights)
    with pytest.raises(ModelFileError, match=r"k_proj\.weight' has sizes \[24, 32\], the config.* expects \[16, 32\]"):
        sardonyx.convert(str(tmp_path))


def test_weights_without_use_are_named(tmp_path: Path) -> None:
    weights = llama_weights(np.random.default_rng(0))
    weights["model.layers.0.self_attn.sinks"] = np.zeros(4, np.float32)
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(4, np.float32)
    write_folder(tmp_path, weights)
    with pytest.raises(UnsupportedError, match=r"no use for 1 tensors .*'model\.layers\.0\.self_attn\.sinks'"):
        sardonyx.convert(str(tmp_path))


def test_a_bias_that_one_layer_lacks_is_named(tmp_path: Path) -> None:
    recording = RECORDED["qwen2"]
    shapes = {
        name: shape for name, shape in recording["shapes"].items() if name != "model.layers.1.self_attn.q_proj.bias"
    }
    write(tmp_path, recording["config"], shapes)
    with pytest.raises(ModelFileError, match=r"layers\.1\.self_attn\.q_proj\.bias' is missing"):
        sardonyx.convert(str(tmp_path))


def test_a_head_that_is_not_tied_has_to_exist(tmp_path: Path) -> None:
    weights = llama_weights(np.random.default_rng(0))
    del weights["lm_head.weight"]
    write_folder(tmp_path, weights)
    with pytest.raises(ModelFileError, match=r"lm_head\.weight' is missing"):
        sardonyx.convert(str(tmp_path))


def test_old_configurations_of_local_rotary_embeddings_are_those_of_new_ones() -> None:
    new = RECORDED["gemma3_text"]["config"]
    old = {name: value for name, value in new.items() if name != "rope_parameters"}
    old |= {"rope_theta": 1e6, "rope_local_base_freq": 10000.0}
    assert from_config(old, "").rotary == from_config(new, "").rotary


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("mistral", {}, [4096] * 8),
        ("mistral", {"sliding_window": None}, [0] * 8),
        ("ministral", {}, [4096] * 8),
        ("olmo3", {}, [4096, 4096, 4096, 0] * 2),
        ("exaone4", {}, [4096, 4096, 4096, 0] * 2),
        ("cwm", {}, [0, 8192, 8192, 8192] * 2),
        ("dots1", {"max_window_layers": 6}, [0] * 6 + [4096] * 2),
        ("dots1", {}, [0] * 8),
        ("qwen2", {}, [0] * 8),
        ("qwen2", {"use_sliding_window": True}, [0] * 8),
        ("qwen3", {"use_sliding_window": True, "max_window_layers": 6}, [0] * 6 + [4096] * 2),
        ("qwen2_moe", {"use_sliding_window": True, "max_window_layers": 5}, [4096, 0, 4096, 0, 4096, 0, 0, 0]),
        ("qwen3_moe", {"use_sliding_window": True, "max_window_layers": 6}, [4096] * 8),
    ],
)
def test_windows_of_short_configurations_are_those_of_transformers(
    name: str, fields: dict[str, Any], expected: list[int]
) -> None:
    """The expected windows are those of the classes of configurations of transformers 5.24."""
    names = ("layer_types", "sliding_window", "max_window_layers", "use_sliding_window")
    config = {key: value for key, value in RECORDED[name]["config"].items() if key not in names}
    assert list(from_config({**config, "num_hidden_layers": 8, **fields}, "").windows) == expected


def test_random_fields_never_end_in_other_errors() -> None:
    generator = np.random.default_rng(0)
    values = [None, 0, -1, 3, 1e308, "x", [], {}, [1, 2], True, 10**30, 0.5]
    for case, recording in RECORDED.items():
        names = sorted(recording["config"])
        for _ in range(40):
            config = dict(recording["config"])
            for name in generator.choice(names, 2):
                config[str(name)] = values[generator.integers(len(values))]
            try:
                from_config(config, case)
            except SardonyxError:
                continue


def test_yarn_keeps_fast_frequencies_and_divides_slow_ones() -> None:
    fields = Fields({"max_position_embeddings": 4096}, "")
    parameters = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    plain = rotary_of(fields, {}, 64).frequencies
    stretched = rotary_of(fields, parameters, 64).frequencies
    assert stretched[0] == plain[0]
    assert stretched[-1] == pytest.approx(plain[-1] / 4)
