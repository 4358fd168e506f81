"""Every primitive has a row in each table, and stands in the design's closed list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sardonyx.core.eval.tensor import function_input
from sardonyx.core.export.export import ONNX_FORMS
from sardonyx.core.ir.graph import defined_by
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.ir.types import FLOAT, TensorType
from sardonyx.core.rules.numpy_rules import NUMPY_RULES
from sardonyx.core.rules.size_rules import SIZE_RULES
from sardonyx.core.rules.type_rules import TYPE_RULES
from sardonyx.core.transform.cost import COSTS
from sardonyx.core.transform.differentiation import FLAT, GRADIENTS
from sardonyx.core.transform.simplifications import SIMPLIFICATIONS

INTERPRETED = {"constant", "input", "bind", "cond", "loop", "call", "host", "get"}
"""Primitives that the interpreter computes by itself: they name values, or call functions."""

DESIGN = Path(__file__).parents[2] / "docs" / "design" / "index.md"


@pytest.mark.parametrize(
    "table",
    [TYPE_RULES, {**NUMPY_RULES, **dict.fromkeys(INTERPRETED)}, COSTS, GRADIENTS, ONNX_FORMS, SIMPLIFICATIONS.table],
)
def test_a_table_is_complete(table: dict[str, object]) -> None:
    assert table.keys() == PRIMITIVES.keys()


def test_no_table_knows_anything_else() -> None:
    assert SIZE_RULES.keys() | FLAT.keys() <= PRIMITIVES.keys()


def test_the_list_is_that_of_the_design() -> None:
    text = DESIGN.read_text()
    section = text[text.index("Primitives, by kind") : text.index("Gradients, shapes, cost")]
    listed = {name for part in re.findall(r"`([^`]+)`", section) for name in re.findall(r"[a-z_]+", part)}
    assert PRIMITIVES.keys() <= listed


def test_only_some_define_symbols() -> None:
    assert defined_by(function_input(0, 0, TensorType(FLOAT, ()))) == ()
    assert {name for name, row in PRIMITIVES.items() if {"symbol", "symbols"} & set(row.params)} == {
        "bind",
        "cond",
        "loop",
        "host",
    }
