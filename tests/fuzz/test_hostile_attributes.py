"""No attribute value of any operator leads to an exception of another library, or to two answers."""

from __future__ import annotations

import pytest

from tests.fuzz.hostile_nodes import sources
from tests.fuzz.native_fuzzer import fuzz
from tests.fuzz.toolkit_fuzzer import problems, run_label

LONG_RUNS = 20


def test_every_version_of_every_domain_is_drawn() -> None:
    domains = {source.domain for source in sources().values()}
    assert {"", "ai.onnx.ml", "com.microsoft", "ai.onnx.preview.training"} <= domains
    assert {"Squeeze-1", "Squeeze-11", "Squeeze-13", "ai.onnx.ml.TreeEnsemble-5"} <= sources().keys()


def test_a_failing_definition_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    from sardonyx.core.language import static_values

    monkeypatch.setattr(static_values, "normalized_axis", lambda axis, rank: range(rank)[axis])
    monkeypatch.setattr("sardonyx.core.language.normalized_axis", lambda axis, rank: range(rank)[axis])
    assert any("IndexError" in problem for seed in range(20) for problem in problems("Softmax-13", seed))


FOUND = (
    ("Attention-24", 290000032),
    ("Resize-11", 270000029),
    ("Bernoulli-22", 110000013),
    ("Cast-28", 11),
    ("Celu-28", 100000019),
    ("CenterCropPad-18", 80000017),
    ("Col2Im-18", 90000015),
    ("ConvTranspose-22", 140000018),
    ("DFT-20", 210000019),
    ("DepthToSpace-28", 400017),
    ("DepthToSpace-28", 80000010),
    ("GroupNormalization-21", 170000010),
    ("Hardmax-11", 160000011),
    ("If-23", 100000012),
    ("IsInf-10", 80000016),
    ("LSTM-1", 100000013),
    ("LayerNormalization-17", 180000014),
    ("Loop-21", 180000019),
    ("Pad-2", 160000017),
    ("QLinearConv-10", 90000011),
    ("RandomNormal-22", 400014),
    ("Resize-19", 80000011),
    ("SequenceConstruct-11", 150000017),
    ("SequenceMap-17", 170000013),
    ("SpaceToDepth-28", 140000019),
    ("Tile-1", 250000019),
    ("TopK-24", 110000016),
    ("ai.onnx.ml.SVMRegressor-1", 200000015),
    ("ai.onnx.ml.TreeEnsemble-5", 80000010),
    ("ai.onnx.ml.TreeEnsembleRegressor-3", 400011),
)
"""Nodes that led to exceptions of other libraries, or to two answers."""


@pytest.mark.parametrize(("label", "seed"), FOUND)
def test_nodes_with_earlier_findings_are_answered_or_refused(label: str, seed: int) -> None:
    assert list(problems(label, seed)) == []


@pytest.mark.parametrize("part", range(2))
def test_hostile_attributes_are_answered_or_refused(part: int) -> None:
    names = list(sources())[part::16]
    tally = fuzz(names, len(names), 0, 1, run_variant=run_label)
    assert tally.runs >= len(names)
    assert [str(finding) for finding in tally.findings] == []


@pytest.mark.long
def test_hostile_attributes_at_length() -> None:
    names = list(sources())
    findings = fuzz(names, LONG_RUNS * len(names), 1, LONG_RUNS, run_variant=run_label).findings
    assert [str(finding) for finding in findings] == []
