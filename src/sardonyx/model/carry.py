"""What ``onnx_ir`` cannot hold, kept beside the graph so that it is written back.

Types and tensors that ``onnx_ir`` lacks are classes of their own and stand where its types and tensors stand
(`sardonyx.model.types`, `sardonyx.model.tensors.SparseTensor`: a sparse initializer is an initializer like any other,
whose ``const_value`` reads as the dense tensor). All else is kept in records under `KEY` in the ``meta`` of the graph,
node, value, attribute or tensor concerned; ``meta`` follows its object through renaming and ``clone()``, and is never
written to a file itself.

A record of the form `Original` is a protobuf message as it was read, with the message that the writer alone would
have made of it. Field by field, the old form is used as long as the writer still makes the same as then, and the
writer's where an edit has changed it; unknown fields are always kept.
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
"""Where ``onnx_ir`` keeps the quantization annotation of a value, in its ``meta``."""

M = TypeVar("M", bound=Message)


class Original(Generic[M]):
    """A message as it was read, where it differs from what the writer makes of the object read from it.

    Args:
        original: The message as it was read.
        written: What the writer made of the object right after reading.
    """

    __slots__ = ("_patches", "_unknown")

    def __init__(self, original: M, written: M) -> None:
        was = {field.name: value for field, value in original.ListFields()}
        made = {field.name: value for field, value in written.ListFields()}
        self._patches: list[tuple[str, M | None, M | None]] = [
            (name, _only(written, name) if name in made else None, _only(original, name) if name in was else None)
            for name in {**was, **made}
            if name not in was or name not in made or was[name] != made[name]
        ]
        self._unknown = unknown_fields(original)

    def restore(self, message: M) -> None:
        """Gives fields of a message just written their original form, where nothing was changed since.

        Args:
            message: What the writer made of the object now; changed in place.
        """
        for name, expected, patch in self._patches:
            if _only(message, name) != (expected if expected is not None else type(message)()):
                continue
            message.ClearField(name)
            if patch is not None:
                message.MergeFrom(patch)
        if self._unknown:
            message.MergeFromString(self._unknown)


def differing(original: M, written: M) -> Original[M] | None:
    """Returns the record for a message; None where the writer makes the very same message."""
    return None if original == written else Original(original, written)


def unknown_fields(message: Message) -> bytes:
    """The fields of a message that this version of onnx does not know, serialized; not those of its children."""
    if not len(UnknownFieldSet(message)):
        return b""
    rest = type(message)()
    rest.CopyFrom(message)
    for field, _ in message.ListFields():
        rest.ClearField(field.name)
    serialized: bytes = rest.SerializeToString()
    return serialized


def without(message: M, *fields: str) -> M:
    """A copy of a message without some of its fields, which are not copied at any time."""
    rest: M = type(message)()
    for field, value in message.ListFields():
        if field.name not in fields:
            _set(rest, field.name, value)
    if unknown := unknown_fields(message):
        rest.MergeFromString(unknown)
    return rest


def _only(message: M, name: str) -> M:
    alone: M = type(message)()
    for field, value in message.ListFields():
        if field.name == name:
            _set(alone, name, value)
    return alone


def _set(message: Message, name: str, value: Any) -> None:
    if isinstance(value, Message):
        getattr(message, name).CopyFrom(value)
        getattr(message, name).SetInParent()
    elif isinstance(value, (str, bytes, int, float)):
        setattr(message, name, value)
    else:
        getattr(message, name).extend(value)


def record(holder: Any) -> Any:
    """The record of a graph, node, value, attribute or tensor; None where it has none.

    Reading ``holder.meta`` would create a store for each object asked about.
    """
    store = getattr(holder, "_metadata", None)
    return None if store is None else store.get(KEY)


def metadata_of(holder: Any) -> dict[str, str] | None:
    """The ``metadata_props`` of an object; None where it never had any (reading them would create a dict)."""
    props: dict[str, str] | None = getattr(holder, "_metadata_props", None)
    return props


@dataclasses.dataclass(slots=True)
class ValueRecord:
    """How a value was listed.

    Attributes:
        listed: Its place in ``value_info``, where the writer would not list it there by itself.
        annotated: Its place in ``quantization_annotation``, likewise.
        forms: Its ``ValueInfoProto`` as it was, by where it stands: "input", "output" or "value_info".
        annotation: Its ``TensorAnnotation`` as it was.
    """

    listed: int | None = None
    annotated: int | None = None
    forms: dict[str, Original[onnx.ValueInfoProto]] = dataclasses.field(default_factory=dict)
    annotation: Original[onnx.TensorAnnotation] | None = None


@dataclasses.dataclass(slots=True)
class Stray:
    """An entry of ``value_info`` or ``quantization_annotation`` that belongs to no value of its graph.

    Attributes:
        place: Its place in the list.
        message: The entry.
        kept: Whether it stays even where a value of the graph has its name (the list named one value twice).
    """

    place: int
    message: Any
    kept: bool = False


@dataclasses.dataclass(slots=True)
class ModelRecord:
    """What a model message held besides what the Model holds.

    Attributes:
        head: The message without graph, functions and training information.
        training_info: As it was.
    """

    head: Original[onnx.ModelProto] | None = None
    training_info: tuple[onnx.TrainingInfoProto, ...] = ()


@dataclasses.dataclass(slots=True)
class GraphRecord:
    """What a graph or function message held besides what the Graph or Function holds.

    Attributes:
        explicit: Fields of nodes that the file writes even where they are empty, as some exporters do throughout.
        head: The message without its lists of nodes, tensors and values.
        infos: Entries of ``value_info`` that belong to no value.
        annotations: Entries of ``quantization_annotation`` that belong to no value.
        model: The record of the model, on its main graph (``ir.Model.clone`` drops the model's own ``meta``).
        listable: The only names that the writer may list in ``value_info`` by itself; None for all. What inference
            told of the others stays in memory and out of files.
    """

    explicit: frozenset[str] = frozenset()
    head: Any = None
    infos: tuple[Stray, ...] = ()
    annotations: tuple[Stray, ...] = ()
    model: ModelRecord | None = None
    listable: frozenset[str] | None = None


def list_only(graph: ir.Graph, names: frozenset[str]) -> None:
    """Let ``value_info`` of the graph hold these names only, of all the values whose types are known."""
    old: GraphRecord = graph.meta.get(KEY) or GraphRecord()
    graph.meta[KEY] = dataclasses.replace(old, listable=names)


@dataclasses.dataclass(frozen=True, slots=True)
class Head:
    """The message that a tensor was read from, without its contents, and the field that held them."""

    proto: onnx.TensorProto
    field: int
