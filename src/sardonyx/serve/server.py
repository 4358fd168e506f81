"""Servers: models, listeners and their life, from loading to the last answer."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sardonyx.errors import OptionError, ResourceError
from sardonyx.runtime.session import Session
from sardonyx.serve.http.application import Application
from sardonyx.serve.http.connection import AccessLog, Connections
from sardonyx.serve.models.ensemble import Ensemble, ServedEnsemble, cycle, loading_order
from sardonyx.serve.models.model import Model, ServedModel
from sardonyx.serve.models.repository import LoadOptions, Repository
from sardonyx.serve.models.served import Served
from sardonyx.serve.observation.traces import Traces
from sardonyx.serve.operations.free_memory import FreeMemory
from sardonyx.serve.operations.service import ControlMode, Service, ServiceOptions
from sardonyx.serve.operations.worker_group import WorkerGroup
from sardonyx.serve.protocol.limits import MODEL_NAME, Limits
from sardonyx.serve.security.tls import Tls, is_loopback, require_protection
from sardonyx.serve.security.tokens import Tokens

if TYPE_CHECKING:
    from sardonyx.privacy.answers import PrivateAnswers

_log = logging.getLogger("sardonyx.serve")

_COLLECTED_OBJECTS = 20_000
"""New objects between two looks of the garbage collector, in a process that only serves."""

_QUIET_SECONDS = 0.3
"""Seconds without requests after which a stopping server closes idle connections."""


@dataclass(frozen=True)
class Address:
    """A listening address.

    Attributes:
        host: The host; empty for a Unix socket.
        port: The port; 0 for any free one.
        path: The path of a Unix socket; empty for TCP.
    """

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Return the address in a text such as ``127.0.0.1:8000``, ``[::1]:8000`` or ``unix:/run/model.sock``.

        Raises:
            OptionError: The text is not an address.
        """
        if text.startswith("unix:"):
            return cls(path=text.removeprefix("unix:"))
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise OptionError(f"expected host:port or unix:path, got {text!r}.", where="--http")
        return cls(host.strip("[]"), int(port))


@dataclass(frozen=True)
class ServerOptions:
    """Options of a server; each field is also a keyword argument of :class:`Server`.

    Attributes:
        http: The address of HTTP; None for no HTTP.
        grpc: The address of gRPC; None for no gRPC.
        grpc_engine: ``"own"`` for the gRPC server of this package, ``"grpcio"`` for the one of ``grpcio``.
        limits: The limits.
        control: Changes that clients may make: ``"off"``, ``"load"`` or ``"edit"``.
        tokens: The accepted tokens.
        tls: The certificates; None for plain connections.
        insecure: True to listen on addresses that other machines reach without a token.
        poll_seconds: Interval of looks at the repository; 0 for none.
        drain_seconds: Longest time from :meth:`Server.stop` to the end of the last request.
        load: Options of sessions that the repository makes.
        allow_inner: True if requests may name inner tensors as outputs.
        allow_shared_memory: True if clients may register regions of shared memory.
        strict_json: True to refuse NaN and infinity in JSON.
        triton_metrics: True if metrics have Triton's names too.
        privacy: Policies of models whose answers are noisy, by name; see :class:`sardonyx.privacy.PrivateAnswers`.
        access_log: Receives every answered request; None for no log.
        trace_exporter: The exporter of OpenTelemetry that receives spans; None for no traces.
        reuse_port: True if several processes listen on the same port.
        group: The folder in which the processes on the port agree on changes; None if each is alone.
    """

    http: str | None = "127.0.0.1:8000"
    grpc: str | None = None
    grpc_engine: Literal["own", "grpcio"] = "own"
    limits: Limits = field(default_factory=Limits)
    control: ControlMode = "off"
    tokens: Tokens = field(default_factory=Tokens)
    tls: Tls | None = None
    insecure: bool = False
    poll_seconds: float = 0.0
    drain_seconds: float = 30.0
    load: LoadOptions = field(default_factory=LoadOptions)
    allow_inner: bool = False
    allow_shared_memory: bool = False
    strict_json: bool = False
    triton_metrics: bool = False
    privacy: Mapping[str, PrivateAnswers] = field(default_factory=dict)
    access_log: AccessLog | None = None
    trace_exporter: Any = None
    reuse_port: bool = False
    group: Path | None = None

    def __post_init__(self) -> None:
        if self.grpc_engine not in ("own", "grpcio"):
            raise OptionError(f"expected 'own' or 'grpcio', got {self.grpc_engine!r}.", where="grpc_engine")
        for name in ("poll_seconds", "drain_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise OptionError(f"expected 0 seconds or more, got {getattr(self, name)}.", where=name)
        protected = self.tokens.is_required or (self.tls is not None and self.tls.client_ca is not None)
        for text in (self.http, self.grpc):
            if text is not None and (address := Address.parse(text)).host:
                require_protection(address.host, protected, self.insecure)

    @property
    def requires_local_name(self) -> bool:
        """True if the programs of this machine are trusted, of which a browser is one."""
        is_open = self.insecure or self.tls is not None or self.http is None
        return not is_open and is_loopback(Address.parse(self.http or "").host)

    @property
    def service(self) -> ServiceOptions:
        """The options of the operations."""
        return ServiceOptions(
            self.limits, self.control, self.allow_inner, self.allow_shared_memory, self.strict_json,
            self.triton_metrics, self.privacy,
        )  # fmt: skip


class Server:
    """A server of models.

    Every field of :class:`ServerOptions` is also a keyword argument here.

    Args:
        models: A folder of models, a model file, or models by name: each a :class:`.Model`, a session, the path of
            a model file, or an :class:`.Ensemble` of the others.
        options: The options; the keyword arguments override its fields.
        overrides: Fields of the options.

    Attributes:
        options: The options.

    Raises:
        OptionError: An option has an invalid value, or the models do not exist.

    Example:
        >>> with Server({"net": session}, http="127.0.0.1:0") as server:
        ...     print(server.url)
    """

    def __init__(
        self,
        models: str | Path | Mapping[str, Model | Ensemble | Session | str | Path],
        options: ServerOptions | None = None,
        **overrides: Any,
    ) -> None:
        self.options = ServerOptions(**{**vars(options or ServerOptions()), **overrides})
        self._models = dict(models) if isinstance(models, Mapping) else {}
        self._repository = (
            None if isinstance(models, Mapping) else Repository(Path(models), self.options.limits, self.options.load)
        )
        for name in self._models:
            if not MODEL_NAME.fullmatch(name):
                raise OptionError(f"expected letters, digits, '.', '_' and '-', got {name!r}.", where="models")
        self._service: Service | None = None
        self._connections: Connections | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._listeners: list[asyncio.AbstractServer] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._closers: list[Callable[[float], Awaitable[None]]] = []
        self._sockets: list[socket.socket] = []
        self._grpc_port = 0
        self._leave: Callable[[], None] = _ignore

    # The life of a server in a thread of its own.

    def __enter__(self) -> Server:
        """Start the server in a thread, and wait until its models are loaded."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Stop the server."""
        self.stop()

    def start(self) -> Server:
        """Start the server in a thread of its own, and wait until its models are loaded.

        Raises:
            ResourceError: An address is in use, or the server runs already.
            SardonyxError: A model of the caller cannot be served.
        """
        if self._thread is not None:
            raise ResourceError("the server runs already.")
        started: threading.Event = threading.Event()
        failure: list[BaseException] = []
        loop = self._loop = new_event_loop()

        def run() -> None:
            asyncio.set_event_loop(loop)
            try:
                loop.run_until_complete(self.open(loop))
                loop.run_until_complete(self._require_service().load_all())
            except BaseException as error:
                failure.append(error)
                loop.run_until_complete(self.close(0))
                return
            finally:
                started.set()
            loop.run_forever()
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

        self._thread = threading.Thread(target=run, name="sardonyx-serve", daemon=True)
        self._thread.start()
        started.wait()
        if failure:
            self._thread.join()
            self._thread = None
            raise failure[0]
        return self

    def stop(self, drain_seconds: float | None = None) -> None:
        """Answer what was accepted, then end.

        Args:
            drain_seconds: Longest time; the option of the server if None.
        """
        thread, loop = self._thread, self._loop
        if thread is None or loop is None:
            return
        seconds = self.options.drain_seconds if drain_seconds is None else drain_seconds
        asyncio.run_coroutine_threadsafe(self.close(seconds), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        self._thread = None

    def run(
        self, announce: Callable[[Server], None], watch: Callable[[Callable[[], object]], None] | None = None
    ) -> None:
        """Serve in this thread until SIGTERM or SIGINT, which drain the server; a second signal ends the process.

        Args:
            announce: Called when the server listens and its models are loaded.
            watch: Receives a function that ends the server, callable from any thread.

        Raises:
            ResourceError: An address is in use.
            SardonyxError: A model of the caller cannot be served.
        """
        # A closed event loop may leave its own handlers, which ignore the signals.
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        loop = self._loop = new_event_loop()
        asyncio.set_event_loop(loop)
        stopped = asyncio.Event()

        def stop() -> None:
            if stopped.is_set():
                os._exit(1)
            stopped.set()

        self._leave = stopped.set

        async def serve() -> None:
            for number in handlers:
                loop.add_signal_handler(number, stop)
            try:
                await self.open(loop)
                await self.load_all()
                # Models and modules live as long as the process, and requests form no reference cycles. Edits
                # do: the older generations are collected soon too, which is cheap because they hold no frozen object.
                gc.freeze()
                gc.set_threshold(_COLLECTED_OBJECTS, 2, 2)
                self._require_service().collects_models = True
                announce(self)
                if watch is not None:
                    watch(lambda: loop.call_soon_threadsafe(stop))
                await stopped.wait()
            finally:
                await self.close(self.options.drain_seconds if stopped.is_set() else 0)

        try:
            loop.run_until_complete(serve())
        finally:
            loop.close()
            for number, handler in handlers.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def revision(self, name: str, version: str = "") -> int:
        """Return the current revision of a model.

        Raises:
            RequestError: The model is unknown.
        """
        return self._require_service().host.get(name, version).model.revision_number

    @property
    def url(self) -> str:
        """The address of HTTP, for clients."""
        for sock in self._sockets:
            if sock.family != socket.AF_UNIX:
                host, port = sock.getsockname()[:2]
                scheme = "http" if self.options.tls is None else "https"
                return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        raise OptionError("the server has no address of HTTP.", where="http")

    @property
    def url_or_path(self) -> str:
        """The address of HTTP, or the path of its Unix socket; empty without HTTP."""
        path = Address.parse(self.options.http).path if self.options.http else ""
        return f"unix:{path}" if path else self.url if self._sockets else ""

    @property
    def grpc_port(self) -> int:
        """The port of gRPC; 0 without gRPC."""
        return self._grpc_port

    # The life of a server in a running event loop.

    async def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Load models of the caller, and listen; the repository is loaded by the caller of this method.

        Args:
            loop: The running event loop.

        Raises:
            ResourceError: An address is in use.
        """
        options = self.options
        service = await self._open_service(loop)
        service.is_one_of_several = options.reuse_port
        if options.group is not None:
            # Models are those of the other workers before the first request is accepted.
            await service.load_all()
            service.group = WorkerGroup(options.group, service, self._leave)
            await service.group.join()
        application = Application(service, options.tokens, options.requires_local_name)
        connections = self._connections = Connections(application, options.limits, options.access_log)
        if options.http is not None:
            await self._listen(Address.parse(options.http), loop, connections)
        if options.grpc is not None:
            await self._open_grpc(service, Address.parse(options.grpc))
        self._tasks.append(loop.create_task(_sweep(connections, service)))
        if options.poll_seconds:
            self._tasks.append(loop.create_task(service.poll(options.poll_seconds)))

    async def _open_service(self, loop: asyncio.AbstractEventLoop) -> Service:
        exporter = self.options.trace_exporter
        traces = None if exporter is None else Traces(exporter)
        service = self._service = Service(self.options.service, self._repository, loop, traces)
        for name in loading_order(self._models, self._parts):
            if name not in self._models:
                continue
            if path := cycle(name, self._parts):
                raise OptionError(f"the ensembles have a cycle: {' → '.join(path)}.", where="models")
            service.host.put(name, [await service.in_worker(functools.partial(_served, name, self._models[name]))])
            service.host.require_ready(name)
        return service

    def _parts(self, name: str) -> list[str]:
        entry = self._models.get(name)
        return entry.models if isinstance(entry, Ensemble) else []

    async def _listen(self, address: Address, loop: asyncio.AbstractEventLoop, connections: Connections) -> None:
        context = None if self.options.tls is None else self.options.tls.context()
        try:
            if address.path:
                listener = await loop.create_unix_server(connections.protocol, address.path, ssl=context)
            else:
                listener = await loop.create_server(
                    connections.protocol, address.host, address.port, ssl=context, backlog=1024,
                    reuse_port=self.options.reuse_port or None,
                )  # fmt: skip
        except OSError as error:
            raise ResourceError(
                f"the address cannot be used: {error.strerror or error}.", where=self.options.http or ""
            ) from error
        self._listeners.append(listener)
        self._sockets += list(listener.sockets)

    async def _open_grpc(self, service: Service, address: Address) -> None:
        options = self.options
        if options.grpc_engine == "grpcio":
            from sardonyx.serve.grpc.listener import open_grpc as open_listener
        else:
            from sardonyx.serve.grpc.own_listener import open_own_grpc as open_listener  # type: ignore[assignment]

        listener = await open_listener(
            service, options.tokens, address.host, address.port, options.tls, options.reuse_port
        )
        self._grpc_port = listener.port
        self._closers.append(listener.close)

    async def load_all(self) -> None:
        """Load the models of the repository."""
        service = self._require_service()
        if service.group is None:
            await service.load_all()

    async def close(self, drain_seconds: float) -> None:
        """Stop: refuse readiness and connections, answer what was accepted, end.

        Args:
            drain_seconds: Longest time.
        """
        service, connections = self._service, self._connections
        if service is not None:
            service.is_draining = True
            if service.group is not None:
                await service.group.close()
        for listener in self._listeners:
            listener.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        loop = asyncio.get_running_loop()
        end = loop.time() + drain_seconds
        if connections is not None and service is not None:
            connections.is_closing = True
            quiet_since = loop.time()
            while loop.time() < end and (connections.open or service.host.pending):
                if service.host.pending or connections.is_busy:
                    quiet_since = loop.time()
                elif loop.time() - quiet_since >= min(_QUIET_SECONDS, drain_seconds):
                    connections.close()
                await asyncio.sleep(0.01)
        for closer in self._closers:
            await closer(max(0.0, end - loop.time()))
        if connections is not None:
            connections.abort()
        if service is not None:
            service.close()
        self._listeners, self._tasks, self._closers, self._sockets = [], [], [], []

    def asgi(self) -> Any:
        """Return an ASGI application that answers from the models of this server.

        The application loads the models when its host starts it (the lifespan protocol), or at the first request.
        """
        from sardonyx.serve.asgi import AsgiApplication

        async def open_service(loop: asyncio.AbstractEventLoop) -> Service:
            service = await self._open_service(loop)
            await service.load_all()
            return service

        return AsgiApplication(
            open_service, lambda: self._require_service().close(), self.options.tokens, self.options.limits
        )

    def _require_service(self) -> Service:
        if self._service is None:
            raise ResourceError("the server does not run.", remedy="Call start(), or use it in a with statement.")
        return self._service

    @property
    def service(self) -> Service:
        """The operations of the running server.

        Raises:
            ResourceError: The server does not run.
        """
        return self._require_service()


def _ignore() -> None:
    """Do nothing: a server in a thread has no supervisor that would start it anew."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop of uvloop where it is installed, else of the standard library."""
    with contextlib.suppress(ImportError):
        import uvloop

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return loop
    return asyncio.new_event_loop()


def _served(name: str, entry: Model | Ensemble | Session | str | Path) -> Served:
    if isinstance(entry, Ensemble):
        return ServedEnsemble(name, entry)
    if isinstance(entry, (str, Path)):
        entry = Session(entry, compile="wait")
    return ServedModel(name, entry if isinstance(entry, Model) else Model(entry))


async def _sweep(connections: Connections, service: Service) -> None:
    memory = FreeMemory()
    returning: asyncio.Task[None] | None = None
    try:
        while True:
            await asyncio.sleep(1.0)
            connections.sweep()
            is_free = returning is None or returning.done()
            if is_free and not service.host.pending and memory.is_due():
                # Not awaited: a load may keep the workers for minutes, and slow clients must not wait for it.
                returning = asyncio.create_task(service.in_worker(memory.give_back))
    finally:
        if returning is not None:
            returning.cancel()
            await asyncio.wait((returning,))
