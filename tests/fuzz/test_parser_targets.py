"""Every parser of bytes from strangers, on damaged examples: a refusal, or a value that passes the parser's check."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.random_cases import cases

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")
pytest.importorskip("hpack", reason="hpack is not installed (extra: grpc)")
pytest.importorskip("cryptography", reason="cryptography is not installed (extra: encrypt)")

from tests.fuzz.parser_targets import Draws, Targets, damaged


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Targets]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SARDONYX_STATE", "off")
        parsers = Targets(tmp_path_factory.mktemp("parsers"))
        yield parsers
        parsers.machine.close()


NAMES = (
    "json", "binary", "http1", "http2", "hpack", "protobuf", "client", "strings", "json-data", "numbers", "safetensors",
    "config.pbtxt", "config.json", "load", "model-settings", "tokens", "privacy", "signature-policy", "lock", "oci",
    "hf", "hub-note", "file-name", "key", "attestation", "signature", "signed-statement", "licence", "encrypted-head",
    "encrypted-file", "encrypted-stream", "tflite", "gguf", "checkpoint-config", "checkpoint-weights",
)  # fmt: skip
CONVERSATIONS = ("http1", "http2", "hpack", "numbers", "hub-note")
"""Targets that refuse nothing: connections answer, lists are compared if they are read, and notes are ignored."""
MODEL_FILES = ("tflite", "gguf", "checkpoint-config", "checkpoint-weights")
"""Targets that make whole models."""
REFUSED = {
    "file-name": ("../", "/etc", "c:/", ".."), "json": ("shared_memory_region", '"shape":[2,2]', '"s"'),
    "json-data": ("",),
}  # fmt: skip
"""Examples that are not accepted in any case, by a part of their text."""


def test_the_names_are_those_of_all_targets(targets: Targets) -> None:
    assert tuple(targets.all) == NAMES


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("name", NAMES)
def test_damaged_inputs_are_refused_or_right(targets: Targets, name: str) -> None:
    target, draws, machine = targets.all[name], Draws(7), targets.machine

    async def run() -> None:
        for seed in target.seeds:
            text = seed.data.decode("utf-8", "replace")
            assert target.accepts(seed.data) or any(part in text for part in REFUSED.get(name, ())), text
        count = cases(4000 if name not in MODEL_FILES else 150)
        inputs = [damaged(draws, target.seeds[draws.below(len(target.seeds))]) for _ in range(count)]
        accepted = sum(target.accepts(data) for data in inputs)
        assert accepted < count or name in CONVERSATIONS

    machine.loop.run_until_complete(run())
    machine.loop.run_until_complete(machine.settle())
