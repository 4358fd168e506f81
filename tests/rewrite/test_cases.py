"""Filetests of rules: each file of ``cases/`` shows what a rule makes of a graph, and which graphs it refuses."""

from __future__ import annotations

import pytest

from sardonyx.rewrite import rules
from sardonyx.rewrite.language import REGISTRY
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
)

assert rules.__name__  # importing the package registers every rule

FILES = [read(path) for path in files()]


def _id(case: Case) -> str:
    return f"{case.rule}:{case.line}"


@pytest.mark.parametrize("case", [c for f in FILES for c in f.cases if c.after != c.before], ids=_id)
def test_rule_makes_the_graph_after_of_the_graph_before(case: Case) -> None:
    before, engine, after = rewrite(case)
    assert {applied.rule for applied in engine.applied} == {case.rule}, engine.refused
    assert case.after is not None
    assert canonical(after) == canonical(model_of(case.after, case.opset))
    if case.feeds is not None:
        compute(case, before, after, engine)


@pytest.mark.parametrize("case", [c for f in FILES for c in f.cases if c.after == c.before], ids=_id)
def test_rule_leaves_the_graph_unchanged_with_its_reason(case: Case) -> None:
    before, engine, after = rewrite(case)
    assert engine.applied == []
    assert canonical(after) == canonical(before)
    given = reasons(engine, case.rule)
    if case.refused is None:
        assert given == []
    else:
        assert any(case.refused in reason for reason in given), given


@pytest.mark.parametrize("name", [path.stem for path in files()])
def test_every_rule_of_the_pass_is_shown_and_refused(name: str) -> None:
    found = read(CASES / f"{name}.txt")
    shown = {case.rule for case in found.cases if case.after != case.before}
    refused = {case.rule for case in found.cases if case.refused is not None}
    labels = {rule.label for rule in REGISTRY.get(name, ())}
    assert labels - shown == set()
    assert labels - refused - found.never_refuses.keys() == set()
    assert found.never_refuses.keys() & refused == set()


def test_a_file_has_the_name_of_its_pass() -> None:
    for path in files():
        labels = read(path).rules
        assert {label.split("/")[0] for label in labels} == {path.stem}
        assert len(labels) == len(set(labels))
        assert all(rule_of(label) for label in labels)
