"""Module scopes of nodes: the path of modules in the model's source, which exporters leave in names."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Mapping, Sequence

import onnx_ir as ir

Scope = tuple[str, ...]
"""Names of modules, the outermost first."""

_NAME_SCOPES = "pkg.torch.onnx.name_scopes"
"""Metadata key of PyTorch's exporter: a list of dotted names of a node's modules, the node last."""


class Scopes:
    """The scopes of a model's tensors.

    Scopes come from the nodes' metadata, else from paths in node names (``/layer1/0/conv/Conv``), else from the names
    of weights (``layer1.0.conv.weight``); a node without weights belongs to the common scope of its neighbours.

    Args:
        model: The model.
    """

    def __init__(self, model: ir.Model) -> None:
        nodes = [node for node in model.graph.all_nodes() if node.op_type != "Constant"]
        scopes = {node: _of_metadata(node) or _of_name(node.name or "") for node in nodes}
        if 2 * sum(map(bool, scopes.values())) < len(nodes):
            scopes = _of_weights(nodes, set(model.graph.initializers.values()))
        self._scopes = {str(output.name): scopes[node] for node in nodes for output in node.outputs if output.name}
        self._nodes = {node.name: scopes[node] for node in nodes if node.name}
        self.known = any(scopes.values())

    def of(self, tensor: str) -> Scope:
        """Return the scope of the node that computes a tensor; empty if unknown."""
        scope = self._scopes.get(tensor)
        if scope is None:
            source = source_node(tensor, self._nodes)
            scope = self._nodes[source] if source else _of_name(tensor)
        return scope


def source_node(tensor: str, names: Mapping[str, object]) -> str:
    """Return the key of ``names`` from which the optimizer derived a tensor, or an empty text.

    The optimizer appends the names of new tensors to the node's name.
    """
    while "/" in tensor:
        tensor = tensor.rpartition("/")[0]
        if tensor in names:
            return tensor
    return ""


def common(first: Scope, second: Scope) -> Scope:
    """Return the innermost scope that holds both."""
    return tuple(a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _of_metadata(node: ir.Node) -> Scope:
    text = node.metadata_props.get(_NAME_SCOPES)
    if text is None:
        return ()
    try:
        scopes = ast.literal_eval(text)
    except (SyntaxError, ValueError):  # Another tool's text under the same key.
        return ()
    inner = scopes[-2] if isinstance(scopes, list) and len(scopes) > 1 else ""
    return tuple(part for part in str(inner).split(".") if part)


def _of_name(name: str) -> Scope:
    return tuple(part for part in name.split("/")[:-1] if part)


def _of_weights(nodes: Sequence[ir.Node], weights: set[ir.Value]) -> dict[ir.Node, Scope]:
    own = {node: scope for node in nodes if (scope := _weight_scope(node, weights))}
    if not own:
        return dict.fromkeys(nodes, ())
    before: dict[ir.Value | None, Scope] = {}
    for node in nodes:
        preceding = next((before[value] for value in node.inputs if value in before), None)
        if (inner := own.get(node, preceding)) is not None:
            before.update(dict.fromkeys(node.outputs, inner))
    after: dict[ir.Value | None, Scope] = {}
    scopes: dict[ir.Node, Scope] = {}
    for node in reversed(nodes):
        following = next((after[value] for value in node.outputs if value in after), None)
        preceding = next((before[value] for value in node.inputs if value in before), None)
        if node in own:
            scopes[node] = own[node]
        else:
            scopes[node] = common(preceding or (), following or ())
        if (inner := own.get(node, following)) is not None:
            for value in node.inputs:
                after.setdefault(value, inner)
    return scopes


def _weight_scope(node: ir.Node, weights: set[ir.Value]) -> Scope:
    """Return the scope of the weights that a node reads, directly or through unary nodes (Transpose)."""
    for value in node.inputs:
        source = value
        while source is not None and (producer := source.producer()) is not None and len(producer.inputs) == 1:
            source = producer.inputs[0]
        if source in weights and source is not None and "." in (source.name or ""):
            return tuple(str(source.name).split(".")[:-1])
    return ()
