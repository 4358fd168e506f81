"""Protocol buffer messages of the protocol, from the table in ``messages.txt``.

The messages are registered in a pool of their own, so that a client library in the same process may register its own
copies under the same names.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

PACKAGE = "inference"
SERVICE = "inference.GRPCInferenceService"

_MAP = re.compile(r"map<([\w.]+),([\w.]+)>")


@functools.cache
def message_class(name: str) -> Any:
    """Return the class of a message such as ``ModelInferRequest``."""
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{PACKAGE}.{name}"))


@functools.cache
def _pool() -> Any:
    from google.protobuf import descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file_descriptor().SerializeToString())
    return pool


def file_descriptor() -> FileDescriptorProto:
    """Return the description of all messages as protocol buffers describe files."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    file = FileDescriptorProto(name="sardonyx/serve/messages.proto", package=PACKAGE, syntax="proto3")
    tables = dict(_tables())
    enums = {name.removeprefix("enum ") for name in tables if name.startswith("enum ")}
    messages: dict[str, DescriptorProto] = {}
    for title, rows in tables.items():
        outer, _, name = title.removeprefix("enum ").rpartition(".")
        if title.startswith("enum "):
            enum = (messages[outer] if outer else file).enum_type.add(name=name)
            for number, value in (row.split() for row in rows):
                enum.value.add(name=value, number=int(number))
            continue
        parent = messages[outer] if outer else None
        message = file.message_type.add(name=name) if parent is None else parent.nested_type.add(name=name)
        messages[title] = message
        for row in rows:
            _add_field(message, title, row, enums)
    return file


def _tables() -> Iterator[tuple[str, list[str]]]:
    title, rows = "", []
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if line.startswith(" "):
            rows.append(line.strip())
            continue
        if title:
            yield title, rows
        title, rows = line, []
    yield title, rows


def _add_field(message: DescriptorProto, title: str, row: str, enums: set[str]) -> None:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    declaration, _, oneof = row.partition(" = ")
    *kind, name = declaration.split()
    number, *label, type = kind
    field = message.field.add(name=name, number=int(number), label=3 if label else 1)
    entry = _MAP.fullmatch(type)
    if entry is not None:
        inner = "".join(part.capitalize() for part in name.split("_")) + "Entry"
        nested = message.nested_type.add(name=inner)
        nested.options.map_entry = True
        for index, part in enumerate(entry.groups(), 1):
            _set_type(nested.field.add(name=("key", "value")[index - 1], number=index, label=1), part, enums)
        field.label = FieldDescriptorProto.LABEL_REPEATED
        type = f"{title}.{inner}"
    _set_type(field, type, enums)
    if oneof:
        names = [choice.name for choice in message.oneof_decl]
        if oneof not in names:
            message.oneof_decl.add(name=oneof)
            names.append(oneof)
        field.oneof_index = names.index(oneof)


def _set_type(field: Any, type: str, enums: set[str]) -> None:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    scalar = getattr(FieldDescriptorProto, f"TYPE_{type.upper()}", None)
    if type[0].islower() and scalar is not None:
        field.type = scalar
    else:
        field.type = FieldDescriptorProto.TYPE_ENUM if type in enums else FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{type}"
