"""Filetests of rules: each file of ``cases/`` shows what a rule makes of a graph, and which graphs it refuses."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from sardonyx.rewrite import rules
from sardonyx.rewrite.language import REGISTRY, Rule
from sardonyx.rewrite.sweep import SWEEPS, Sweep
from tests.rewrite.case_files import (
    CASES,
    Case,
    canonical,
    compute,
    files,
    model_of,
    read,
    reasons,
    rewrite,
    rule_of,
    whole_text,
)

assert rules.__name__  # importing the package registers every rule

FILES = [read(path) for path in files()]


def _id(case: Case) -> str:
    return f"{case.rule}:{case.line}"


@pytest.mark.parametrize("case", [c for f in FILES for c in f.cases if c.after != c.before], ids=_id)
def test_rule_makes_the_graph_after_of_the_graph_before(case: Case) -> None:
    before, engine, after = rewrite(case)
    labels = {applied.rule for applied in engine.applied}
    assert labels == {case.rule} or (not labels and is_sweep(case.rule)), engine.refused
    assert case.after is not None
    compared = whole_text if case.whole else canonical
    assert compared(before) != compared(after)
    assert compared(after) == compared(model_of(case.after, case.opset))
    if case.feeds is not None:
        compute(case, before, after, engine)


@pytest.mark.parametrize("case", [c for f in FILES for c in f.cases if c.after == c.before], ids=_id)
def test_rule_leaves_the_graph_unchanged_with_its_reason(case: Case) -> None:
    before, engine, after = rewrite(case)
    assert engine.applied == []
    compared = whole_text if case.whole else canonical
    assert compared(after) == compared(before)
    actual = reasons(engine, case.rule)
    if case.refused is None:
        assert actual == []
    else:
        assert any(case.refused in reason for reason in actual), actual


def test_every_rule_is_shown_and_refused() -> None:
    cases = [case for actual in FILES for case in actual.cases]
    shown = {case.rule for case in cases if case.after != case.before}
    refused = {case.rule for case in cases if case.refused is not None}
    never_refuses = {label for actual in FILES for label in actual.never_refuses}
    labels = {rule.label for rules in REGISTRY.values() for rule in rules if _is_covered(rule)}
    assert labels - shown == set()
    assert labels - refused - never_refuses == set()
    assert never_refuses & refused == set()


def test_every_sweep_is_shown_and_has_a_case_that_it_leaves_unchanged() -> None:
    cases = [case for actual in FILES for case in actual.cases]
    labels = {sweep.rule.label for sweep in SWEEPS.values() if _is_covered(sweep.rule)}
    shown = {case.rule for case in cases if case.after != case.before}
    unchanged = {case.rule for case in cases if case.after == case.before}
    never_applies = {label for actual in FILES for label in actual.never_applies}
    never_refuses = {label for actual in FILES for label in actual.never_refuses}
    assert labels - shown - never_applies == set()
    assert labels - unchanged - never_refuses == set()
    assert never_applies & shown == set()
    assert never_refuses & {case.rule for case in cases if case.refused is not None} == set()


def is_sweep(label: str) -> bool:
    return isinstance(rule_of(label), Sweep)


def _is_covered(rule: Rule) -> bool:
    """Return True for the rules of the package; other tests register rules of their own."""
    return rule.module.startswith("sardonyx.rewrite.rules.")


def test_a_file_has_the_name_of_its_pass() -> None:
    for path in files():
        labels = read(path).rules
        assert {label.split("/")[0] for label in labels} == {path.stem}
        assert len(labels) == len(set(labels))
        assert all(rule_of(label) for label in labels)


ROOT = Path(__file__).resolve().parents[2]
HOW_TO = ROOT / "docs" / "how-to" / "write-a-rule.md"


def test_the_pages_show_the_rule_and_its_case_as_they_are() -> None:
    page = HOW_TO.read_text(encoding="utf-8")
    code, case = (block[1] for block in list(re.finditer(r"```\w*\n(.*?)```", page, re.DOTALL))[1:3])
    assert code in (ROOT / "src/sardonyx/rewrite/rules/gemm.py").read_text(encoding="utf-8")
    assert case in (CASES / "fuse_matmul_add_bias_into_gemm.txt").read_text(encoding="utf-8")
    assert textwrap.indent(code, "    ") in (ROOT / "docs/design/index.md").read_text(encoding="utf-8")


def test_the_page_names_functions_that_exist() -> None:
    for file, names in re.findall(
        r"^\| .* \| `rules/(\w+\.py)`: (.*) \|$", HOW_TO.read_text(encoding="utf-8"), re.MULTILINE
    ):
        source = (ROOT / "src/sardonyx/rewrite/rules" / file).read_text(encoding="utf-8")
        assert all(f"def {name}(" in source for name in re.findall(r"`(\w+)`", names)), file
