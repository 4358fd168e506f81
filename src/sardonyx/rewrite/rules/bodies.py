"""Bodies of If, Loop and Scan: inlining, copying and rebuilding, shared by the control-flow rules."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import COMMUTATIVE
from sardonyx.rewrite.rewrite_context import Workspace


def body_of(node: ir.Node, name: str) -> ir.Graph | None:
    """Return the graph of attribute ``name``; None if the caller of a function gives it."""
    attribute = node.attributes.get(name)
    return None if attribute is None or attribute.is_ref() else attribute.as_graph()


def branches(node: ir.Node) -> tuple[ir.Graph, ir.Graph] | None:
    """Return the then-branch and the else-branch of an If; None unless both are graphs of all outputs and no inputs."""
    yes, no = body_of(node, "then_branch"), body_of(node, "else_branch")
    if yes is None or no is None or not len(yes.outputs) == len(no.outputs) == len(node.outputs):
        return None
    if yes.inputs or no.inputs:
        return None
    return yes, no


def immovable_reason(workspace: Workspace, body: ir.Graph) -> str | None:
    """Return the reason why the weights of the body cannot move to the outer graph, or None."""
    if workspace.in_function and body.initializers:
        return "the body holds weights, and a function can hold none"
    if any(value.const_value is None for value in body.initializers.values()):
        return "the body holds initializers other than plain tensors"
    return None


def substitute(old: ir.Value, new: ir.Value | None) -> list[ir.Node]:
    """Make every reader of ``old`` read ``new``; return these nodes."""
    uses = tuple(old.uses())
    for use in uses:
        use.node.replace_input_with(use.idx, new)
    return [use.node for use in uses]


def release_outputs(body: ir.Graph) -> list[ir.Value]:
    """Return the body's outputs as plain values, which the body no longer puts out."""
    outputs = list(body.outputs)
    while len(body.outputs):
        body.outputs.pop()
    return outputs


def splice(
    workspace: Workspace, body: ir.Graph, inputs: Mapping[ir.Value, ir.Value | None], into: ir.Graph
) -> list[ir.Node]:
    """Take a body apart: move its initializers to ``into`` and return its nodes for insertion there.

    Args:
        workspace: The model, whose names stay unique.
        body: The body; empty afterwards. Its outputs must have been released.
        inputs: The replacements of its parameters; None for an absent one.
        into: The graph into which the caller inserts the nodes.
    """
    for old, new in inputs.items():
        substitute(old, new)
    for name in list(body.initializers):
        value = body.initializers.pop(name)
        value.name = workspace.names.adopt(name)
        into.register_initializer(value)
    nodes = list(body)
    body.remove(nodes)
    for node in nodes:
        if node.name:
            node.name = workspace.node_names.adopt(node.name)
        for output in node.outputs:
            if output.name:
                output.name = workspace.names.adopt(output.name)
    return nodes


def copy_body(
    workspace: Workspace, body: ir.Graph, inputs: Mapping[ir.Value, ir.Value], into: ir.Graph
) -> tuple[list[ir.Node], list[ir.Value]]:
    """Copy the body for insertion in ``into``, under new names.

    Returns:
        The nodes of the copy, and the values of its outputs.
    """
    clone = body.clone(allow_outer_scope_values=True)
    rename_copy(workspace, clone)
    replacements = dict(zip(clone.inputs, (inputs[value] for value in body.inputs), strict=True))
    outputs = [replacements.get(value, value) for value in release_outputs(clone)]
    return splice(workspace, clone, replacements, into), outputs


def rename_copy(workspace: Workspace, clone: ir.Graph) -> None:
    """Give the nodes, results and weights of a copy, and of the bodies in it, unused names."""
    for graph in facts.graphs_of(clone):
        for name in list(graph.initializers):
            value = graph.initializers.pop(name)
            value.name = workspace.names.fresh(name)
            graph.register_initializer(value)
        for value in graph.inputs if graph is not clone else ():
            value.name = workspace.names.fresh(value.name or "parameter")
        for node in graph:
            if node.name:
                node.name = workspace.node_names.fresh(node.name)
            for output in node.outputs:
                if output.name:
                    output.name = workspace.names.fresh(output.name)


def rebuild_node(
    workspace: Workspace,
    node: ir.Node,
    inputs: Sequence[ir.Value | None],
    remaining: Sequence[int],
    attributes: Mapping[str, ir.Attr] | None = None,
    collected: Sequence[ir.Value] = (),
) -> tuple[ir.Node, dict[ir.Value, ir.Value]]:
    """Rebuild the node with other inputs and only some outputs; its bodies move to the new node.

    Args:
        workspace: The model, whose names stay unique.
        node: The node; left without attributes.
        inputs: The inputs of the new node.
        remaining: Indices of the outputs of the new node.
        attributes: Replacements of attributes.
        collected: Values of a body whose slices become further outputs of the new node, after the others.

    Returns:
        The new node, and each old output with its replacement.
    """
    held = {**node.attributes, **(attributes or {})}.values()
    # The bodies belong to the new node: the old one must not take them along when it is removed.
    node.attributes.clear()
    new_node = ir.Node(
        node.domain,
        node.op_type,
        inputs,
        held,
        num_outputs=len(remaining) + len(collected),
        overload=node.overload,
        doc_string=node.doc_string,
        metadata_props=dict(node.metadata_props),
        name=workspace.node_names.fresh(node.name or node.op_type),
    )
    pairs = {
        node.outputs[index]: output for index, output in zip(remaining, new_node.outputs[: len(remaining)], strict=True)
    }
    for old, new in pairs.items():
        new.name = workspace.names.fresh(old.name or "output")
        new.type, new.shape = old.type, old.shape
    for value, new in zip(collected, new_node.outputs[len(remaining) :], strict=True):
        new.name = workspace.names.fresh(f"{value.name}_collected")
        new.type = value.type
        new.shape = None if value.shape is None else ir.Shape([None, *_numbers(value.shape)])
    return new_node, pairs


def _numbers(shape: ir.Shape) -> list[int | None]:
    """Keep the numbers of a body's shape; its symbols have no meaning outside."""
    return [dim if isinstance(dim, int) else None for dim in shape]


def move_node(workspace: Workspace, node: ir.Node, into: ir.Graph) -> ir.Node:
    """Move the node out of its body for insertion in ``into``, and the body's weights among its inputs."""
    body = node.graph
    assert isinstance(body, ir.Graph)
    body.remove(node)
    if node.name:
        node.name = workspace.node_names.adopt(node.name)
    for output in node.outputs:
        if output.name:
            output.name = workspace.names.adopt(output.name)
    for value in node.inputs:
        if value is not None and value.is_initializer() and value.graph is body:
            name = str(value.name)
            del body.initializers[name]
            value.name = workspace.names.adopt(name)
            into.register_initializer(value)
    return node


def prune(workspace: Workspace, body: ir.Graph) -> None:
    """Take out the nodes of a body whose outputs nothing reads any more."""
    for node in reversed(list(body)):
        if all(facts.unused(value) for value in node.outputs):
            for inner in facts.bodies(node):
                workspace.discard_body(inner)
            body.remove(node, safe=True)


def pass_through(workspace: Workspace, value: ir.Value, body: ir.Graph) -> ir.Value:
    """An output of the body that is ``value``, which the body itself does not produce or already puts out."""
    node = ir.Node("", "Identity", [value], name=workspace.node_names.fresh(f"{value.name}_passed"))
    output = node.outputs[0]
    output.name = workspace.names.fresh(f"{value.name}_passed")
    output.type, output.shape = value.type, value.shape
    body.append(node)
    return output


class Numbers:
    """Value numbering across bodies: two values have equal numbers if they are surely computed alike.

    Values of outer graphs are known by themselves, parameters by their place (or as what ``known``
    says), weights by their content, and nodes by operator, attributes and the numbers of their operands.
    """

    def __init__(self) -> None:
        self._table: dict[Hashable, int] = {}
        self._numbers: dict[ir.Value, int] = {}

    def of(self, value: ir.Value) -> int:
        """The number of a value of a graph entered, or of an outer one."""
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = self._cons(self._leaf(value))
        return number

    def same(self, a: ir.Value, b: ir.Value) -> None:
        """Suppose that two parameters hold equal values."""
        self._numbers[b] = self.of(a)

    def enter(self, body: ir.Graph, *, parameters: str | None = None) -> None:
        """Number the values of a body; parameters by position under the key ``parameters``, if one is given."""
        if parameters is not None:
            for position, value in enumerate(body.inputs):
                self._numbers[value] = self._cons((parameters, position))
        for node in body:
            key = self._key(node)
            for output in node.outputs:
                if key is None:
                    self._numbers[output] = self._cons(("itself", id(output)))
                elif node.op_type == "Identity" and not node.domain:
                    self._numbers[output] = self.of(node.inputs[0])  # type: ignore[arg-type]
                else:
                    self._numbers[output] = self._cons((key, output.index()))

    def _cons(self, key: Hashable) -> int:
        return self._table.setdefault(key, len(self._table))

    def _leaf(self, value: ir.Value) -> Hashable:
        tensor = facts.constant_tensor(value)
        if tensor is None or not value.is_initializer() or tensor.size > facts.SMALL:
            return "itself", id(value)
        return content(tensor)

    def _key(self, node: ir.Node) -> Hashable | None:
        """Return the key that decides the node's outputs; None if operands and attributes do not."""
        if node.op_type == "Constant" and not node.domain:
            tensor = facts.constant_tensor(node.outputs[0])
            return None if tensor is None else content(tensor)
        if not facts.is_pure(node):
            return None
        operands = [-1 if value is None else self.of(value) for value in node.inputs]
        if node.op_type in COMMUTATIVE:
            operands.sort()
        attributes: list[Hashable] = []
        for name in sorted(node.attributes):
            attribute = node.attributes[name]
            key = self._attribute(attribute)
            if key is None:
                return None
            attributes.append((name, key))
        return node.op_type, node.domain, node.overload, tuple(operands), tuple(attributes), len(node.outputs)

    def _attribute(self, attribute: ir.Attr) -> Hashable | None:
        if attribute.is_ref():
            return "ref", attribute.ref_attr_name
        match attribute.type:
            case ir.AttributeType.GRAPH:
                body = attribute.as_graph()
                self.enter(body, parameters="inner")
                return "body", len(body.inputs), tuple(self.of(value) for value in body.outputs)
            case ir.AttributeType.TENSOR:
                return content(attribute.as_tensor())
            case ir.AttributeType.INT | ir.AttributeType.FLOAT | ir.AttributeType.STRING:
                return repr(attribute.value)
            case ir.AttributeType.INTS | ir.AttributeType.FLOATS | ir.AttributeType.STRINGS:
                return repr(tuple(attribute.value))
            case _:
                return None


def content(tensor: ir.TensorProtocol) -> Hashable:
    """A key that equal tensors share: type, shape and a digest of the elements."""
    if tensor.dtype == ir.DataType.STRING:
        data = repr(tensor.numpy().tolist()).encode()
    else:
        data = tensor.tobytes()
    return "content", tensor.dtype, tuple(tensor.shape), hashlib.blake2b(data, digest_size=16).digest()
