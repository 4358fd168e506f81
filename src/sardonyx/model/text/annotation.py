"""Annotations: fields outside the ONNX text syntax, written as protobuf text next to their element.

``#@ …`` is a comment to onnx's own parser and contains only descriptive fields; ``@{ … }`` is not a comment and
contains fields that change the model's meaning, so onnx's parser refuses the text instead of reading another model.
"""

from __future__ import annotations

import base64
import math
import re
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from sardonyx.errors import TextFormatError
from sardonyx.model.text.lexer import Scanner
from sardonyx.model.text.patterns import pattern

_DESCRIPTIVE: Final = frozenset({"doc_string", "metadata_props", "denotation", "domain", "overload", "name"})
_WORD: Final = re.compile(r'\s*+(?:(raw|typed)\b|unset\(\s*([\w.]+)\s*\)|wire\("([A-Za-z0-9+/=]*+)"\))')
_LINE_COLUMN: Final = re.compile(r"(\d+):(\d+) : ")
_BRACKET: Final = pattern(r'"(?:[^"\\\n]++|\\.)*+"?|\'(?:[^\'\\\n]++|\\.)*+\'?|#[^\n]*+|[{}<>]')

_MAX_BRACKETS: Final = 95
_LONGEST_PROBLEM: Final = 300

M = TypeVar("M", bound=Message)


@dataclass(slots=True)
class Annotation:
    """The annotations of one element.

    Attributes:
        storage: ``"raw"`` or ``"typed"`` if a tensor states its storage.
        unset: Paths of fields that the syntax sets and the model leaves unset.
    """

    storage: str = ""
    unset: list[str] = field(default_factory=list)

    def finish(self, message: Message) -> None:
        """Clear the fields that the model leaves unset."""
        for path in self.unset:
            *parents, name = path.split(".")
            target: Any = message
            for parent in parents:
                target = getattr(target, parent)
            target.ClearField(name)


def find_too_deep(body: str) -> int | None:
    """Return the offset at which a protobuf text exceeds protobuf's nesting limit, or None."""
    depth = 0
    for bracket in _BRACKET.finditer(body):
        if bracket.group() in "{<":
            depth += 1
            if depth > _MAX_BRACKETS:
                return bracket.start()
        elif bracket.group() in "}>":
            depth -= 1
    return None


def read(scanner: Scanner, message: Message) -> Annotation:
    """Parse the annotations at the scanner's position and merge their fields into ``message``.

    Raises:
        TextFormatError: An annotation is not protobuf text of a message of this type.
    """
    result = Annotation()
    while (block := scanner.annotation()) is not None:
        body, offset = block
        position = 0
        while (word := _WORD.match(body, position)) is not None:
            storage, path, wire = word.groups()
            if storage:
                result.storage = storage
            elif path:
                _check_path(scanner, message, path, offset + word.start())
                result.unset.append(path)
            else:
                _merge_wire(scanner, message, wire, offset + word.start())
            position = word.end()
        _merge_text(scanner, message, body[position:], offset + position)
    return result


def _check_path(scanner: Scanner, message: Message, path: str, at: int) -> None:
    target: Any = type(message)()
    for name in path.split("."):
        if not isinstance(target, Message) or name not in target.DESCRIPTOR.fields_by_name:
            raise scanner.error(f"{message.DESCRIPTOR.name} has no field {path!r} to leave unset", at=at)
        target = getattr(target, name)


def _merge_wire(scanner: Scanner, message: Message, digits: str, at: int) -> None:
    try:
        message.MergeFromString(base64.b64decode(digits, validate=True))
    except (ValueError, DecodeError) as error:
        raise scanner.error(f"expected the bytes of a {message.DESCRIPTOR.name}: {error}", at=at) from None


def _merge_text(scanner: Scanner, message: Message, body: str, at: int) -> None:
    if not body or body.isspace():
        return
    if (excess := find_too_deep(body)) is not None:
        raise scanner.error("nested too deeply: protobuf reads at most 100 levels of messages", at=at + excess)
    part = type(message)()
    try:
        text_format.Parse(body, part)
    except (text_format.ParseError, ValueError) as error:
        line, column, problem = explain(error)
        start = 0
        for _ in range(line - 1):
            start = body.index("\n", start) + 1
        raise scanner.error(
            f"expected protobuf text of {message.DESCRIPTOR.name} in the annotation: {problem}",
            at=at + start + column - 1,
        ) from None
    message.MergeFrom(part)


def explain(error: Exception) -> tuple[int, int, str]:
    """Return line, column and problem of a ``text_format`` error, without the quoted line of text."""
    position = _LINE_COLUMN.match(str(error))
    if position is None:
        return 1, 1, str(error)[:_LONGEST_PROBLEM]
    problem = str(error)[position.end() :]
    if problem.startswith("'") and "': " in problem:
        problem = problem.rpartition("': ")[2]
    return int(position.group(1)), int(position.group(2)), problem[:_LONGEST_PROBLEM]


def leftover(message: M, written: frozenset[str]) -> M | None:
    """Return the fields of ``message`` not in ``written``, including unknown ones; None if there are none."""
    fields = [field for field, _ in message.ListFields() if field.name not in written]
    has_unknown = len(UnknownFieldSet(message)) > 0
    if not fields and not has_unknown:
        return None
    rest: M = type(message)()
    for descriptor in fields:
        copy_field(message, rest, descriptor)
    if has_unknown:
        unknown = type(message)()
        unknown.CopyFrom(message)
        for descriptor, _ in message.ListFields():
            unknown.ClearField(descriptor.name)
        rest.MergeFrom(unknown)
    return rest


_FLOATS = (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE)


def _has_nan(value: Any) -> bool:
    return any(map(math.isnan, [value] if isinstance(value, float) else value))


def copy_field(source: Message, target: Message, descriptor: FieldDescriptor) -> None:
    """Copy one set field bit for bit: a NaN keeps its payload.

    Raises:
        TextFormatError: The field is a string that is not UTF-8.
    """
    name = descriptor.name
    value = getattr(source, name)
    if isinstance(value, Message):
        getattr(target, name).CopyFrom(value)
        getattr(target, name).SetInParent()
    elif isinstance(value, bytes) and descriptor.type == FieldDescriptor.TYPE_STRING:
        raise not_utf8(f"{source.DESCRIPTOR.name}.{name}", value)
    elif descriptor.type in _FLOATS and _has_nan(value):
        # Some releases of protobuf pass floats through Python's, which make signalling NaNs quiet.
        part = type(source)()
        part.CopyFrom(source)
        part.DiscardUnknownFields()
        for other, _ in source.ListFields():
            if other.name != name:
                part.ClearField(other.name)
        target.MergeFrom(part)
    elif isinstance(value, (bool, int, float, str, bytes)):
        setattr(target, name, value)
    else:
        getattr(target, name).MergeFrom(value)


def not_utf8(where: str, value: bytes) -> TextFormatError:
    """Return the error for a string that is not UTF-8, which protobuf forbids and Python cannot set."""
    return TextFormatError(
        f"expected a UTF-8 string, got {value[:40]!r}",
        where=where,
        remedy="Replace the string before writing a text form.",
    )


def write(rest: Message | None, words: list[str]) -> str:
    """Format an annotation with the required space or line end; empty if there is nothing to state.

    Args:
        rest: The fields to write, from ``leftover``.
        words: ``raw``, ``typed`` and ``unset(…)`` words that precede the fields.
    """
    if rest is None:
        return f" #@ {' '.join(words)}\n" if words else ""
    descriptive = all(field.name in _DESCRIPTIVE for field, _ in rest.ListFields()) and not len(UnknownFieldSet(rest))
    body = protobuf_text(rest)
    if body is None:
        wire = base64.b64encode(rest.SerializeToString(deterministic=True)).decode()
        body = f'wire("{wire}")'
    body = " ".join([*words, body]) if body else " ".join(words)
    return f" #@ {body}\n" if descriptive else f" @{{ {body} }}"


def protobuf_text(message: Message) -> str | None:
    """Return one line of protobuf text that parses to the same message, or None if no text does."""
    text = text_format.MessageToString(message, as_one_line=True, use_short_repeated_primitives=True)
    again = type(message)()
    try:
        text_format.Parse(text, again)
    except (text_format.ParseError, ValueError):
        return None
    same = again.SerializeToString(deterministic=True) == message.SerializeToString(deterministic=True)
    return text if same else None
