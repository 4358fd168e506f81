"""Conversion of value types between ``onnx_ir`` and protobuf, and the types that ``onnx_ir`` lacks.

``onnx_ir`` stores the shape of a value separately from its type; a message has the shape in its innermost tensor type.
"""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir

from sardonyx.errors import UnsupportedError

DATA_TYPES: dict[int, ir.DataType] = {int(dtype): dtype for dtype in ir.DataType}
"""Element types by number in ``TensorProto.DataType``."""


class MapType(ir.TypeProtocol):
    """A map from integer or string keys to values of one type, as classical ML operators return.

    Args:
        key_type: Type of the keys.
        value_type: Type of the values.
        denotation: Meaning of the value, a name of ONNX's TypeDenotation.md.
    """

    __slots__ = ("denotation", "key_type", "value_type")

    def __init__(self, key_type: ir.DataType, value_type: ir.TypeProtocol, *, denotation: str | None = None) -> None:
        self.key_type = key_type
        self.value_type = value_type
        self.denotation = denotation

    @property
    def elem_type(self) -> ir.TypeProtocol:  # type: ignore[override]
        """The type of the values."""
        return self.value_type

    @property
    def dtype(self) -> ir.DataType:
        """The element type of the values."""
        return self.value_type.dtype

    @dtype.setter
    def dtype(self, value: ir.DataType) -> None:
        self.value_type.dtype = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MapType) and (self.key_type, self.value_type) == (other.key_type, other.value_type)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"Map({self.key_type!r}, {self.value_type!r})"


class OpaqueType(ir.TypeProtocol):
    """A type that is defined by its domain only.

    Args:
        domain: Domain of the definition; empty for the model's own domain.
        name: Name of the type in the domain.
        denotation: Meaning of the value, a name of ONNX's TypeDenotation.md.
    """

    __slots__ = ("denotation", "domain", "name")

    dtype = ir.DataType.UNDEFINED
    elem_type = ir.DataType.UNDEFINED

    def __init__(self, domain: str = "", name: str = "", *, denotation: str | None = None) -> None:
        self.domain = domain
        self.name = name
        self.denotation = denotation

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpaqueType) and (self.domain, self.name) == (other.domain, other.name)

    def __hash__(self) -> int:
        return hash((self.domain, self.name))

    def __repr__(self) -> str:
        return f"Opaque({self.domain!r}, {self.name!r})"


def read_type(proto: onnx.TypeProto) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
    """Convert a message to a type and the shape in its innermost tensor type; None if missing or unknown."""
    which = proto.WhichOneof("value")
    denotation = proto.denotation if proto.HasField("denotation") else None
    if which == "tensor_type" or which == "sparse_tensor_type":
        content = getattr(proto, which)
        dtype = DATA_TYPES.get(content.elem_type) if content.HasField("elem_type") else None
        if dtype is None:
            return None, None
        shape = _shape(content.shape) if content.HasField("shape") else None
        if which == "tensor_type":
            return ir.TensorType(dtype, denotation=denotation), shape
        return ir.SparseTensorType(dtype, denotation=denotation), shape
    if which == "sequence_type" or which == "optional_type":
        kind, shape = read_type(getattr(proto, which).elem_type)
        if kind is None:
            return None, None
        if which == "sequence_type":
            return ir.SequenceType(kind, denotation=denotation), shape
        return ir.OptionalType(kind, denotation=denotation), shape
    if which == "map_type":
        key_type = DATA_TYPES.get(proto.map_type.key_type)
        kind, shape = read_type(proto.map_type.value_type)
        if key_type is None or kind is None:
            return None, None
        return MapType(key_type, kind, denotation=denotation), shape
    if which == "opaque_type":
        return OpaqueType(proto.opaque_type.domain, proto.opaque_type.name, denotation=denotation), None
    return None, None


def _shape(proto: onnx.TensorShapeProto) -> ir.Shape:
    dims: list[int | ir.SymbolicDim] = []
    denotations: list[str | None] = []
    for dim in proto.dim:
        which = dim.WhichOneof("value")
        if which == "dim_value":
            dims.append(dim.dim_value)
        else:
            dims.append(ir.SymbolicDim(dim.dim_param or None))
        denotations.append(dim.denotation if dim.HasField("denotation") else None)
    return ir.Shape(dims, denotations, frozen=True)


def write_type(kind: ir.TypeProtocol | None, shape: ir.ShapeProtocol | None, message: onnx.TypeProto) -> None:
    """Write a type, with the shape in its innermost tensor type.

    Raises:
        UnsupportedError: The type cannot be represented in ONNX.
    """
    if kind is None:
        return
    if kind.denotation is not None:
        message.denotation = kind.denotation
    if isinstance(kind, ir.TensorType):
        message.tensor_type.elem_type = kind.dtype.value
        _write_shape(shape, message.tensor_type)
    elif isinstance(kind, ir.SequenceType):
        message.sequence_type.elem_type.SetInParent()
        write_type(kind.elem_type, shape, message.sequence_type.elem_type)
    elif isinstance(kind, ir.OptionalType):
        message.optional_type.elem_type.SetInParent()
        write_type(kind.elem_type, shape, message.optional_type.elem_type)
    elif isinstance(kind, MapType):
        message.map_type.key_type = kind.key_type.value
        message.map_type.value_type.SetInParent()
        write_type(kind.value_type, shape, message.map_type.value_type)
    elif isinstance(kind, ir.SparseTensorType):
        message.sparse_tensor_type.elem_type = kind.dtype.value
        _write_shape(shape, message.sparse_tensor_type)
    elif isinstance(kind, OpaqueType):
        message.opaque_type.SetInParent()
        if kind.domain:
            message.opaque_type.domain = kind.domain
        if kind.name:
            message.opaque_type.name = kind.name
    else:
        raise UnsupportedError(f"an ONNX file cannot hold the type {kind!r}.")


def _write_shape(shape: ir.ShapeProtocol | None, tensor_type: Any) -> None:
    if shape is None:
        return
    tensor_type.shape.SetInParent()
    dims = tensor_type.shape.dim
    for index, size in enumerate(shape):
        dim = dims.add()
        if isinstance(size, int):
            dim.dim_value = size
        elif size.value is not None:
            dim.dim_param = str(size.value)
        denotation = shape.get_denotation(index)
        if denotation is not None:
            dim.denotation = denotation
