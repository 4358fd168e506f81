"""The gRPC server: ``grpcio`` on the event loop of the server."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator
from typing import Any

from sardonyx.errors import MissingDependencyError, RequestError, ResourceError
from sardonyx.serve.grpc.calls import CALLS, CallHandler
from sardonyx.serve.grpc.conversion import answer_message, parsed_request
from sardonyx.serve.grpc.message_reading import INFERENCE, read_message
from sardonyx.serve.operations.service import Service
from sardonyx.serve.protocol.messages import SERVICE, message_class
from sardonyx.serve.protocol.refusals import REFUSALS, refusal
from sardonyx.serve.security.tls import Tls
from sardonyx.serve.security.tokens import Tokens

_log = logging.getLogger("sardonyx.serve")


class GrpcListener:
    """A running gRPC server.

    Args:
        server: The server of ``grpcio``.
        port: Its port.

    Attributes:
        port: As passed.
    """

    def __init__(self, server: Any, port: int) -> None:
        self._server = server
        self.port = port

    async def close(self, seconds: float) -> None:
        """End after the calls that are being answered, or after some seconds."""
        await self._server.stop(seconds)


async def open_grpc(
    service: Service, tokens: Tokens, host: str, port: int, tls: Tls | None = None, reuse_port: bool = False
) -> GrpcListener:
    """Start a gRPC server on the running event loop.

    Args:
        service: The operations of the server.
        tokens: The accepted tokens.
        host: The host to listen on.
        port: The port; 0 for any free one.
        tls: The certificates; None for plain connections.
        reuse_port: True if several processes listen on the same port.

    Raises:
        MissingDependencyError: grpcio is not installed.
        ResourceError: The address is in use.
    """
    try:
        import grpc
    except ImportError as error:
        raise MissingDependencyError(
            "serving over gRPC requires grpcio.", remedy='Install it: pip install "sardonyx[grpc]".'
        ) from error
    limits = service.limits
    options = [
        ("grpc.max_receive_message_length", limits.body_bytes),
        ("grpc.max_send_message_length", limits.output_bytes),
        ("grpc.max_concurrent_streams", limits.streams),
        ("grpc.max_metadata_size", limits.head_bytes),
        ("grpc.so_reuseport", int(reuse_port)),
    ]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, _handlers(service, tokens, grpc)),))
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if tls is None:
            bound = server.add_insecure_port(target)
        else:
            key, chain, authorities = tls.texts()
            pairs = [(key, chain)]
            credentials = grpc.ssl_server_credentials(pairs, authorities, authorities is not None)
            bound = server.add_secure_port(target, credentials)
    except RuntimeError as error:
        raise ResourceError("the address cannot be used.", where=target) from error
    if bound == 0:
        raise ResourceError("the address cannot be used.", where=target)
    await server.start()
    return GrpcListener(server, bound)


def _handlers(service: Service, tokens: Tokens, grpc: Any) -> dict[str, Any]:
    # Without deserializers: messages are bytes until their fields are counted.
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            _unary(service, tokens, scope, kind, handler, grpc), response_serializer=_serialized
        )
        for name, (kind, scope, handler) in {**CALLS, "ModelInfer": (INFERENCE, "infer", None)}.items()
    }
    handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
        _stream(service, tokens, grpc), response_serializer=_serialized
    )
    return handlers


def _serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


async def _infer(service: Service, message: Any, client: str) -> Any:
    request = parsed_request(service, message)
    request.client = client
    return answer_message(await service.infer_async(request))


def _authorization(context: Any) -> str:
    return next((value for key, value in context.invocation_metadata() or () if key == "authorization"), "")


def _unary(service: Service, tokens: Tokens, scope: str, kind: str, handler: CallHandler | None, grpc: Any) -> Any:
    async def call(data: bytes, context: Any) -> Any:
        try:
            client = tokens.require(_authorization(context), scope) if tokens.is_required else ""
            message = read_message(kind, data)
            result = _infer(service, message, client) if handler is None else handler(service, message)
            return await result if inspect.isawaitable(result) else result
        except Exception as error:
            status, text = _status(error, grpc)
        return await context.abort(status, text)

    return call


def _status(error: BaseException, grpc: Any) -> tuple[Any, str]:
    refused, is_defect = refusal(error)
    if is_defect:
        _log.error("%s", refused, exc_info=error)
    code = REFUSALS[refused.kind].grpc
    return next(status for status in grpc.StatusCode if status.value[0] == code), str(refused)


def _stream(service: Service, tokens: Tokens, grpc: Any) -> Any:
    async def call(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        client = ""
        try:
            if tokens.is_required:
                client = tokens.require(_authorization(context), "infer")
        except RequestError as error:
            await context.abort(*_status(error, grpc))
        response = message_class("ModelStreamInferResponse")
        # Requests of a stream are computed concurrently, at most a window of them; answers are in order.
        waiting: asyncio.Queue[asyncio.Task[Any] | None] = asyncio.Queue(service.limits.streams)

        async def answered(data: bytes) -> Any:
            identity = ""
            try:
                message = read_message(INFERENCE, data)
                identity = message.id
                answer = await _infer(service, message, client)
                answer.parameters["triton_final_response"].bool_param = True
                return response(infer_response=answer)
            except Exception as error:
                failed = response(error_message=_status(error, grpc)[1])
                failed.infer_response.id = identity
                return failed

        async def read() -> None:
            try:
                async for data in messages:
                    await waiting.put(asyncio.create_task(answered(data)))
            finally:
                await waiting.put(None)

        reader = asyncio.create_task(read())
        try:
            while (task := await waiting.get()) is not None:
                yield await task
        finally:
            reader.cancel()
            while not waiting.empty():
                rest = waiting.get_nowait()
                if rest is not None:
                    rest.cancel()

    return call
