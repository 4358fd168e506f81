"""``sardonyx serve``: models over the network."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from sardonyx.cli.byte_counts import parse_bytes
from sardonyx.cli.output import AsJson, print_json, print_text
from sardonyx.errors import OptionError

EXAMPLE = "sardonyx serve model.onnx --http 127.0.0.1:8000"


def command(
    models: Annotated[
        str | None,
        typer.Argument(
            help="A folder of models, a model file, or a name of the hub (hf:, onnx:, …).", show_default=False
        ),
    ] = None,
    lock: Annotated[Path | None, typer.Option(help="Lock file of a model of the hub.", show_default=False)] = None,
    http: Annotated[str, typer.Option(help="Address of HTTP: host:port or unix:path.")] = "127.0.0.1:8000",
    grpc: Annotated[str | None, typer.Option(help="Address of gRPC: host:port.", show_default=False)] = None,
    grpc_engine: Annotated[str, typer.Option(help="Server of gRPC: own, or grpcio.")] = "own",
    workers: Annotated[int, typer.Option(help="Number of processes on the same port.")] = 1,
    threads: Annotated[
        int | None, typer.Option(help="Threads of a run; all processors by default.", show_default=False)
    ] = None,
    control: Annotated[str, typer.Option(help="Changes by clients: off, load, or edit.")] = "off",
    poll: Annotated[float, typer.Option(help="Seconds between looks at the folder; 0 for none.")] = 0.0,
    batch: Annotated[str, typer.Option(help="Merge requests: auto (if proved sound), off, or force.")] = "auto",
    token_file: Annotated[
        Path | None, typer.Option(help="Digests and scopes of accepted tokens.", show_default=False)
    ] = None,
    new_token: Annotated[
        str | None, typer.Option(help="Print a token with these scopes, and its line for the file.", show_default=False)
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain (PEM).", show_default=False)] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key (PEM).", show_default=False)] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="Authorities of required client certificates (PEM).", show_default=False)
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen beyond this machine without tokens.")] = False,
    max_body: Annotated[str, typer.Option(help="Largest body, e.g. 64MiB.")] = "64MiB",
    max_queue: Annotated[int, typer.Option(help="Requests that may wait for a model.")] = 1024,
    max_run: Annotated[float, typer.Option(help="Seconds of one run.")] = 60.0,
    max_memory: Annotated[str, typer.Option(help="Memory of one run, e.g. 8GiB.")] = "8GiB",
    drain: Annotated[float, typer.Option(help="Seconds for the last answers after SIGTERM.")] = 30.0,
    cache_answers: Annotated[bool, typer.Option("--cache-answers", help="Remember answers to equal requests.")] = False,
    allow_inner: Annotated[
        bool, typer.Option("--allow-inner", help="Let requests name inner tensors as outputs.")
    ] = False,
    allow_client_shm: Annotated[
        bool, typer.Option("--allow-client-shm", help="Let clients register shared memory.")
    ] = False,
    allow_compiled: Annotated[
        bool, typer.Option("--allow-compiled", help="Load compiled files (.sdx), which are machine code.")
    ] = False,
    strict_json: Annotated[bool, typer.Option("--strict-json", help="Refuse NaN and Infinity in JSON.")] = False,
    triton_metrics: Annotated[
        bool, typer.Option("--triton-metrics", help="Write metrics with Triton's names too.")
    ] = False,
    privacy: Annotated[
        Path | None, typer.Option(help="Noise and budgets of private answers (JSON).", show_default=False)
    ] = None,
    privacy_ledger: Annotated[Path, typer.Option(help="The ledger of private answers.")] = Path("privacy.ledger"),
    access_log: Annotated[
        Path | None, typer.Option(help="Append a line for each request to this file.", show_default=False)
    ] = None,
    trace: Annotated[
        str | None, typer.Option(help="Send spans of requests: otlp:URL, or console.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve models over HTTP and gRPC by the Open Inference Protocol; SIGTERM or Ctrl-C ends the server.

    The server is safe by default: only this machine reaches it, and clients can change nothing.
    """
    from sardonyx.serve.models.repository import LoadOptions
    from sardonyx.serve.protocol.limits import Limits
    from sardonyx.serve.security.tls import Tls
    from sardonyx.serve.security.tokens import SCOPES, Tokens, read_tokens
    from sardonyx.serve.security.tokens import new_token as make_token

    if new_token is not None:
        scopes = new_token.split(",")
        if not set(scopes) <= set(SCOPES):
            raise OptionError(f"expected some of {', '.join(SCOPES)}, got {new_token!r}.", where="--new-token")
        token, line = make_token(scopes)
        if as_json:
            print_json({"token": token, "line": line})
        else:
            # The line may be appended to the file by the shell; the token is for the eyes of the user alone.
            print(f"Token for clients: {token}", file=sys.stderr)
            print_text(line)
        return
    if models is None:
        raise OptionError("expected a folder of models, or a model file.", where="models")
    if workers < 1:
        raise OptionError(f"expected at least 1 worker, got {workers}.", where="--workers")
    if (tls_cert is None) != (tls_key is None) or (tls_client_ca is not None and tls_cert is None):
        raise OptionError("expected a certificate and its key.", where="--tls-cert")
    from sardonyx.serve.observation.access_log import AccessLogWriter
    from sardonyx.serve.observation.traces import exporter_of
    from sardonyx.serve.server import Server
    from sardonyx.serve.workers import group_folder, is_worker, let_others_start, stop_with_supervisor

    with contextlib.ExitStack() as stack:
        stack.enter_context(_spelled())
        limits = Limits(
            body_bytes=parse_bytes(max_body, "--max-body"), queue_requests=max_queue, run_seconds=max_run,
            run_bytes=parse_bytes(max_memory, "--max-memory"),
        )  # fmt: skip
        log = None
        if access_log is not None:
            log = AccessLogWriter(stack.enter_context(_opened(access_log)))
        options: dict[str, Any] = {
            "http": http, "grpc": grpc, "grpc_engine": grpc_engine, "limits": limits, "control": control,
            "insecure": insecure,
            "tokens": Tokens() if token_file is None else read_tokens(token_file),
            "tls": None if tls_cert is None or tls_key is None else Tls(tls_cert, tls_key, tls_client_ca),
            "poll_seconds": poll, "drain_seconds": drain, "allow_inner": allow_inner,
            "allow_shared_memory": allow_client_shm, "strict_json": strict_json, "triton_metrics": triton_metrics,
            "access_log": log, "reuse_port": is_worker(), "group": group_folder(),
            "privacy": {} if privacy is None else _policies(privacy, privacy_ledger),
            "trace_exporter": None if trace is None else exporter_of(trace),
            "load": LoadOptions(threads, batch, allow_compiled, cache_answers),
        }  # fmt: skip
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
        server = Server(_source(models, lock), **options)
        if workers > 1 and not is_worker():
            if allow_client_shm:
                raise OptionError(
                    "a region would be registered in one worker of several.", where="--allow-client-shm",
                    remedy="Use one worker.",
                )  # fmt: skip
            raise typer.Exit(_supervise(http, grpc, workers, control != "off", drain, as_json))

        def announce(running: Server) -> None:
            _announce(running, as_json and not is_worker())
            let_others_start()

        server.run(
            announce,
            stop_with_supervisor if is_worker() else None,
        )


_SPELLINGS = {
    "batching.mode": "--batch", "drain_seconds": "--drain", "limits.queue_requests": "--max-queue",
    "limits.run_seconds": "--max-run", "poll_seconds": "--poll",
}  # fmt: skip
"""Options of the command line by the names of Python."""


@contextlib.contextmanager
def _spelled() -> Iterator[None]:
    """Let errors name options as the command line spells them."""
    try:
        yield
    except OptionError as error:
        if error.where not in _SPELLINGS:
            raise
        raise type(error)(error.problem, where=_SPELLINGS[error.where], remedy=error.remedy) from error


def _opened(access_log: Path) -> TextIO:
    try:
        return access_log.open("a", encoding="utf-8")
    except OSError as error:
        raise OptionError(f"cannot be written: {error.strerror}.", where="--access-log") from error


def _source(models: str, lock: Path | None) -> Path:
    """Return the path of the models; a model of the hub is downloaded, and needs a digest."""
    if models.partition(":")[0] in ("hf", "onnx", "oci", "https", "file"):
        from sardonyx.hub import get

        return get(models, lock=lock).path
    if lock is not None:
        raise OptionError(f"expected a name of the hub, got {models!r}.", where="--lock")
    return Path(models)


def _policies(path: Path, ledger: Path) -> Any:
    from sardonyx.privacy import Ledger, read_policies  # Imported late: few servers have policies.

    return read_policies(path, Ledger(ledger))


def _announce(server: Any, as_json: bool) -> None:
    models = [f"{entry['name']}:{entry['version']}" for entry in server.service.index(ready_only=True)]
    if as_json:
        print_json({"http": server.url_or_path, "grpc": server.grpc_port or None, "models": models})
        sys.stdout.flush()
        return
    also = f", gRPC on port {server.grpc_port}" if server.grpc_port else ""
    print_text(f"Serving {', '.join(models) or 'no model'} at {server.url_or_path}{also}")


def _supervise(http: str, grpc: str | None, workers: int, can_change: bool, drain: float, as_json: bool) -> int:
    from sardonyx.serve.server import Address
    from sardonyx.serve.workers import Supervisor, reserve_port

    address = Address.parse(http)
    if address.path or (grpc is not None and Address.parse(grpc).port == 0):
        raise OptionError("several workers share ports of TCP.", where="--workers", remedy="Name the ports.")
    with reserve_port(address.host, address.port) as holder:
        port = holder.getsockname()[1]
        if as_json:
            grpc_port = None if grpc is None else Address.parse(grpc).port
            print_json({"http": f"http://{address.host}:{port}", "grpc": grpc_port, "models": []})
            sys.stdout.flush()
        words = sys.argv[1:]
        return Supervisor([*words, "--http", f"{address.host}:{port}"], workers, drain, can_change).run()
