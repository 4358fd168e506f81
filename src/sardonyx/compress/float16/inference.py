"""The type of every value, in bodies and functions too, from what schemas and attributes say.

Only types are found here, no shapes, so this costs one walk over the nodes. A function may be called
with different types: every combination gets a copy of its own, in which each value has one type.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.compress.float16.signature import (
    FLOAT32,
    FOLLOWED_INPUT,
    STATING_ATTRIBUTE,
    Signature,
    signature_of,
    type_name,
)
from sardonyx.errors import InvalidModelError

Attributes = Mapping[str, ir.Attr]
CONTROL_FLOW = frozenset(("If", "Loop", "Scan"))
_TYPE_ATTRIBUTES = frozenset((*STATING_ATTRIBUTE.values(), "stash_type", "type"))
_CONSTANT_ATTRIBUTES = {
    "value_float": "float",
    "value_floats": "float",
    "value_int": "int64",
    "value_ints": "int64",
    "value_string": "string",
    "value_strings": "string",
}


class TypedModel:
    """A model in which every value's type is known as far as it can be, and every function has one meaning.

    Args:
        model: The model. Its function calls are pointed at copies of the functions where calls differ in type.
        infer: False takes only the types written in the model.
        keeps: Whether a function call is to stay in float32, with all it calls; such calls get copies apart.

    Attributes:
        types: Each value's type, as schemas write it; a value whose type is unknown is absent.
        calls: The function that each call node calls.
        kept_functions: Functions that are called only from calls to keep.

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
        """Whether the value is known to be a dense float32 tensor."""
        return value is not None and self.types.get(value) == FLOAT32

    def _walk(self, graph: ir.Graph, opsets: Mapping[str, int], given: Attributes, *, keep: bool) -> None:
        self._declared(graph.inputs)
        for value in graph.initializers.values():
            if value.const_value is not None:
                self.types[value] = type_name(value.const_value.dtype)
        for node in graph:
            self._declared(node.outputs)
            self._visit(node, opsets, given, keep=keep)
        if self._infer:
            self._settle(graph, opsets)

    def _declared(self, values: Iterable[ir.Value]) -> None:
        for value in values:
            if value.type is not None and value.type.dtype != ir.DataType.UNDEFINED:
                self.types.setdefault(value, type_name(value.type))

    def _visit(self, node: ir.Node, opsets: Mapping[str, int], given: Attributes, *, keep: bool) -> None:
        keep = keep or self._keeps(node)
        if (function := self._called(node)) is not None:
            copy = self._specialize(node, function, given, keep=keep)
            self._link(zip(node.outputs, copy.outputs, strict=False))
            return
        bodies = bodies_of(node)
        for body in bodies:
            ports = ports_of(node, body, opsets) if self._infer else Ports()
            self._link((body.inputs[inner], node.inputs[outer]) for outer, inner in ports.inputs)
            self._walk(body, opsets, given, keep=keep)
            self._link((node.outputs[outer], body.outputs[inner]) for outer, inner in ports.outputs)
        if self._infer and not bodies:
            self._unify(node, signature_of(node, opsets))
            self._state(node, opsets, given)

    def _link(self, pairs: Iterable[tuple[ir.Value | None, ir.Value | None]]) -> None:
        """Of each pair (to, from), gives the first the second's type where it has none yet."""
        for target, source in pairs:
            if target is not None and source is not None and source in self.types:
                self.types.setdefault(target, self.types[source])

    def _settle(self, graph: ir.Graph, opsets: Mapping[str, int]) -> None:
        """Lets types flow back from users, for the outputs of operators without a schema."""
        if all(output in self.types or not output.name for node in graph for output in node.outputs):
            return
        for nodes in (reversed(graph), graph):
            for node in nodes:
                if self._called(node) is None and not bodies_of(node):
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

    def _state(self, node: ir.Node, opsets: Mapping[str, int], given: Attributes) -> None:
        for output in node.outputs:
            if output not in self.types and node.domain in ("", "ai.onnx"):
                found = _stated_type(node, [self.types.get(v) if v is not None else None for v in node.inputs], given)
                if found is not None:
                    self.types[output] = found

    def _called(self, node: ir.Node) -> ir.Function | None:
        if node in self.calls:
            return self.calls[node]
        identifier = node.op_identifier()
        return self._pristine.get(identifier) or self.model.functions.get(identifier)

    def _specialize(self, node: ir.Node, function: ir.Function, given: Attributes, *, keep: bool) -> ir.Function:
        """The copy of ``function`` for this call's types; the first copy is the function itself."""
        identifier = function.identifier()
        if identifier in self._open:
            raise InvalidModelError("the function calls itself", where="::".join(filter(None, identifier)))
        arguments = [self.types.get(value, "") if value is not None else "" for value in node.inputs]
        arguments += [""] * (len(function.inputs) - len(arguments))
        attributes = {**function.attributes, **_resolved(node.attributes, given)}
        stated = tuple(
            (name, repr(attributes[name].value)) for name in sorted(_stating(function)) if name in attributes
        )
        key = (identifier, tuple(arguments), stated, keep)
        copy = self._copies.get(key)
        if copy is None:
            copy = self._copies[key] = self._copy(function)
            self.types.update((v, t) for v, t in zip(copy.inputs, arguments, strict=False) if t)
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
    """The graphs in the node's attributes."""
    bodies: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            bodies.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
            bodies.extend(attribute.as_graphs())
    return bodies


@dataclass(frozen=True)
class Ports:
    """How a control-flow node and one of its bodies pass values, as pairs of indices (the node's, the body's).

    Attributes:
        inputs: Inputs of the node, and the body's inputs that receive them or slices of them.
        outputs: Outputs of the node, and the body's outputs that they are made from.
        states: Outputs of the node, and the body's inputs that the same state enters the next round by.
    """

    inputs: Sequence[tuple[int, int]] = ()
    outputs: Sequence[tuple[int, int]] = ()
    states: Sequence[tuple[int, int]] = ()


def ports_of(node: ir.Node, body: ir.Graph, opsets: Mapping[str, int]) -> Ports:
    """The ports of an If, Loop or Scan node and its body; none of any other node with a body."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in CONTROL_FLOW:
        return Ports()
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


def _resolved(attributes: Attributes, given: Attributes) -> dict[str, ir.Attr]:
    """The attributes with references to the enclosing function's attributes replaced by what was given for them."""
    found: dict[str, ir.Attr] = {}
    for name, attribute in attributes.items():
        if not attribute.is_ref():
            found[name] = attribute
        elif attribute.ref_attr_name is not None and attribute.ref_attr_name in given:
            found[name] = given[attribute.ref_attr_name]
    return found


def _stating(function: ir.Function) -> Collection[str]:
    """The function's attributes that a type inside it may depend on."""
    names: set[str] = set()
    for node in function.all_nodes():
        for name, attribute in node.attributes.items():
            if attribute.is_ref() and attribute.ref_attr_name is not None:
                stating = name in _TYPE_ATTRIBUTES or name.startswith("value") or node.domain not in ("", "ai.onnx")
                if stating:
                    names.add(attribute.ref_attr_name)
    return names


def _stated_type(node: ir.Node, inputs: Sequence[str | None], given: Attributes) -> str | None:
    """The type of an output that the schema leaves to attributes, or to the element of a sequence."""
    attributes = _resolved(node.attributes, given)
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
            return f"seq({_element_type(attributes, STATING_ATTRIBUTE['SequenceEmpty']) or FLOAT32})"
        case "SequenceConstruct" | "SplitToSequence":
            return f"seq({inputs[0]})" if inputs[0] else None
        case "SequenceAt" | "ConcatFromSequence" | "OptionalGetElement":
            return inputs[0].partition("(")[2][:-1] if inputs[0] and not inputs[0].startswith("tensor") else inputs[0]
        case "Optional":
            return f"optional({inputs[0]})" if inputs and inputs[0] else None
        case stating if stating in STATING_ATTRIBUTE:
            followed = FOLLOWED_INPUT.get(stating)
            default = FLOAT32 if followed is None else inputs[followed]
            return _element_type(attributes, STATING_ATTRIBUTE[stating]) or default
    return None


def _element_type(attributes: Attributes, name: str) -> str | None:
    if name not in attributes:
        return None
    value = attributes[name].value
    if isinstance(value, str):
        return type_name(ir.DataType[value.upper()])
    dtype = ir.DataType(attributes[name].as_int())
    return None if dtype == ir.DataType.UNDEFINED else type_name(dtype)


def _constant_type(attributes: Attributes) -> str | None:
    if "value" in attributes:
        return type_name(attributes["value"].as_tensor().dtype)
    for name, element in _CONSTANT_ATTRIBUTES.items():
        if name in attributes:
            return f"tensor({element})"
    return None
