"""Records of the parts of a message that ``onnx_ir`` cannot hold, stored with the graph for saving.

Types and tensors that ``onnx_ir`` lacks are classes of this package and are used in place of ``onnx_ir``'s own
(`sardonyx.model.types`, `sardonyx.model.tensors.SparseTensor`: a sparse initializer is an initializer like any other,
whose ``const_value`` reads as the dense tensor). Everything else is stored in records under `KEY` in the ``meta`` of
the graph, node, value, attribute or tensor concerned; ``meta`` follows its object through renaming and ``clone()``, and
is never written to a file.

A record of class `Original` compares a protobuf message as read with the message that the writer makes of the parsed
object. Field by field, the original form is restored as long as the writer still produces the same field as at load
time; a field changed by an edit is written in the writer's form. Unknown fields are always preserved.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, TypeVar

import onnx
import onnx_ir as ir
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

KEY = "sardonyx"
"""The key of all records in ``meta``."""

QUANTIZATION_KEY = "quant_parameter_tensor_names"
"""Key under which ``onnx_ir`` stores the quantization annotation of a value in the value's ``meta``."""

M = TypeVar("M", bound=Message)


class Original(Generic[M]):
    """A message as read, for a message that differs from the writer's output for the parsed object.

    Args:
        original: The message as read.
        written: The writer's output right after reading.
    """

    __slots__ = ("_patches", "_unknown")

    def __init__(self, original: M, written: M) -> None:
        old = {field.name: value for field, value in original.ListFields()}
        new = {field.name: value for field, value in written.ListFields()}
        self._patches: list[tuple[str, M | None, M | None]] = [
            (
                name,
                _copy_field(written, name) if name in new else None,
                _copy_field(original, name) if name in old else None,
            )
            for name in {**old, **new}
            if name not in old or name not in new or old[name] != new[name]
        ]
        self._unknown = unknown_fields(original)

    def restore(self, message: M) -> None:
        """Restore the original form of the fields that no edit has changed.

        Args:
            message: The writer's current output; changed in place.
        """
        for name, expected, patch in self._patches:
            if _copy_field(message, name) != (expected if expected is not None else type(message)()):
                continue
            message.ClearField(name)
            if patch is not None:
                message.MergeFrom(patch)
        if self._unknown:
            message.MergeFromString(self._unknown)


def record_original(original: M, written: M) -> Original[M] | None:
    """Return a record of the original message; None if the writer makes the same message."""
    return None if original == written else Original(original, written)


def unknown_fields(message: Message) -> bytes:
    """Serialize the fields of a message that this version of onnx does not know, without child messages."""
    if not len(UnknownFieldSet(message)):
        return b""
    rest = type(message)()
    rest.CopyFrom(message)
    for field, _ in message.ListFields():
        rest.ClearField(field.name)
    serialized: bytes = rest.SerializeToString()
    return serialized


def copy_without(message: M, *fields: str) -> M:
    """Return a copy of a message without the named fields, whose contents are never copied."""
    rest: M = type(message)()
    for field, value in message.ListFields():
        if field.name not in fields:
            _set(rest, field.name, value)
    if unknown := unknown_fields(message):
        rest.MergeFromString(unknown)
    return rest


def _copy_field(message: M, name: str) -> M:
    copy: M = type(message)()
    for field, value in message.ListFields():
        if field.name == name:
            _set(copy, name, value)
    return copy


def _set(message: Message, name: str, value: Any) -> None:
    if isinstance(value, Message):
        getattr(message, name).CopyFrom(value)
        getattr(message, name).SetInParent()
    elif isinstance(value, (str, bytes, int, float)):
        setattr(message, name, value)
    else:
        getattr(message, name).extend(value)


def record(holder: Any) -> Any:
    """Return the record of a graph, node, value, attribute or tensor; None if there is no record.

    ``_metadata`` is read instead of ``meta``: reading ``meta`` would create a store for every object queried.
    """
    store = getattr(holder, "_metadata", None)
    return None if store is None else store.get(KEY)


def metadata_of(holder: Any) -> dict[str, str] | None:
    """Return the ``metadata_props`` of an object; None if never set.

    The private field is read: reading the property would create a dict.
    """
    props: dict[str, str] | None = getattr(holder, "_metadata_props", None)
    return props


@dataclasses.dataclass(slots=True)
class ValueRecord:
    """Form in which a value was listed in the file.

    Attributes:
        listed: Index in ``value_info``, if the writer would not list the value there by default.
        annotated: Index in ``quantization_annotation``, likewise.
        forms: Original ``ValueInfoProto`` by list: "input", "output" or "value_info".
        annotation: Original ``TensorAnnotation``.
    """

    listed: int | None = None
    annotated: int | None = None
    forms: dict[str, Original[onnx.ValueInfoProto]] = dataclasses.field(default_factory=dict)
    annotation: Original[onnx.TensorAnnotation] | None = None


@dataclasses.dataclass(slots=True)
class UnmatchedEntry:
    """An entry of ``value_info`` or ``quantization_annotation`` that belongs to no value of its graph.

    Attributes:
        index: Index in the list.
        message: The entry.
        always: True if the entry is written even if a value of the graph has its name (the list named one value twice).
    """

    index: int
    message: Any
    always: bool = False


@dataclasses.dataclass(slots=True)
class ModelRecord:
    """Contents of a model message that the Model does not hold.

    Attributes:
        head: The message without graph, functions and training information.
        training_info: The training information, unchanged.
    """

    head: Original[onnx.ModelProto] | None = None
    training_info: tuple[onnx.TrainingInfoProto, ...] = ()


@dataclasses.dataclass(slots=True)
class GraphRecord:
    """Contents of a graph or function message without a counterpart in the Graph or Function.

    Attributes:
        explicit: Node fields written even if empty, as some exporters do throughout.
        head: The message without its lists of nodes, tensors and values.
        infos: Entries of ``value_info`` that belong to no value.
        annotations: Entries of ``quantization_annotation`` that belong to no value.
        model: The record of the model, stored with its main graph (``ir.Model.clone`` drops the model's own ``meta``).
        listable: The only names listed by default in ``value_info``; None for all. Inferred types of other values stay
            in memory and are not written to files.
    """

    explicit: frozenset[str] = frozenset()
    head: Any = None
    infos: tuple[UnmatchedEntry, ...] = ()
    annotations: tuple[UnmatchedEntry, ...] = ()
    model: ModelRecord | None = None
    listable: frozenset[str] | None = None


def list_only(graph: ir.Graph, names: frozenset[str]) -> None:
    """Restrict the default entries in the graph's ``value_info`` to the given names."""
    old: GraphRecord = graph.meta.get(KEY) or GraphRecord()
    graph.meta[KEY] = dataclasses.replace(old, listable=names)


@dataclasses.dataclass(frozen=True, slots=True)
class Head:
    """The message of a tensor without its contents, and the number of the field for the contents."""

    proto: onnx.TensorProto
    field: int
