"""Requests and answers of inference over HTTP: JSON, and raw tensors after the JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.errors import RequestError
from sardonyx.serve.operations.parameters import require_id, set_parameters
from sardonyx.serve.operations.requested_outputs import requested_output
from sardonyx.serve.operations.service import Service
from sardonyx.serve.operations.shared_memory import require_region
from sardonyx.serve.protocol import datatypes, json_codec
from sardonyx.serve.protocol.datatypes import Datatype, shortened
from sardonyx.serve.protocol.limits import elements_of
from sardonyx.serve.protocol.number_lists import NumberList
from sardonyx.serve.protocol.raw_tensors import Buffer, binary_data, binary_tensor
from sardonyx.serve.protocol.requests import REQUEST_BYTES, Answer, InferRequest, tensor_bytes
from sardonyx.serve.protocol.strings import decoded, string_array


def parse_request(
    service: Service, model: str, version: str, body: bytes | memoryview, head_length: int | None
) -> InferRequest:
    """Return the request in a body.

    Args:
        service: The operations of the server.
        model: The name of the model.
        version: The number of the version as text; empty for the newest.
        body: The body.
        head_length: The length of the JSON part; None if the body is JSON alone.

    Raises:
        RequestError: The body is malformed, or exceeds a limit.
    """
    limits, strict = service.limits, service.options.strict_json
    if head_length is None:
        head, tail = json_codec.parse_head(body, strict), memoryview(b"")
    else:
        if not 0 <= head_length <= len(body):
            raise RequestError(
                f"expected a JSON part of 0 to {len(body)} bytes, got {head_length}.",
                where="Inference-Header-Content-Length",
            )
        view = memoryview(body)
        if head_length == 0:
            return _raw_request(service, model, version, view)
        head, tail = json_codec.parse_head(view[:head_length], strict), view[head_length:]
    limits.count(len(head.inputs), "inputs")
    limits.count(len(head.outputs), "outputs")
    require_id(head.id)
    request = InferRequest(model, version, head.id, size=REQUEST_BYTES + len(body))
    offset = 0
    for head_of_input in head.inputs:
        name = head_of_input.name
        if name in request.inputs:
            raise RequestError("the request has the input twice.", where=name[:64])
        begin = offset
        array, offset = _input(service, head_of_input, tail, offset)
        request.inputs[name] = array
        if offset == begin or array.dtype.kind == "O":
            request.size += tensor_bytes(array)
    if offset != len(tail):
        raise RequestError(f"{len(tail) - offset} bytes after the binary data of the inputs.")
    if head.parameters:
        set_parameters(request, head.parameters)
    if head.outputs:
        request.outputs = [requested_output(service, output.name, output.parameters) for output in head.outputs]
    return request


def _input(service: Service, head: Any, tail: memoryview, offset: int) -> tuple[np.ndarray, int]:
    name, shape, parameters = head.name, head.shape, head.parameters
    datatype = datatypes.named(head.datatype, name[:64])
    if parameters:
        require_region(parameters, name[:64])
        size = parameters.get("binary_data_size")
        if size is not None:
            if _has_data(head):
                raise RequestError("the input has data and binary data.", where=name[:64])
            if "shared_memory_region" in parameters:
                raise RequestError("the input has binary data and a region of shared memory.", where=name[:64])
            if type(size) is not int or not 0 <= size <= len(tail) - offset:
                raise RequestError(
                    f"expected at most {len(tail) - offset} bytes of binary data, got {shortened(size)}.",
                    where=name[:64],
                )
            return binary_tensor(tail[offset : offset + size], datatype, shape, name[:64]), offset + size
        region = parameters.get("shared_memory_region")
        if region is not None:
            if _has_data(head):
                raise RequestError("the input has data and a region of shared memory.", where=name[:64])
            elements_of(shape, name[:64])
            span = parameters.get("shared_memory_offset", 0), parameters.get("shared_memory_byte_size")
            return service.shared_memory.read(region, *span, datatype, shape), offset
    if not _has_data(head):
        raise RequestError("the input has no data.", where=name[:64])
    return json_codec.parse_data(head.data, datatype, shape, name[:64], service.options.strict_json), offset


def _has_data(head: Any) -> bool:
    return isinstance(head.data, NumberList) or len(memoryview(head.data)) > 0


def _raw_request(service: Service, model: str, version: str, data: memoryview) -> InferRequest:
    """Return a request whose body is the only input of the model, with one open size."""
    inputs = list(service.host.model(model, version).tensors()[0].values())
    if len(inputs) != 1 or inputs[0].shape is None:
        raise RequestError("expected a model with one input of known rank for a raw request.", where=model)
    tensor = inputs[0]
    shape = tensor.sizes
    if tensor.datatype.size == 0:
        shape = [1 if size < 0 else size for size in shape]
        array = _one_string(data, shape, tensor.name)
        return InferRequest(
            model, version, "", {tensor.name: array}, size=REQUEST_BYTES + len(data) + tensor_bytes(array)
        )
    elements, rest = divmod(len(data), tensor.datatype.size)
    known = int(np.prod([size for size in shape if size >= 0], dtype=object)) if shape else 1
    open_axes = [axis for axis, size in enumerate(shape) if size < 0]
    for axis in open_axes[:-1]:
        shape[axis] = 1
    if open_axes and known and not rest and elements % known == 0:
        if len(open_axes) > 1:
            raise RequestError("expected at most one open size for a raw request.", where=tensor.name)
        shape[open_axes[-1]] = elements // known
    array = binary_tensor(data, tensor.datatype, [max(size, 0) for size in shape], tensor.name)
    return InferRequest(model, version, "", {tensor.name: array}, binary_outputs=True, size=REQUEST_BYTES + len(data))


def _one_string(data: memoryview, shape: list[int], where: str) -> np.ndarray:
    if elements_of(shape, where) != 1:
        raise RequestError("expected a model whose input is one string for a raw request.", where=where)
    return string_array([decoded(bytes(data), where)], shape)


def encode_answer(answer: Answer, binary: bool, strict: bool) -> tuple[bytes, list[Buffer]]:
    """Return the JSON part of an answer, and the raw tensors after the JSON.

    Args:
        answer: The answer.
        binary: True if outputs are raw unless they were requested otherwise.
        strict: True to refuse NaN and infinity in JSON.

    Raises:
        RequestError: An output has no JSON form.
    """
    buffers: list[Buffer] = []
    outputs = []
    write: Callable[[Any], bytes] = json_codec.encode
    for output in answer.outputs:
        array = output.array
        datatype = datatypes.of_array(array)
        described = described_output(output.name, datatype, array.shape)
        requested = output.requested
        is_binary = binary if requested is None or requested.is_binary is None else requested.is_binary
        if requested is not None and requested.destination is not None:
            pass  # The region has the data. Clients of Triton expect the size of binary data in any parameters.
        elif is_binary:
            data = binary_data(array, datatype)
            described["parameters"] = {"binary_data_size": len(data)}
            buffers.append(data)
        else:
            if array.dtype.kind == "f" and not datatypes.all_finite(array):
                if strict:
                    raise RequestError(
                        "the output has elements that are not finite, which JSON cannot express.", kind="no_result",
                        where=output.name, remedy="Request binary data.",
                    )  # fmt: skip
                write = json_codec.encode_with_words
            described["data"] = json_data(array, datatype, output.name)
        outputs.append(described)
    return write(described_answer(answer.model, answer.version, answer.id, answer.revision, outputs)), buffers


def described_output(name: str, datatype: Datatype, shape: Sequence[int]) -> dict[str, Any]:
    """Return the JSON form of an output, without its values."""
    return {"name": name, "datatype": datatype.name, "shape": shape}


def described_answer(
    model: str, version: str, id: Any, revision: int, outputs: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the JSON form of an answer."""
    head: dict[str, Any] = {"model_name": model, "model_version": version}
    if id:
        head["id"] = id
    head["parameters"] = {"sardonyx_revision": revision}
    head["outputs"] = outputs
    return head


def json_data(array: np.ndarray, datatype: Datatype, where: str) -> Sequence[Any]:
    """Return the elements of an array as a flat list for JSON.

    Raises:
        RequestError: The element type has no JSON form.
    """
    if not datatype.has_json:
        raise RequestError(
            f"{datatype.name} has no JSON form.", where=where, remedy="Request binary data (binary_data_output)."
        )
    flat: list[Any] = array.ravel().tolist()
    if datatype.size == 0:
        return [decoded(item, where) if isinstance(item, bytes) else item for item in flat]
    return flat
