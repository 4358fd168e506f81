"""Checks of tensor contents against their types and shapes, and of external data against the files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx import TensorProto

from sardonyx.errors import ExternalDataError
from sardonyx.model import external
from sardonyx.model.check.codes import finding
from sardonyx.model.check.findings import Finding, Location
from sardonyx.model.check.scopes import Scope, scopes
from sardonyx.model.check.source import Source

_BITS = {
    "FLOAT": 32, "UINT8": 8, "INT8": 8, "UINT16": 16, "INT16": 16, "INT32": 32, "INT64": 64, "BOOL": 8,
    "FLOAT16": 16, "DOUBLE": 64, "UINT32": 32, "UINT64": 64, "COMPLEX64": 64, "COMPLEX128": 128, "BFLOAT16": 16,
    "FLOAT8E4M3FN": 8, "FLOAT8E4M3FNUZ": 8, "FLOAT8E5M2": 8, "FLOAT8E5M2FNUZ": 8, "UINT4": 4, "INT4": 4,
    "FLOAT4E2M1": 4, "FLOAT8E8M0": 8, "UINT2": 2, "INT2": 2, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6,
}  # fmt: skip
_OWN_FIELD = {
    "FLOAT": "float_data",
    "COMPLEX64": "float_data",
    "DOUBLE": "double_data",
    "COMPLEX128": "double_data",
    "INT64": "int64_data",
    "UINT32": "uint64_data",
    "UINT64": "uint64_data",
    "STRING": "string_data",
}
_LARGEST = 2**63 - 1


def type_name(element: int) -> str:
    """Return the name of an ONNX element type in upper case, or ``type 99`` for an unknown number."""
    return TensorProto.DataType.Name(element) if element in TensorProto.DataType.values() else f"type {element}"


def check_tensors(source: Source) -> Iterator[Finding]:
    """Report tensors whose contents contradict their declaration, and missing external data.

    Args:
        source: The model.

    Yields:
        The findings.
    """
    for scope in scopes(source.proto):
        for tensor, where in locate_tensors(scope):
            yield from _check_tensor(source, tensor, where)


def locate_tensors(scope: Scope) -> Iterator[tuple[onnx.TensorProto, Location]]:
    """Yield the tensors of one graph with locations: weights, and tensors in attributes of its nodes."""
    graph = scope.graph
    if isinstance(graph, onnx.GraphProto):
        for tensor in graph.initializer:
            yield tensor, scope.at(tensor=tensor.name)
        for sparse in graph.sparse_initializer:
            where = scope.at(tensor=sparse.values.name)
            yield sparse.values, where
            yield sparse.indices, where
    for node in graph.node:
        for attribute in node.attribute:
            inner = list(attribute.tensors)
            if attribute.HasField("t"):
                inner.append(attribute.t)
            if attribute.HasField("sparse_tensor"):
                inner += [attribute.sparse_tensor.values, attribute.sparse_tensor.indices]
            if inner:
                where = scope.at(node, item=f"attribute {attribute.name!r}")
                for tensor in inner:
                    yield tensor, where


def elements(dims: Iterable[int]) -> int:
    """Return the number of elements of a shape of integers; exact, however large."""
    return math.prod(dims)


def content_bytes(element: int, count: int) -> int:
    """Return the size of ``count`` elements of an ONNX type in bytes; 0 for strings and unknown types."""
    return -(-_BITS.get(type_name(element), 0) * count // 8)


def _check_tensor(source: Source, tensor: onnx.TensorProto, where: Location) -> Iterator[Finding]:
    name = type_name(tensor.data_type)
    if name != "STRING" and name not in _BITS:
        yield finding("tensor-type", f"the tensor's element type is {name.lower()}.", where)
        return
    if any(dim < 0 for dim in tensor.dims):
        yield finding("dimension-invalid", f"the tensor's shape is {list(tensor.dims)}.", where)
        return
    count = elements(tensor.dims)
    if count > _LARGEST or content_bytes(tensor.data_type, count) > _LARGEST:
        yield finding(
            "dimension-overflow", f"the number of elements of shape {list(tensor.dims)} exceeds 64 bits.", where
        )
        return
    contents = source.payload_of(tensor)
    if isinstance(contents, ir.ExternalTensor):
        yield from _check_mapped(contents, where)
    elif tensor.data_location == TensorProto.EXTERNAL:
        yield from _check_external(source, tensor, where, content_bytes(tensor.data_type, count))
    elif not tensor.HasField("segment") and not isinstance(contents, ir.TensorProtocol):
        yield from _check_content(source, tensor, where, name, count)


def _check_content(
    source: Source, tensor: onnx.TensorProto, where: Location, name: str, count: int
) -> Iterator[Finding]:
    filled = source.filled_fields(tensor)
    if len(filled) > 1:
        yield finding("tensor-content", f"the contents are in several fields: {' and '.join(filled)}.", where)
        return
    if not filled:
        if count:
            yield finding(
                "tensor-content", f"the tensor's shape has {count:,} elements, but there are no contents.", where
            )
        return
    ((field, actual),) = filled.items()
    if field not in ("raw_data", _OWN_FIELD.get(name, "int32_data")) or (name == "STRING" and field == "raw_data"):
        yield finding("tensor-content", f"{name.lower()} contents are not allowed in {field}.", where)
        return
    raw = field == "raw_data"
    needed = content_bytes(tensor.data_type, count) if raw else _entries(name, count)
    if actual != needed:
        unit = "bytes" if raw else "entries"
        yield finding(
            "tensor-size",
            f"type {name.lower()} and shape {list(tensor.dims)} need {needed:,} {unit}; {field} has {actual:,}.",
            where,
        )


def _entries(name: str, count: int) -> int:
    """Return the number of entries of a typed field: complex numbers take two, packed types share one."""
    if name.startswith("COMPLEX"):
        return 2 * count
    bits = _BITS.get(name, 8)
    return -(-count * bits // 8) if bits < 8 else count


def _check_external(source: Source, tensor: onnx.TensorProto, where: Location, needed: int) -> Iterator[Finding]:
    if tensor.data_type == TensorProto.STRING:
        yield finding("tensor-content", "strings cannot be external data.", where)
        return
    try:
        reference = external.read_reference(tensor.external_data, tensor.name)
    except ExternalDataError as error:
        yield finding("external-range", error.problem, where, remedy=error.remedy)
        return
    length = needed if reference.length is None else reference.length
    if length != needed:
        yield finding(
            "external-range",
            f"the length is {length:,} bytes; its type and shape {list(tensor.dims)} need {needed:,}.",
            where,
        )
    if source.folder is None:
        return
    try:
        file = source.folder.open(reference.location, tensor.name)
    except ExternalDataError as error:
        reason = f"the external data {reference.location!r} {error.problem}"
        yield finding("external-file", reason, where, remedy=error.remedy)
        return
    if reference.offset + length > file.size:
        yield finding(
            "external-range",
            f"ends at byte {reference.offset + length:,}, but {reference.location!r} has {file.size:,} bytes.",
            where,
        )


def _check_mapped(tensor: ir.ExternalTensor, where: Location) -> Iterator[Finding]:
    """Check a tensor of a Model in memory that refers to its own file."""
    try:
        size = Path(tensor.path).stat().st_size
    except OSError as error:
        yield finding("external-file", f"the external data {str(tensor.path)!r}: {error.strerror}.", where)
        return
    end = (tensor.offset or 0) + (tensor.nbytes if tensor.length is None else tensor.length)
    if end > size:
        yield finding("external-range", f"ends at byte {end:,}, but the file has {size:,} bytes.", where)
