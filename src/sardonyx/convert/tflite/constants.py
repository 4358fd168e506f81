"""Constants of a TensorFlow Lite file as arrays: packed integers, strings, compressed weights."""

from __future__ import annotations

import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from sardonyx.convert.tflite.file import TensorRecord
from sardonyx.errors import ModelFileError, UnsupportedError

TYPES = {
    "FLOAT32": ir.DataType.FLOAT,
    "FLOAT16": ir.DataType.FLOAT16,
    "BFLOAT16": ir.DataType.BFLOAT16,
    "FLOAT64": ir.DataType.DOUBLE,
    "INT8": ir.DataType.INT8,
    "INT16": ir.DataType.INT16,
    "INT32": ir.DataType.INT32,
    "INT64": ir.DataType.INT64,
    "UINT8": ir.DataType.UINT8,
    "UINT16": ir.DataType.UINT16,
    "UINT32": ir.DataType.UINT32,
    "UINT64": ir.DataType.UINT64,
    "INT4": ir.DataType.INT4,
    "UINT4": ir.DataType.UINT4,
    "BOOL": ir.DataType.BOOL,
    "STRING": ir.DataType.STRING,
    "FLOAT8_E4M3FN": ir.DataType.FLOAT8E4M3FN,
    "FLOAT8_E5M2": ir.DataType.FLOAT8E5M2,
    "COMPLEX64": ir.DataType.FLOAT,
    "COMPLEX128": ir.DataType.DOUBLE,
}
"""ONNX element type of each element type; complex numbers are pairs along a last axis of size 2."""

_PACKED = {"INT4": ml_dtypes.int4, "UINT4": ml_dtypes.uint4}


def data_type(tensor: TensorRecord, where: str) -> ir.DataType:
    """Return the ONNX element type of a tensor.

    Raises:
        UnsupportedError: ONNX has no such type (resources, variants).
    """
    if tensor.type not in TYPES:
        raise UnsupportedError(f"tensor '{tensor.name}' has type {tensor.type}, which ONNX lacks", where=where)
    return TYPES[tensor.type]


def constant_array(tensor: TensorRecord, where: str) -> npt.NDArray[Any]:
    """Return the elements of a constant.

    Args:
        tensor: A tensor with data.
        where: Name of the file for errors.

    Raises:
        ModelFileError: The data are shorter or longer than the shape, or the compression is malformed.
        UnsupportedError: ONNX has no such element type.
    """
    assert tensor.data is not None
    element = data_type(tensor, where)
    if tensor.type == "STRING":
        return _strings(tensor, where)
    count = math.prod(tensor.shape)
    if tensor.type in _PACKED:
        packed = np.frombuffer(tensor.data, np.uint8)
        if len(packed) != (count + 1) // 2:
            raise _size_error(tensor, (count + 1) // 2, where)
        nibbles = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1)[:count]
        if tensor.type == "INT4":
            signed = np.where(nibbles > 7, nibbles.astype(np.int8) - 16, nibbles.astype(np.int8))
            return signed.astype(ml_dtypes.int4).reshape(tensor.shape)
        return nibbles.astype(ml_dtypes.uint4).reshape(tensor.shape)
    dtype = element.numpy()
    shape = (*tensor.shape, 2) if tensor.type.startswith("COMPLEX") else tensor.shape
    if tensor.sparsity is not None and shape == tensor.shape:
        if len(tensor.data) % dtype.itemsize:
            raise _size_error(tensor, len(tensor.data) // dtype.itemsize * dtype.itemsize, where)
        return _dense(np.frombuffer(tensor.data, dtype), tensor, where)
    if len(tensor.data) != math.prod(shape) * dtype.itemsize:
        raise _size_error(tensor, math.prod(shape) * dtype.itemsize, where)
    return np.frombuffer(tensor.data, dtype).reshape(shape)


def _size_error(tensor: TensorRecord, expected: int, where: str) -> ModelFileError:
    assert tensor.data is not None
    problem = f"tensor '{tensor.name}' has {len(tensor.data)} bytes, expected {expected} for {list(tensor.shape)}"
    return ModelFileError(problem, where=where)


def _strings(tensor: TensorRecord, where: str) -> npt.NDArray[Any]:
    assert tensor.data is not None
    data = bytes(tensor.data)
    count = int.from_bytes(data[:4], "little")
    if 4 * (count + 2) > len(data):
        raise ModelFileError(f"tensor '{tensor.name}': {count} strings exceed {len(data)} bytes", where=where)
    offsets = np.frombuffer(data, "<u4", count + 1, 4).tolist()
    if offsets != sorted(offsets) or offsets[-1] > len(data) or count != math.prod(tensor.shape):
        raise ModelFileError(
            f"tensor '{tensor.name}': expected {math.prod(tensor.shape)} strings in order", where=where
        )
    texts = [data[start:end] for start, end in itertools.pairwise(offsets)]
    return np.array(texts, object).reshape(tensor.shape)


def _dense(values: npt.NDArray[Any], tensor: TensorRecord, where: str) -> npt.NDArray[Any]:
    """Return the dense form of a constant whose levels are dense or segments of indices."""

    def error(problem: str) -> ModelFileError:
        return ModelFileError(f"tensor '{tensor.name}': malformed sparsity: {problem}", where=where)

    order = [int(i) for i in tensor.sparsity.traversal_order]
    block_map = [int(i) for i in tensor.sparsity.block_map]
    levels = tensor.sparsity.dim_metadata
    rank = len(tensor.shape)
    if sorted(order) != list(range(len(levels))) or len(order) != rank + len(block_map):
        raise error(f"expected {rank + len(block_map)} levels in some order, got {order}")
    if any(not 0 <= axis < rank for axis in block_map):
        raise error(f"expected blocks of axes 0 to {rank - 1}, got {block_map}")
    index: list[npt.NDArray[np.int64]] = [np.zeros(1, np.int64)] * len(levels)
    block_size = [1] * rank
    # The positions of a level are stored values, or have segments.
    arrays = [level.array_segments.values for level in levels if level.array_segments]
    most = max(map(len, [values, *arrays]))
    count = 1
    for axis, level in zip(order, levels, strict=True):
        if level.format == 0:
            size = int(level.dense_size)
            if size < 0 or count * size > most:
                raise error(f"level of size {size}")
            lengths, local = np.full(count, size), np.tile(np.arange(size), count)
        else:
            segments = np.asarray(level.array_segments.values if level.array_segments else [], np.int64)
            indices = np.asarray(level.array_indices.values if level.array_indices else [], np.int64)
            lengths = np.diff(segments)
            if len(segments) != count + 1 or (lengths < 0).any() or segments[0] or segments[-1] != len(indices):
                raise error(f"expected {count + 1} ascending segments over {len(indices)} indices")
            local, size = indices, 0
        index = [np.repeat(part, lengths) if len(part) == count else part for part in index]
        index[axis] = local
        count = len(local)
        if axis >= rank:
            block_size[block_map[axis - rank]] *= size
    if count != len(values):
        raise error(f"{len(values)} values, expected {count}")
    positions = []
    for axis in range(rank):
        position = np.broadcast_to(index[axis], count) * block_size[axis]
        for block, target in enumerate(block_map):
            if target == axis:
                position = position + index[rank + block]
        if count and not 0 <= position.min() <= position.max() < tensor.shape[axis]:
            raise error(f"an index exceeds axis {axis} of size {tensor.shape[axis]}")
        positions.append(position)
    dense = np.zeros(tensor.shape, values.dtype)
    dense[tuple(positions)] = values
    return dense
