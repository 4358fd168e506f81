"""Read `NodeDef` messages, the options of operators of TensorFlow in a file, by the library of protocol buffers.

Source: tensorflow/core/framework/{node_def,attr_value}.proto; fields that no operator here has are unknown fields.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from sardonyx.convert.tflite.flexbuffer import flexbuffer
from sardonyx.errors import ModelFileError

_FIELD = descriptor_pb2.FieldDescriptorProto
_KINDS = {
    "s": (2, _FIELD.TYPE_BYTES),
    "i": (3, _FIELD.TYPE_INT64),
    "f": (4, _FIELD.TYPE_FLOAT),
    "b": (5, _FIELD.TYPE_BOOL),
    "type": (6, _FIELD.TYPE_INT32),
}
"""Values of attributes: name, number and type of the field, alike in single values and in lists."""


def attributes(custom_options: bytes, where: str) -> SimpleNamespace:
    """Return the attributes of an operator of TensorFlow: truth values, integers, numbers, texts, and lists of these.

    Attributes of other kinds (functions, tensors, shapes) are left out.

    Args:
        custom_options: The options in the file: a flexbuffer of the operator's name and its `NodeDef`.
        where: Name of the operator for errors.

    Raises:
        ModelFileError: The options are malformed.
    """
    root = flexbuffer(custom_options, where)
    if not isinstance(root, list) or len(root) != 2 or not isinstance(root[1], (str, bytes)):
        raise ModelFileError("malformed options: expected a name and a NodeDef", where=where)
    # A flexbuffer holds the message as a text.
    data = root[1] if isinstance(root[1], bytes) else root[1].encode("utf-8", "surrogateescape")
    try:
        node = _node_class().FromString(data)
    except message.DecodeError as error:
        raise ModelFileError(f"malformed options: {error}", where=where) from error
    result: dict[str, Any] = {}
    for entry in node.attr:
        kind = entry.value.WhichOneof("value")
        if kind is not None:
            result[entry.key.decode("utf-8", "replace")] = _value(entry.value, kind)
    return SimpleNamespace(**result)


def _value(value: Any, kind: str) -> Any:
    if kind == "list":
        return [_single(item, name) for name in _KINDS for item in getattr(value.list, name)]
    return _single(getattr(value, kind), kind)


def _single(value: Any, kind: str) -> Any:
    return value.decode("utf-8", "replace") if kind == "s" else value


@functools.cache
def _node_class() -> Any:
    """Return the class of `NodeDef` messages with the fields that are read."""
    file = descriptor_pb2.FileDescriptorProto(
        name="sardonyx_node_def.proto", package="sardonyx_tflite", syntax="proto3"
    )

    def add(name: str, *fields: tuple[str, int, int, str, bool], choice: str = "") -> None:
        kind = file.message_type.add(name=name)
        if choice:
            kind.oneof_decl.add(name=choice)
        for field, number, type_number, type_name, is_list in fields:
            added = kind.field.add(name=field, number=number, type=type_number)
            if type_name:
                added.type_name = type_name
            added.label = _FIELD.LABEL_REPEATED if is_list else _FIELD.LABEL_OPTIONAL
            if choice:
                added.oneof_index = 0

    singles = [(name, number, kind, "", False) for name, (number, kind) in _KINDS.items()]
    add("ListValue", *((name, number, kind, "", True) for name, number, kind, _, _ in singles))
    add("AttrValue", ("list", 1, _FIELD.TYPE_MESSAGE, ".sardonyx_tflite.ListValue", False), *singles, choice="value")
    key = ("key", 1, _FIELD.TYPE_BYTES, "", False)
    add("Entry", key, ("value", 2, _FIELD.TYPE_MESSAGE, ".sardonyx_tflite.AttrValue", False))
    add("NodeDef", ("attr", 5, _FIELD.TYPE_MESSAGE, ".sardonyx_tflite.Entry", True))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("sardonyx_tflite.NodeDef"))
