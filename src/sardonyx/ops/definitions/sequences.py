"""Sequences and optionals: ``Sequence*``, ``SplitToSequence``, ``ConcatFromSequence``, ``Optional*``.

Source: ONNX Operators, *ConcatFromSequence*, *Optional*, *OptionalGetElement*, *OptionalHasElement*, *Sequence…*,
*SplitToSequence*. A sequence is a list of arrays, an optional an array, a list or None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.core import language as L
from sardonyx.core.dim import Dim, symbols
from sardonyx.core.eval.host_function import HostFunction, host, unknown_size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import DEFINED, Value
from sardonyx.core.ir.types import OptionalType, SequenceType, TensorType, Type
from sardonyx.core.language import Tensor
from sardonyx.errors import ExecutionError, InvalidModelError, TypeMismatchError
from sardonyx.ops.graph import Body
from sardonyx.ops.registry import host_operator, operator

_SEQUENCE = "a sequence is no tensor"
_OPTIONAL = "an optional is no tensor"

Array = np.ndarray
Arrays = Sequence[np.ndarray]


def _common(types: Sequence[TensorType]) -> TensorType:
    """The type of every element: of open shape where their shapes differ."""
    first = types[0]
    for other in types:
        if other.dtype != first.dtype:
            raise TypeMismatchError(f"a sequence holds one element type, not {first} and {other}.")
    return first if all(other.shape == first.shape for other in types) else TensorType(first.dtype, None)


def _element(sequence: SequenceType) -> TensorType:
    if not isinstance(sequence.element, TensorType):
        raise TypeMismatchError(f"a sequence of tensors is needed, not {sequence}.")
    return sequence.element


def _place(position: Array | None, default: int, least: int, limit: int) -> int:
    """A position that may be left out, counted from the front."""
    place = default if position is None else int(position.reshape(()))
    if not least <= place < limit:
        raise ExecutionError(
            f"position {place} is out of range for a sequence.", remedy=f"Positions are {least} to {limit - 1}."
        )
    return place


def _construct_types(*inputs: TensorType) -> tuple[Type]:
    return (SequenceType(_common(inputs)),)


@host_operator("SequenceConstruct", since=11, types=_construct_types, reason=_SEQUENCE)
def sequence_construct(*inputs: Array) -> tuple[list[Array]]:
    return (list(inputs),)


def _empty_types(*, dtype: int = int(t.FLOAT)) -> tuple[Type]:
    return (SequenceType(TensorType(t.element_type(dtype), None)),)


@host_operator("SequenceEmpty", since=11, types=_empty_types, reason=_SEQUENCE)
def sequence_empty(*, dtype: int = int(t.FLOAT)) -> tuple[list[Array]]:
    return ([],)


def _insert_types(sequence: SequenceType, tensor: TensorType, position: Type | None = None) -> tuple[Type]:
    return (SequenceType(_common([_element(sequence), tensor])),)


@host_operator("SequenceInsert", since=11, types=_insert_types, reason=_SEQUENCE)
def sequence_insert(sequence: Arrays, tensor: Array, position: Array | None = None) -> tuple[list[Array]]:
    count = len(sequence)
    found = list(sequence)
    found.insert(_place(position, count, -count, count + 1), tensor)
    return (found,)


def _erase_types(sequence: SequenceType, position: Type | None = None) -> tuple[Type]:
    return (sequence,)


@host_operator("SequenceErase", since=11, types=_erase_types, reason=_SEQUENCE)
def sequence_erase(sequence: Arrays, position: Array | None = None) -> tuple[list[Array]]:
    found = list(sequence)
    del found[_place(position, -1, -len(found), len(found))]
    return (found,)


def _at_types(sequence: SequenceType, position: Type) -> tuple[Type]:
    element = _element(sequence)
    # Where nothing but the run tells sizes of elements, these may differ: those of the one taken are its own.
    sizes = [
        unknown_size() if any(name.startswith(DEFINED) for name in symbols(size)) else size
        for size in element.shape or ()
    ]
    return (element if element.shape is None else TensorType(element.dtype, tuple(sizes)),)


@host_operator("SequenceAt", since=11, types=_at_types, reason=_SEQUENCE)
def sequence_at(sequence: Arrays, position: Array) -> tuple[Array]:
    return (sequence[_place(position, 0, -len(sequence), len(sequence))],)


def _length_types(sequence: SequenceType) -> tuple[Type]:
    return (TensorType(t.INT64, ()),)


@host_operator("SequenceLength", since=11, types=_length_types, reason=_SEQUENCE)
def sequence_length(sequence: Arrays) -> tuple[Array]:
    return (np.array(len(sequence), np.int64),)


_construct = HostFunction("SequenceConstruct", _construct_types, sequence_construct)
_empty = HostFunction("SequenceEmpty", _empty_types, sequence_empty)
_insert = HostFunction("SequenceInsert", _insert_types, sequence_insert)
_at = HostFunction("SequenceAt", _at_types, sequence_at)
_length = HostFunction("SequenceLength", _length_types, sequence_length)


def _split_types(x: TensorType, split: TensorType | None = None, *, axis: int, keepdims: int) -> tuple[Type]:
    if split is not None or x.shape is None:
        return (SequenceType(TensorType(x.dtype, None)),)
    return (SequenceType(TensorType(x.dtype, (*x.shape[:axis], *[1][: keepdims != 0], *x.shape[axis + 1 :]))),)


def _split_arrays(x: Array, split: Array | None = None, *, axis: int, keepdims: int) -> tuple[list[Array]]:
    return (
        split_to_sequence(
            L.constant(x), split if split is None else L.constant(split), axis=axis, keepdims=keepdims
        ).known,
    )


_split = HostFunction("SplitToSequence", _split_types, _split_arrays)


@operator("SplitToSequence", since=11)
def split_to_sequence(x: Tensor, split: Tensor | None = None, *, axis: int = 0, keepdims: int = 1) -> Value:
    """The number of parts is no part of a sequence's type: where it is open, the host counts them."""
    axis = L.normalized_axis(axis, x.rank)
    size = x.shape[axis]
    if isinstance(size, Dim) or (split is not None and not split.is_constant):
        return host(_split, *[x] if split is None else [x, split], axis=axis, keepdims=keepdims)[0]
    sizes = [1] if split is None else L.static(split, "the sizes of parts")
    if split is None or split.rank == 0:
        if sizes[0] < 1:
            raise ExecutionError(f"an axis is split into parts of {sizes[0]}.", remedy="Give a size of at least 1.")
        sizes = [min(sizes[0], size - start) for start in range(0, size, sizes[0])]
    if sum(sizes) != size or min(sizes, default=0) < 0:
        raise ExecutionError(f"parts of {sizes} do not make up an axis of {size}.")
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    parts = [L.slice_(x, axis, end - part, end) for part, end in zip(sizes, ends, strict=True)]
    if split is None and not keepdims:
        parts = [L.squeeze(part, [axis]) for part in parts]
    return host(_construct, *parts)[0] if parts else host(_empty, dtype=int(x.dtype))[0]


def _concat_types(sequence: SequenceType, *, axis: int, new_axis: int = 0) -> tuple[Type]:
    element = _element(sequence)
    if element.shape is None:
        return (element,)
    rank = len(element.shape)
    at = L.normalized_axis(axis, rank + 1 if new_axis else rank)
    return (TensorType(element.dtype, (*element.shape[:at], unknown_size(), *element.shape[at + (not new_axis) :])),)


@host_operator("ConcatFromSequence", since=11, types=_concat_types, reason=_SEQUENCE)
def concat_from_sequence(sequence: Arrays, *, axis: int, new_axis: int = 0) -> tuple[Array]:
    if not sequence:
        raise ExecutionError("an empty sequence cannot be joined: the shape of its elements is not known.")
    rank = sequence[0].ndim + (1 if new_axis else 0)
    at = L.normalized_axis(axis, rank)
    shapes = {a.shape if new_axis else (*a.shape[:at], *a.shape[at + 1 :]) for a in sequence}
    if len({a.ndim for a in sequence}) > 1 or len(shapes) > 1:
        raise ExecutionError(f"elements of shapes {[list(a.shape) for a in sequence]} cannot be joined at axis {at}.")
    return (np.stack(sequence, at) if new_axis else np.concatenate(sequence, at),)


@operator("SequenceMap", since=17)
def sequence_map(*inputs: Value, body: Body) -> tuple[Value, ...]:
    count = L.reshape(host(_length, inputs[0])[0], ())  # type: ignore[arg-type]

    def once(i: Tensor, *collected: Value) -> tuple[None, list[Value], list[Value]]:
        items = [host(_at, x, i)[0] if isinstance(x.type, SequenceType) else x for x in inputs]
        found = body(*items)
        return None, [host(_insert, so_far, one)[0] for so_far, one in zip(collected, found, strict=True)], []

    types = [_result_dtype(type) for type in body.output_types]
    return L.loop(count, None, [host(_empty, dtype=int(dtype))[0] for dtype in types], once, ())[0]


def _result_dtype(type: Type | None) -> t.DType:
    if not isinstance(type, TensorType):
        raise InvalidModelError("SequenceMap needs to know the element types of what its body gives.")
    return type.dtype


def _optional_types(x: Type | None = None, *, type: Type | None = None) -> tuple[Type]:
    element = x or type
    if element is None:
        raise InvalidModelError("Optional without an input needs its attribute `type`.")
    return (OptionalType(element),)


@host_operator("Optional", since=15, types=_optional_types, reason=_OPTIONAL)
def optional(x: Any = None, *, type: Type | None = None) -> tuple[Any]:
    return (x,)


_optional = HostFunction("Optional", _optional_types, optional)


def as_optional(value: Value) -> Value:
    """The optional that holds a value."""
    return host(_optional, value)[0]


def _get_element_types(x: Type) -> tuple[Type]:
    return (x.element if isinstance(x, OptionalType) else x,)


@host_operator("OptionalGetElement", since=15, types=_get_element_types, reason=_OPTIONAL)
def optional_get_element(x: Any) -> tuple[Any]:
    if x is None:
        raise ExecutionError("an optional is empty, and its element is asked for.")
    return (x,)


_get_element = HostFunction("OptionalGetElement", _get_element_types, optional_get_element)


def optional_element(value: Value) -> Value:
    """What an optional holds."""
    return host(_get_element, value)[0]


def _has_element_types(x: Type | None = None) -> tuple[Type]:
    return (TensorType(t.BOOL, ()),)


@host_operator("OptionalHasElement", since=15, types=_has_element_types, reason=_OPTIONAL)
def optional_has_element(x: Any = None) -> tuple[Array]:
    return (np.array(x is not None),)
