"""Support table: complete, and consistent with the tests; definitions are short, and over Core."""

from __future__ import annotations

import ast
import inspect
import statistics
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
import pytest

import sardonyx.ops.definitions
from sardonyx.ops import find
from sardonyx.ops.registry import all_operators
from sardonyx.ops.support import support_table
from tests.ops.generators import GENERATORS

DOMAINS = ("ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")


def standard(domain: str) -> set[str]:
    return {s.name for s in onnx.defs.get_all_schemas_with_history() if (s.domain or "ai.onnx") == domain}


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_operator_of_the_standard_has_a_definition(domain: str) -> None:
    defined = {row.name for row in support_table() if row.domain == domain}
    assert standard(domain) - defined == set()


def test_every_version_of_the_standard_has_a_definition() -> None:
    lacking = [
        (schema.domain, schema.name, schema.since_version)
        for schema in onnx.defs.get_all_schemas_with_history()
        if not schema.deprecated and find(schema.domain, schema.name, schema.since_version) is None
    ]
    assert lacking == []


def test_host_operators_are_few_and_have_reasons() -> None:
    hosts = [row for row in support_table() if row.domain == "ai.onnx" and row.definition == "host"]
    assert len(hosts) <= 35
    assert all(row.reason for row in hosts)


# The column of tests.


def nodes_of(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from nodes_of(attribute.g.node)


def test_suite_cases_match_the_table() -> None:
    loader = pytest.importorskip("onnx.backend.test.loader", reason="this onnx comes without its backend suite")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = [case.model for case in loader.load_model_tests(kind="node")]
    graphs = [part.node for model in models for part in (model.graph, *model.functions)]
    covered = {(node.domain or "ai.onnx", node.op_type) for nodes in graphs for node in nodes_of(nodes)}
    rows = [row for row in support_table() if row.domain in DOMAINS and row.domain != "ai.onnx.ml"]
    claimed = {(row.domain, row.name): "ONNX backend suite" in row.tested for row in rows}
    assert {key for key, has in claimed.items() if has != (key in covered)} == set()


def test_operators_compared_with_evaluators_have_generators() -> None:
    rows = [row for row in support_table() if row.domain == "ai.onnx"]
    compared = {row.name for row in rows if "onnx.reference" in row.tested or "ONNX Runtime" in row.tested}
    assert compared - {"SimplifiedLayerNormalization"} == set(GENERATORS)


def test_everything_is_tested() -> None:
    assert [row.name for row in support_table() if not row.tested] == []


# The form of definitions.


def test_the_median_definition_has_at_most_twelve_lines() -> None:
    definitions = {operator.definition for operator in all_operators() if not operator.is_user_defined}
    lengths = [sum(map(bool, map(str.strip, inspect.getsource(f).splitlines()))) for f in definitions]
    assert len(lengths) > 300
    assert statistics.median(lengths) <= 12


def test_numpy_is_for_host_operators() -> None:
    """Core operators, and the functions of their modules that they call, do not use numpy."""
    users = []
    for path in Path(str(sardonyx.ops.definitions.__file__)).parent.rglob("*.py"):
        functions = {f.name: f for f in ast.parse(path.read_text("utf-8")).body if isinstance(f, ast.FunctionDef)}
        for function in functions.values():
            decorators = {ast.unparse(d).split("(")[0] for d in function.decorator_list}
            if "operator" in decorators and any(name in ("np", "numpy") for name in _names(function, functions)):
                users.append(f"{path.name}: {function.name}")
    assert users == []


def _names(function: ast.FunctionDef, functions: dict[str, ast.FunctionDef]) -> set[str]:
    """Return the names that a function and the functions called by it use."""
    names: set[str] = set()
    pending = [function.name]
    while pending:
        new = {n.id for n in ast.walk(functions[pending.pop()]) if isinstance(n, ast.Name)} - names
        names |= new
        pending += [name for name in new if name in functions]
    return names
