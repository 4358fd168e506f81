"""Iteration over all graphs of a model (main graph, bodies, functions), with paths, without recursion."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx

from sardonyx.model.check.findings import Location

MAX_DEPTH = 33
"""Depth limit of bodies: deeper ones exceed protobuf's 100 levels (three per body) in any file."""

_PATH_PARTS = 8

FunctionKey = tuple[str, str, str]


def function_key(function: onnx.FunctionProto) -> FunctionKey:
    """Return the identity of a function: domain, name and overload."""
    return canonical_domain(function.domain), function.name, function.overload


def canonical_domain(domain: str) -> str:
    """Return the domain with ``ai.onnx`` written as the empty string, as in the specification."""
    return "" if domain == "ai.onnx" else domain


def qualified(domain: str, op_type: str) -> str:
    """Return an operator's name with its domain, which is omitted for ``ai.onnx``."""
    return f"{domain}::{op_type}" if canonical_domain(domain) else op_type


def node_label(node: onnx.NodeProto) -> str:
    """Return the node's name, or ``OpType(first output)`` for a node without one."""
    if node.name:
        return node.name
    output = next((name for name in node.output if name), "")
    return f"{qualified(node.domain, node.op_type)}({output})"


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """One graph or function body.

    Attributes:
        graph: The graph, or the function for a function's own body.
        parent: The enclosing scope, or None.
        owner: The node with the graph as attribute, or None.
        attribute: The name of the owner's attribute.
        function: The function of this scope or of an enclosing scope.
        depth: The number of enclosing scopes.
        opsets: Domain to version, as imported by the model or the function.
    """

    graph: onnx.GraphProto | onnx.FunctionProto
    parent: Scope | None
    owner: onnx.NodeProto | None
    attribute: str
    function: onnx.FunctionProto | None
    depth: int
    opsets: dict[str, int] = field(repr=False)

    @property
    def path(self) -> str:
        """The path from the main graph; the middle of very long paths is omitted."""
        parts: list[str] = []
        scope: Scope | None = self
        while scope is not None:
            if scope.owner is not None:
                parts.append(f"{node_label(scope.owner)}.{scope.attribute}")
            elif scope.function is not None:
                parts.append(f"function {qualified(scope.function.domain, scope.function.name)}")
            scope = scope.parent
        parts.reverse()
        if len(parts) > _PATH_PARTS:
            half = _PATH_PARTS // 2
            parts = [*parts[:half], f"…{len(parts) - 2 * half} more…", *parts[-half:]]
        return "/".join(parts)

    @property
    def is_main(self) -> bool:
        """True for the model's main graph."""
        return self.parent is None and self.function is None

    def at(self, node: onnx.NodeProto | None = None, tensor: str = "", item: str = "") -> Location:
        """Return a location in this graph."""
        if node is None:
            return Location(graph=self.path, tensor=tensor, item=item)
        return Location(self.path, node_label(node), qualified(node.domain, node.op_type), tensor, item)

    def body(self, node: onnx.NodeProto, attribute: str, graph: onnx.GraphProto) -> Scope:
        """Return the scope of a body of one of this scope's nodes."""
        return Scope(graph, self, node, attribute, self.function, self.depth + 1, self.opsets)


def main_scope(model: onnx.ModelProto) -> Scope:
    """Return the scope of the main graph."""
    return Scope(model.graph, None, None, "", None, 0, _imports(model.opset_import))


def function_scopes(model: onnx.ModelProto) -> list[Scope]:
    """Return the scopes of the model's functions."""
    return [Scope(f, None, None, "", f, 0, _imports(f.opset_import)) for f in model.functions]


def bodies(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """Yield the graphs among a node's attributes with the attribute names (``branches[2]`` in a list)."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for index, graph in enumerate(attribute.graphs):
            yield f"{attribute.name}[{index}]", graph


def scopes(model: onnx.ModelProto, max_depth: int = MAX_DEPTH) -> Iterator[Scope]:
    """Yield the main graph, the functions, and all nested bodies.

    Args:
        model: The message.
        max_depth: Bodies below this depth are not visited.

    Yields:
        The scopes, each after its enclosing scope.
    """
    pending = [*reversed(function_scopes(model)), main_scope(model)]
    while pending:
        scope = pending.pop()
        yield scope
        if scope.depth < max_depth:
            inner = [
                scope.body(node, name, graph)
                for node in scope.graph.node
                if node.attribute
                for name, graph in bodies(node)
            ]
            pending.extend(reversed(inner))


def _imports(entries: object) -> dict[str, int]:
    imports: dict[str, int] = {}
    for entry in entries:  # type: ignore[attr-defined]
        imports.setdefault(canonical_domain(entry.domain), entry.version)
    return imports
