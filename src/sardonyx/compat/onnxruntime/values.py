"""``OrtValue`` and ``SparseTensor``: what a run is given and gives, held by name and handed around."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.base.dlpack import PROCESSOR, from_capsule, from_dlpack, to_capsule
from sardonyx.compat.onnxruntime.devices import OrtDevice, require_cpu
from sardonyx.compat.onnxruntime.enums import OrtSparseFormat
from sardonyx.compat.onnxruntime.unsupported import refuse


def dtype_of(element_type: Any) -> np.dtype[Any]:
    """The type of elements, of numpy's type or the standard's number."""
    if isinstance(element_type, (int, np.integer)) and not isinstance(element_type, bool):
        element_type = ir.DataType(int(element_type)).numpy()
    found: np.dtype[Any] = np.dtype(element_type)
    return found


def _element_type(array: np.ndarray) -> int:
    if array.dtype.kind in "OSU":
        return int(onnx.TensorProto.STRING)
    return int(ir.DataType.from_numpy(array.dtype))


_FLOAT = {float: np.float32}
"""What Python's own numbers stand for in maps, where it is not what numpy takes them for."""


def _element_name(array: np.ndarray) -> str:
    return str(onnx.TensorProto.DataType.Name(_element_type(array))).lower()


def _type_text(value: Any) -> str:
    """The type as the standard writes it; Python's floats, and what is empty, are of 32 bits."""
    if isinstance(value, list):
        return f"seq({_type_text(value[0]) if value else 'tensor(float)'})"
    if isinstance(value, dict):
        key, item = next(iter(value.items()), (0, 0.0))
        return f"map({_element_name(np.asarray(key))},{_type_text(np.asarray(item, _FLOAT.get(type(item))))})"
    return f"tensor({_element_name(value)})"


def at_address(address: int, shape: Sequence[int], element_type: Any) -> np.ndarray:
    """The array that lies at an address; its owner keeps it."""
    dtype = dtype_of(element_type)
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = (ctypes.c_byte * count).from_address(address)
    return np.frombuffer(memoryview(memory), np.uint8, count).view(dtype).reshape(tuple(shape))


class OrtValue:
    """A tensor, a sequence or a map on the processor; a tensor shares its memory with the array that it was made of.

    Args:
        value: An array, a list of them, a dict, or None.
    """

    def __init__(self, value: Any) -> None:
        self._value: Any = value._value if isinstance(value, OrtValue) else value

    # Making.

    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: np.ndarray, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """A tensor over an array.

        Raises:
            RuntimeError: The device is not the processor.
        """
        require_cpu(device_type, device_id)
        return OrtValue(np.asarray(numpy_obj, order="C"))

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(data: np.ndarray, onnx_element_type: int) -> OrtValue:
        """A tensor over an array whose bits are elements of another type of the same size."""
        return OrtValue(np.asarray(data, order="C").view(dtype_of(onnx_element_type)))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int],
        element_type: Any = np.float32,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """A tensor that is not yet written."""
        require_cpu(device_type, device_id)
        return OrtValue(np.empty(tuple(shape), dtype_of(element_type)))

    @staticmethod
    def ort_value_from_sparse_tensor(sparse_tensor: SparseTensor) -> OrtValue:
        """A value that holds a sparse tensor."""
        return OrtValue(sparse_tensor)

    @classmethod
    def from_dlpack(cls, data: Any, is_bool_tensor: bool | None = None) -> OrtValue:
        """A tensor over the memory of whoever speaks DLPack.

        Args:
            data: What has ``__dlpack__``, or a capsule.
            is_bool_tensor: Whether bytes are truth values; what the data say, if None.
        """
        array = from_dlpack(data) if hasattr(data, "__dlpack__") else from_capsule(data)
        return cls(array.view(np.bool_) if is_bool_tensor and array.dtype == np.uint8 else array)

    # Asking.

    def numpy(self) -> np.ndarray:
        """The array itself.

        Raises:
            RuntimeError: It is no tensor.
        """
        if not isinstance(self._value, np.ndarray):
            raise RuntimeError("Only OrtValues that are Tensors/SparseTensors are currently supported")
        return self._value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return to_capsule(self.numpy(), **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return PROCESSOR

    def data_ptr(self) -> int:
        """The address of the first element."""
        return int(self.numpy().ctypes.data)

    def data_type(self) -> str:
        """The type as the standard writes it, ``tensor(float)``."""
        return self._value.data_type() if isinstance(self._value, SparseTensor) else _type_text(self._value)

    def element_type(self) -> int:
        """The standard's number for the type of the elements."""
        return _element_type(self.numpy())

    def shape(self) -> list[int]:
        """The sizes."""
        return list(self.numpy().shape)

    def tensor_size_in_bytes(self) -> int:
        """The bytes of all elements."""
        return int(self.numpy().nbytes)

    def device_name(self) -> str:
        """The kind of the device."""
        return "cpu"

    def has_value(self) -> bool:
        """Whether there is something in it."""
        return self._value is not None

    def is_tensor(self) -> bool:
        """Whether it holds a tensor."""
        return isinstance(self._value, np.ndarray)

    def is_sparse_tensor(self) -> bool:
        """Whether it holds a sparse tensor."""
        return isinstance(self._value, SparseTensor)

    def is_tensor_sequence(self) -> bool:
        """Whether it holds a sequence of tensors."""
        return isinstance(self._value, list) and not any(isinstance(each, dict) for each in self._value)

    def as_sparse_tensor(self) -> SparseTensor:
        """The sparse tensor that it holds.

        Raises:
            RuntimeError: It holds none.
        """
        if not isinstance(self._value, SparseTensor):
            raise RuntimeError("the value is no sparse tensor.")
        return self._value

    def update_inplace(self, data: Any) -> None:
        """Write other elements into the memory of the tensor.

        Raises:
            TypeError: They are no array.
            RuntimeError: They are of another type or number.
        """
        if isinstance(data, OrtValue):
            data = data.numpy()
        if not isinstance(data, np.ndarray):
            raise TypeError("data must be a numpy.ndarray or an OrtValue.")
        held = self.numpy()
        if held.shape != data.shape or held.dtype != data.dtype:
            raise RuntimeError(f"{data.dtype}{list(data.shape)} does not fit {held.dtype}{list(held.shape)}.")
        held[...] = data


def numpy_of(value: Any) -> Any:
    """What a value holds: an array, or a list of them."""
    if isinstance(value, OrtValue):
        value = value._value
    return value.to_dense() if isinstance(value, SparseTensor) else value


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Write the elements of tensors into others of the same types and sizes.

    Raises:
        RuntimeError: They are not as many, or do not fit.
    """
    if len(src) != len(dst):
        raise RuntimeError("src and dst must have the same number of tensors.")
    for source, target in zip(src, dst, strict=True):
        target.update_inplace(source)


class _Indices:
    """The indices of a sparse tensor."""

    def __init__(self, *indices: np.ndarray) -> None:
        self._indices = indices

    def indices(self) -> np.ndarray:
        """Of coordinates or blocks."""
        return self._indices[0]

    def inner(self) -> np.ndarray:
        """Of rows: the columns."""
        return self._indices[0]

    def outer(self) -> np.ndarray:
        """Of rows: where they begin."""
        return self._indices[1]


class SparseTensor:
    """The elements of a tensor that are not zero; a run that is given one computes with all of them.

    Args:
        dense_shape: The sizes.
        values: The elements.
        indices: Where they are.
        format: How that is said.
    """

    def __init__(
        self, dense_shape: Any, values: np.ndarray, indices: tuple[np.ndarray, ...], format: OrtSparseFormat
    ) -> None:
        self._shape = np.asarray(dense_shape, np.int64)
        self._values = np.asarray(values)
        self._indices = indices
        self._format = format

    @classmethod
    def sparse_coo_from_numpy(
        cls, dense_shape: Any, values: np.ndarray, coo_indices: np.ndarray, ort_device: OrtDevice
    ) -> SparseTensor:
        """By coordinates: places in the flat tensor, or a pair for each element."""
        found = np.asarray(coo_indices, np.int64)
        if found.size not in (len(values), 2 * len(values)):
            raise RuntimeError("one index is needed for each value, or two.")
        return cls(dense_shape, values, (found,), OrtSparseFormat.ORT_SPARSE_COO)

    @classmethod
    def sparse_csr_from_numpy(
        cls,
        dense_shape: Any,
        values: np.ndarray,
        inner_indices: np.ndarray,
        outer_indices: np.ndarray,
        ort_device: OrtDevice,
    ) -> SparseTensor:
        """By rows: the columns of the elements, and where each row begins."""
        found = (np.asarray(inner_indices, np.int64), np.asarray(outer_indices, np.int64))
        if len(found[0]) != len(values) or len(found[1]) != int(dense_shape[0]) + 1:
            raise RuntimeError("an inner index is needed for each value, and an outer one for each row and the end.")
        return cls(dense_shape, values, found, OrtSparseFormat.ORT_SPARSE_CSRC)

    def values(self) -> np.ndarray:
        """The elements."""
        return self._values

    def dense_shape(self) -> np.ndarray:
        """The sizes."""
        return self._shape

    def format(self) -> OrtSparseFormat:
        """How it says where the elements are."""
        return self._format

    def data_type(self) -> str:
        """The type as the standard writes it."""
        return f"sparse_{_type_text(self._values)}"

    def device_name(self) -> str:
        """The kind of the device."""
        return "cpu"

    def _view(self, format: OrtSparseFormat) -> _Indices:
        if self._format is not format:
            raise RuntimeError(f"the tensor is not in this form, but {self._format}.")
        return _Indices(*self._indices)

    def as_coo_view(self) -> _Indices:
        """Its coordinates."""
        return self._view(OrtSparseFormat.ORT_SPARSE_COO)

    def as_csrc_view(self) -> _Indices:
        """Its rows."""
        return self._view(OrtSparseFormat.ORT_SPARSE_CSRC)

    def as_blocksparse_view(self) -> _Indices:
        """Its blocks; none is made here."""
        return self._view(OrtSparseFormat.ORT_SPARSE_BLOCK_SPARSE)

    def to_cuda(self, ort_device: OrtDevice) -> SparseTensor:
        """Refused: see the table of names."""
        refuse("SparseTensor.to_cuda")

    def to_dense(self) -> np.ndarray:
        """All elements."""
        dense = np.zeros(tuple(int(size) for size in self._shape), self._values.dtype)
        if self._format is OrtSparseFormat.ORT_SPARSE_COO:
            (found,) = self._indices
            if found.size == len(self._values):
                dense.reshape(-1)[found.reshape(-1)] = self._values
            else:
                rows, columns = found.reshape(-1, 2).T
                dense[rows, columns] = self._values
            return dense
        inner, outer = self._indices
        dense[np.repeat(np.arange(len(outer) - 1), np.diff(outer)), inner] = self._values
        return dense
