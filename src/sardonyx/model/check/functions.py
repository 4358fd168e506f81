"""Checks of model functions: duplicates, recursion, depth, inlined size, calls, attribute references."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx

from sardonyx.model.check.codes import finding
from sardonyx.model.check.digraph import longest_chain, strongly_connected
from sardonyx.model.check.findings import Finding, Location
from sardonyx.model.check.scopes import (
    FunctionKey,
    Scope,
    canonical_domain,
    function_key,
    qualified,
    scopes,
)
from sardonyx.model.schemas import has_schema

MAX_CALL_DEPTH = 100
"""Limit of nested calls in onnx itself (since 1.23)."""

MAX_EXPANDED_NODES = 1_000_000
"""Limit of nodes after inlining: inference visits a function once per call, so nested calls multiply."""

_SHOWN = 6


def check_functions(model: onnx.ModelProto) -> Iterator[Finding]:
    """Report functions that are defined twice, recurse, nest too deep or grow too large, and wrong calls.

    Args:
        model: The message.

    Yields:
        The findings.
    """
    index: dict[FunctionKey, int] = {}
    for position, function in enumerate(model.functions):
        key = function_key(function)
        if key in index:
            yield finding("function-duplicate", "a function of this domain and name exists already.", _locate(function))
        index.setdefault(key, position)
    if index:
        yield from _check_calls(model, index)
    yield from _check_attribute_references(model)


def called_function(node: onnx.NodeProto, index: Mapping[FunctionKey, int]) -> int | None:
    """Return the position of the model function that a node calls, or None."""
    return index.get((canonical_domain(node.domain), node.op_type, node.overload))


def _check_calls(model: onnx.ModelProto, index: dict[FunctionKey, int]) -> Iterator[Finding]:
    domains = {domain for domain, _, _ in index}
    calls: list[dict[int, int]] = [{} for _ in model.functions]
    sizes = [0] * len(model.functions)
    for scope in scopes(model):
        caller = None if scope.function is None else index[function_key(scope.function)]
        if caller is not None:
            sizes[caller] += len(scope.graph.node)
        for node in scope.graph.node:
            called = called_function(node, index)
            if called is not None:
                if caller is not None:
                    calls[caller][called] = calls[caller].get(called, 0) + 1
                yield from _check_call(scope, node, model.functions[called])
            elif node.domain in domains and canonical_domain(node.domain) and not _is_operator(node, scope):
                yield finding(
                    "function-undefined",
                    f"the model has functions of domain {node.domain!r}, but not {node.op_type!r}.",
                    scope.at(node),
                )
    yield from _check_recursion(model.functions, calls, sizes)


def _is_operator(node: onnx.NodeProto, scope: Scope) -> bool:
    version = scope.opsets.get(canonical_domain(node.domain), 0)
    return has_schema(node.op_type, version, node.domain)


def _check_call(scope: Scope, node: onnx.NodeProto, function: onnx.FunctionProto) -> Iterator[Finding]:
    for role, actual, formal in (("inputs", node.input, function.input), ("outputs", node.output, function.output)):
        if len(actual) > len(formal):
            yield finding(
                "arity",
                f"the call has {len(actual)} {role}, the function {len(formal)}.",
                scope.at(node),
            )
    known = set(function.attribute) | {attribute.name for attribute in function.attribute_proto}
    names = {attribute.name for attribute in node.attribute}
    for name in sorted(names - known):
        yield finding("attribute-unknown", f"the function has no attribute {name!r}.", scope.at(node))
    for name in sorted(set(function.attribute) - names):
        yield finding("attribute-missing", f"the function requires the attribute {name!r}.", scope.at(node))


def _check_recursion(
    functions: Sequence[onnx.FunctionProto], calls: list[dict[int, int]], sizes: list[int]
) -> Iterator[Finding]:
    parts = strongly_connected(calls)
    recursive = False
    for part in parts:
        if len(part) == 1 and part[0] not in calls[part[0]]:
            continue
        recursive = True
        names = [qualified(functions[i].domain, functions[i].name) for i in sorted(part)[:_SHOWN]]
        more = f" and {len(part) - _SHOWN} more" if len(part) > _SHOWN else ""
        reason = (
            f"the functions {', '.join(names)}{more} call each other recursively."
            if len(part) > 1
            else "the function calls itself."
        )
        yield finding("function-recursive", reason, _locate(functions[min(part)]))
    if recursive:
        return
    order = [part[0] for part in parts]
    depth = longest_chain(order, calls)
    deepest = max(range(len(depth)), key=depth.__getitem__)
    if depth[deepest] > MAX_CALL_DEPTH:
        yield finding("function-depth", f"its calls are nested {depth[deepest]} deep.", _locate(functions[deepest]))
    expanded = list(sizes)
    for position in order:
        expanded[position] += sum(expanded[called] * times for called, times in calls[position].items())
        if expanded[position] > MAX_EXPANDED_NODES:
            yield finding(
                "function-expansion",
                f"the inlined function has {_format_count(expanded[position])} nodes.",
                _locate(functions[position]),
            )
            return


def _check_attribute_references(model: onnx.ModelProto) -> Iterator[Finding]:
    for scope in scopes(model):
        function = scope.function
        declared: set[str] = set()
        if function is not None:
            declared = set(function.attribute) | {attribute.name for attribute in function.attribute_proto}
        for node in scope.graph.node:
            for attribute in node.attribute:
                name = attribute.ref_attr_name
                if not name or name in declared:
                    continue
                problem = (
                    f"the attribute {attribute.name!r} refers to {name!r} outside of a function."
                    if function is None
                    else f"the attribute {attribute.name!r} refers to {name!r}, which the function does not declare."
                )
                yield finding(
                    "attribute-reference",
                    problem,
                    scope.at(node),
                )


def _locate(function: onnx.FunctionProto) -> Location:
    return Location(item=f"function {qualified(function.domain, function.name)}")


def _format_count(count: int) -> str:
    return f"{count:,}" if count < 10**12 else f"about 10^{len(str(count)) - 1}"
