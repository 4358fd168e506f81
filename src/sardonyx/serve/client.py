"""A client of the protocol over HTTP: binary tensors, connections that stay open, usable from many threads."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np

from sardonyx.errors import OptionError, RequestError
from sardonyx.serve.protocol import datatypes
from sardonyx.serve.protocol.refusals import REFUSALS
from sardonyx.serve.protocol.strings import parse_strings, string_array, write_strings

_KINDS = {status.http: kind for kind, status in reversed(REFUSALS.items())}
_LARGEST_ANSWER = 4 << 30


@dataclass(frozen=True)
class Result:
    """The answer to a request.

    Attributes:
        outputs: The arrays by output name.
        revision: The revision of the model that computed all outputs; None from other servers.
        version: The version of the model.
    """

    outputs: Mapping[str, np.ndarray]
    revision: int | None
    version: str


class Client:
    """A client of one server.

    Args:
        url: The address, e.g. ``http://127.0.0.1:8000``.
        token: The bearer token; empty for none.
        timeout: Seconds to wait for an answer.
        tls: The TLS settings for ``https``; the system's certificates if None.
        retries: Number of repetitions of requests that the server has refused to compute.

    Example:
        >>> with Client("http://127.0.0.1:8000") as client:
        ...     client.infer("net", {"x": x}).outputs["y"]
    """

    def __init__(
        self, url: str, token: str = "", timeout: float = 60.0, tls: ssl.SSLContext | None = None, retries: int = 3
    ) -> None:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            self._port = parts.port
        except ValueError:
            # Without the error of the library, which may quote a password.
            raise OptionError(f"expected http://host:port, got {_shown(url)!r}.", where="url") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise OptionError(f"expected http://host:port, got {_shown(url)!r}.", where="url")
        if not isinstance(timeout, (int, float, np.floating)) or not 0 < timeout < threading.TIMEOUT_MAX:
            raise OptionError(f"expected a number of seconds above 0, got {timeout!r}.", where="timeout")
        self._host, self._is_tls = parts.hostname, parts.scheme == "https"
        self._address = parts.netloc.rpartition("@")[2]
        self._path = parts.path.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout = timeout
        self._tls = tls
        self._retries = retries
        self._own = threading.local()
        self._open: weakref.WeakSet[http.client.HTTPConnection] = weakref.WeakSet()
        self._lock = threading.Lock()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connections of all threads; a later request opens another one."""
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            connection.close()

    def infer(
        self, model: str, inputs: Mapping[str, Any], outputs: Sequence[str] = (), version: str = "", **parameters: Any
    ) -> Result:
        """Run a model on the server.

        Args:
            model: The name of the model.
            inputs: Arrays by input name.
            outputs: Names of the requested outputs; all if empty.
            version: The version; empty for the newest.
            parameters: Parameters of the protocol, e.g. ``priority`` or ``timeout``.

        Raises:
            RequestError: The server refuses the request; ``kind`` names the reason.
        """
        heads, buffers = [], []
        for name, value in inputs.items():
            array = np.asarray(value)
            datatype = datatypes.of_array(array)
            data = write_strings(array) if datatype.size == 0 else np.ascontiguousarray(array).tobytes()
            parameter = {"binary_data_size": len(data)}
            heads.append({
                "name": name, "datatype": datatype.name, "shape": list(array.shape), "parameters": parameter,
            })  # fmt: skip
            buffers.append(data)
        request: dict[str, Any] = {"inputs": heads, "parameters": {"binary_data_output": True, **parameters}}
        if outputs:
            request["outputs"] = [{"name": name} for name in outputs]
        head = json.dumps(request).encode()
        headers = {
            "Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head)),
        }  # fmt: skip
        path = f"{model_path(model, version)}/infer"
        answered, body = self.request("POST", path, b"".join((head, *buffers)), headers)
        return read_result(body, answered.get("inference-header-content-length"))

    def get(self, path: str) -> Any:
        """Return the JSON at a path such as ``/v2/models/net``."""
        return _parsed(self.request("GET", path)[1])

    def post(self, path: str, body: object = None, content_type: str = "application/json") -> Any:
        """Send JSON, or bytes, to a path, and return the JSON of the answer; None if the answer is empty."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return _parsed(self.request("POST", path, data, {"Content-Type": content_type})[1])

    def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[dict[str, str], bytes]:
        """Send a request; repeat it only if the server has not begun to compute it.

        Returns:
            The header fields by name in lower case, and the body.

        Raises:
            RequestError: The server refuses the request, or cannot be reached.
        """
        for attempt in range(self._retries + 1):
            error, wait = self._try(method, path, body, {**self._headers, **(headers or {})})
            if not isinstance(error, RequestError):
                return error
            if wait is None or attempt == self._retries:
                raise error
            time.sleep(min(wait, 10.0))
        raise AssertionError("internal: the last attempt raises.")

    def _try(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[RequestError | tuple[dict[str, str], bytes], float | None]:
        connection: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        is_new = connection is None
        if connection is None:
            connection = self._own.connection = self._connect()
        try:
            connection.request(method, self._path + path, body, dict(headers))
            response = connection.getresponse()
            data = response.read(_LARGEST_ANSWER)
        except ValueError as error:
            connection.close()
            self._own.connection = None
            return RequestError(f"the request cannot be sent: {error}", where=self._address), None
        except (OSError, http.client.HTTPException) as error:
            self._own.connection = None
            connection.close()
            # The server may have closed an idle connection; a new connection that fails has sent nothing.
            was_idle = isinstance(error, (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError))
            can_repeat = isinstance(error, ConnectionRefusedError) or (was_idle and not is_new)
            refused = RequestError(f"the server cannot be reached: {error}", kind="unavailable", where=self._address)
            return refused, 0.2 if can_repeat else None
        answered = {name.lower(): value for name, value in response.getheaders()}
        if response.status < 400:
            return (answered, data), None
        kind = _KINDS.get(response.status, "internal")
        after = answered.get("retry-after", "")
        return RequestError(_message(data), kind=kind), float(after) if after.isdecimal() else None

    def _connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        if self._is_tls:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout, context=self._tls)
        with self._lock:
            self._open.add(connection)
        return connection


def _shown(url: str) -> str:
    """Return an address for messages, without user and password."""
    begin, separator, rest = url.rpartition("@")
    scheme = begin.partition("://")[0] + "://" if "://" in begin else ""
    return f"{scheme}{rest}" if separator else url


def model_path(model: str, version: str = "") -> str:
    """Return the path of a model."""
    path = f"/v2/models/{quote(model, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path


def _message(data: bytes) -> str:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    return str(value.get("error", "")) if isinstance(value, dict) else f"the server answered: {data[:200]!r}"


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data) if data.strip() else None
    except (ValueError, RecursionError) as error:
        raise RequestError("the answer of the server is not JSON.", kind="internal") from error


def read_result(body: bytes, head_length: str | None) -> Result:
    """Return the answer of a server, which may be any server.

    Args:
        body: The body of the answer.
        head_length: The field ``Inference-Header-Content-Length`` of the answer; None without the field.

    Raises:
        RequestError: The answer is malformed.
    """
    try:
        return _read_result(body, head_length)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise RequestError(f"the answer of the server is malformed: {error}.", kind="internal") from error


def _read_result(body: bytes, head_length: str | None) -> Result:
    length = int(head_length) if head_length is not None and head_length.isdecimal() else len(body)
    head = _parsed(body[:length])
    if not isinstance(head, dict) or not isinstance(head.get("outputs"), list):
        raise RequestError("the answer of the server has no outputs.", kind="internal")
    outputs, offset = {}, length
    for part in head["outputs"]:
        size = part.get("parameters", {}).get("binary_data_size")
        datatype = datatypes.named(part["datatype"], part["name"])
        shape = part["shape"]
        if size is None:
            data = part.get("data", [])
            is_text = datatype.size == 0
            array = string_array(data, shape) if is_text else np.array(data, datatype.dtype).reshape(shape)
        else:
            if type(size) is not int or not 0 <= size <= len(body) - offset:
                raise ValueError(f"{str(size)[:20]} bytes of the output {str(part['name'])[:64]}")
            raw = memoryview(body)[offset : offset + size]
            offset += size
            if datatype.size == 0:
                array = string_array(parse_strings(raw, int(np.prod(shape, dtype=object)), part["name"]), shape)
            else:
                array = np.frombuffer(raw, datatype.dtype).reshape(shape)
        outputs[part["name"]] = array
    revision = head.get("parameters", {}).get("sardonyx_revision")
    return Result(outputs, revision, str(head.get("model_version", "")))
