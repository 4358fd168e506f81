"""The server as an ASGI application, for hosts such as FastAPI, uvicorn, granian and Ray Serve."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from sardonyx.errors import RequestError
from sardonyx.serve.http.application import Application
from sardonyx.serve.http.messages import HttpRequest, HttpResponse, compressed, error_response
from sardonyx.serve.operations.service import Service
from sardonyx.serve.protocol.limits import Limits
from sardonyx.serve.security.tokens import Tokens

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Opened = Callable[[asyncio.AbstractEventLoop], Awaitable[Service]]


class AsgiApplication:
    """An ASGI application over the operations of a server.

    Args:
        open: Loads the models on the event loop of the host, and returns the operations.
        close: Ends the operations.
        tokens: The accepted tokens.
        limits: The limits of the server.
    """

    def __init__(self, open: Opened, close: Callable[[], None], tokens: Tokens, limits: Limits) -> None:
        self._open = open
        self._close = close
        self._tokens = tokens
        self._limits = limits
        self._application: Application | None = None
        self._opening: asyncio.Task[Service] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one connection of the host."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            raise RequestError(f"expected HTTP, got {scope['type']}.", kind="unsupported")

    async def _lifespan(self, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self._ready()
                except Exception as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                self._close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _ready(self) -> Application:
        if self._application is None:
            if self._opening is None:
                loop = asyncio.get_running_loop()
                self._opening = loop.create_task(self._open(loop))  # type: ignore[arg-type]
            service = await asyncio.shield(self._opening)
            if self._application is None:
                self._application = Application(service, self._tokens)
        return self._application

    async def _http(self, scope: Any, receive: Any, send: Any) -> None:
        application = await self._ready()
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        path = scope.get("raw_path", b"").decode("latin-1") or scope["path"]
        root = scope.get("root_path", "")
        if root and path.startswith(root):
            path = path[len(root) :]
        query = scope.get("query_string", b"").decode("latin-1")
        try:
            body = await self._body(receive)
        except RequestError as error:
            await _send(send, error_response(error))
            return
        request = HttpRequest(scope["method"], f"{path}?{query}" if query else path, headers, body)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def respond(response: HttpResponse) -> None:
            if not future.done():
                future.set_result(response)

        work = application.handle(request, respond)
        gone: asyncio.Future[Any] = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait([future, gone], return_when=asyncio.FIRST_COMPLETED)
            if not future.done():
                if work is not None:
                    work.cancel()
                return
        finally:
            gone.cancel()
        response: HttpResponse = future.result()
        if "accept-encoding" in headers and response.body:
            response = compressed(response, headers["accept-encoding"])
        await _send(send, response, is_head=scope["method"] == "HEAD")

    async def _body(self, receive: Any) -> bytes:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise RequestError("the client has gone.", kind="cancelled")
            body += message.get("body", b"")
            self._limits.body(len(body))
            if not message.get("more_body"):
                return bytes(body)


async def _disconnected(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Any, response: HttpResponse, is_head: bool = False) -> None:
    size = sum(len(part) for part in response.body)
    headers = [(name.encode(), value.encode()) for name, value in response.headers.items()]
    headers.append((b"content-length", str(size).encode()))
    if response.content_type:
        headers.append((b"content-type", response.content_type.encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    body = b"" if is_head else b"".join(response.body)
    await send({"type": "http.response.body", "body": body})
