"""No operator on operands of other ranks than its own raises an exception of another library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sardonyx import Session
from sardonyx.errors import SardonyxError, ShapeError
from tests.fuzz.hostile_cases import CASES
from tests.fuzz.hostile_nodes import Source, case_by_schema, sources
from tests.fuzz.toolkit_fuzzer import LIMITS, is_unforeseen
from tests.ops.generators.draw import Case, Draw

ML = "ai.onnx.ml"


def of_rank(x: Any, rank: int) -> Any:
    """Return an array of two elements along each of ``rank`` axes."""
    if not isinstance(x, np.ndarray):
        return x
    return np.resize(x, (2,) * rank) if x.size else np.full((2,) * rank, "" if x.dtype == object else 1, x.dtype)


def other_ranks(case: Case) -> Iterator[Case]:
    """Yield the case with all operands of one rank, and with one operand of another rank."""
    yield from (replace(case, inputs=[of_rank(x, rank) for x in case.inputs]) for rank in range(4))
    for position in range(len(case.inputs)):
        for rank in (0, 1, 3):
            yield replace(case, inputs=[of_rank(x, rank) if i == position else x for i, x in enumerate(case.inputs)])


def drawn(source: Source) -> Case:
    draw = Draw(f"ranks {source}")
    generator = CASES.get(f"{source.domain}.{source.name}".removeprefix("ai.onnx.ml").lstrip("."))
    return case_by_schema(draw, source) if generator is None else generator(draw)


def foreign(labels: Sequence[str]) -> list[str]:
    """Return the operators on which the interpreter has an exception of another library, with the exception."""
    failures = []
    for label in labels:
        for case in other_ranks(drawn(sources()[label])):
            try:
                Session(case.model(), compile="off", log_severity=4, **LIMITS).run(None, case.feeds())
            except SardonyxError as error:
                if is_unforeseen(error):
                    failures.append(f"{case}: {error.__cause__!r}")
    return failures


def test_features_of_no_axis_are_a_row() -> None:
    case = Case("FeatureVectorizer", 1, [np.float32(2) * np.ones(()), np.ones(3)], {"inputdimensions": [2, 3]}, 1, ML)
    (y,) = Session(case.model(), compile="off").run(None, case.feeds())
    np.testing.assert_array_equal(y, np.array([[2, 0, 1, 1, 1]], np.float32))


@pytest.mark.parametrize(("operand", "rank"), [("mask", 0), ("past_key", 0), ("past_key", 1), ("past_value", 3)])
def test_an_operand_of_attention_without_its_axes_is_refused(operand: str, rank: int) -> None:
    shapes = {"q": 4, "k": 4, "v": 4, "mask": 4, "past_key": 4, "past_value": 4} | {operand: rank}
    case = Case("Attention", 24, [np.ones((1,) * size, np.float32) for size in shapes.values()], {}, 4)
    with pytest.raises(ShapeError):
        Session(case.model(), compile="off", log_severity=4).run(None, case.feeds())


def newest() -> list[str]:
    """Return the newest version of each operator."""
    last = {(source.domain, source.name): label for label, source in sources().items()}
    return list(last.values())


@pytest.mark.parametrize("part", range(3))
def test_other_ranks_are_answered_or_refused(part: int) -> None:
    assert foreign(newest()[part::9]) == []


@pytest.mark.long
def test_other_ranks_of_every_version() -> None:
    assert foreign(list(sources())) == []
