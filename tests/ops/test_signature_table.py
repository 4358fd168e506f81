"""The table of signatures is that of the installed onnx."""

from __future__ import annotations

import onnx

from sardonyx.ops.signatures import of_schema, signature


def test_the_table_equals_the_schemas() -> None:
    for schema in onnx.defs.get_all_schemas_with_history():
        expected, actual = of_schema(schema), signature(schema.domain, schema.name, schema.since_version)
        assert actual is not None
        for part in ("name", "inputs", "outputs", "variadic", "mixed"):
            assert getattr(actual, part) == getattr(expected, part)


def test_versions_beyond_the_table_are_those_of_onnx() -> None:
    assert signature("", "Relu", 1000) is not None
    assert signature("", "Squeeze", 12) is not signature("", "Squeeze", 13)
    assert signature("", "NoSuchOperator", 13) is None
