"""GGUF files give the models of the safetensors that they were made of; every type of blocks is decoded exactly."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.convert.weights.blocks import BLOCKS, CODEBOOKS, by_codebook
from sardonyx.convert.weights.gguf import GgufFile
from sardonyx.convert.weights.gguf_families import GGUF_FAMILIES
from sardonyx.errors import MissingDependencyError, ModelFileError, UnsupportedError
from tests.convert.weights.checkpoints import (
    GGUF_NAMES,
    HEADS,
    HIDDEN,
    KEYS,
    TOKENS,
    decoder_feeds,
    gguf,
    llama_weights,
)
from tests.convert.weights.gguf_files import ARCHITECTURES, gguf_of
from tests.convert.weights.logits import IDS, recorded, write

RECORDED = recorded()

DIGESTS = {
    "Q4_0": 3419983240,
    "Q4_1": 690108717,
    "Q5_0": 3224069477,
    "Q5_1": 93335255,
    "Q8_0": 1109676595,
    "Q2_K": 938979965,
    "Q3_K": 2264486477,
    "Q4_K": 176710019,
    "Q5_K": 209293756,
    "Q6_K": 3496464783,
    "IQ4_NL": 3378688000,
    "IQ4_XS": 2711513983,
    "TQ1_0": 3973478910,
    "TQ2_0": 210686347,
    "MXFP4": 3904410881,
}
"""Digests of float32 elements that the package gguf 0.19.0 returns for random bytes; infinities and NaN as 0."""


@pytest.mark.parametrize("number", BLOCKS, ids=lambda number: BLOCKS[number].name)
def test_blocks_are_decoded_exactly(number: int) -> None:
    kind = BLOCKS[number]
    data = np.random.default_rng(number).integers(0, 256, (6, kind.width)).astype(np.uint8)
    with np.errstate(invalid="ignore"):
        dense = kind.decode(data, (6, kind.size)).dense()
    numbers = np.nan_to_num(dense, nan=0, posinf=0, neginf=0) + np.float32(0)
    assert zlib.crc32(numbers.tobytes()) == DIGESTS[kind.name]


@pytest.mark.parametrize("number", CODEBOOKS, ids=lambda number: CODEBOOKS[number][0])
def test_blocks_with_codebooks_are_those_of_the_package(number: int) -> None:
    package = pytest.importorskip("gguf", reason="gguf is not installed")
    name, size, width = CODEBOOKS[number]
    kind = package.GGMLQuantizationType[name]
    assert (int(kind), package.GGML_QUANT_SIZES[kind]) == (number, (size, width))
    data = np.random.default_rng(number).integers(0, 60, (6, width)).astype(np.uint8)
    dense = by_codebook(number, data, (3, 2 * size), "w")
    np.testing.assert_array_equal(dense, package.quants.dequantize(data.reshape(3, -1), kind))


def test_blocks_with_codebooks_name_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="type IQ2_XXS are read by the package gguf") as caught:
        by_codebook(16, np.zeros((1, 66), np.uint8), (1, 256), "file.gguf: w")
    assert caught.value.where == "file.gguf: w"


def logits_of(path: Path) -> Any:
    session = sardonyx.Session(sardonyx.convert(str(path), verify=False).model, compile="off")
    empty = {
        value.name: np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
        for value in session.get_inputs()
        if value.name.startswith("past_key_values.")
    }
    return session.run(["logits"], decoder_feeds(session, IDS, empty, 0))[0]


@pytest.mark.sampled
@pytest.mark.parametrize("case", ARCHITECTURES)
def test_a_file_answers_as_the_safetensors_do(case: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_of(case, RECORDED[case]))
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder", RECORDED[case]["config"], RECORDED[case]["shapes"])
    expected = logits_of(tmp_path / "folder")
    np.testing.assert_allclose(logits_of(path), expected, atol=2e-5 * np.abs(expected).max())


def llama_file(path: Path, extra: dict[str, Any] | None = None, **metadata: Any) -> Path:
    """Write a file of one layer, with blocks of Q4_K for the second matrix of the network."""
    generator = np.random.default_rng(0)
    tensors: dict[str, Any] = {}
    for name, array in llama_weights(generator).items():
        tensors[GGUF_NAMES[name]] = (0, array.shape, array.tobytes())
    data = generator.integers(0, 256, (HIDDEN, 144)).astype(np.uint8)
    data[:, :4] = np.array([0.01, 0.02], "<f2").view(np.uint8)
    tensors["blk.0.ffn_down.weight"] = (12, (HIDDEN, 256), data.tobytes())
    for part in ("gate", "up"):
        matrix = generator.standard_normal((256, HIDDEN)).astype(np.float32)
        tensors[f"blk.0.ffn_{part}.weight"] = (0, matrix.shape, matrix.tobytes())
    fields = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.embedding_length": HIDDEN,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KEYS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }
    path.write_bytes(gguf({**tensors, **(extra or {})}, {**fields, **metadata}))
    return path


def test_blocks_with_offsets_stay_integers_of_four_bits(tmp_path: Path) -> None:
    path = llama_file(tmp_path / "model.gguf")
    model = sardonyx.convert(str(path), verify=False).model
    stored = [value.const_value for value in model.graph.initializers.values()]
    assert sum(t.size for t in stored if t is not None and t.dtype.name == "UINT4") == HIDDEN * 256
    feeds = {
        "input_ids": IDS % TOKENS,
        "attention_mask": np.ones_like(IDS),
        "position_ids": np.arange(IDS.size)[None],
        **dict.fromkeys(
            ("past_key_values.0.key", "past_key_values.0.value"), np.zeros((1, KEYS, 0, HIDDEN // HEADS), np.float32)
        ),
    }
    compiled = sardonyx.Session(model, compile="wait").run(["logits"], feeds)[0]
    dense = GgufFile(path).tensor("blk.0.ffn_down.weight").dense()
    whole = llama_file(tmp_path / "dense.gguf", {"blk.0.ffn_down.weight": (0, dense.shape, dense.tobytes())})
    expected = sardonyx.Session(sardonyx.convert(str(whole), verify=False).model, compile="off").run(["logits"], feeds)[
        0
    ]
    np.testing.assert_allclose(compiled, expected, rtol=1e-4, atol=1e-4)


def test_divisors_of_frequencies_are_read(tmp_path: Path) -> None:
    factors = np.array([1, 1, 4, 8], np.float32)
    plain = logits_of(llama_file(tmp_path / "plain.gguf"))
    stretched = logits_of(llama_file(tmp_path / "model.gguf", {"rope_freqs.weight": (0, (4,), factors.tobytes())}))
    assert np.abs(plain - stretched).max() > 1e-3


@pytest.mark.parametrize(
    "metadata",
    [
        {"llama.block_count": 10**9},
        {"llama.embedding_length": 0},
        {"llama.attention.head_count": 0},
        {"llama.attention.head_count": "four"},
        {"llama.attention.head_count_kv": 3},
        {"llama.attention.key_length": 10**9},
        {"llama.attention.value_length": 4, "llama.attention.key_length": 8},
        {"llama.rope.dimension_count": 10**9},
        {"llama.rope.dimension_count": 3},
        {"llama.rope.scaling.type": "unheard"},
        {"llama.rope.scaling.type": "linear"},
        {"llama.expert_count": 10**9, "llama.expert_used_count": 2},
        {"general.architecture": "mamba"},
    ],
    ids=lambda metadata: next(iter(metadata)),
)
def test_bad_metadata_end_in_named_errors(metadata: dict[str, Any], tmp_path: Path) -> None:
    path = llama_file(tmp_path / "model.gguf", **metadata)
    with pytest.raises((ModelFileError, UnsupportedError)):
        sardonyx.convert(str(path), verify=False)


def test_every_row_has_a_family() -> None:
    assert {name for name, _ in ARCHITECTURES.values()} <= set(GGUF_FAMILIES)
