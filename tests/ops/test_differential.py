"""Random models of every operator equal onnx's evaluator and ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.ops.registry import all_operators
from sardonyx.ops.support import support_table
from tests.ops.differential import GENERATORS, WITHOUT_GENERATOR, Tally, case_of, check, run_many
from tests.ops.disagreements import DISAGREEMENTS, EVALUATORS, ONNX, RUNTIME
from tests.ops.generators.draw import Case
from tests.random_cases import cases

TABLE_NAMES = {ONNX: "onnx.reference", RUNTIME: "ONNX Runtime"}
"""Evaluators as the support table names them."""

CASES = 100
"""Random cases of every operator: a share in the default run."""


def operators() -> set[str]:
    return {operator.name for operator in all_operators() if not operator.domain and not operator.is_user_defined}


def test_every_operator_has_a_generator_or_a_reason() -> None:
    assert set(GENERATORS) | set(WITHOUT_GENERATOR) == operators()
    assert not set(GENERATORS) & set(WITHOUT_GENERATOR)


@pytest.mark.parametrize("operator", sorted(GENERATORS))
def test_operator(operator: str) -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    tally = run_many(operator, cases(CASES))
    assert tally.failures == []
    # Fewer comparisons would mean that no evaluator defines the operator.
    assert max(tally.compared.values()) >= tally.cases // 4
    (references,) = [row.tested for row in support_table() if (row.domain, row.name) == ("ai.onnx", operator)]
    # An evaluator may define operators only since a release later than the one installed.
    assert {name for name, count in tally.compared.items() if count} >= {
        e for e in EVALUATORS if TABLE_NAMES[e] in references
    }


@pytest.mark.long
@pytest.mark.parametrize("operator", sorted(GENERATORS))
def test_operator_at_length(operator: str) -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    assert run_many(operator, 5000, first_seed=CASES).failures == []


def test_disagreements_name_operators_with_a_generator() -> None:
    assert {name for disagreement in DISAGREEMENTS for name in disagreement.operators} <= set(GENERATORS)


def test_cases_follow_from_their_seed() -> None:
    assert str(case_of("Conv", 7)) == str(case_of("Conv", 7)) != str(case_of("Conv", 8))


def test_a_missing_feed_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    case = Case("Add", 14, [np.float32(1).reshape(1), np.float32(2).reshape(1)])
    tally = Tally()
    check(case, tally, "sum")
    assert tally.failures == [] and tally.compared == {"onnx.reference": 1, "onnxruntime": 1}
    monkeypatch.setattr(Case, "feeds", lambda self: {"x0": self.inputs[0]})
    check(case, tally, "a feed is missing")
    assert tally.compared == {"onnx.reference": 1, "onnxruntime": 1}
