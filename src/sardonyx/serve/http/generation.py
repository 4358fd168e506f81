"""The generate extension: inputs and outputs as plain fields of a JSON object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sardonyx.errors import RequestError
from sardonyx.serve.http.infer_requests import json_data
from sardonyx.serve.http.messages import JSON, HttpResponse
from sardonyx.serve.models.interface import Tensor
from sardonyx.serve.operations.parameters import require_id, set_parameters
from sardonyx.serve.operations.service import Service
from sardonyx.serve.protocol import datatypes, json_codec
from sardonyx.serve.protocol.datatypes import shortened
from sardonyx.serve.protocol.requests import REQUEST_BYTES, Answer, InferRequest


def generate_request(service: Service, model: str, version: str, body: bytes) -> InferRequest:
    """Return a request whose fields are inputs: a value, or a list, of one element type.

    The field ``id`` is the client's name for the request. Fields that are no inputs, and those of the object
    ``parameters``, are parameters of the request.

    Raises:
        RequestError: A field does not fit an input or parameter, or an input is missing.
    """
    value = json_codec.parse_json(body, service.limits.json_depth)
    if not isinstance(value, dict):
        raise RequestError("expected a JSON object of inputs.")
    inputs, _ = service.host.model(model, version).tensors()
    request = InferRequest(model, version, size=REQUEST_BYTES + len(body))
    parameters = {}
    for name, field in _fields(value, inputs):
        tensor = inputs.get(name)
        if tensor is not None:
            request.inputs[name] = _tensor(field, tensor, service.options.strict_json)
        elif name == "id":
            if not isinstance(field, str):
                raise RequestError(f"expected a text, got {shortened(field)}.", where="id")
            request.id = field
        elif isinstance(field, (bool, int, float, str)):
            parameters[name] = field
        else:
            raise RequestError(
                f"unknown input {shortened(name)}.", where=name[:64], remedy=f"Inputs: {', '.join(inputs)}."
            )
    require_id(request.id)
    if parameters:
        set_parameters(request, parameters)
    return request


def _fields(value: dict[str, Any], inputs: Mapping[str, Tensor]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a request, with those of its parameters, each once."""
    inner = value.get("parameters")
    if "parameters" in inputs or inner is None:
        inner = {}
    elif not isinstance(inner, dict):
        raise RequestError(f"expected an object, got {shortened(inner)}.", where="parameters")
    for name, field in value.items():
        if name in inner:
            raise RequestError("the field is among the parameters too.", where=name[:64])
        if name != "parameters" or name in inputs:
            yield name, field
    yield from inner.items()


def _tensor(value: Any, tensor: Tensor, strict: bool) -> np.ndarray:
    shape = []
    inner = value
    while isinstance(inner, list):
        shape.append(len(inner))
        inner = inner[0] if inner else None
    text = json_codec.encode(value if isinstance(value, list) else [value])
    array = json_codec.parse_data(text, tensor.datatype, shape or [1], tensor.name, strict)
    rank = len(tensor.sizes)
    if tensor.shape is not None and array.ndim < rank:
        array = array.reshape((1,) * (rank - array.ndim) + array.shape)
    elif tensor.shape is not None and array.ndim > rank and array.size == 1:
        array = array.reshape((1,) * rank)
    return array


def generated(answer: Answer, is_stream: bool, strict: bool) -> HttpResponse:
    """Return the outputs as fields of an object; as one event for a stream."""
    value: dict[str, Any] = {"model_name": answer.model, "model_version": answer.version}
    if answer.id:
        value["id"] = answer.id
    value["sardonyx_revision"] = answer.revision
    is_finite = True
    for output in answer.outputs:
        array = output.array
        data = json_data(array, datatypes.of_array(array), output.name)
        is_finite &= array.dtype.kind != "f" or datatypes.all_finite(array)
        value[output.name] = data[0] if len(data) == 1 else data
    if not is_finite and strict:
        raise RequestError("an output has elements that are not finite, which JSON cannot express.", kind="no_result")
    text = json_codec.encode(value) if is_finite else json_codec.encode_with_words(value)
    if is_stream:
        return HttpResponse(200, (b"data: ", text, b"\n\n"), "text/event-stream; charset=utf-8")
    return HttpResponse(200, (text,), JSON)
