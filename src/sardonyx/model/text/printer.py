"""Lossless printer of the ONNX text syntax."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    StringStringEntryProto,
    TypeProto,
    ValueInfoProto,
)

from sardonyx.errors import TextFormatError
from sardonyx.model.text import annotation, conventions
from sardonyx.model.text.decimals import format_floats
from sardonyx.model.text.tensors import format_tensor
from sardonyx.model.text.value_types import format_type
from sardonyx.model.text.vocabulary import ATTRIBUTE_NAMES, MAX_DEPTH, VALUE_FIELDS
from sardonyx.model.text.words import is_identifier, named, quote, quoted, quoted_bytes

_INDENT = "   "
_VALUE_INFO = frozenset({"name", "type"})
_ENTRY = frozenset({"key", "value"})
_GRAPH = frozenset({"node", "name", "initializer", "input", "output", "value_info"})
_FUNCTION = frozenset(
    {"name", "input", "output", "attribute", "attribute_proto", "node", "doc_string", "opset_import", "domain"}
    | {"overload", "value_info"}
)
_NODE = frozenset({"input", "output", "name", "op_type", "attribute"})
_HEADER_TEXTS = ("producer_name", "producer_version", "domain")


def print_model(proto: ModelProto) -> str:
    """Format a model in the ONNX text syntax; ``parse`` returns an equal message.

    Raises:
        TextFormatError: A name is not UTF-8, or messages nest deeper than protobuf's limit.
    """
    return _Printer(conventions.choose(proto)).model(proto)


class _Printer:
    def __init__(self, defaults: conventions.Conventions) -> None:
        self.defaults = defaults
        self.depth = 0

    def model(self, model: ModelProto) -> str:
        items: list[str] = []
        written = {"graph", "functions", "opset_import", "metadata_props", "ir_version", "model_version", "doc_string"}
        if model.HasField("ir_version"):
            items.append(f"ir_version: {model.ir_version}")
        if model.opset_import:
            items.append(self.opsets(model.opset_import))
        items += [f"{name}: {quoted(getattr(model, name))}" for name in _HEADER_TEXTS if model.HasField(name)]
        if model.HasField("model_version"):
            items.append(f"model_version: {model.model_version}")
        if model.HasField("doc_string"):
            items.append(f"doc_string: {quoted(model.doc_string)}")
        if model.metadata_props:
            items.append(f"metadata_props: [{', '.join(map(_entry, model.metadata_props))}]")
        if not model.HasField("graph"):
            written.discard("functions")
        parts = [conventions.write(self.defaults)]
        if items:
            parts.append(f"<\n{_INDENT}" + f",\n{_INDENT}".join(items) + "\n>")
        parts.append(annotation.write(annotation.leftover(model, frozenset(written | set(_HEADER_TEXTS))), []) + "\n")
        if model.HasField("graph"):
            parts.append(self.graph(model.graph, "") + "\n")
            parts += [self.function(function) + "\n" for function in model.functions]
        return "".join(parts)

    def opsets(self, entries: Iterable[OperatorSetIdProto]) -> str:
        return f"opset_import: [{', '.join(map(self.opset, entries))}]"

    def opset(self, entry: OperatorSetIdProto) -> str:
        words: list[str] = []
        written = {"domain", "version"}
        if not entry.HasField("domain") and not self.defaults.opset_domain_unset:
            words.append("unset(domain)")
        if entry.HasField("domain") and not entry.domain and self.defaults.opset_domain_unset:
            written.discard("domain")
        if not entry.HasField("version"):
            words.append("unset(version)")
        rest = annotation.leftover(entry, frozenset(written))
        return f"{quoted(entry.domain)} : {entry.version}" + annotation.write(rest, words)

    def graph(self, graph: GraphProto, indent: str) -> str:
        """Format a graph from its name to its closing brace; the first line is already indented."""
        if self.depth > MAX_DEPTH:
            raise TextFormatError("nests graphs deeper than protobuf's limit of 100 levels", where=graph.name)
        inputs = ", ".join(map(_value_info, graph.input))
        outputs = ", ".join(map(_value_info, graph.output))
        parts = [f"{quote(graph.name)} ({inputs}) => ({outputs}) "]
        declared = [format_tensor(tensor, raw=self.defaults.raw) for tensor in graph.initializer]
        declared += map(_value_info, graph.value_info)
        if declared:
            inner = f"\n{indent}{_INDENT}"
            parts.append(f"\n{indent}<{inner}" + f",{inner}".join(declared) + f"\n{indent}>\n{indent}")
        words = [] if graph.HasField("name") else ["unset(name)"]
        parts.append("{" + annotation.write(annotation.leftover(graph, _GRAPH), words).rstrip("\n") + "\n")
        parts += self.nodes(graph.node, indent)
        return "".join(parts)

    def nodes(self, nodes: Iterable[NodeProto], indent: str) -> Iterable[str]:
        for node in nodes:
            yield self.node(node, indent + _INDENT)
        yield indent + "}"

    def function(self, function: FunctionProto) -> str:
        items: list[str] = []
        if function.HasField("domain"):
            items.append(f"domain: {quoted(function.domain)}")
        if function.HasField("overload"):
            items.append(f"overload: {quoted(function.overload)}")
        if function.opset_import:
            items.append(self.opsets(function.opset_import))
        if function.HasField("doc_string"):
            items.append(f"doc_string: {quoted(function.doc_string)}")
        parts = [f"<\n{_INDENT}" + f",\n{_INDENT}".join(items) + "\n>\n"] if items else []
        parts.append(quote(function.name))
        declared = [*map(quote, function.attribute)]
        declared += [self.attribute(attribute, "") for attribute in function.attribute_proto]
        if declared:
            parts.append(f" <{', '.join(declared)}>")
        parts.append(f" ({_names(function.input)}) => ({_names(function.output)})")
        if function.value_info:
            parts.append(f"\n<\n{_INDENT}" + f",\n{_INDENT}".join(map(_value_info, function.value_info)) + "\n>")
        words = [] if function.HasField("name") else ["unset(name)"]
        parts.append("\n{" + annotation.write(annotation.leftover(function, _FUNCTION), words).rstrip("\n") + "\n")
        parts += self.nodes(function.node, "")
        return "".join(parts)

    def node(self, node: NodeProto, indent: str) -> str:
        words: list[str] = []
        written = set(_NODE)
        label = f"[{quote(node.name)}] " if node.HasField("name") else ""
        operator = _operator(node)
        if not node.HasField("op_type"):
            words.append("unset(op_type)")
        if node.domain or not self.defaults.node_domain_unset:
            written.add("domain")
            if not node.HasField("domain"):
                words.append("unset(domain)")
        if node.overload:
            written.add("overload")
        if self.defaults.node_doc_set:
            if not node.HasField("doc_string"):
                words.append("unset(doc_string)")
            elif not node.doc_string:
                written.add("doc_string")
        attributes = [self.attribute(attribute, indent) for attribute in node.attribute]
        attribute_text = f" <{', '.join(attributes)}>" if attributes else ""
        inputs = f" ({_names(node.input)})"
        last = any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)
        call = operator + (inputs + attribute_text if last else attribute_text + inputs)
        note = annotation.write(annotation.leftover(node, frozenset(written)), words)
        outputs = f"{_names(node.output)} = " if node.output else "= "
        if note.endswith("\n"):
            note = f"\n{indent}{note[1:]}"
        return f"{indent}{label}{outputs}{call}{note}" + ("" if note.endswith("\n") else "\n")

    def attribute(self, attribute: AttributeProto, indent: str) -> str:
        words: list[str] = []
        written = {"name", "type"}
        text = named(attribute.name)
        if not attribute.HasField("name"):
            words.append("unset(name)")
        kind: int = attribute.type
        if not attribute.HasField("type"):
            kind = _kind_of_value(attribute)
            if kind and not attribute.HasField("ref_attr_name"):
                words.append("unset(type)")
        if kind or attribute.HasField("type"):
            text += f": {ATTRIBUTE_NAMES[kind]}"
        if attribute.HasField("ref_attr_name"):
            written.add("ref_attr_name")
            value = f"@{quote(attribute.ref_attr_name)}"
            if not attribute.HasField("type"):
                text = text.partition(":")[0] if kind else text
        else:
            value = self.value(attribute, kind, indent, words, written)
        note = annotation.write(annotation.leftover(attribute, frozenset(written)), words)
        return f"{text}{note or ' '}= {value}"

    def value(self, attribute: AttributeProto, kind: int, indent: str, words: list[str], written: set[str]) -> str:
        """Format the value of an attribute of this type; ``?`` if the syntax cannot express the value."""
        field = VALUE_FIELDS.get(kind, "")
        if field in ("", "sparse_tensor", "sparse_tensors"):
            return "?"
        content = getattr(attribute, field)
        if field in ("f", "i", "s"):
            if not attribute.HasField(field):
                words.append(f"unset({field})")
            items = [content]
        elif field in ("t", "g", "tp"):
            if not attribute.HasField(field):
                return "?"
            items = [content]
        else:
            items = list(content)
        if field in ("f", "floats"):
            texts = _floats(attribute, field, items)
            if texts is None:
                return "?" if field == "f" else "[]"
        elif field in ("i", "ints"):
            texts = list(map(str, items))
        elif field in ("s", "strings"):
            texts = list(map(quoted_bytes, items))
        elif field in ("t", "tensors"):
            unset = self.defaults.tensor_name_unset
            texts = [format_tensor(item, raw=self.defaults.raw, name_unset=unset) for item in items]
        elif field in ("g", "graphs"):
            self.depth += 3
            texts = [self.graph(item, indent + _INDENT) for item in items]
            self.depth -= 3
        else:
            texts = list(map(format_type, items))
        written.add(field)
        return texts[0] if len(field) <= 2 else f"[{', '.join(texts)}]"


def _floats(attribute: AttributeProto, field: str, items: list[float]) -> list[str] | None:
    """Format an attribute's floats as decimals; None if one is a NaN with a payload."""
    values = np.array(items, np.float32)
    if np.isnan(values).any():
        original, copy = AttributeProto(), AttributeProto()
        original.CopyFrom(attribute)
        for other, _ in attribute.ListFields():
            if other.name != field:
                original.ClearField(other.name)
        if field == "f":
            copy.f = items[0]
        else:
            copy.floats.extend(items)
        if original.SerializeToString() != copy.SerializeToString():
            return None
    return format_floats(values)


def _kind_of_value(attribute: AttributeProto) -> int:
    """Return the type of an attribute without stated type, derived from its only value; 0 if ambiguous."""
    present = {field.name for field, _ in attribute.ListFields()}
    kinds = [kind for kind, field in VALUE_FIELDS.items() if field in present]
    return kinds[0] if len(kinds) == 1 else 0


def _operator(node: NodeProto) -> str:
    domain, operator = node.domain, node.op_type
    text = named(operator)
    if domain:
        plain = is_identifier(domain.replace(".", "_")) and all(map(is_identifier, domain.split(".")))
        text = f"{domain if plain else quoted(domain)}.{text}"
    if node.overload:
        text += f":{named(node.overload)}"
    return text


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(quote, names))


def _value_info(value: ValueInfoProto) -> str:
    words = [] if value.HasField("name") else ["unset(name)"]
    kind = _type_before(value.type) if value.HasField("type") else ""
    return kind + quote(value.name) + annotation.write(annotation.leftover(value, _VALUE_INFO), words)


def _type_before(kind: TypeProto) -> str:
    text = format_type(kind)
    return text if text.endswith("\n") else text + " "


def _entry(entry: StringStringEntryProto) -> str:
    words = [f"unset({name})" for name in ("key", "value") if not entry.HasField(name)]
    rest = annotation.leftover(entry, _ENTRY)
    return f"{quoted(entry.key)}: {quoted(entry.value)}" + annotation.write(rest, words)
