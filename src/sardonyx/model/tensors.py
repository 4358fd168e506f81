"""Tensors whose contents stay at the source of the model: a file, a buffer, or a protobuf message.

Each tensor stores its ``TensorProto`` without the contents, the *head*; the writer starts from the head, so that an
unchanged tensor is written as read.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx_ir import serde

from sardonyx.errors import ExternalDataError, ModelFileError, ModelTooLargeError
from sardonyx.model.external import Folder, MappedFile
from sardonyx.model.wire import RAW_DATA, Payload

MAX_PROTO_BYTES = 2**31 - 1
"""Size limit of a serialized protobuf message."""

CACHED_BYTES = 4096
"""Arrays of tensors in messages are cached up to this size: rules read small ones repeatedly."""

_COMPLEX = frozenset({ir.DataType.COMPLEX64, ir.DataType.COMPLEX128})
# Element types that each field of TensorProto may hold (onnx.proto, message TensorProto).
_CONTENT_FIELDS: dict[int, frozenset[ir.DataType]] = {
    RAW_DATA: frozenset(ir.DataType) - {ir.DataType.STRING, ir.DataType.UNDEFINED},
    4: frozenset({ir.DataType.FLOAT, ir.DataType.COMPLEX64}),
    5: frozenset(
        dtype
        for dtype in ir.DataType
        if dtype not in (ir.DataType.STRING, ir.DataType.UNDEFINED) and dtype.bitwidth <= 32
    )
    - {ir.DataType.FLOAT, ir.DataType.UINT32},
    6: frozenset({ir.DataType.STRING}),
    7: frozenset({ir.DataType.INT64}),
    10: frozenset({ir.DataType.DOUBLE, ir.DataType.COMPLEX128}),
    11: frozenset({ir.DataType.UINT32, ir.DataType.UINT64}),
}


_WHOLE_BYTES: dict[ir.DataType, np.dtype[Any]] = {
    dtype: dtype.numpy().newbyteorder("<") for dtype in _CONTENT_FIELDS[RAW_DATA] if dtype.bitwidth >= 8
}
"""Element types with the same layout in ``raw_data`` as in memory."""


@functools.lru_cache(maxsize=4096)
def intern_shape(dims: tuple[int, ...]) -> ir.Shape:
    """Return a frozen shape shared by all tensors of these sizes: models have many tensors and few shapes."""
    return ir.Shape(dims, frozen=True)


def byte_count(dtype: ir.DataType, dims: Sequence[int]) -> int:
    """Return the size of a tensor's contents as ``raw_data``; ``dtype`` is neither STRING nor UNDEFINED."""
    return (math.prod(dims) * dtype.bitwidth + 7) // 8


def map_external(
    file: MappedFile, head: onnx.TensorProto, dtype: ir.DataType, offset: int, length: int
) -> MappedTensor:
    """Map a tensor from a data file.

    Args:
        file: The data file.
        head: The message with the reference to the file; not changed.
        dtype: Element type.
        offset: First byte of the contents in the file.
        length: Number of bytes.

    Returns:
        The tensor; saving writes its contents, no longer a reference.

    Raises:
        ExternalDataError: The file is too short, or the length contradicts shape and type.
    """
    where = f"tensor '{head.name}', file '{file.path}'"
    if length > file.size - offset:
        raise ExternalDataError(
            f"has {file.size:,} bytes; the tensor claims {length:,} bytes from byte {offset:,} on.",
            where=where,
            remedy="Download the data file again: the file is truncated or belongs to another model.",
        )
    try:
        check_span(length, dtype, RAW_DATA, head.dims, where)
    except ModelFileError as error:
        raise ExternalDataError(error.problem, where=error.where, remedy=error.remedy) from error
    inline = onnx.TensorProto()
    inline.CopyFrom(head)
    inline.ClearField("external_data")
    inline.ClearField("data_location")
    return MappedTensor(file, Payload(offset, length, RAW_DATA), inline, dtype)


def attach(tensor: ir.ExternalTensor) -> MappedTensor:
    """Map a tensor from its file, with the checks that apply to every external-data path.

    Args:
        tensor: A tensor of this package, or one created by other code.

    Raises:
        ExternalDataError: The tensor's folder is unknown, or the file may not be read or does not hold the contents.
    """
    if isinstance(tensor, MappedTensor):
        return tensor
    if isinstance(tensor, DetachedTensor):
        return tensor.attach()
    head = onnx.TensorProto(name=tensor.name, data_type=tensor.dtype.value, dims=tensor.shape.numpy())
    for key, text in tensor.metadata_props.items():
        head.metadata_props.add(key=key, value=text)
    length = byte_count(tensor.dtype, head.dims) if tensor.length is None else tensor.length
    detached = DetachedTensor(head, str(tensor.location), tensor.offset or 0, length, tensor.dtype)
    detached.base_dir = tensor.base_dir
    return detached.attach()


def tensor_from(array: np.ndarray, name: str | None = None, dtype: ir.DataType | None = None) -> ir.TensorProtocol:
    """Return an array as a tensor, texts as a tensor of strings.

    Args:
        array: The elements.
        name: The name of the tensor.
        dtype: The element type, where that of the array does not tell it; not used for texts.
    """
    if array.dtype.kind in "OUS":
        texts = [text if isinstance(text, bytes) else str(text).encode() for text in array.reshape(-1).tolist()]
        return ir.StringTensor(texts, shape=ir.Shape(array.shape), name=name)
    return ir.Tensor(array, dtype=dtype, name=name)


def contents_of(tensor: ir.TensorProtocol) -> bytes | memoryview:
    """Return the contents of a tensor in ``raw_data``'s encoding.

    The result is a view if the array in memory has the same layout, else a copy.
    """
    if type(tensor) is ir.Tensor and tensor.dtype.bitwidth >= 8 and isinstance(tensor.raw, np.ndarray):
        array = tensor.raw
        if array.flags.c_contiguous and (array.itemsize == 1 or array.dtype.newbyteorder("<") == array.dtype):
            return array.reshape(-1).view(np.uint8).data
    return tensor.tobytes()


def metadata_of(proto: onnx.TensorProto) -> dict[str, str] | None:
    """Return the ``metadata_props`` of a tensor message as a dict; None if empty."""
    return {entry.key: entry.value for entry in proto.metadata_props} or None


def _as_array(contents: memoryview, dtype: ir.DataType, shape: ir.Shape) -> npt.NDArray[Any]:
    dims = shape.numpy()
    if not len(contents):
        return np.empty(dims, dtype=dtype.numpy())
    if dtype.bitwidth < 8:
        packed = np.frombuffer(contents, dtype=np.uint8)
        return ir.PackedTensor(packed, dtype, shape=dims).numpy()
    return np.frombuffer(contents, dtype=dtype.numpy().newbyteorder("<")).reshape(dims)


class MappedTensor(ir.ExternalTensor):
    """A tensor whose contents are a span of a mapped file: of the model file itself, or of a data file.

    Args:
        file: The file.
        payload: The span, and the field of ``TensorProto`` for the contents if they are not written to a data file.
        head: The message without its contents.
        dtype: Element type.
    """

    __slots__ = ("file", "head", "payload")

    def __init__(self, file: MappedFile, payload: Payload, head: onnx.TensorProto, dtype: ir.DataType) -> None:
        super().__init__(
            file.path.name,
            payload.start,
            payload.length,
            dtype,
            shape=ir.Shape(head.dims),
            name=head.name,
            doc_string=head.doc_string or None,
            metadata_props=metadata_of(head),
            base_dir=str(file.path.parent),
        )
        self.file = file
        self.payload = payload
        self.head = head

    @property
    def nbytes(self) -> int:
        """Number of bytes of the contents."""
        return self.payload.length

    def contents(self) -> memoryview:
        """Return the contents as bytes, not copied."""
        start = self.payload.start
        return self.file.view()[start : start + self.payload.length]

    def numpy(self) -> npt.NDArray[Any]:
        """Return a read-only array on the mapped file; elements of less than a byte are unpacked."""
        self._check_validity()
        if self._array is None:
            self._array = _as_array(self.contents(), self.dtype, self.shape)
        else:
            self.file.check_unchanged()
        return self._array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self.numpy().__array__(dtype) if dtype is not None else self.numpy()

    def tobytes(self) -> bytes:
        """Return a copy of the contents, encoded as in the file."""
        self._check_validity()
        return bytes(self.contents())

    def tofile(self, file: IO[bytes]) -> None:
        """Write the contents to a file."""
        self._check_validity()
        for chunk in self.file.chunks(self.payload.start, self.payload.length):
            file.write(chunk)

    def release(self) -> None:
        """Drop the cached array; the file stays mapped while one of its tensors exists."""
        self._array = None


class DetachedTensor(ir.ExternalTensor):
    """A tensor in a data file of unknown folder, because the model was not loaded from a file.

    Saving writes the tensor as read. Its contents can be read once ``base_dir`` is set.

    Args:
        head: The message.
        location: The path that the message names.
        offset: First byte of the contents.
        length: Number of bytes.
        dtype: Element type.
    """

    __slots__ = ("_mapped", "head")

    def __init__(self, head: onnx.TensorProto, location: str, offset: int, length: int, dtype: ir.DataType) -> None:
        super().__init__(
            location,
            offset,
            length,
            dtype,
            shape=ir.Shape(head.dims),
            name=head.name,
            doc_string=head.doc_string or None,
            metadata_props=metadata_of(head),
        )
        self.head = head
        self._mapped: MappedTensor | None = None

    def attach(self) -> MappedTensor:
        """Map the tensor from its data file.

        Raises:
            ExternalDataError: ``base_dir`` is not set, or the data file may not be read.
        """
        if self._mapped is None:
            if not self.base_dir:
                raise ExternalDataError(
                    f"has its contents in the file '{self.location}', but the model's folder is unknown.",
                    where=f"tensor '{self.name}'",
                    remedy="Load the model by its path.",
                )
            file = Folder(Path(self.base_dir) / "model.onnx").open(str(self.location), str(self.name))
            self._mapped = map_external(file, self.head, self.dtype, self.offset or 0, self.length or 0)
        return self._mapped

    def numpy(self) -> npt.NDArray[Any]:
        """Return the tensor as a read-only array; see `attach` for errors."""
        return self.attach().numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self.attach().__array__(dtype)

    def tobytes(self) -> bytes:
        """Return the contents; see `attach` for errors."""
        return self.attach().tobytes()

    def tofile(self, file: IO[bytes]) -> None:
        """Write the contents to a file; see `attach` for errors."""
        self.attach().tofile(file)


class ProtoTensor(serde.TensorProtoTensor):
    """A tensor whose contents are in a protobuf message.

    Args:
        proto: The message.
        dtype: Element type.
        owned: True if the message may be renamed in place; a caller's message is copied first.
    """

    __slots__ = ("_array", "_dtype", "_owned", "_shape", "_size")

    def __init__(self, proto: onnx.TensorProto, dtype: ir.DataType, owned: bool) -> None:
        super().__init__(proto)
        self._array: npt.NDArray[Any] | None = None
        self._dtype = dtype
        self._shape = intern_shape(tuple(proto.dims))
        self._size = math.prod(proto.dims)
        self._owned = owned

    @property
    def name(self) -> str:
        """The name of the tensor."""
        return self._proto.name

    @name.setter
    def name(self, value: str | None) -> None:
        if value == self._proto.name:
            return
        if not self._owned:
            self._proto = onnx.TensorProto.FromString(self._proto.SerializeToString())
            self._owned = True
        self._proto.name = value or ""

    @property
    def dtype(self) -> ir.DataType:  # type: ignore[override]
        """Element type."""
        return self._dtype

    @property
    def shape(self) -> ir.Shape:  # type: ignore[override]
        """Shape; all sizes are known."""
        return self._shape

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._size

    def numpy(self) -> npt.NDArray[Any]:
        """Return the tensor as an array.

        Raises:
            ModelFileError: The message lacks the contents that its shape and type need.
        """
        if self._array is not None:
            return self._array
        array = self._read()
        if array.nbytes <= CACHED_BYTES:
            array.flags.writeable = False
            self._array = array
        return array

    def _read(self) -> npt.NDArray[Any]:
        raw = self._proto.raw_data
        try:
            if raw and self._dtype in _WHOLE_BYTES and self._proto.data_location != onnx.TensorProto.EXTERNAL:
                return np.frombuffer(raw, _WHOLE_BYTES[self._dtype]).reshape(self._shape.numpy())
            self._check_contents()
            array: npt.NDArray[Any] = super().numpy()
        except (ValueError, AssertionError) as error:
            raise ModelFileError(f"cannot be read: {error}", where=f"tensor '{self.name}'") from error
        return array

    def tobytes(self) -> bytes:
        """Return the contents in ``raw_data``'s encoding; see `numpy` for errors."""
        self._check_contents()
        try:
            contents: bytes = super().tobytes()
        except (ValueError, AssertionError) as error:
            raise ModelFileError(f"cannot be read: {error}", where=f"tensor '{self.name}'") from error
        return contents

    def _check_contents(self) -> None:
        if self.size and not any(field.number in _CONTENT_FIELDS for field, _ in self._proto.ListFields()):
            raise ModelFileError(
                f"has shape {self.shape} and no contents.",
                where=f"tensor '{self.name}'",
                remedy="Load the complete model: its weights were removed.",
            )


class SparseTensor(ir.LazyTensor):
    """A constant stored as its non-zero elements; reads as the dense tensor.

    As the ``const_value`` of an initializer, the tensor is written to ``sparse_initializer``; as the value of an
    attribute, to ``sparse_tensor``.

    Args:
        values: The elements, of shape [n]; their name and type are the tensor's.
        indices: Indices of the elements: of shape [n], into the flattened tensor, or of shape [n, rank].
        dims: Shape of the dense tensor.
        head: The message without values, indices and dims, for its other fields.
    """

    __slots__ = ("head", "indices", "values")

    def __init__(
        self, values: ir.TensorProtocol, indices: ir.TensorProtocol, dims: Sequence[int], head: onnx.SparseTensorProto
    ) -> None:
        super().__init__(self._dense, dtype=values.dtype, shape=ir.Shape(dims), name=values.name)
        self.values = values
        self.indices = indices
        self.head = head

    def __repr__(self) -> str:
        return f"SparseTensor<{self.dtype},{self.shape}>({self.values.size} elements, name={self.name!r})"

    def _dense(self) -> ir.TensorProtocol:
        where = f"sparse tensor '{self.name}'"
        dims = self.shape.numpy()
        if math.prod(dims) > MAX_PROTO_BYTES:
            raise ModelTooLargeError(f"would have {math.prod(dims):,} elements when dense.", where=where)
        values, indices = self.values.numpy(), self.indices.numpy()
        if indices.size and indices.min() < 0:
            raise ModelFileError("has negative indices.", where=where)
        dense = np.zeros(dims, dtype=values.dtype)
        try:
            if indices.ndim == 2:
                dense[tuple(indices.T)] = values
            else:
                dense.reshape(-1)[indices] = values
        except (IndexError, ValueError) as error:
            raise ModelFileError(f"has indices outside its shape {list(dims)}: {error}.", where=where) from error
        if self.dtype is ir.DataType.STRING:
            return ir.StringTensor(dense, name=self.name)
        return ir.Tensor(dense, dtype=self.dtype, name=self.name)


def check_contents(proto: onnx.TensorProto, dtype: ir.DataType, file: str) -> None:
    """Check that a tensor message has as many elements as its shape states, or none at all.

    A message without contents passes: graphs are passed around with their weights removed. Reading such a tensor fails.

    Args:
        proto: The message.
        dtype: Its element type.
        file: The source of the message, for error messages.

    Raises:
        ModelFileError: Shape, type and contents contradict each other.
    """
    dims = tuple(proto.dims)

    def error(problem: str, remedy: str = "") -> ModelFileError:
        where = f"{file}, tensor '{proto.name}'" if file else f"tensor '{proto.name}'"
        return ModelFileError(problem, where=where, remedy=remedy)

    if dims and min(dims) < 0:
        raise error(f"has the negative size {min(dims)} in its shape {list(dims)}.")
    for field, content in proto.ListFields():
        number = field.number
        if number not in _CONTENT_FIELDS:
            continue
        if number == RAW_DATA:
            if dtype is ir.DataType.STRING or dtype is ir.DataType.UNDEFINED:
                raise error(f"has raw bytes, which a tensor of type {dtype} cannot hold.")
            expected, unit = byte_count(dtype, dims), "bytes"
        else:
            if dtype not in _CONTENT_FIELDS[number]:
                raise error(f"has its elements in {field.name}, a field that type {dtype} does not use.")
            expected, unit = _entries(dtype, math.prod(dims)), f"entries of {field.name}"
        if len(content) != expected:
            raise error(
                f"has {len(content):,} {unit}; shape {list(dims)} of type {dtype} needs {expected:,}.",
                "The file is damaged, or was written by a faulty exporter.",
            )


def check_span(length: int, dtype: ir.DataType, field: int, dims: Sequence[int], where: str) -> None:
    """Check that a span of ``length`` bytes matches a tensor's shape and type.

    Raises:
        ModelFileError: The length, the shape or the type is wrong.
    """
    if any(size < 0 for size in dims):
        raise ModelFileError(f"has the negative size {min(dims)} in its shape {list(dims)}.", where=where)
    if dtype not in _CONTENT_FIELDS[field]:
        raise ModelFileError(f"has bytes, which a tensor of type {dtype} cannot hold.", where=where)
    if length != byte_count(dtype, dims):
        raise ModelFileError(
            f"has {length:,} bytes; shape {list(dims)} of type {dtype} needs {byte_count(dtype, dims):,}.",
            where=where,
            remedy="The file is damaged, or was written by a faulty exporter.",
        )


def _entries(dtype: ir.DataType, elements: int) -> int:
    if dtype in _COMPLEX:
        return 2 * elements
    if dtype is not ir.DataType.STRING and dtype.bitwidth in (2, 4):
        return (elements * dtype.bitwidth + 7) // 8
    return elements
