"""The support table: complete, and true about what it says of tests."""

from __future__ import annotations

import onnx
import pytest

from sardonyx.ops.support import support_table

DOMAINS = ("ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")


def standard(domain: str) -> set[str]:
    found = {s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain.removeprefix("ai.onnx|")}
    if domain == "ai.onnx":
        found = {s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""}
    return found


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_operator_of_the_standard_has_a_definition(domain: str) -> None:
    defined = {row.name for row in support_table() if row.domain == domain}
    assert standard(domain) - defined == set()


def test_every_version_of_the_standard_has_a_definition() -> None:
    from sardonyx.ops import find

    lacking = [
        (schema.domain, schema.name, schema.since_version)
        for schema in onnx.defs.get_all_schemas_with_history()
        if not schema.deprecated and find(schema.domain, schema.name, schema.since_version) is None
    ]
    assert lacking == []


def test_host_operators_are_few_and_say_why() -> None:
    hosts = [row for row in support_table() if row.domain == "ai.onnx" and row.definition == "host"]
    assert len(hosts) <= 35
    assert all(row.reason for row in hosts)
