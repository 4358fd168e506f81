"""Types in the ONNX text syntax: ``float[N,3]``, ``seq(…)``, ``map(…)``, ``optional(…)`` and so on."""

from __future__ import annotations

import re
from typing import Final

from onnx import TensorShapeProto, TypeProto

from sardonyx.errors import TextFormatError
from sardonyx.model.text import annotation
from sardonyx.model.text.lexer import Scanner
from sardonyx.model.text.vocabulary import ELEMENT_NAMES, ELEMENT_TYPES, MAX_DEPTH, TYPE_WORDS
from sardonyx.model.text.words import quote, quoted

_KINDS: Final = frozenset(field.name for field in TypeProto.DESCRIPTOR.oneofs_by_name["value"].fields)
_DIMENSION: Final = frozenset({"dim_value", "dim_param"})
_QUALIFIED: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")


def format_type(proto: TypeProto, *, depth: int = 0) -> str:
    """Format a type, with annotations for fields that the syntax cannot express.

    Raises:
        TextFormatError: The type nests deeper than protobuf's limit.
    """
    if depth > MAX_DEPTH:
        raise TextFormatError("nested deeper than protobuf's limit of 100 levels", where="a type")
    kind = proto.WhichOneof("value")
    rest = annotation.leftover(proto, _KINDS)
    if kind is None:
        return "?" + annotation.write(rest, [])
    inner = getattr(proto, kind)
    words: list[str] = []
    written = {"shape"}
    if kind in ("tensor_type", "sparse_tensor_type"):
        text = _format_element(inner, "elem_type", kind, words, written) + _format_shape(inner)
        if kind == "sparse_tensor_type":
            text = f"sparse_tensor({text})"
        if inner.HasField("shape") and annotation.leftover(inner.shape, frozenset({"dim"})) is not None:
            written.discard("shape")
            text = text.partition("[")[0] + "[]" + (")" if kind == "sparse_tensor_type" else "")
    elif kind == "map_type":
        key = _format_element(inner, "key_type", kind, words, written)
        value = format_type(inner.value_type, depth=depth + 2) if inner.HasField("value_type") else ""
        written.add("value_type")
        text = f"map({key}, {value})"
    elif kind == "opaque_type":
        text = _format_opaque(inner, written)
    else:
        element = format_type(inner.elem_type, depth=depth + 2) if inner.HasField("elem_type") else ""
        written.add("elem_type")
        text = f"{'seq' if kind == 'sequence_type' else 'optional'}({element})"
    inner_rest = annotation.leftover(inner, frozenset(written))
    if inner_rest is not None:
        rest = TypeProto() if rest is None else rest
        getattr(rest, kind).CopyFrom(inner_rest)
    return text + annotation.write(rest, words)


def _format_element(inner: object, field: str, kind: str, words: list[str], written: set[str]) -> str:
    """Return the element type's name; ``undefined`` for an unnamed number, which must then be annotated."""
    number = getattr(inner, field)
    if not inner.HasField(field):  # type: ignore[attr-defined]
        words.append(f"unset({kind}.{field})")
    if number in ELEMENT_NAMES:
        written.add(field)
    return ELEMENT_NAMES.get(number, "undefined")


def _format_shape(inner: TypeProto.Tensor | TypeProto.SparseTensor) -> str:
    if not inner.HasField("shape"):
        return "[]"
    return f"[{','.join(_format_dimension(dim) for dim in inner.shape.dim)}]" if inner.shape.dim else ""


def _format_dimension(dim: TensorShapeProto.Dimension) -> str:
    if dim.HasField("dim_value"):
        text = str(dim.dim_value)
    elif dim.HasField("dim_param"):
        text = quote(dim.dim_param)
    else:
        text = "?"
    return text + annotation.write(annotation.leftover(dim, _DIMENSION), [])


def _format_opaque(inner: TypeProto.Opaque, written: set[str]) -> str:
    def qualified(name: str) -> str:
        return name if _QUALIFIED.fullmatch(name) else quoted(name)

    if not inner.HasField("name"):
        return "opaque()"
    written.add("name")
    if not inner.HasField("domain"):
        return f"opaque({qualified(inner.name)})"
    written.add("domain")
    return f"opaque({qualified(inner.domain)},{quote(inner.name)})"


def next_is_type(scanner: Scanner) -> bool:
    """Return True if a type is next."""
    return scanner.peek_word() in TYPE_WORDS or scanner.peek() == "?"


def parse_type(scanner: Scanner, proto: TypeProto) -> None:
    """Parse a type into ``proto``."""
    with scanner.nested(2):
        scanner.skip_space()
        start = scanner.position
        word = scanner.word()
        if word in ELEMENT_TYPES:
            proto.tensor_type.elem_type = ELEMENT_TYPES[word]
            _parse_shape(scanner, proto.tensor_type)
        elif word in ("seq", "optional"):
            scanner.expect("(", where="after the type's name")
            inner = proto.sequence_type if word == "seq" else proto.optional_type
            inner.SetInParent()
            if scanner.peek() != ")":
                inner.elem_type.SetInParent()
                parse_type(scanner, inner.elem_type)
            scanner.expect(")", where="after the element type")
        elif word == "map":
            _parse_map(scanner, proto)
        elif word == "sparse_tensor":
            scanner.expect("(", where="after the type's name")
            proto.sparse_tensor_type.elem_type = _parse_element(scanner)
            _parse_shape(scanner, proto.sparse_tensor_type)
            scanner.expect(")", where="after the element type")
        elif word == "opaque":
            _parse_opaque(scanner, proto)
        elif not scanner.accept("?"):
            scanner.fail("a type", at=start)
        annotation.read(scanner, proto).finish(proto)


def _parse_element(scanner: Scanner) -> int:
    word = scanner.peek_word()
    if word not in ELEMENT_TYPES:
        scanner.fail("an element type")
    scanner.word()
    return ELEMENT_TYPES[word]


def _parse_map(scanner: Scanner, proto: TypeProto) -> None:
    scanner.expect("(", where="after the type's name")
    proto.map_type.key_type = _parse_element(scanner)
    scanner.expect(",", where="after the key type")
    if scanner.peek() != ")":
        proto.map_type.value_type.SetInParent()
        parse_type(scanner, proto.map_type.value_type)
    scanner.expect(")", where="after the value type")


def _parse_opaque(scanner: Scanner, proto: TypeProto) -> None:
    scanner.expect("(", where="after the type's name")
    proto.opaque_type.SetInParent()
    if scanner.accept(")"):
        return
    first = scanner.name("a name")
    while scanner.accept("."):
        first += "." + scanner.name("a name")
    if scanner.accept(","):
        proto.opaque_type.domain = first
        proto.opaque_type.name = scanner.name("a name")
    else:
        proto.opaque_type.name = first
    scanner.expect(")", where="after the opaque type's name")


def _parse_shape(scanner: Scanner, inner: TypeProto.Tensor | TypeProto.SparseTensor) -> None:
    """Parse ``[…]``: absent brackets mean rank 0, empty brackets an unknown rank."""
    if not scanner.accept("["):
        inner.shape.SetInParent()
        return
    if scanner.accept("]"):
        return
    while True:
        _parse_dimension(scanner, inner.shape.dim.add())
        if not scanner.accept(","):
            break
    scanner.expect("]", where="or ',' after a dimension")


def _parse_dimension(scanner: Scanner, dim: TensorShapeProto.Dimension) -> None:
    if scanner.peek_literal() or scanner.peek_word():
        dim.dim_param = scanner.name("a dimension")
    elif not scanner.accept("?"):
        dim.dim_value = scanner.integer("a dimension: an integer, a name or '?'")
    annotation.read(scanner, dim).finish(dim)
