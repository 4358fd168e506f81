"""Parser of the ONNX text syntax: everything onnx's parser reads, and the annotations of our printer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto

from sardonyx.model.text import annotation, conventions
from sardonyx.model.text.decimals import NumberError, parse_floats, parse_integers
from sardonyx.model.text.lexer import Scanner
from sardonyx.model.text.tensors import parse_data, start_tensor
from sardonyx.model.text.value_types import next_is_type, parse_type
from sardonyx.model.text.vocabulary import ATTRIBUTE_TYPES, LIST_OF, SINGLE_OF, VALUE_FIELDS


def parse(text: str, *, source: str = "<text>") -> ModelProto:
    """Parse a model from the ONNX text syntax.

    Args:
        text: The whole text.
        source: Name of the text in errors, usually a path.

    Raises:
        TextFormatError: The text does not follow the syntax; the error states line, column, and expected and actual
            token.
    """
    scanner = Scanner(text, source)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise scanner.error("the text contains a surrogate, which is not a character", at=error.start) from None
    return _Parser(scanner).model()


class _Parser:
    def __init__(self, scanner: Scanner) -> None:
        self.scanner = scanner
        self.defaults = conventions.read(scanner)

    def model(self) -> ModelProto:
        model = ModelProto()
        self.header(model, _MODEL_KEYS)
        notes = annotation.read(self.scanner, model)
        if self.scanner.peek():
            model.graph.SetInParent()
            self.graph(model.graph)
        elif not model.ListFields():
            self.scanner.fail("a model")
        while self.scanner.peek():
            self.function(model.functions.add())
        notes.finish(model)
        return model

    def header(self, proto: Any, keys: dict[str, Callable[[_Parser, Any], None]]) -> None:
        """Parse ``< key: value, … >``, if present."""
        if not self.scanner.accept("<"):
            return
        while True:
            self.scanner.skip_space()
            start = self.scanner.position
            key = self.scanner.word()
            if key not in keys:
                self.scanner.fail(f"one of {', '.join(keys)}", at=start)
            self.scanner.expect(":", where=f"after {key}")
            keys[key](self, proto)
            if not self.scanner.accept(","):
                break
        self.scanner.expect(">", where=f"or ',' after {key}")

    def opsets(self, proto: ModelProto | FunctionProto) -> None:
        def entry() -> None:
            opset = proto.opset_import.add()
            domain = self.scanner.string("an operator set's domain in quotes")
            if domain or not self.defaults.opset_domain_unset:
                opset.domain = domain
            self.scanner.expect(":", where="after the domain")
            opset.version = self.scanner.integer("an operator set's version")
            annotation.read(self.scanner, opset).finish(opset)

        self.bracketed_list(entry, "an operator set")

    def metadata(self, proto: ModelProto) -> None:
        def entry() -> None:
            pair = proto.metadata_props.add()
            pair.key = self.scanner.string("a metadata key in quotes")
            self.scanner.expect(":", where="after the metadata key")
            pair.value = self.scanner.string("a metadata value in quotes")
            annotation.read(self.scanner, pair).finish(pair)

        self.bracketed_list(entry, "a metadata entry")

    def bracketed_list(self, entry: Callable[[], None], element: str) -> None:
        self.scanner.expect("[", where="before a list")
        if self.scanner.accept("]"):
            return
        entry()
        while self.scanner.accept(","):
            entry()
        self.scanner.expect("]", where=f"or ',' after {element}")

    def graph(self, graph: GraphProto) -> None:
        graph.name = self.scanner.name("a graph's name")
        if self.scanner.accept("("):
            self.values(graph, graph.input, ")", keep_initialized=True)
        self.scanner.expect("=>", where="before a graph's outputs")
        self.scanner.expect("(", where="before a graph's outputs")
        if not self.scanner.accept(")"):
            self.value_info(graph.output.add())
            while self.scanner.accept(","):
                self.value_info(graph.output.add())
            self.scanner.expect(")", where="or ',' after an output")
        if self.scanner.accept("<"):
            self.values(graph, graph.value_info, ">", keep_initialized=False)
        self.body(graph)

    def values(self, graph: GraphProto, infos: Any, close: str, *, keep_initialized: bool) -> None:
        """Parse values with optional data, up to ``close``; data makes an initializer."""
        if self.scanner.accept(close):
            return
        while True:
            self.scanner.skip_space()
            start = self.scanner.position
            info = ValueInfoProto()
            self.value_info(info)
            initialized = self.scanner.accept("=")
            if initialized:
                tensor = graph.initializer.add()
                start_tensor(self.scanner, tensor, info.type, start)
                tensor.name = info.name
                parse_data(self.scanner, tensor, raw=self.defaults.raw)
            if keep_initialized or not initialized:
                infos.append(info)
            if not self.scanner.accept(","):
                break
        self.scanner.expect(close, where="or ',' after a value")

    def value_info(self, info: ValueInfoProto) -> None:
        if next_is_type(self.scanner):
            info.type.SetInParent()
            parse_type(self.scanner, info.type)
        info.name = self.scanner.name("a value's name")
        annotation.read(self.scanner, info).finish(info)

    def body(self, proto: GraphProto | FunctionProto) -> None:
        self.scanner.expect("{", where="before the nodes")
        notes = annotation.read(self.scanner, proto)
        while not self.scanner.accept("}"):
            self.node(proto.node.add())
        notes.finish(proto)

    def function(self, function: FunctionProto) -> None:
        self.header(function, _FUNCTION_KEYS)
        function.name = self.scanner.name("a function's name")
        if self.scanner.accept("<"):
            self.function_attribute(function)
            while self.scanner.accept(","):
                self.function_attribute(function)
            self.scanner.expect(">", where="or ',' after a function's attribute")
        self.parameters(function, function.input)
        self.scanner.expect("=>", where="before a function's outputs")
        self.parameters(function, function.output)
        if self.scanner.accept("<") and not self.scanner.accept(">"):
            self.value_info(function.value_info.add())
            while self.scanner.accept(","):
                self.value_info(function.value_info.add())
            self.scanner.expect(">", where="or ',' after a value")
        self.body(function)

    def function_attribute(self, function: FunctionProto) -> None:
        name = self.scanner.name("an attribute's name")
        if self.scanner.peek() in (",", ">"):
            function.attribute.append(name)
        else:
            self.attribute_after(function.attribute_proto.add(), name)

    def parameters(self, function: FunctionProto, names: _Names) -> None:
        """Parse the inputs or outputs of a function; a preceding type makes a value info."""
        self.scanner.expect("(", where="before a function's inputs and outputs")
        if self.scanner.accept(")"):
            return
        while True:
            typed = next_is_type(self.scanner)
            info = function.value_info.add() if typed else ValueInfoProto()
            self.value_info(info)
            names.append(info.name)
            if not self.scanner.accept(","):
                break
        self.scanner.expect(")", where="or ',' after a name")

    def node(self, node: NodeProto) -> None:
        scanner = self.scanner
        if scanner.accept("["):
            node.name = "" if scanner.peek() == "]" else scanner.name("a node's name")
            scanner.expect("]", where="after a node's name")
        self.names(node.output)
        scanner.expect("=", where="after a node's outputs")
        parts = [scanner.string("an operator") if scanner.peek_literal() else scanner.word()]
        while scanner.accept("."):
            parts.append(scanner.name("an operator after the '.'"))
        node.op_type = parts.pop()
        domain = ".".join(parts[1:] if parts[:1] == [""] else parts)
        if domain or not self.defaults.node_domain_unset:
            node.domain = domain
        if self.defaults.node_doc_set:
            node.doc_string = ""
        if scanner.accept(":"):
            node.overload = scanner.name("an overload's name")
        self.attributes(node)
        scanner.expect("(", where="before a node's inputs")
        self.names(node.input)
        scanner.expect(")", where="or ',' after a node's input")
        if not node.attribute:
            self.attributes(node)
        annotation.read(scanner, node).finish(node)

    def names(self, names: _Names) -> None:
        """Parse names separated by commas; nothing before a comma is an empty name, nothing at the end none."""
        scanner = self.scanner
        while True:
            if scanner.peek_literal():
                names.append(scanner.string("a name"))
            else:
                word = scanner.word()
                if not word and scanner.peek() != ",":
                    return
                names.append(word)
            if not scanner.accept(","):
                return

    def attributes(self, node: NodeProto) -> None:
        if not self.scanner.accept("<"):
            return
        while True:
            self.attribute_after(node.attribute.add(), self.scanner.name("an attribute's name"))
            if not self.scanner.accept(","):
                break
        self.scanner.expect(">", where="or ',' after an attribute")

    def attribute_after(self, attribute: AttributeProto, name: str) -> None:
        """Parse the remainder of an attribute after its name."""
        scanner = self.scanner
        attribute.name = name
        if scanner.accept(":"):
            scanner.skip_space()
            start = scanner.position
            word = scanner.word()
            if word not in ATTRIBUTE_TYPES:
                scanner.fail(f"an attribute type: {', '.join(ATTRIBUTE_TYPES)}", at=start)
            attribute.type = ATTRIBUTE_TYPES[word]  # type: ignore[assignment]
        notes = annotation.read(scanner, attribute)
        scanner.expect("=", where=f"before the value of {name}")
        scanner.skip_space()
        start = scanner.position
        if scanner.accept("["):
            self.value_list(attribute, start)
        elif not scanner.accept("?"):
            self.value(attribute, attribute.type)
        notes.finish(attribute)

    def value_list(self, attribute: AttributeProto, start: int) -> None:
        """Parse ``[value, …]``; the elements determine the type of a list without a stated type."""
        scanner = self.scanner
        if scanner.accept("]"):
            if attribute.type in LIST_OF or attribute.type == AttributeProto.UNDEFINED:
                raise scanner.error("an empty list needs the type of a list, as in 'axes: ints = []'", at=start)
            return
        if attribute.type in (AttributeProto.FLOATS, AttributeProto.INTS) and self.plain_list(attribute, start):
            return
        expected = SINGLE_OF.get(attribute.type, attribute.type)
        while True:
            element = AttributeProto()
            self.value(element, expected, in_list=True)
            expected = element.type
            attribute.type = LIST_OF[element.type]  # type: ignore[assignment]
            many = getattr(attribute, VALUE_FIELDS[attribute.type])
            many.append(getattr(element, VALUE_FIELDS[element.type]))
            if not scanner.accept(","):
                break
        scanner.expect("]", where="or ',' after an element")

    def plain_list(self, attribute: AttributeProto, start: int) -> bool:
        """Parse a whole list of numbers, if the list consists of plain numbers only."""
        integers = attribute.type == AttributeProto.INTS
        texts = self.scanner.plain_numbers("]", integers=integers)
        if texts is None:
            return False
        try:
            if integers:
                attribute.ints.extend(parse_integers(texts, np.dtype(np.int64)).tolist())
            else:
                attribute.floats.extend(parse_floats(texts, np.dtype(np.float32)).tolist())
        except NumberError as error:
            raise self.scanner.error(f"{attribute.name}: {error}", at=start) from None
        return True

    def value(self, attribute: AttributeProto, expected: int, *, in_list: bool = False) -> None:
        """Parse one value into the field of its type.

        Args:
            attribute: Receives type and value.
            expected: The required type; UNDEFINED if the text does not state one.
            in_list: True for an element of a list, which cannot be a reference.
        """
        scanner = self.scanner
        scanner.skip_space()
        start = scanner.position
        if scanner.peek() == "@" and not in_list:
            scanner.accept("@")
            attribute.ref_attr_name = scanner.name("the name of a function's attribute")
            return
        if expected == AttributeProto.GRAPH or self.next_is_graph():
            self.nested_graph(attribute)
        elif next_is_type(scanner):
            self.typed_value(attribute, expected, start)
        elif scanner.peek_literal():
            data = scanner.literal("a string")
            attribute.s = data.encode() if isinstance(data, str) else data
            attribute.type = AttributeProto.STRING
        else:
            self.numeric_value(attribute, expected)
        if expected not in (AttributeProto.UNDEFINED, attribute.type):
            names = [AttributeProto.AttributeType.Name(kind) for kind in (expected, attribute.type)]
            raise scanner.error(f"expected a value of type {names[0]}, got one of type {names[1]}", at=start)

    def next_is_graph(self) -> bool:
        """Return True if the next token is the name of a graph, rather than a type, a number or a string."""
        scanner = self.scanner
        if scanner.peek_word():
            return not next_is_type(scanner) and not scanner.peek_number()
        if not scanner.peek_literal():
            return False
        start = scanner.position
        scanner.literal("a string")
        graph = scanner.peek() in ("(", "=")
        scanner.position = start
        return graph

    def nested_graph(self, attribute: AttributeProto) -> None:
        with self.scanner.nested(3):
            attribute.g.SetInParent()
            self.graph(attribute.g)
            attribute.type = AttributeProto.GRAPH

    def typed_value(self, attribute: AttributeProto, expected: int, start: int) -> None:
        """Parse a tensor, or a type if no tensor data follows."""
        scanner = self.scanner
        kind = TypeProto()
        parse_type(scanner, kind)
        named = bool(scanner.peek_word()) or scanner.peek_literal()
        if expected == AttributeProto.TENSOR or scanner.peek() in ("{", "=") or named:
            start_tensor(scanner, attribute.t, kind, start)
            if named:
                attribute.t.name = scanner.name("a tensor's name")
            elif not self.defaults.tensor_name_unset:
                attribute.t.name = ""
            scanner.accept("=")
            parse_data(scanner, attribute.t, raw=self.defaults.raw)
            attribute.type = AttributeProto.TENSOR
        else:
            attribute.tp.CopyFrom(kind)
            attribute.type = AttributeProto.TYPE_PROTO

    def numeric_value(self, attribute: AttributeProto, expected: int) -> None:
        scanner = self.scanner
        scanner.skip_space()
        start = scanner.position
        text = scanner.number("a value")
        if expected != AttributeProto.FLOAT and text.lstrip("-").isdigit():
            scanner.position = start
            attribute.i = scanner.integer("an integer")
            attribute.type = AttributeProto.INT
            return
        try:
            attribute.f = float(parse_floats([text], np.dtype(np.float32))[0])
        except NumberError as error:
            raise scanner.error(str(error), at=start) from None
        attribute.type = AttributeProto.FLOAT


class _Names(Protocol):
    def append(self, name: str, /) -> None: ...


def _text_of(field: str) -> Callable[[_Parser, Any], None]:
    def read(parser: _Parser, proto: Any) -> None:
        setattr(proto, field, parser.scanner.string(f"{field} in quotes"))

    return read


def _integer_of(field: str) -> Callable[[_Parser, Any], None]:
    def read(parser: _Parser, proto: Any) -> None:
        setattr(proto, field, parser.scanner.integer(f"{field}, an integer"))

    return read


_MODEL_KEYS: dict[str, Callable[[_Parser, Any], None]] = {
    "ir_version": _integer_of("ir_version"),
    "opset_import": _Parser.opsets,
    "producer_name": _text_of("producer_name"),
    "producer_version": _text_of("producer_version"),
    "domain": _text_of("domain"),
    "model_version": _integer_of("model_version"),
    "doc_string": _text_of("doc_string"),
    "metadata_props": _Parser.metadata,
}

_FUNCTION_KEYS: dict[str, Callable[[_Parser, Any], None]] = {
    "opset_import": _Parser.opsets,
    "doc_string": _text_of("doc_string"),
    "domain": _text_of("domain"),
    "overload": _text_of("overload"),
}
