"""Random models of every operator, beside onnx's evaluator and ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.ops.registry import all_operators
from sardonyx.ops.support import support_table
from tests.ops.differential import GENERATORS, Tally, case_of, check, run_many
from tests.ops.disagreements import DISAGREEMENTS, EVALUATORS, ONNX, RUNTIME
from tests.ops.generators.draw import Case

RANDOM = "its results are random"

WITHOUT_GENERATOR: dict[str, str] = {
    **dict.fromkeys(
        ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"), RANDOM
    ),
    **dict.fromkeys(
        ("Affine", "Crop", "GivenTensorFill", "ImageScaler", "ParametricSoftplus", "ScaledTanh"),
        "it left the standard: no evaluator knows it",
    ),
    "SimplifiedLayerNormalization": "it is ONNX Runtime's, and compared with it among those",
    "ImageDecoder": "images are no random bytes; tests/ops/test_images.py decodes real ones",
    **dict.fromkeys(
        ("Optional", "OptionalGetElement", "OptionalHasElement"),
        "an optional has few values, and tests/ops/test_sequences.py takes them all",
    ),
    "SequenceMap": "a function of the standard over loops, which have generators",
}
"""Operators of the standard's main domain that are not drawn, and why."""

TOLD = {ONNX: "onnx.reference", RUNTIME: "ONNX Runtime"}
"""Evaluators as the support table names them."""

CASES = 100
"""Cases of every operator in the default run."""


def operators() -> set[str]:
    return {found.name for found in all_operators() if not found.domain and not found.is_user_defined}


def test_every_operator_has_a_generator_or_a_reason() -> None:
    assert set(GENERATORS) | set(WITHOUT_GENERATOR) == operators()
    assert not set(GENERATORS) & set(WITHOUT_GENERATOR)


@pytest.mark.parametrize("operator", sorted(GENERATORS))
def test_operator(operator: str) -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    tally = run_many(operator, CASES)
    assert tally.failures == []
    # An operator that nobody else computes would be compared with nothing.
    assert max(tally.compared.values()) >= CASES // 4
    (told,) = [row.tested for row in support_table() if (row.domain, row.name) == ("ai.onnx", operator)]
    # An evaluator may learn operators with a later release than the one that is told.
    assert {name for name, count in tally.compared.items() if count} >= {e for e in EVALUATORS if TOLD[e] in told}


@pytest.mark.long
@pytest.mark.parametrize("operator", sorted(GENERATORS))
def test_operator_at_length(operator: str) -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    assert run_many(operator, 5000, first_seed=CASES).failures == []


def test_disagreements_are_of_operators_that_are_drawn() -> None:
    assert {name for found in DISAGREEMENTS for name in found.operators} <= set(GENERATORS)


def test_cases_follow_from_their_seed() -> None:
    assert str(case_of("Conv", 7)) == str(case_of("Conv", 7)) != str(case_of("Conv", 8))


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    case = Case("Add", 14, [np.float32(1).reshape(1), np.float32(2).reshape(1)])
    tally = Tally()
    check(case, tally, "sum")
    assert tally.failures == [] and tally.compared == {"onnx.reference": 1, "onnxruntime": 1}
    monkeypatch.setattr(Case, "feeds", lambda self: {"x0": self.inputs[0]})
    check(case, tally, "a feed is missing")
    assert tally.compared == {"onnx.reference": 1, "onnxruntime": 1}
