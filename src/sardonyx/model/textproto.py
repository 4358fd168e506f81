"""Lossless conversion of a model to and from protobuf text.

``google.protobuf.text_format`` does the conversion, with two exceptions. Unknown fields and the payload of NaNs, which
``text_format`` drops, are stored in comment lines ``#@ wire path: "base64"`` at the end; other readers skip comments.
Long bytes and long lists of numbers, for which ``text_format`` needs seconds per megabyte, are parsed and formatted in
this module.
"""

from __future__ import annotations

import base64
import codecs
import math
import re
import secrets
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from onnx import ModelProto, TensorProto

from sardonyx.errors import TextFormatError
from sardonyx.model.text import annotation
from sardonyx.model.text.decimals import NumberError, format_floats, parse_floats, parse_integers
from sardonyx.model.text.lexer import Scanner
from sardonyx.model.text.patterns import pattern

_NUMBER: Final = r"-?+(?:0|[1-9][0-9]{0,19}+)(?![0-9xXuU])(?:\.[0-9]{0,40}+)?+(?:[eE][+-]?+[0-9]{1,4}+)?+(?![\w.])"
_BULK: Final = pattern(
    rf"""
      \#[^\n]*+
    | \braw_data\s*+:\s*+"(?P<bytes>(?:[^"\\\n]++|\\.)*+)"(?!\s*+["'])
    | \b(?P<list>(?:float|double|int32|int64|uint64)_data)\s*+:\s*+\[(?P<items>[^][\#"'{{}}]*+)\]
    | \b(?P<line>(?:float|double|int32|int64|uint64)_data)\s*+:\s*+{_NUMBER}
      (?P<more>(?:\s++(?P=line)\s*+:\s*+{_NUMBER}){{32,}}+)
    | "(?:[^"\\\n]++|\\.)*+"
    | '(?:[^'\\\n]++|\\.)*+'
    """,
    re.VERBOSE,
)
_ITEMS: Final = pattern(rf"\s*+{_NUMBER}\s*+(?:,\s*+{_NUMBER}\s*+)*+")
_DTYPES: Final[dict[str, np.dtype[np.generic]]] = {
    "float_data": np.dtype("<f4"),
    "double_data": np.dtype("<f8"),
    "int32_data": np.dtype("<i4"),
    "int64_data": np.dtype("<i8"),
    "uint64_data": np.dtype("<u8"),
}
_LEAST_BYTES: Final = 256
_LEAST_FLOATS: Final = 256
_SIMPLE_ESCAPES: Final = pattern(
    r"""(?:[^\\]++|\\(?:[0-3][0-7]{2}|[0-7]{1,2}(?![0-7])|x[0-9a-fA-F]{2}|[abfnrtv\\'"]))*+"""
)
_WIRE: Final = re.compile(r'^#@ wire (?P<path>[\w.\[\]]*): "(?P<digits>[A-Za-z0-9+/=]*)"[ \t\r]*$', re.MULTILINE)
_STEP: Final = re.compile(r"(\w+)(?:\[(\d+)\])?")
_QUIET_NAN: Final = float("nan")


class _OrderUnclearError(Exception):
    """Extracted values mix with other values of their field, or are at an illegal position.

    The caller falls back to ``text_format`` for the whole text.
    """


def print_model(proto: ModelProto) -> str:
    """Format a model as protobuf text; ``parse`` returns an equal message.

    Raises:
        TextFormatError: A string is not UTF-8.
    """
    lines = [
        f'#@ wire {path}: "{base64.b64encode(message.SerializeToString(deterministic=True)).decode()}"\n'
        for path, message in _losses(proto, "")
    ]
    return _print_fields(proto) + "".join(lines)


def _print_fields(proto: ModelProto) -> str:
    """Format all fields; long lists of floats are formatted here: protobuf takes 2 s per million."""
    if not any(True for _ in _long_floats(proto)):
        return str(text_format.MessageToString(proto, use_short_repeated_primitives=True))
    marker = secrets.token_hex(16)
    lists: list[str] = []
    copy = ModelProto()
    copy.CopyFrom(proto)
    for tensor, field in list(_long_floats(copy)):
        texts = format_floats(np.array(getattr(tensor, field), _DTYPES[field]))
        if texts is not None:
            tensor.ClearField(field)
            tensor.metadata_props.add(key=marker, value=str(len(lists)))
            lists.append(f"{field}: [{', '.join(texts)}]")
    text = text_format.MessageToString(copy, use_short_repeated_primitives=True)
    pattern_of_marker = rf'metadata_props {{\s*key: "{marker}"\s*value: "(\d+)"\s*}}'
    return re.sub(pattern_of_marker, lambda match: lists[int(match[1])], text)


def _long_floats(message: Message) -> Iterator[tuple[TensorProto, str]]:
    """Yield the tensors in a message whose typed field has so many floats that formatting time matters."""
    if isinstance(message, TensorProto):
        for name in ("float_data", "double_data"):
            if len(getattr(message, name)) >= _LEAST_FLOATS:
                yield message, name
    for field, value in message.ListFields():
        if isinstance(value, Message):
            yield from _long_floats(value)
        elif field.message_type is not None and field.message_type.name != "StringStringEntryProto":
            for element in value:
                yield from _long_floats(element)


def _losses(message: Message, path: str) -> Iterator[tuple[str, Message]]:
    """Yield the parts of a message absent from its text, by path: unknown fields, and NaNs with a payload."""
    if len(UnknownFieldSet(message)):
        field_names = frozenset(field.name for field, _ in message.ListFields())
        unknown = annotation.leftover(message, field_names)
        if unknown is not None:
            yield path, unknown
    for field, value in message.ListFields():
        field_path = f"{path}.{field.name}" if path else field.name
        if isinstance(value, Message):
            yield from _losses(value, field_path)
        elif field.message_type is not None:
            for index, element in enumerate(value):
                yield from _losses(element, f"{field_path}[{index}]")
        elif field.type == FieldDescriptor.TYPE_STRING:
            for text in (value,) if isinstance(value, (str, bytes)) else value:
                if isinstance(text, bytes):
                    raise annotation.not_utf8(field_path, text)
        elif field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
            yield from _odd_nans(message, field, value, field_path)


def _odd_nans(message: Message, field: FieldDescriptor, value: Any, path: str) -> Iterator[tuple[str, Message]]:
    values = np.array([value] if isinstance(value, float) else list(value), np.float64)
    if not np.isnan(values).any():
        return
    exact, quiet = type(message)(), type(message)()
    annotation.copy_field(message, exact, field)
    plain = [_QUIET_NAN if math.isnan(number) else number for number in values.tolist()]
    if isinstance(value, float):
        setattr(quiet, field.name, plain[0])
    else:
        getattr(quiet, field.name).extend(plain)
    if exact.SerializeToString() != quiet.SerializeToString():
        yield path, exact


def parse(text: str, *, source: str = "<text>") -> ModelProto:
    """Parse a model from protobuf text.

    Args:
        text: The whole text.
        source: Name of the text in errors, usually a path.

    Raises:
        TextFormatError: The text does not describe a ``ModelProto``; the error states line, column and problem.
    """
    text = text.removeprefix("\ufeff")
    scanner = Scanner(text, source)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise scanner.error("the text contains a surrogate, which is not a character", at=error.start) from None
    try:
        model = _Bulk().parse(scanner)
    except _OrderUnclearError:
        model = _parse_plain(text, scanner)
    for line in _WIRE.finditer(text):
        _restore(scanner, model, line)
    return model


def _parse_plain(text: str, scanner: Scanner) -> ModelProto:
    """Parse with ``text_format``.

    Args:
        text: The scanner's text, with the same lines and possibly without extracted values.
        scanner: The scanner of the original text, for errors.
    """
    if annotation.find_too_deep(text) is not None:
        start = annotation.find_too_deep(scanner.text) or 0
        raise scanner.error("nested too deeply: protobuf reads at most 100 levels of messages", at=start)
    try:
        model: ModelProto = text_format.Parse(text, ModelProto())
    except (text_format.ParseError, ValueError) as error:
        line, column, problem = annotation.explain(error)
        raise TextFormatError(
            problem, where=f"{scanner.source}:{line}:{column}", remedy="Pass the text of an onnx.ModelProto."
        ) from None
    return model


class _Bulk:
    """Long bytes and long lists of numbers, extracted from the text before and inserted after parsing.

    A metadata entry with a random key marks the tensor that each value belongs to.
    """

    def __init__(self) -> None:
        self.marker = secrets.token_hex(16)
        self.values: list[tuple[str, Any]] = []

    def parse(self, scanner: Scanner) -> ModelProto:
        def extract(match: re.Match[str]) -> str:
            return self.extract(scanner, match)

        model = _parse_plain(_BULK.sub(extract, scanner.text), scanner)
        if self.values and self.insert(model) != len(self.values):
            raise _OrderUnclearError
        return model

    def extract(self, scanner: Scanner, match: re.Match[str]) -> str:
        if match["bytes"] is not None:
            data = _unescape(match["bytes"])
            return match[0] if data is None else self.replace(match[0], "raw_data", data)
        name = match["list"] or match["line"]
        if name is None or (match["list"] and not _ITEMS.fullmatch(match["items"])):
            return match[0]
        texts = match["items"].split(",") if match["list"] else re.findall(r":\s*([^\s:]+)", match[0])
        dtype = _DTYPES[name]
        try:
            values = parse_floats(texts, dtype) if dtype.kind == "f" else parse_integers(texts, dtype)
        except NumberError as error:
            raise scanner.error(f"{name}: {error}", at=match.start()) from None
        return self.replace(match[0], name, values)

    def replace(self, text: str, field: str, value: Any) -> str:
        """Return the marker of ``value``, with as many line breaks as the replaced text."""
        self.values.append((field, value))
        return f'metadata_props {{ key: "{self.marker}" value: "{len(self.values) - 1}" }} ' + "\n" * text.count("\n")

    def insert(self, message: Message) -> int:
        """Insert the values of all tensors in ``message``; return the number of values."""
        count = 0
        if isinstance(message, TensorProto):
            count += self.insert_into(message)
        for field, value in message.ListFields():
            if isinstance(value, Message):
                count += self.insert(value)
            elif field.message_type is not None and field.message_type.name != "StringStringEntryProto":
                count += sum(self.insert(element) for element in value)
        return count

    def insert_into(self, tensor: TensorProto) -> int:
        marked = [index for index, entry in enumerate(tensor.metadata_props) if entry.key == self.marker]
        values = [self.values[int(tensor.metadata_props[index].value)] for index in marked]
        if any(tensor.HasField(name) if name == "raw_data" else len(getattr(tensor, name)) for name, _ in values):
            raise _OrderUnclearError
        if sum(name == "raw_data" for name, _ in values) > 1:
            raise _OrderUnclearError
        for index in reversed(marked):
            del tensor.metadata_props[index]
        for name, value in values:
            if name == "raw_data":
                tensor.raw_data = value
            else:
                getattr(tensor, name).extend(value.tolist())
        return len(marked)


def _unescape(body: str) -> bytes | None:
    """Return the bytes of a long literal; None if short or if Python reads one of the escapes differently."""
    if len(body) < _LEAST_BYTES or not body.isascii() or not _SIMPLE_ESCAPES.fullmatch(body):
        return None
    return codecs.decode(body, "unicode_escape").encode("latin-1")


def _restore(scanner: Scanner, model: ModelProto, line: re.Match[str]) -> None:
    """Apply a ``#@ wire`` line: merge unknown fields into a message, or replace a field."""
    parent: Any = None
    target: Any = model
    name = ""
    try:
        for step in filter(None, line["path"].split(".")):
            match = _STEP.fullmatch(step)
            if match is None:
                raise AttributeError
            parent, name = target, match.group(1)
            target = getattr(target, name)
            if match.group(2):
                target = target[int(match.group(2))]
        if not isinstance(target, Message):
            target = parent
            target.ClearField(name)
        target.MergeFromString(base64.b64decode(line["digits"], validate=True))
    except (AttributeError, IndexError, TypeError, ValueError, DecodeError):
        problem = f"cannot restore {line['path'][:80]!r} of the model from these bytes"
        raise scanner.error(problem, at=line.start()) from None
