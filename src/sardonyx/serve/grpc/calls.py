"""The calls of the service: a message in, a message out; inference apart."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sardonyx.errors import RequestError
from sardonyx.serve.grpc.conversion import parameter_values
from sardonyx.serve.operations.service import Service
from sardonyx.serve.protocol.messages import message_class

CallHandler = Callable[[Service, Any], "Any | Awaitable[Any]"]


def _fill(message: Any, value: Any, ignores_unknown: bool = False) -> Any:
    # Imported late: a start would load the text formats of protocol buffers, which inference does not need.
    from google.protobuf.json_format import ParseDict

    return ParseDict(value, message, ignore_unknown_fields=ignores_unknown)


def _new(message: str, /, **fields: Any) -> Any:
    return message_class(message)(**fields)


def _server_live(service: Service, message: Any) -> Any:
    return _new("ServerLiveResponse", live=True)


def _server_ready(service: Service, message: Any) -> Any:
    return _new("ServerReadyResponse", ready=service.is_ready)


def _model_ready(service: Service, message: Any) -> Any:
    try:
        service.host.require_ready(message.name, message.version)
    except RequestError as error:
        if error.kind != "unavailable":
            raise
        return _new("ModelReadyResponse", ready=False)
    return _new("ModelReadyResponse", ready=not service.is_draining)


def _server_metadata(service: Service, message: Any) -> Any:
    return _new("ServerMetadataResponse", **service.metadata())


def _model_metadata(service: Service, message: Any) -> Any:
    metadata = service.model_metadata(message.name, message.version)
    del metadata["parameters"]
    return _new("ModelMetadataResponse", **metadata)


def _model_config(service: Service, message: Any) -> Any:
    config = service.model_config(message.name, message.version)
    response = _new("ModelConfigResponse")
    _fill(response.config, config, ignores_unknown=True)
    return response


def _model_statistics(service: Service, message: Any) -> Any:
    response = _new("ModelStatisticsResponse")
    return _fill(response, service.statistics(message.name, message.version), ignores_unknown=True)


def _index(service: Service, message: Any) -> Any:
    return _new("RepositoryIndexResponse", models=service.index(message.ready))


async def _load(service: Service, message: Any) -> Any:
    await service.load(message.model_name, parameter_values(message.parameters))
    return _new("RepositoryModelLoadResponse")


async def _unload(service: Service, message: Any) -> Any:
    await service.unload(message.model_name, parameter_values(message.parameters))
    return _new("RepositoryModelUnloadResponse")


def _shared_memory_status(service: Service, message: Any) -> Any:
    response = _new("SystemSharedMemoryStatusResponse")
    for region in service.shared_memory.status(message.name):
        _fill(response.regions[region.name], region.described())
    return response


def _register(service: Service, message: Any) -> Any:
    service.shared_memory.register(message.name, message.key, message.offset, message.byte_size)
    return _new("SystemSharedMemoryRegisterResponse")


def _unregister(service: Service, message: Any) -> Any:
    service.shared_memory.unregister(message.name)
    return _new("SystemSharedMemoryUnregisterResponse")


def _unregister_cuda(service: Service, message: Any) -> Any:
    return _new("CudaSharedMemoryUnregisterResponse")


def _cuda(service: Service, message: Any) -> Any:
    raise RequestError("the server has no CUDA devices, and so none of their shared memory.", kind="unsupported")


def _trace_setting(service: Service, message: Any) -> Any:
    if message.model_name:
        service.host.get(message.model_name)
    changes = {}
    for key, setting in message.settings.items():
        values = list(setting.value)
        changes[key] = None if not values else values if key == "trace_level" else values[0]
    response = _new("TraceSettingResponse")
    for key, value in service.trace_settings(changes).items():
        response.settings[key].value.extend(value if isinstance(value, list) else [value])
    return response


def _log_settings(service: Service, message: Any) -> Any:
    changes = {}
    for key, setting in message.settings.items():
        kind = setting.WhichOneof("parameter_choice")
        if kind is None:
            raise RequestError("the setting has no value.", where=key[:64])
        changes[key] = getattr(setting, kind)
    response = _new("LogSettingsResponse")
    for key, value in service.log_settings(changes).items():
        kind = "bool_param" if isinstance(value, bool) else "uint32_param" if isinstance(value, int) else "string_param"
        setattr(response.settings[key], kind, value)
    return response


CALLS: dict[str, tuple[str, str, CallHandler]] = {
    "ServerLive": ("ServerLiveRequest", "", _server_live),
    "ServerReady": ("ServerReadyRequest", "", _server_ready),
    "ModelReady": ("ModelReadyRequest", "", _model_ready),
    "ServerMetadata": ("ServerMetadataRequest", "read", _server_metadata),
    "ModelMetadata": ("ModelMetadataRequest", "read", _model_metadata),
    "ModelConfig": ("ModelConfigRequest", "read", _model_config),
    "ModelStatistics": ("ModelStatisticsRequest", "read", _model_statistics),
    "RepositoryIndex": ("RepositoryIndexRequest", "read", _index),
    "RepositoryModelLoad": ("RepositoryModelLoadRequest", "admin", _load),
    "RepositoryModelUnload": ("RepositoryModelUnloadRequest", "admin", _unload),
    "SystemSharedMemoryStatus": ("SystemSharedMemoryStatusRequest", "admin", _shared_memory_status),
    "SystemSharedMemoryRegister": ("SystemSharedMemoryRegisterRequest", "admin", _register),
    "SystemSharedMemoryUnregister": ("SystemSharedMemoryUnregisterRequest", "admin", _unregister),
    "CudaSharedMemoryStatus": ("CudaSharedMemoryStatusRequest", "admin", _cuda),
    "CudaSharedMemoryRegister": ("CudaSharedMemoryRegisterRequest", "admin", _cuda),
    "CudaSharedMemoryUnregister": ("CudaSharedMemoryUnregisterRequest", "admin", _unregister_cuda),
    "TraceSetting": ("TraceSettingRequest", "admin", _trace_setting),
    "LogSettings": ("LogSettingsRequest", "admin", _log_settings),
}
"""The message, the scope of tokens and the handler of every call except inference."""
