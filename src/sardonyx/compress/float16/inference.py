"""Types of all values, in bodies and functions too, from schemas and attributes.

Only types are inferred, no shapes, in a single walk over the nodes. Calls may pass different types to one function:
every combination gets a copy of the function, in which each value has one type.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.compress.float16.signature import (
    DTYPE_ATTRIBUTE,
    DTYPE_INPUT,
    FLOAT32,
    Signature,
    signature_of,
    type_name,
)
from sardonyx.errors import InvalidModelError
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import node_label

Attributes = Mapping[str, ir.Attr]
CONTROL_FLOW = frozenset(("If", "Loop", "Scan"))
_TYPE_ATTRIBUTES = frozenset((*DTYPE_ATTRIBUTE.values(), "stash_type", "type"))
_CONSTANT_ATTRIBUTES = {
    "value_float": "float",
    "value_floats": "float",
    "value_int": "int64",
    "value_ints": "int64",
    "value_string": "string",
    "value_strings": "string",
}


class TypedModel:
    """A model with inferred types, in which every function has a single type signature.

    Args:
        model: The model. Its function calls refer to copies of the functions if calls differ in type.
        infer: False uses only the types written in the model.
        keeps: Predicate of function calls that stay in float32, with all inner calls; such calls get separate copies.

    Attributes:
        types: Each value's type, spelled as in schemas; a value of unknown type is absent.
        calls: The callee of each call node.
        kept_functions: Functions that are called only by calls to keep.

    Raises:
        InvalidModelError: A function calls itself.
    """

    def __init__(self, model: ir.Model, *, infer: bool, keeps: Callable[[ir.Node], bool]) -> None:
        self.model = model
        self.types: dict[ir.Value, str] = {}
        self.calls: dict[ir.Node, ir.Function] = {}
        self.kept_functions: set[ir.Function] = set()
        self._infer = infer
        self._keeps = keeps
        self._pristine: dict[ir.OperatorIdentifier, ir.Function] = {}
        self._copies: dict[tuple[object, ...], ir.Function] = {}
        self._open: list[ir.OperatorIdentifier] = []
        self._walk(model.graph, model.graph.opset_imports, {}, keep=False)

    def float32(self, value: ir.Value | None) -> bool:
        """Return True if the value is known to be a dense float32 tensor."""
        return value is not None and self.types.get(value) == FLOAT32

    def _walk(self, graph: ir.Graph, opsets: Mapping[str, int], arguments: Attributes, *, keep: bool) -> None:
        self._read_declared(graph.inputs)
        for value in graph.initializers.values():
            if value.const_value is not None:
                self.types[value] = type_name(value.const_value.dtype)
        for node in graph:
            self._read_declared(node.outputs)
            self._visit(node, opsets, arguments, keep=keep)
        if self._infer:
            self._infer_backward(graph, opsets)

    def _read_declared(self, values: Iterable[ir.Value]) -> None:
        for value in values:
            if value.type is not None and value.type.dtype != ir.DataType.UNDEFINED:
                self.types.setdefault(value, type_name(value.type))

    def _visit(self, node: ir.Node, opsets: Mapping[str, int], arguments: Attributes, *, keep: bool) -> None:
        keep = keep or self._keeps(node)
        if (function := self._callee(node)) is not None:
            copy = self._specialize(node, function, arguments, keep=keep)
            self._link(zip(node.outputs, copy.outputs, strict=False))
            return
        bodies = bodies_of(node)
        for body in bodies:
            ports = ports_of(node, body, opsets) if self._infer else Ports()
            self._link((body.inputs[inner], node.inputs[outer]) for outer, inner in ports.inputs)
            self._walk(body, opsets, arguments, keep=keep)
            self._link((node.outputs[outer], body.outputs[inner]) for outer, inner in ports.outputs)
        if self._infer and not bodies:
            self._unify(node, signature_of(node, opsets))
            self._infer_from_attributes(node, arguments)

    def _link(self, pairs: Iterable[tuple[ir.Value | None, ir.Value | None]]) -> None:
        """For each pair (target, source), give the target the source's type unless the target has one."""
        for target, source in pairs:
            if target is not None and source is not None and source in self.types:
                self.types.setdefault(target, self.types[source])

    def _infer_backward(self, graph: ir.Graph, opsets: Mapping[str, int]) -> None:
        """Infer types from users, for the outputs of operators without a schema."""
        if all(output in self.types or not output.name for node in graph for output in node.outputs):
            return
        for nodes in (reversed(graph), graph):
            for node in nodes:
                if self._callee(node) is None and not bodies_of(node):
                    self._unify(node, signature_of(node, opsets))

    def _unify(self, node: ir.Node, signature: Signature | None) -> None:
        if signature is None:
            return
        slots = [(value, signature.input(i)) for i, value in enumerate(node.inputs) if value is not None]
        slots += [(value, signature.output(i)) for i, value in enumerate(node.outputs)]
        bound = {p.variable: self.types[value] for value, p in slots if p is not None and value in self.types}
        for value, parameter in slots:
            if parameter is None or value in self.types:
                continue
            if len(parameter.allowed) == 1:
                self.types[value] = next(iter(parameter.allowed))
            elif parameter.variable in bound:
                self.types[value] = bound[parameter.variable]

    def _infer_from_attributes(self, node: ir.Node, arguments: Attributes) -> None:
        for output in node.outputs:
            if output not in self.types and node.domain in ("", "ai.onnx"):
                inputs = [self.types.get(value) if value is not None else None for value in node.inputs]
                if (inferred := _attribute_type(node, inputs, arguments)) is not None:
                    self.types[output] = inferred

    def _callee(self, node: ir.Node) -> ir.Function | None:
        if node in self.calls:
            return self.calls[node]
        identifier = node.op_identifier()
        return self._pristine.get(identifier) or self.model.functions.get(identifier)

    def _specialize(self, node: ir.Node, function: ir.Function, outer: Attributes, *, keep: bool) -> ir.Function:
        """Return the copy of ``function`` for this call's types; the first copy is the function itself."""
        identifier = function.identifier()
        if identifier in self._open:
            raise InvalidModelError("the function calls itself", where="::".join(filter(None, identifier)))
        types = [self.types.get(value, "") if value is not None else "" for value in node.inputs]
        types += [""] * (len(function.inputs) - len(types))
        attributes = {**function.attributes, **_resolve_references(node.attributes, outer)}
        relevant = tuple(
            (name, repr(attributes[name].value))
            for name in sorted(_type_relevant_attributes(function))
            if name in attributes
        )
        key = (identifier, tuple(types), relevant, keep)
        copy = self._copies.get(key)
        if copy is None:
            copy = self._copies[key] = self._copy(function)
            self.types.update((v, t) for v, t in zip(copy.inputs, types, strict=False) if t)
            self._open.append(identifier)
            self._walk(copy.graph, copy.opset_imports, attributes, keep=keep)
            self._open.pop()
            if keep:
                self.kept_functions.add(copy)
        node.op_type, node.overload = copy.name, copy.overload
        self.calls[node] = copy
        return copy

    def _copy(self, function: ir.Function) -> ir.Function:
        identifier = function.identifier()
        if identifier not in self._pristine:
            self._pristine[identifier] = function.clone()
            return function
        copy = self._pristine[identifier].clone()
        number = 2
        while (copy.domain, f"{function.name}_{number}", copy.overload) in self.model.functions:
            number += 1
        copy.name = f"{function.name}_{number}"
        self.model.functions[copy.identifier()] = copy
        return copy


def bodies_of(node: ir.Node) -> Sequence[ir.Graph]:
    """Return the graphs in the node's attributes."""
    bodies: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            bodies.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
            bodies.extend(attribute.as_graphs())
    return bodies


@dataclass(frozen=True)
class Ports:
    """Data flow between a control-flow node and one of its bodies, as pairs of indices (node, body).

    Attributes:
        inputs: Inputs of the node, and the body's inputs that receive the values or slices of them.
        outputs: Outputs of the node, and the corresponding outputs of the body.
        states: Outputs of the node, and the body's inputs through which the same state enters the next iteration.
    """

    inputs: Sequence[tuple[int, int]] = ()
    outputs: Sequence[tuple[int, int]] = ()
    states: Sequence[tuple[int, int]] = ()


def ports_of(node: ir.Node, body: ir.Graph, opsets: Mapping[str, int]) -> Ports:
    """Return the ports of an If, Loop or Scan node and its body; no ports for any other node.

    Raises:
        InvalidModelError: The body has fewer inputs or outputs than the node needs.
    """
    if node.domain not in ("", "ai.onnx") or node.op_type not in CONTROL_FLOW:
        return Ports()
    ports = _expected_ports(node, body, opsets)
    bounds = ((ports.inputs, len(node.inputs), len(body.inputs)), (ports.outputs, len(node.outputs), len(body.outputs)))
    if any(outer >= outers or inner >= inners for pairs, outers, inners in bounds for outer, inner in pairs):
        raise InvalidModelError(
            f"its body has {len(body.inputs)} inputs and {len(body.outputs)} outputs, which do not fit the "
            f"{len(node.inputs)} inputs and {len(node.outputs)} outputs of the node",
            where=node_label(node),
            remedy="Run `sardonyx check`, which lists the faults of the model.",
        )
    return ports


def _expected_ports(node: ir.Node, body: ir.Graph, opsets: Mapping[str, int]) -> Ports:
    if node.op_type == "If":
        return Ports(outputs=_pairs(len(node.outputs), 0, 0))
    if node.op_type == "Loop":
        states = _pairs(min(len(node.outputs), len(body.inputs) - 2), 0, 2)
        return Ports(_pairs(min(len(node.inputs), len(body.inputs)), 0, 0), _pairs(len(node.outputs), 0, 1), states)
    scanned = node.attributes["num_scan_inputs"].as_int()
    lengths = 1 if opsets.get("", opsets.get("ai.onnx", 9)) < 9 else 0
    return Ports(
        _pairs(min(len(node.inputs) - lengths, len(body.inputs)), lengths, 0),
        _pairs(len(node.outputs), 0, 0),
        _pairs(len(body.inputs) - scanned, 0, 0),
    )


def _pairs(count: int, first: int, second: int) -> list[tuple[int, int]]:
    return [(first + index, second + index) for index in range(count)]


def _resolve_references(attributes: Attributes, arguments: Attributes) -> dict[str, ir.Attr]:
    """Return the attributes with references to the enclosing function's attributes resolved."""
    resolved: dict[str, ir.Attr] = {}
    for name, attribute in attributes.items():
        if not attribute.is_ref():
            resolved[name] = attribute
        elif attribute.ref_attr_name is not None and attribute.ref_attr_name in arguments:
            resolved[name] = arguments[attribute.ref_attr_name]
    return resolved


def _type_relevant_attributes(function: ir.Function) -> Collection[str]:
    """Return the function's attributes on which inner types may depend."""
    names: set[str] = set()
    for node in function.all_nodes():
        for name, attribute in node.attributes.items():
            is_relevant = name in _TYPE_ATTRIBUTES or name.startswith("value") or node.domain not in ("", "ai.onnx")
            if is_relevant and attribute.is_ref() and attribute.ref_attr_name is not None:
                names.add(attribute.ref_attr_name)
    return names


def _attribute_type(node: ir.Node, inputs: Sequence[str | None], arguments: Attributes) -> str | None:
    """Return the type of an output that depends on attributes, or on the element type of a sequence."""
    attributes = _resolve_references(node.attributes, arguments)
    match node.op_type:
        case "Constant":
            return _constant_type(attributes)
        case "ConstantOfShape":
            return type_name(attributes["value"].as_tensor().dtype) if "value" in attributes else FLOAT32
        case "LayerNormalization":
            return _element_type(attributes, "stash_type") or FLOAT32
        case "QuantizeLinear":
            return _element_type(attributes, "output_dtype") or "tensor(uint8)"
        case "SequenceEmpty":
            return f"seq({_element_type(attributes, DTYPE_ATTRIBUTE['SequenceEmpty']) or FLOAT32})"
        case "SequenceConstruct" | "SplitToSequence":
            return f"seq({inputs[0]})" if inputs[0] else None
        case "SequenceAt" | "ConcatFromSequence" | "OptionalGetElement":
            return inputs[0].partition("(")[2][:-1] if inputs[0] and not inputs[0].startswith("tensor") else inputs[0]
        case "Optional":
            return f"optional({inputs[0]})" if inputs and inputs[0] else None
        case op_type if op_type in DTYPE_ATTRIBUTE:
            index = DTYPE_INPUT.get(op_type)
            default = FLOAT32 if index is None else inputs[index]
            return _element_type(attributes, DTYPE_ATTRIBUTE[op_type]) or default
    return None


def _element_type(attributes: Attributes, name: str) -> str | None:
    if name not in attributes:
        return None
    value = attributes[name].value
    if isinstance(value, str):
        return type_name(ir.DataType[value.upper()])
    dtype = facts.element_type(value) if isinstance(value, int) else None
    return None if dtype is None or dtype == ir.DataType.UNDEFINED else type_name(dtype)


def _constant_type(attributes: Attributes) -> str | None:
    if "value" in attributes:
        return type_name(attributes["value"].as_tensor().dtype)
    for name, element in _CONSTANT_ATTRIBUTES.items():
        if name in attributes:
            return f"tensor({element})"
    return None
