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
from sardonyx.errors import ExecutionError, InvalidModelError, ShapeError, TypeMismatchError
from sardonyx.ops.graph import Body
from sardonyx.ops.registry import host_operator, operator

_SEQUENCE = "sequences are not tensors"
_OPTIONAL = "optionals are not tensors"

Array = np.ndarray
Arrays = Sequence[np.ndarray]


def _common_type(types: Sequence[TensorType]) -> TensorType:
    """Return the type of every element: of open shape if the shapes differ."""
    first = types[0]
    for other in types:
        if other.dtype != first.dtype:
            raise TypeMismatchError(f"expected one element type in a sequence, got {first} and {other}.")
    return first if all(other.shape == first.shape for other in types) else TensorType(first.dtype, None)


def _element_type(sequence: SequenceType) -> TensorType:
    if not isinstance(sequence.element, TensorType):
        raise TypeMismatchError(f"expected a sequence of tensors, got {sequence}.")
    return sequence.element


def _index(position: Array | None, default: int, least: int, limit: int) -> int:
    """Return a checked position, or the default for an omitted one."""
    if position is not None and position.size != 1:
        raise ShapeError(f"expected one position of a sequence, got {position.size}.")
    index = default if position is None else int(position.reshape(()))
    if not least <= index < limit:
        raise ExecutionError(
            f"position {index} is out of range for a sequence.", remedy=f"Use a position from {least} to {limit - 1}."
        )
    return index


def _construct_types(*inputs: TensorType) -> tuple[Type]:
    return (SequenceType(_common_type(inputs)),)


@host_operator("SequenceConstruct", since=11, types=_construct_types, reason=_SEQUENCE)
def sequence_construct(*inputs: Array) -> tuple[list[Array]]:
    return (list(inputs),)


def _empty_types(*, dtype: int = int(t.FLOAT)) -> tuple[Type]:
    return (SequenceType(TensorType(t.element_type(dtype), None)),)


@host_operator("SequenceEmpty", since=11, types=_empty_types, reason=_SEQUENCE)
def sequence_empty(*, dtype: int = int(t.FLOAT)) -> tuple[list[Array]]:
    return ([],)


def _insert_types(sequence: SequenceType, tensor: TensorType, position: Type | None = None) -> tuple[Type]:
    return (SequenceType(_common_type([_element_type(sequence), tensor])),)


@host_operator("SequenceInsert", since=11, types=_insert_types, reason=_SEQUENCE)
def sequence_insert(sequence: Arrays, tensor: Array, position: Array | None = None) -> tuple[list[Array]]:
    count = len(sequence)
    elements = list(sequence)
    elements.insert(_index(position, count, -count, count + 1), tensor)
    return (elements,)


def _erase_types(sequence: SequenceType, position: Type | None = None) -> tuple[Type]:
    return (sequence,)


@host_operator("SequenceErase", since=11, types=_erase_types, reason=_SEQUENCE)
def sequence_erase(sequence: Arrays, position: Array | None = None) -> tuple[list[Array]]:
    elements = list(sequence)
    del elements[_index(position, -1, -len(elements), len(elements))]
    return (elements,)


def _at_types(sequence: SequenceType, position: Type) -> tuple[Type]:
    element = _element_type(sequence)
    # Sizes that are unknown before the run may differ between elements: the selected element has sizes of its own.
    sizes = [
        unknown_size() if any(name.startswith(DEFINED) for name in symbols(size)) else size
        for size in element.shape or ()
    ]
    return (element if element.shape is None else TensorType(element.dtype, tuple(sizes)),)


@host_operator("SequenceAt", since=11, types=_at_types, reason=_SEQUENCE)
def sequence_at(sequence: Arrays, position: Array) -> tuple[Array]:
    return (sequence[_index(position, 0, -len(sequence), len(sequence))],)


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
    """Split into a sequence; a host function splits if the number of parts is open."""
    axis = L.normalized_axis(axis, x.rank)
    size = x.shape[axis]
    if isinstance(size, Dim) or (split is not None and not split.is_constant):
        return host(_split, *[x] if split is None else [x, split], axis=axis, keepdims=keepdims)[0]
    sizes = [1] if split is None else L.static(split, "the sizes of parts")
    if split is None or split.rank == 0:
        if sizes[0] < 1:
            raise ExecutionError(f"an axis is split into parts of {sizes[0]}.", remedy="Use a size of at least 1.")
        sizes = [min(sizes[0], size - start) for start in range(0, size, sizes[0])]
    if sum(sizes) != size or min(sizes, default=0) < 0:
        raise ExecutionError(f"parts of {sizes} do not add up to an axis of {size}.")
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    parts = [L.slice_(x, axis, end - part, end) for part, end in zip(sizes, ends, strict=True)]
    if split is None and not keepdims:
        parts = [L.squeeze(part, [axis]) for part in parts]
    return host(_construct, *parts)[0] if parts else host(_empty, dtype=int(x.dtype))[0]


def _concat_types(sequence: SequenceType, *, axis: int, new_axis: int = 0) -> tuple[Type]:
    element = _element_type(sequence)
    if element.shape is None:
        return (element,)
    rank = len(element.shape)
    at = L.normalized_axis(axis, rank + 1 if new_axis else rank)
    return (TensorType(element.dtype, (*element.shape[:at], unknown_size(), *element.shape[at + (not new_axis) :])),)


@host_operator("ConcatFromSequence", since=11, types=_concat_types, reason=_SEQUENCE)
def concat_from_sequence(sequence: Arrays, *, axis: int, new_axis: int = 0) -> tuple[Array]:
    if not sequence:
        raise ExecutionError("an empty sequence cannot be concatenated: the shape of its elements is unknown.")
    rank = sequence[0].ndim + (1 if new_axis else 0)
    at = L.normalized_axis(axis, rank)
    shapes = {a.shape if new_axis else (*a.shape[:at], *a.shape[at + 1 :]) for a in sequence}
    if len({a.ndim for a in sequence}) > 1 or len(shapes) > 1:
        raise ExecutionError(
            f"elements of shapes {[list(a.shape) for a in sequence]} cannot be concatenated along axis {at}."
        )
    return (np.stack(sequence, at) if new_axis else np.concatenate(sequence, at),)


@operator("SequenceMap", since=17)
def sequence_map(*inputs: Value, body: Body) -> tuple[Value, ...]:
    count = L.reshape(host(_length, inputs[0])[0], ())  # type: ignore[arg-type]

    def iterate(i: Tensor, *collected: Value) -> tuple[None, list[Value], list[Value]]:
        items = [host(_at, x, i)[0] if isinstance(x.type, SequenceType) else x for x in inputs]
        results = body(*items)
        return (
            None,
            [host(_insert, sequence, result)[0] for sequence, result in zip(collected, results, strict=True)],
            [],
        )

    types = [_result_dtype(type) for type in body.output_types]
    return L.loop(count, None, [host(_empty, dtype=int(dtype))[0] for dtype in types], iterate, ())[0]


def _result_dtype(type: Type | None) -> t.DType:
    if not isinstance(type, TensorType):
        raise InvalidModelError("SequenceMap needs the declared element types of its body's outputs.")
    return type.dtype


def _optional_types(x: Type | None = None, *, type: Type | None = None) -> tuple[Type]:
    element = x or type
    if element is None:
        raise InvalidModelError("Optional without an input needs its attribute `type`.")
    if not isinstance(element, Type):
        raise InvalidModelError(
            f"expected a type as the attribute `type` of Optional, got {element.__class__.__name__}."
        )
    return (OptionalType(element),)


@host_operator("Optional", since=15, types=_optional_types, reason=_OPTIONAL)
def optional(x: Any = None, *, type: Type | None = None) -> tuple[Any]:
    return (x,)


_optional = HostFunction("Optional", _optional_types, optional)


def as_optional(value: Value) -> Value:
    """Wrap a value in an optional."""
    return host(_optional, value)[0]


def _get_element_types(x: Type) -> tuple[Type]:
    return (x.element if isinstance(x, OptionalType) else x,)


@host_operator("OptionalGetElement", since=15, types=_get_element_types, reason=_OPTIONAL)
def optional_get_element(x: Any) -> tuple[Any]:
    if x is None:
        raise ExecutionError("the optional is empty and has no element to get.")
    return (x,)


_get_element = HostFunction("OptionalGetElement", _get_element_types, optional_get_element)


def optional_element(value: Value) -> Value:
    """Return the element of an optional."""
    return host(_get_element, value)[0]


def _has_element_types(x: Type | None = None) -> tuple[Type]:
    return (TensorType(t.BOOL, ()),)


@host_operator("OptionalHasElement", since=15, types=_has_element_types, reason=_OPTIONAL)
def optional_has_element(x: Any = None) -> tuple[Array]:
    return (np.array(x is not None),)
