"""Tensors, types and attributes of a model as values and types of Core."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.core.dim import as_dim
from sardonyx.core.eval.host_function import unknown_size
from sardonyx.core.eval.tensor import constant
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import STRING, DType, MapType, OptionalType, SequenceType, TensorType, Type
from sardonyx.errors import InvalidModelError, UnsupportedError
from sardonyx.model import types as model_types


def attribute_value(attribute: ir.Attr) -> Any:
    """Return the value of an attribute: numbers, texts, known values, or a type.

    Raises:
        InvalidModelError: A text is not UTF-8.
    """
    kinds = ir.AttributeType
    value, kind = attribute.value, attribute.type
    if isinstance(value, (int, float, str)):
        return value
    if kind is kinds.INTS:  # The most frequent of the other kinds.
        return tuple(value)
    match kind:
        case kinds.TENSOR:
            return tensor_constant(value)
        case kinds.TENSORS:
            return [tensor_constant(tensor) for tensor in value]
        case kinds.STRING if isinstance(value, bytes):
            raise InvalidModelError(f"the string attribute {attribute.name!r} is not valid UTF-8.")
        case kinds.STRINGS if bytes in set(map(type, value)):
            raise InvalidModelError(f"the attribute {attribute.name!r} contains a string that is not valid UTF-8.")
        case kinds.FLOATS | kinds.STRINGS:
            return tuple(value)
        case kinds.TYPE_PROTO:
            return core_type(value.type, value.shape)
        case kinds.SPARSE_TENSOR:
            return tensor_constant(value)
    return value


def tensor_constant(tensor: ir.TensorProtocol) -> Value:
    """Return a tensor of the model as a known value, which is a view: nobody writes to the tensors of a model.

    Raises:
        InvalidModelError: A string element is not UTF-8.
    """
    array = tensor.numpy().view()
    array.flags.writeable = False
    return array_constant(array, tensor.dtype, tensor.name or "")


def array_constant(array: np.ndarray, dtype: DType, where: str) -> Value:
    """Return an array as a known value; strings may be bytes.

    Raises:
        InvalidModelError: A string element is not UTF-8.
    """
    if dtype == STRING:
        try:
            words = [word.decode() if isinstance(word, bytes) else str(word) for word in array.ravel().tolist()]
        except UnicodeDecodeError as error:
            raise InvalidModelError("a string is not UTF-8.", where=where) from error
        array = np.array(words, object).reshape(array.shape)
    return constant(array, dtype)


def is_unnamed(size: ir.SymbolicDim) -> bool:
    """Return True if an open size has no name; some exporters write ``?`` for every unknown size."""
    return size.value in (None, "", "?")


def declared_type(value: ir.Value) -> Type | None:
    """Return the type that the file declares for a value; None if undeclared."""
    return None if value.type is None else core_type(value.type, value.shape)


def core_type(type: ir.TypeProtocol, shape: ir.Shape | None = None) -> Type:
    """Return a type of the model as a Core type; an open size becomes a symbol, a missing shape None.

    Raises:
        UnsupportedError: Core has no such type.
    """
    if isinstance(type, ir.SequenceType):
        return SequenceType(core_type(type.elem_type))
    if isinstance(type, ir.OptionalType):
        return OptionalType(core_type(type.elem_type, shape))
    if isinstance(type, ir.TensorType):
        if shape is None:
            return TensorType(type.dtype, None)
        sizes = [
            size if isinstance(size, int) else -1 if is_unnamed(size) else as_dim(str(size.value)) for size in shape
        ]
        # Some exporters write -1 for an open size.
        open_sizes = [unknown_size() if isinstance(size, int) and size < 0 else size for size in sizes]
        return TensorType(type.dtype, tuple(open_sizes))
    if isinstance(type, model_types.MapType):
        return MapType(type.key_type, core_type(type.value_type, ir.Shape(())))
    raise UnsupportedError(f"values of type {type} are not supported.")
