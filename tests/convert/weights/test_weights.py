"""Checkpoints become decoders with caches; blocks of integers stay blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import sardonyx
from sardonyx.convert.weights.blocks import Blocks
from sardonyx.convert.weights.checkpoint import SafetensorsFiles
from sardonyx.convert.weights.gguf import GgufFile
from sardonyx.errors import ModelFileError, SardonyxError, UnsupportedError
from tests.convert.weights.checkpoints import (
    GGUF_NAMES,
    HEADS,
    HIDDEN,
    KEYS,
    SIZE,
    TOKENS,
    gguf,
    llama_logits,
    llama_weights,
    q8_0,
    write_folder,
)


def feeds(ids: np.ndarray, past: int, caches: list[Any]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "input_ids": ids[None],
        "attention_mask": np.ones((1, past + len(ids)), np.int64),
        "position_ids": np.arange(past, past + len(ids))[None],
    }
    names = ("past_key_values.0.key", "past_key_values.0.value")
    return {**result, **dict(zip(names, caches, strict=True))}


def empty_caches() -> list[Any]:
    return [np.zeros((1, KEYS, 0, SIZE), np.float32)] * 2


def test_a_folder_becomes_a_decoder_whose_cache_continues(tmp_path: Path) -> None:
    weights = llama_weights(np.random.default_rng(0))
    write_folder(tmp_path, weights)
    session = sardonyx.Session(sardonyx.convert(str(tmp_path), verify=False).model)
    ids = np.array([3, 7, 1, 49, 20])
    expected = llama_logits(weights, ids)
    whole = session.run(None, feeds(ids, 0, empty_caches()))
    np.testing.assert_allclose(whole[0][0], expected, rtol=1e-4, atol=1e-4)
    first = session.run(None, feeds(ids[:3], 0, empty_caches()))
    rest = session.run(None, feeds(ids[3:], 3, first[1:]))
    np.testing.assert_allclose(rest[0][0], expected[3:], rtol=1e-4, atol=1e-4)


def test_the_tokenizer_is_carried(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    write_folder(tmp_path / "from", llama_weights(np.random.default_rng(0)))
    (tmp_path / "from" / "tokenizer.json").write_text("{}")
    sardonyx.convert(str(tmp_path / "from"), verify=False).save(tmp_path / "to" / "model.onnx", unproved=True)
    assert (tmp_path / "to" / "tokenizer.json").read_text() == "{}"


def test_blocks_of_a_gguf_file_stay_integers(tmp_path: Path) -> None:
    weights = llama_weights(np.random.default_rng(1))
    tensors: dict[str, Any] = {}
    for name, array in weights.items():
        if array.ndim == 1:
            tensors[GGUF_NAMES[name]] = (0, array.shape, array.tobytes())
            continue
        data, weights[name] = q8_0(array)
        tensors[GGUF_NAMES[name]] = (8, array.shape, data)
    metadata = {
        "general.architecture": "qwen2",
        "qwen2.block_count": 1,
        "qwen2.embedding_length": HIDDEN,
        "qwen2.attention.head_count": HEADS,
        "qwen2.attention.head_count_kv": KEYS,
        "qwen2.attention.layer_norm_rms_epsilon": 1e-5,
        "qwen2.rope.freq_base": 10000.0,
    }
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(tensors, metadata))
    model = sardonyx.convert(str(path), verify=False).model
    stored = [value.const_value for value in model.graph.initializers.values()]
    integers = sum(t.size for t in stored if t is not None and t.dtype.name == "INT8")
    assert integers == sum(array.size for array in weights.values() if array.ndim == 2)
    ids = np.array([3, 7, 1])
    result = sardonyx.Session(model).run(None, feeds(ids, 0, empty_caches()))
    np.testing.assert_allclose(result[0][0], llama_logits(weights, ids), rtol=1e-4, atol=1e-4)


def test_a_second_copy_of_the_weights_is_not_read(tmp_path: Path) -> None:
    weights = llama_weights(np.random.default_rng(0))
    write_folder(tmp_path, weights)
    safetensors.numpy.save_file({"tok_embeddings.weight": np.zeros((2, 2))}, tmp_path / "consolidated.safetensors")
    sardonyx.convert(str(tmp_path), verify=False)
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00001.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(weights, "model-00001-of-00001.safetensors")}))
    sardonyx.convert(str(tmp_path), verify=False)
    for text in ("[]", "{", json.dumps({"weight_map": {"a": "../b"}}), json.dumps({"weight_map": {"a": "gone"}})):
        index.write_text(text)
        with pytest.raises(ModelFileError):
            sardonyx.convert(str(tmp_path), verify=False)


def test_an_unknown_family_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path, {}, model_type="rwkv")
    with pytest.raises(UnsupportedError, match="model_type 'rwkv'"):
        sardonyx.convert(str(tmp_path))


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    weights = llama_weights(np.random.default_rng(0))
    del weights["model.layers.0.mlp.up_proj.weight"]
    write_folder(tmp_path, weights)
    with pytest.raises(ModelFileError, match=r"'model\.layers\.0\.mlp\.up_proj\.weight' is missing"):
        sardonyx.convert(str(tmp_path))


def test_a_tensor_beyond_the_file_is_refused(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [TOKENS, HIDDEN], "data_offsets": [0, TOKENS * HIDDEN * 4]}
    header = json.dumps({"model.embed_tokens.weight": entry}).encode()
    write_folder(tmp_path, {})
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    with pytest.raises(ModelFileError, match="do not hold"):
        sardonyx.convert(str(tmp_path))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4), st.integers(0, 600))
def test_damaged_gguf_files_end_in_named_errors(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, int]], length: int
) -> None:
    data = bytearray(gguf({"w": (2, (2, 64), bytes(18 * 4))}, {"general.architecture": "llama"}))
    for position, value in damage:
        data[position % len(data)] = value
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    path.write_bytes(bytes(data[: length or None]))
    try:
        file = GgufFile(path)
        tensors = [file.tensor(name) for name in file.shapes]
    except SardonyxError:
        return
    assert all(isinstance(tensor, (np.ndarray, Blocks)) for tensor in tensors)


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'{"w": {"dtype": "F32", "shape": [1e999], "data_offsets": [0, 4]}}',
        b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1e999]}}',
    ],
    ids=["nested lists", "an infinite size", "an infinite offset"],
)
def test_headers_that_python_cannot_read_are_named(header: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ModelFileError, match=r"is not JSON|is malformed"):
        SafetensorsFiles(path).tensor("w")
