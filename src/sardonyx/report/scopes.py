"""Where in the model's source a node belongs: the path of modules that exporters leave in names."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Mapping, Sequence

import onnx_ir as ir

Scope = tuple[str, ...]
"""Modules, the outermost first."""

_NAME_SCOPES = "pkg.torch.onnx.name_scopes"
"""Where PyTorch's exporter writes the modules of a node, as a list of dotted names; the last is the node's own."""


class Scopes:
    """The scopes of a model's tensors.

    They are told by the nodes' metadata, else by paths in their names (``/layer1/0/conv/Conv``), else by the names of
    weights (``layer1.0.conv.weight``): a node without any then belongs where both its neighbours do.

    Args:
        model: The model.
    """

    def __init__(self, model: ir.Model) -> None:
        nodes = [node for node in model.graph.all_nodes() if node.op_type != "Constant"]
        told = {node: _of_metadata(node) or _of_name(node.name or "") for node in nodes}
        if 2 * sum(map(bool, told.values())) < len(nodes):
            told = _of_weights(nodes, set(model.graph.initializers.values()))
        self._scopes = {str(output.name): told[node] for node in nodes for output in node.outputs if output.name}
        self._nodes = {node.name: told[node] for node in nodes if node.name}
        self.known = any(told.values())

    def of(self, tensor: str) -> Scope:
        """The scope of what gives a tensor; empty where nothing tells."""
        found = self._scopes.get(tensor)
        if found is None:
            maker = made_from(tensor, self._nodes)
            found = self._nodes[maker] if maker else _of_name(tensor)
        return found


def made_from(tensor: str, names: Mapping[str, object]) -> str:
    """The one of ``names`` of which the optimizer made a tensor; empty where there is none.

    It appends what it makes of a node to the node's name.
    """
    while "/" in tensor:
        tensor = tensor.rpartition("/")[0]
        if tensor in names:
            return tensor
    return ""


def common(first: Scope, second: Scope) -> Scope:
    """The innermost scope that holds both."""
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
    found: dict[ir.Node, Scope] = {}
    for node in reversed(nodes):
        following = next((after[value] for value in node.outputs if value in after), None)
        preceding = next((before[value] for value in node.inputs if value in before), None)
        if node in own:
            found[node] = own[node]
        else:
            found[node] = common(preceding or (), following or ())
        if (inner := own.get(node, following)) is not None:
            for value in node.inputs:
                after.setdefault(value, inner)
    return found


def _weight_scope(node: ir.Node, weights: set[ir.Value]) -> Scope:
    """The scope of the weights that a node reads, as they are or turned around."""
    for value in node.inputs:
        source = value
        while source is not None and (maker := source.producer()) is not None and len(maker.inputs) == 1:
            source = maker.inputs[0]
        if source in weights and source is not None and "." in (source.name or ""):
            return tuple(str(source.name).split(".")[:-1])
    return ()
