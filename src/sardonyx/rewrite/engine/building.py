"""Build nodes from the expressions of a patch, and inspect expressions before they are built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import RuleError
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.facts import STANDARD
from sardonyx.rewrite.language import Expr, Patch, Replacement
from sardonyx.rewrite.site import Site

_TENSORS = (ir.Tensor, ir.TensorProtocol)
"""Most tensors are of the first type, which is tested first."""

_NO_WEIGHTS = frozenset({ir.Value, int, float, bool, type(None)})
"""Types of most leaves: `isinstance` with a protocol would test its members one by one."""


class Building:
    """A builder of the nodes of one patch.

    Args:
        site: The site at which the rule fired.

    Attributes:
        nodes: The new nodes, in order.
    """

    def __init__(self, site: Site) -> None:
        self.nodes: list[ir.Node] = []
        self._site = site
        self._workspace = site.workspace
        self._built: dict[Expr, ir.Node] = {}
        self._constants: dict[int, ir.Value] = {}

    def value(self, expr: Expr) -> ir.Value:
        """Return the value of an expression; missing nodes are built first."""
        source = expr.source
        node = self._built.get(source)
        if node is None:
            inputs = self._operands(source)
            attributes = [_attribute(k, v) for k, v in source.attrs.items() if v is not None]
            base = self._site.node.name or self._site.output.name or "node"
            node = ir.Node(
                source.domain,
                source.op_types[0],
                inputs,
                attributes,
                num_outputs=source.n_outputs,
                name=self._workspace.node_names.fresh(f"{base}/{source.op_types[0]}"),
            )
            for i, output in enumerate(node.outputs):
                output.name = self._workspace.names.fresh(f"{node.name}_{i}" if i else str(node.name))
            self._workspace.imports_domain(source.domain)
            self._built[source] = node
            self.nodes.append(node)
        return node.outputs[expr.index]

    def _operands(self, expr: Expr) -> list[ir.Value | None]:
        inputs: list[ir.Value | None] = []
        like = next((facts.dtype(a) for a in expr.args if type(a) is ir.Value), None)
        for arg in expr.args:
            if arg is None or type(arg) is ir.Value:
                inputs.append(arg)
            elif type(arg) is Expr:
                inputs.append(self.value(arg))
            elif isinstance(arg, (np.ndarray, np.generic)):
                inputs.append(self._constant(np.asarray(arg)))
            elif isinstance(arg, (bool, int, float)) and like is not None:
                inputs.append(self._constant(np.array(arg).astype(like.numpy())))
            elif isinstance(arg, _TENSORS):
                inputs.append(self._constant(arg))
            else:
                raise RuleError(f"operand {arg!r} cannot become an input", where="|".join(expr.op_types))
        return inputs

    def _constant(self, elements: np.ndarray | ir.TensorProtocol) -> ir.Value:
        known = self._constants.get(id(elements))
        if known is not None:
            return known
        base = self._site.node.name or self._site.output.name or "node"
        value = self._workspace.new_constant(elements, self._site.graph, f"{base}/constant", self.nodes)
        self._constants[id(elements)] = value
        return value


def leaves(expr: Replacement) -> Iterator[Any]:
    """Yield the leaves of an expression: values, arrays, tensors, numbers."""
    stack: list[Any] = [expr]
    while stack:
        item = stack.pop()
        if isinstance(item, Expr):
            stack.extend(item.source.args)
        else:
            yield item


def operators_of(patch: Patch) -> Iterator[str]:
    """Yield the operators of the default domain that a patch emits."""
    stack: list[Any] = list(patch.replace.values())
    while stack:
        item = stack.pop()
        if isinstance(item, Expr):
            if item.domain in STANDARD:
                yield item.op_types[0]
            stack.extend(item.source.args)
    yield from (node.op_type for node in patch.nodes if node.domain in STANDARD)


def weights_of(exprs: Iterable[Replacement]) -> list[np.ndarray | ir.TensorProtocol]:
    """Return the arrays and tensors among the leaves, each once."""
    weights = {
        id(leaf): leaf
        for expr in exprs
        if type(expr) is not ir.Value
        for leaf in leaves(expr)
        if type(leaf) not in _NO_WEIGHTS
    }
    return [leaf for leaf in weights.values() if isinstance(leaf, (np.ndarray, *_TENSORS))]


_ATTRIBUTES: Mapping[type, Callable[[str, Any], ir.Attr]] = {
    int: ir.AttrInt64,
    float: ir.AttrFloat32,
    str: ir.AttrString,
}
_LISTS: Mapping[frozenset[type], Callable[[str, Any], ir.Attr]] = {
    frozenset(): ir.AttrInt64s,
    frozenset({int}): ir.AttrInt64s,
    frozenset({float}): ir.AttrFloat32s,
    frozenset({str}): ir.AttrStrings,
}


def _attribute(name: str, value: Any) -> ir.Attr:
    if type(value) is ir.Attr:
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple)):
        value = list(value)
        make = _LISTS.get(frozenset(map(type, value)))
    else:
        make = _ATTRIBUTES.get(type(value))
    # What is none of these is told apart by protocols, member by member.
    return ir.convenience.convert_attribute(name, value) if make is None else make(name, value)
