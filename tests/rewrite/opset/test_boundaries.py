"""Completeness: every change of every operator between two sets is covered, by its schemas or by an adapter."""

from __future__ import annotations

import itertools
from collections import defaultdict

import onnx
import pytest
from onnx.defs import OpSchema

from sardonyx.rewrite.opset.schemas import HINTS, default_of, schema_at
from sardonyx.rewrite.opset.table import boundaries

DOMAINS = ("", "ai.onnx.ml")

REMOVED_FOR_GOOD = {("ai.onnx.ml", "TreeEnsembleClassifier", 5), ("ai.onnx.ml", "TreeEnsembleRegressor", 5)}
"""Removed in favour of ``TreeEnsemble``, which has no post-transforms: refused by name."""


def _changes() -> list[tuple[OpSchema, OpSchema]]:
    versions = defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain in DOMAINS:
            versions[schema.domain, schema.name].append(schema)
    pairs = []
    for schemas in versions.values():
        schemas.sort(key=lambda s: s.since_version)
        pairs.extend(itertools.pairwise(schemas))
    return pairs


CHANGES = _changes()


def _identity(pair: tuple[OpSchema, OpSchema]) -> str:
    return f"{pair[1].domain or 'ai.onnx'}.{pair[1].name}-{pair[1].since_version}"


def _needs_adapter_upward(old: OpSchema, new: OpSchema) -> str | None:
    if schema_at(new.domain, new.name, new.since_version) is None:
        return "removed"
    for name, attribute in old.attributes.items():
        if name not in new.attributes and name not in HINTS:
            return f"attribute {name} disappears"
        if name in new.attributes and str(new.attributes[name].type) != str(attribute.type):
            return f"attribute {name} changes its type"
    if any(new.attributes[name].required and name not in old.attributes for name in new.attributes):
        return "a new attribute is required"
    if new.min_input > old.min_input or new.max_input < old.max_input:
        return "inputs differ"
    return "outputs disappear" if new.max_output < old.max_output else None


@pytest.mark.parametrize("pair", CHANGES, ids=_identity)
def test_every_upward_change_that_schemas_cannot_bridge_has_an_adapter(pair: tuple[OpSchema, OpSchema]) -> None:
    old, new = pair
    reason = _needs_adapter_upward(old, new)
    boundary = (new.domain, new.name, new.since_version)
    if reason is not None and boundary not in REMOVED_FOR_GOOD:
        assert boundary in boundaries()["up"], reason


def test_every_adapter_belongs_to_a_new_definition() -> None:
    for versions in boundaries().values():
        for domain, op_type, version in versions:
            assert onnx.defs.get_schema(op_type, version, domain).since_version == version, (op_type, version)


SEMANTIC = {
    "up": {
        ("Softmax", 13),
        ("LogSoftmax", 13),
        ("Hardmax", 13),
        ("PRelu", 7),
        ("OneHot", 11),
        ("RoiAlign", 16),
        ("GroupNormalization", 21),
        ("Split", 18),
        ("Resize", 11),
    },
    "down": {
        ("Softmax", 13),
        ("PRelu", 7),
        ("Max", 8),
        ("Sum", 8),
        ("Mod", 28),
        ("ScatterND", 18),
        ("Resize", 19),
        ("Pad", 19),
        ("Concat", 11),
        ("GroupNormalization", 21),
    },
}
"""Semantic changes invisible in the schemas."""


@pytest.mark.parametrize("direction", ["up", "down"])
def test_changes_of_meaning_have_adapters(direction: str) -> None:
    assert {("", *boundary) for boundary in SEMANTIC[direction]} <= boundaries()[direction]


def test_changed_defaults_are_visible_in_the_schemas() -> None:
    selu = [onnx.defs.get_schema("Selu", version) for version in (1, 6)]
    assert default_of(selu[0], "alpha") != default_of(selu[1], "alpha")
