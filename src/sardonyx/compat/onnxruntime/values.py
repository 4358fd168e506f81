"""``OrtValue`` and ``SparseTensor``: inputs and outputs of runs, as objects."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.base.dlpack import PROCESSOR, from_capsule, from_dlpack, to_capsule
from sardonyx.compat.onnxruntime.devices import OrtDevice, OrtMemoryInfo, require_cpu
from sardonyx.compat.onnxruntime.enums import OrtSparseFormat
from sardonyx.compat.onnxruntime.unsupported import REASONS
from sardonyx.core.ir.types import DType


def dtype_of(element_type: Any) -> np.dtype[Any]:
    """Return the numpy type of a numpy type or an ONNX type number."""
    if isinstance(element_type, (int, np.integer)) and not isinstance(element_type, bool):
        element_type = DType(int(element_type)).numpy()
    dtype: np.dtype[Any] = np.dtype(element_type)
    return dtype


def _element_type(array: np.ndarray) -> int:
    if array.dtype.kind in "OSU":
        return int(DType.STRING)
    return int(DType.from_numpy(array.dtype))


_FLOAT = {float: np.float32}
"""Element types of Python's numbers in maps, if different from numpy's default."""


def _element_name(array: np.ndarray) -> str:
    return DType(_element_type(array)).name.lower()


def _type_text(value: Any) -> str:
    """Return the type in ONNX notation; Python floats, and empty containers, are float32."""
    if isinstance(value, list):
        return f"seq({_type_text(value[0]) if value else 'tensor(float)'})"
    if isinstance(value, dict):
        key, item = next(iter(value.items()), (0, 0.0))
        return f"map({_element_name(np.asarray(key))},{_type_text(np.asarray(item, _FLOAT.get(type(item))))})"
    return f"tensor({_element_name(value)})"


def at_address(address: int, shape: Sequence[int], element_type: Any) -> np.ndarray:
    """Return an array over memory at an address; the memory's owner must outlive the array."""
    dtype = dtype_of(element_type)
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = (ctypes.c_byte * count).from_address(address)
    return np.frombuffer(memoryview(memory), np.uint8, count).view(dtype).reshape(tuple(shape))


class OrtValue:
    """A tensor, sequence or map on the CPU; a tensor shares memory with its source array.

    Args:
        value: An array, a list of arrays, a dict, or None.
    """

    def __init__(self, value: Any) -> None:
        self._value: Any = value._value if isinstance(value, OrtValue) else value

    # Construction.

    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: np.ndarray, device_type: str | OrtDevice = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Return a tensor over an array.

        Raises:
            RuntimeError: The device is not the CPU.
        """
        require_cpu(device_type, device_id)
        return OrtValue(np.asarray(numpy_obj, order="C"))

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(data: np.ndarray, onnx_element_type: int) -> OrtValue:
        """Return a tensor over an array's bits, with another element type of the same size."""
        return OrtValue(np.asarray(data, order="C").view(dtype_of(onnx_element_type)))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int],
        element_type: Any = np.float32,
        device_type: str | OrtDevice = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
        memory_info: OrtMemoryInfo | None = None,
    ) -> OrtValue:
        """Return an uninitialized tensor, on a device or in the memory of a device.

        Raises:
            RuntimeError: The device is not the CPU.
        """
        if memory_info is not None and memory_info.name.lower() != "cpu":
            raise RuntimeError(f"No shared allocator found for the memory {memory_info.name!r}; expected 'Cpu'.")
        require_cpu(device_type, device_id)
        return OrtValue(np.empty(tuple(shape), dtype_of(element_type)))

    @staticmethod
    def over_memory(address: int, shape: Sequence[int], element_type: Any, device: Any = "cpu") -> OrtValue:
        """Return a tensor over memory at an address; the memory's owner must outlive the tensor.

        Raises:
            RuntimeError: The device is not the CPU.
        """
        require_cpu(device)
        return OrtValue(at_address(address, shape, element_type))

    @staticmethod
    def ort_value_from_sparse_tensor(sparse_tensor: SparseTensor) -> OrtValue:
        """Return a value that holds a sparse tensor."""
        return OrtValue(sparse_tensor)

    @classmethod
    def from_dlpack(cls, data: Any, is_bool_tensor: bool | None = None) -> OrtValue:
        """Return a tensor over the memory of a DLPack producer.

        Args:
            data: An object with ``__dlpack__``, or a capsule.
            is_bool_tensor: True if bytes are booleans; None uses the type in the capsule.
        """
        array = from_dlpack(data) if hasattr(data, "__dlpack__") else from_capsule(data)
        return cls(array.view(np.bool_) if is_bool_tensor and array.dtype == np.uint8 else array)

    # Access.

    def numpy(self) -> np.ndarray:
        """Return the array itself.

        Raises:
            RuntimeError: The value is not a tensor.
        """
        if not isinstance(self._value, np.ndarray):
            raise RuntimeError("Only OrtValues that are Tensors/SparseTensors are currently supported")
        return self._value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    @property
    def _ortvalue(self) -> OrtValue:
        """The value itself: ONNX Runtime has a compiled class behind this one."""
        return self

    def _get_c_value(self) -> OrtValue:
        return self

    def to_dlpack(self) -> Any:
        """Return a DLPack capsule over the memory of the tensor."""
        return to_capsule(self.numpy())

    def __dlpack__(self, **options: Any) -> Any:
        return to_capsule(self.numpy(), **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return PROCESSOR

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return int(self.numpy().ctypes.data)

    def data_type(self) -> str:
        """Return the type in ONNX notation, ``tensor(float)``."""
        return self._value.data_type() if isinstance(self._value, SparseTensor) else _type_text(self._value)

    def element_type(self) -> int:
        """Return the ONNX number of the element type."""
        return _element_type(self.numpy())

    def shape(self) -> list[int]:
        """Return the sizes."""
        return list(self.numpy().shape)

    def tensor_size_in_bytes(self) -> int:
        """Return the bytes of all elements."""
        return int(self.numpy().nbytes)

    def device_name(self) -> str:
        """Return the type of the device."""
        return "cpu"

    def has_value(self) -> bool:
        """Return True unless the value is empty."""
        return self._value is not None

    def is_tensor(self) -> bool:
        """Return True for a tensor."""
        return isinstance(self._value, np.ndarray)

    def is_sparse_tensor(self) -> bool:
        """Return True for a sparse tensor."""
        return isinstance(self._value, SparseTensor)

    def is_tensor_sequence(self) -> bool:
        """Return True for a sequence of tensors."""
        return isinstance(self._value, list) and not any(isinstance(item, dict) for item in self._value)

    def as_sparse_tensor(self) -> SparseTensor:
        """Return the sparse tensor.

        Raises:
            RuntimeError: The value is not a sparse tensor.
        """
        if not isinstance(self._value, SparseTensor):
            raise RuntimeError("expected a value with a sparse tensor.")
        return self._value

    def update_inplace(self, data: Any) -> None:
        """Overwrite the elements of the tensor.

        Raises:
            TypeError: ``data`` is not an array.
            RuntimeError: Element type or shape differ.
        """
        if isinstance(data, OrtValue):
            data = data.numpy()
        if not isinstance(data, np.ndarray):
            raise TypeError("data must be a numpy.ndarray or an OrtValue.")
        array = self.numpy()
        if array.shape != data.shape or array.dtype != data.dtype:
            raise RuntimeError(f"expected {array.dtype}{list(array.shape)}, got {data.dtype}{list(data.shape)}.")
        array[...] = data


def numpy_of(value: Any) -> Any:
    """Return the content of a value: an array, or a list of arrays."""
    if isinstance(value, OrtValue):
        value = value._value
    return value.to_dense() if isinstance(value, SparseTensor) else value


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copy the elements of tensors into tensors of the same types and shapes.

    Raises:
        RuntimeError: The numbers of tensors, their types or shapes differ.
    """
    if len(src) != len(dst):
        raise RuntimeError("src and dst must have the same number of tensors.")
    for source, target in zip(src, dst, strict=True):
        target.update_inplace(source)


def _read_only(array: Any) -> np.ndarray:
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


class _Indices:
    """The indices of a sparse tensor."""

    def __init__(self, *indices: np.ndarray) -> None:
        self._indices = indices

    def indices(self) -> np.ndarray:
        """Return coordinate or block indices."""
        return self._indices[0]

    def inner(self) -> np.ndarray:
        """Return the column indices of a CSR tensor."""
        return self._indices[0]

    def outer(self) -> np.ndarray:
        """Return the row offsets of a CSR tensor."""
        return self._indices[1]


class SparseTensor:
    """A sparse tensor; a run converts the tensor to a dense array.

    Args:
        dense_shape: The sizes.
        values: The nonzero elements.
        indices: The positions of the elements.
        format: The encoding of the positions.
    """

    def __init__(
        self, dense_shape: Any, values: np.ndarray, indices: tuple[np.ndarray, ...], format: OrtSparseFormat
    ) -> None:
        self._shape = [int(size) for size in dense_shape]
        self._values = _read_only(values)
        self._indices = tuple(_read_only(index) for index in indices)
        self._format = format

    @classmethod
    def sparse_coo_from_numpy(
        cls, dense_shape: Any, values: np.ndarray, coo_indices: np.ndarray, ort_device: OrtDevice
    ) -> SparseTensor:
        """Return a tensor from coordinates: flat indices, or a pair for each element."""
        indices = np.asarray(coo_indices, np.int64)
        if indices.size not in (len(values), 2 * len(values)):
            raise RuntimeError("expected one or two indices per value.")
        return cls(dense_shape, values, (indices,), OrtSparseFormat.ORT_SPARSE_COO)

    @classmethod
    def sparse_csr_from_numpy(
        cls,
        dense_shape: Any,
        values: np.ndarray,
        inner_indices: np.ndarray,
        outer_indices: np.ndarray,
        ort_device: OrtDevice,
    ) -> SparseTensor:
        """Return a tensor from compressed rows: column indices, and row offsets."""
        indices = (np.asarray(inner_indices, np.int64), np.asarray(outer_indices, np.int64))
        if len(indices[0]) != len(values) or len(indices[1]) != int(dense_shape[0]) + 1:
            raise RuntimeError("expected an inner index per value, and an outer index per row and one for the end.")
        return cls(dense_shape, values, indices, OrtSparseFormat.ORT_SPARSE_CSRC)

    def values(self) -> np.ndarray:
        """Return the nonzero elements."""
        return self._values

    def dense_shape(self) -> list[int]:
        """Return the sizes."""
        return list(self._shape)

    def format(self) -> OrtSparseFormat:
        """Return the encoding of the positions."""
        return self._format

    def data_type(self) -> str:
        """Return the type in ONNX notation."""
        return f"sparse_{_type_text(self._values)}"

    def device_name(self) -> str:
        """Return the type of the device."""
        return "cpu"

    def _view(self, format: OrtSparseFormat) -> _Indices:
        if self._format is not format:
            raise RuntimeError(f"expected the format {format}, got {self._format}.")
        return _Indices(*self._indices)

    def as_coo_view(self) -> _Indices:
        """Return the coordinates."""
        return self._view(OrtSparseFormat.ORT_SPARSE_COO)

    def as_csrc_view(self) -> _Indices:
        """Return the compressed rows."""
        return self._view(OrtSparseFormat.ORT_SPARSE_CSRC)

    def as_blocksparse_view(self) -> _Indices:
        """Return the blocks; no constructor creates this format."""
        return self._view(OrtSparseFormat.ORT_SPARSE_BLOCK_SPARSE)

    def to_cuda(self, ort_device: OrtDevice) -> SparseTensor:
        """Refused: see the table of names.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(f"SparseTensor.to_cuda is not implemented: {REASONS['SparseTensor.to_cuda']}.")

    def to_dense(self) -> np.ndarray:
        """Return all elements."""
        dense = np.zeros(tuple(self._shape), self._values.dtype)
        if self._format is OrtSparseFormat.ORT_SPARSE_COO:
            (indices,) = self._indices
            if indices.size == len(self._values):
                dense.reshape(-1)[indices.reshape(-1)] = self._values
            else:
                rows, columns = indices.reshape(-1, 2).T
                dense[rows, columns] = self._values
            return dense
        inner, outer = self._indices
        dense[np.repeat(np.arange(len(outer) - 1), np.diff(outer)), inner] = self._values
        return dense
