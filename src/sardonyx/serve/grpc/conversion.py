"""Requests and answers of inference as messages of gRPC."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.errors import RequestError
from sardonyx.serve.operations.parameters import flag, require_id, set_parameters
from sardonyx.serve.operations.requested_outputs import requested_output
from sardonyx.serve.operations.service import Service
from sardonyx.serve.operations.shared_memory import require_region
from sardonyx.serve.protocol import datatypes
from sardonyx.serve.protocol.datatypes import Datatype
from sardonyx.serve.protocol.limits import elements_of, require_rank
from sardonyx.serve.protocol.messages import message_class
from sardonyx.serve.protocol.raw_tensors import binary_data, binary_tensor
from sardonyx.serve.protocol.requests import Answer, InferRequest, tensor_bytes
from sardonyx.serve.protocol.strings import decoded, string_array

_EMPTY_FINAL = "triton_enable_empty_final_response"


def parsed_request(service: Service, message: Any) -> InferRequest:
    """Return the request in a ``ModelInferRequest``.

    Raises:
        RequestError: The message contradicts itself, or exceeds a limit.
    """
    inputs, raw = message.inputs, message.raw_input_contents
    service.limits.count(len(inputs), "inputs")
    service.limits.count(len(message.outputs), "outputs")
    require_id(message.id)
    request = InferRequest(message.model_name, message.model_version, message.id)
    if request.version and not (request.version.isdecimal() and len(request.version) <= 18):
        raise RequestError("expected a number as version.", where=request.model[:64])
    used = 0
    for part in inputs:
        name = part.name
        if name in request.inputs:
            raise RequestError("the request has the input twice.", where=name[:64])
        datatype = datatypes.named(part.datatype, name[:64])
        require_rank(len(part.shape), name[:64])
        shape = list(part.shape)
        if "shared_memory_region" in part.parameters:
            if part.HasField("contents"):
                raise RequestError("the input has contents and a region of shared memory.", where=name[:64])
            elements_of(shape, name[:64])
            values = parameter_values(part.parameters)
            request.inputs[name] = service.shared_memory.read(
                values.get("shared_memory_region"), values.get("shared_memory_offset", 0),
                values.get("shared_memory_byte_size"), datatype, shape,
            )  # fmt: skip
            request.size += tensor_bytes(request.inputs[name])
            continue
        require_region(part.parameters, name[:64])
        if len(raw):
            if used >= len(raw):
                raise RequestError(f"expected raw contents of every input, got {len(raw)}.", where=name[:64])
            if part.HasField("contents"):
                raise RequestError("the input has contents and raw contents.", where=name[:64])
            data = raw[used]
            used += 1
            array = request.inputs[name] = binary_tensor(memoryview(data), datatype, shape, name[:64])
            # The message has the bytes too.
            request.size += 2 * len(data) + (tensor_bytes(array) if array.dtype.kind == "O" else 0)
        else:
            request.inputs[name] = _typed_tensor(part.contents, datatype, shape, name[:64])
            request.size += 2 * tensor_bytes(request.inputs[name])
    if used != len(raw):
        raise RequestError(f"expected {used} raw contents, got {len(raw)}.")
    if message.parameters:
        values = parameter_values(message.parameters)
        # Clients of streams ask for a last, empty answer of models with several; ours have one, which says so.
        flag(values, _EMPTY_FINAL)
        values.pop(_EMPTY_FINAL, None)
        set_parameters(request, values)
    if message.outputs:
        request.outputs = [
            requested_output(service, part.name, parameter_values(part.parameters)) for part in message.outputs
        ]
    return request


def _typed_tensor(contents: Any, datatype: Datatype, shape: list[int], where: str) -> np.ndarray:
    if not datatype.contents:
        raise RequestError(f"{datatype.name} has raw contents alone.", where=where)
    for field, _ in contents.ListFields():
        if field.name != datatype.contents:
            raise RequestError(
                f"expected the elements of {datatype.name} in {datatype.contents}, got {field.name}.", where=where
            )
    values = getattr(contents, datatype.contents)
    count = elements_of(shape, where)
    if len(values) != count:
        raise RequestError(
            f"expected {count} elements in {datatype.contents} for shape {shape}, got {len(values)}.", where=where
        )
    if datatype.size == 0:
        return string_array([decoded(value, where) for value in values], shape)
    if datatype.dtype.kind in "iu" and datatype.size < 4 and count:
        bounds = np.iinfo(datatype.dtype)
        if min(values) < bounds.min or max(values) > bounds.max:
            raise RequestError(f"an element is beyond the range of {datatype.name}.", where=where)
    return np.array(values, datatype.dtype).reshape(shape)


def parameter_values(parameters: Any) -> dict[str, Any]:
    """Return the parameters of a message as values.

    Raises:
        RequestError: A parameter has no value.
    """
    values = {}
    for name, parameter in parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is None:
            raise RequestError("the parameter has no value.", where=name[:64])
        values[name] = getattr(parameter, kind)
    return values


def answer_message(answer: Answer) -> Any:
    """Return a ``ModelInferResponse`` with raw contents."""
    message = message_class("ModelInferResponse")(model_name=answer.model, model_version=answer.version, id=answer.id)
    message.parameters["sardonyx_revision"].int64_param = answer.revision
    raw = message.raw_output_contents
    for output in answer.outputs:
        array = output.array
        datatype = datatypes.of_array(array)
        message.outputs.add(name=output.name, datatype=datatype.name, shape=array.shape)
        requested = output.requested
        if requested is not None and requested.destination is not None:
            raw.append(b"")  # As Triton does: clients count on one entry for each output.
        else:
            data = binary_data(array, datatype)
            raw.append(data if isinstance(data, bytes) else data.tobytes())
    return message
