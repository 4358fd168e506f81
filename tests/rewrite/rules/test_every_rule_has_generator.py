"""Every rule and sweep is held to its promise by random graphs, or by tests named here."""

from __future__ import annotations

import pytest

from tests.rewrite import generators
from tests.rewrite.fuzz import generators_of, run_many

TEXTS = "changes no node: test_texts"
WEIGHTS = "changes numbers on purpose: test_weights"
INTERFACE = "changes what callers see: test_interface"
ELSEWHERE = {
    "clear_doc_strings": TEXTS,
    "clear_metadata": TEXTS,
    "clear_value_info": TEXTS,
    "eliminate_unused_function": "removes what nothing reads and applies no patch: test_unread",
    "eliminate_unused_initializer": "removes what nothing reads and applies no patch: test_common",
    "eliminate_unused_input": TEXTS,
    "eliminate_unused_opset_import": "removes what nothing reads and applies no patch: test_unread",
    "flush_denormal_weights": WEIGHTS,
    "freeze_initializers": INTERFACE,
    "legalize_group_normalization": "needs a target and an operator set of its own: test_legalize",
    "legalize_microsoft": "needs operators that models of one domain lack: test_legalize",
    "lift_lexical_references": INTERFACE,
    "narrow_int64_weights": WEIGHTS,
    "nop": "does nothing: test_texts",
    "rename_input_output": INTERFACE,
    "rewrite_float64_to_float32": WEIGHTS,
    "rewrite_input_dtype": INTERFACE,
    "set_unique_name_for_nodes": INTERFACE,
    "split_init": INTERFACE,
    "split_predict": INTERFACE,
}
"""Pass, or rule → why it has no random graphs, and the tests that stand in."""


def covered() -> list[str]:
    generators.load()
    return [label for label in generators.labels() if generators_of(label)]


def test_every_rule_has_a_generator_or_a_reason() -> None:
    generators.load()
    without = {label for label in generators.labels() if not generators_of(label) and label not in ELSEWHERE}
    assert not {label for label in without if label.split("/")[0] not in ELSEWHERE}


def test_every_reason_is_needed() -> None:
    generators.load()
    known = {*generators.labels(), *(label.split("/")[0] for label in generators.labels())}
    assert not {label for label in ELSEWHERE if label not in known or generators_of(label)}


@pytest.mark.long
@pytest.mark.parametrize("label", covered())
def test_outputs_stay_equal_over_twenty_thousand_graphs(label: str) -> None:
    graphs = -(-20_000 // len(generators_of(label)))
    run_many(label, graphs, target=generators.target_of(label), together=1)
