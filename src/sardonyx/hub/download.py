"""Downloads that trust no server: bounded in size and time, verified while written, resumed, renamed when complete."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import io
import ipaddress
import json
import os
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

from sardonyx.errors import DownloadError

OFFLINE = "SARDONYX_OFFLINE"
"""Environment variable: any value but 0 forbids every request."""

_CHUNK = 1 << 18
_SOCKET_SECONDS = 30.0
_SLOWEST = 1 << 10
"""Least bytes a second, on average over :data:`PATIENCE`."""
PATIENCE = 60.0
"""Seconds to wait for the head of an answer, and for every ``PATIENCE * _SLOWEST`` bytes of its body."""
_MOST_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_NO_SUCH_RANGE = 416
_PLAIN_TEXT_BYTES = 32 << 20
_LONGEST_URL = 8192


@dataclass(frozen=True)
class Digest:
    """The expected digest of a file.

    Attributes:
        algorithm: ``"sha256"``, or ``"git-sha1"``, the name of a file in a git repository: SHA-1 over a head with the
            size, then the contents.
        value: Hexadecimal digits.
    """

    algorithm: str
    value: str

    def __post_init__(self) -> None:
        length = {"sha256": 64, "git-sha1": 40}.get(self.algorithm, 0)
        if not re.fullmatch(rf"[0-9a-f]{{{length}}}", self.value) or not length:
            raise DownloadError(f"expected a {self.algorithm} digest, got {self.value[:80]!r}.", where="digest")

    def start(self, size: int) -> Any:
        """Return the hash before the contents of a file of this size."""
        if self.algorithm == "sha256":
            return hashlib.sha256()
        return hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)


def is_offline() -> bool:
    """Return True if the environment forbids requests."""
    return os.environ.get(OFFLINE, "0") not in ("", "0")


def read_json(url: str, headers: Mapping[str, str] | None = None) -> Any:
    """Return a JSON document of at most 32 MiB.

    Raises:
        DownloadError: The server cannot be reached, or answers with another status, too much, or no JSON.
    """
    content, _ = read_bytes(url, headers)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DownloadError(f"expected JSON: {error}.", where=_shown(url)) from error


def read_bytes(
    url: str, headers: Mapping[str, str] | None = None, limit: int = _PLAIN_TEXT_BYTES
) -> tuple[bytes, Mapping[str, str]]:
    """Return the body of an answer, at most ``limit`` bytes, and the headers, in small letters.

    Raises:
        DownloadError: See :func:`read_json`.
    """
    with _opened(url, dict(headers or {})) as answer:
        content = bytearray()
        while chunk := _read(answer, url):
            content += chunk
            if len(content) > limit:
                raise DownloadError(f"the answer exceeds {limit:,} bytes.", where=_shown(url))
        return bytes(content), {name.lower(): value for name, value in answer.getheaders()}


def download(
    url: str, part: Path, digest: Digest | None, size: int | None, limit: int, headers: Mapping[str, str] | None = None
) -> tuple[str, int]:
    """Download a file to ``part``, resuming what is there, and verify it.

    Args:
        url: The address.
        part: The incomplete file; the caller renames it.
        digest: The expected digest; None: the caller decides to trust the server.
        size: The expected number of bytes; None if unknown.
        limit: Most bytes to write.
        headers: Headers of the request; sent to the first host only.

    Returns:
        The SHA-256 of the file, and its size.

    Raises:
        DownloadError: The server sends another file, too much, too little, too slowly, or cannot be reached. A
            file with another digest is deleted; an incomplete one stays for the next try.
    """
    if size is not None and size > limit:
        raise DownloadError(f"has {size:,} bytes; {limit:,} may be written.", where=_shown(url))
    if digest is not None and digest.algorithm != "sha256" and size is None:
        raise DownloadError("a digest of git requires the size.", where=_shown(url))
    present = part.stat().st_size if part.exists() else 0
    if digest is None or (size is not None and present > size):
        present = 0  # Without a digest, nothing tells whether the part is of the same file.
    sums: tuple[str, str] | None = None
    if size is None or present < size or not part.exists():
        try:
            _transfer(url, part, present, size, limit, dict(headers or {}))
        except DownloadError as error:
            if error.status != _NO_SUCH_RANGE or digest is None or not present:
                raise
            # The part is complete, or of another file: without a size, the digest alone tells.
            sums = _sums(part, digest)
            if sums[1] != digest.value:
                sums = None
                _transfer(url, part, 0, size, limit, dict(headers or {}))
    actual = part.stat().st_size
    if size is not None and actual != size:
        raise DownloadError(f"expected {size:,} bytes, got {actual:,}: the connection ended.", where=_shown(url))
    sum, other = sums or _sums(part, digest)
    if digest is not None and other != digest.value:
        part.unlink()
        raise DownloadError(
            f"expected the {digest.algorithm} digest {digest.value}, got {other}.",
            where=_shown(url),
            remedy="The file is not the pinned one: do not use it.",
        )
    return sum, actual


def _sums(part: Path, digest: Digest | None) -> tuple[str, str]:
    """Return the SHA-256 of a file, and its sum by the algorithm of a digest."""
    sum = hashlib.sha256()
    other = sum if digest is None or digest.algorithm == "sha256" else digest.start(part.stat().st_size)
    with part.open("rb") as file:
        while chunk := file.read(_CHUNK):
            sum.update(chunk)
            if other is not sum:
                other.update(chunk)
    return sum.hexdigest(), other.hexdigest()


def _transfer(url: str, part: Path, present: int, size: int | None, limit: int, headers: dict[str, str]) -> None:
    if present:
        headers["Range"] = f"bytes={present}-"
    with _opened(url, headers, partial=bool(present)) as answer:
        if present and not re.match(rf"bytes {present}-\d+/", answer.getheader("Content-Range") or ""):
            present = 0
        flags = os.O_WRONLY | os.O_CREAT
        for name in ("O_CLOEXEC", "O_BINARY", "O_NOFOLLOW"):
            flags |= getattr(os, name, 0)
        with os.fdopen(os.open(part, flags, 0o600), "r+b") as file:
            file.truncate(present)
            file.seek(present)
            total = present
            most = limit if size is None else size
            while chunk := _read(answer, url):
                total += len(chunk)
                if total > most:
                    file.truncate(0)
                    raise DownloadError(f"the server sends more than {most:,} bytes.", where=_shown(url))
                try:
                    file.write(chunk)
                except OSError as error:
                    raise DownloadError(f"cannot be written: {error.strerror}.", where=str(part)) from error


def _read(answer: _Response, url: str) -> bytes:
    """Return the next bytes of a body; none at its end.

    Raises:
        DownloadError: The body ends early, or comes too slowly.
    """
    try:
        # One read of the socket: a server that sends byte by byte is seen between two bytes.
        with answer.pace.hurried():
            chunk = answer.read1(_CHUNK)
    except http.client.IncompleteRead as error:  # A body in chunks.
        raise DownloadError("the connection ended early.", where=_shown(url), remedy="Try again.") from error
    except (OSError, http.client.HTTPException) as error:
        raise DownloadError(f"the connection failed: {error}.", where=_shown(url), remedy="Try again.") from error
    if not chunk and answer.length:
        raise DownloadError(f"the connection ended {answer.length:,} bytes early.", where=_shown(url))
    answer.pace.advance(len(chunk))
    return chunk


class _Pace(io.RawIOBase):
    """The bytes of a socket, with a deadline that bytes of the framing (headers, sizes of chunks) do not move.

    Time between two reads of the body does not count: the disk may be slow.
    """

    def __init__(self, raw: io.RawIOBase, sock: socket.socket) -> None:
        self._raw, self._socket = raw, sock
        self._left, self._count = PATIENCE, 0
        self._deadline = time.monotonic() + PATIENCE  # For the head of the answer.

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left > 0:
            self._socket.settimeout(min(left, _SOCKET_SECONDS))
            with contextlib.suppress(TimeoutError):
                return self._raw.readinto(buffer)
            if left > _SOCKET_SECONDS:
                raise TimeoutError(f"no byte in {_SOCKET_SECONDS:.0f} s")
        raise TimeoutError(f"the server sent {self._count:,} bytes in {PATIENCE:g} s")

    def close(self) -> None:
        self._raw.close()
        super().close()

    @contextlib.contextmanager
    def hurried(self) -> Iterator[None]:
        """Let the time of one read of the body count."""
        self._deadline = time.monotonic() + self._left
        yield
        self._left = self._deadline - time.monotonic()

    def advance(self, count: int) -> None:
        """Record bytes of the body; enough of them move the deadline."""
        self._count += count
        if self._count >= PATIENCE * _SLOWEST:
            self._left, self._count = PATIENCE, 0


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.pace = _Pace(self.fp.detach(), sock)
        self.fp = io.BufferedReader(self.pace)


class _Answer(contextlib.AbstractContextManager[_Response]):
    def __init__(self, connection: http.client.HTTPConnection, response: _Response) -> None:
        self._connection, self._response = connection, response

    def __enter__(self) -> _Response:
        return self._response

    def __exit__(self, *_: object) -> None:
        self._response.close()
        self._connection.close()


def _opened(url: str, headers: dict[str, str], partial: bool = False) -> _Answer:
    """Send a GET request, follow redirects, and return the answer, whose body is not read."""
    if is_offline():
        raise DownloadError(f"{OFFLINE} forbids requests.", where=_shown(url), remedy=f"Unset {OFFLINE}.")
    origin = current = _parsed(url)
    for _ in range(_MOST_REDIRECTS + 1):
        connection, response = _request(current, headers)
        if response.status not in _REDIRECTS:
            return _checked(connection, response, current.geturl(), partial)
        connection.close()
        target = _parsed(_joined(current.geturl(), response.getheader("Location") or ""))
        if origin.scheme == "https" and target.scheme != "https":
            raise DownloadError("the server redirects from https to http.", where=_shown(url))
        require_elsewhere(origin.geturl(), target.geturl())
        if target.netloc != current.netloc:
            headers = {name: value for name, value in headers.items() if name != "Authorization"}
        current = target
    raise DownloadError(f"more than {_MOST_REDIRECTS} redirects.", where=_shown(url))


def _checked(connection: http.client.HTTPConnection, response: _Response, url: str, partial: bool) -> _Answer:
    encoding = response.getheader("Content-Encoding") or "identity"
    if response.status == 200 or (partial and response.status == 206):
        if encoding == "identity":
            return _Answer(connection, response)
        connection.close()
        raise DownloadError(f"the server sends the encoding '{encoding[:40]}', expected none.", where=_shown(url))
    challenge = response.getheader("WWW-Authenticate") or ""
    connection.close()
    error = DownloadError(
        f"the server answers {response.status} {response.reason[:80]}.",
        where=_shown(url),
        remedy="Check name and revision." if response.status == 404 else "",
    )
    error.status, error.challenge = response.status, challenge
    raise error


def require_elsewhere(origin: str, target: str) -> None:
    """Refuse an address in the network of this machine that a server elsewhere names.

    Raises:
        DownloadError: The target is such an address, or one of the addresses is malformed.
    """
    if not _is_local(_parsed(origin)) and _is_local(_parsed(target)):
        raise DownloadError("the server names an address of this network.", where=_shown(origin))


def _joined(base: str, location: str) -> str:
    try:
        return urljoin(base, location)
    except ValueError as error:
        raise DownloadError("the server redirects to a malformed address.", where=_shown(base)) from error


def _parsed(url: str) -> SplitResult:
    try:
        parts = urlsplit(url if len(url) <= _LONGEST_URL else "")
        _ = parts.port
    except ValueError as error:
        raise DownloadError("expected an https address.", where=_shown(url)) from error
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.username or not url.isprintable():
        raise DownloadError("expected an https address.", where=_shown(url))
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise DownloadError("expected https; http is for this machine alone.", where=_shown(url))
    return parts


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_local(parts: SplitResult) -> bool:
    """Return True if a host is, or has an address, on this machine or in its network."""
    host = parts.hostname or ""
    try:
        addresses = {str(entry[4][0]).split("%")[0] for entry in socket.getaddrinfo(host, None)}
    except OSError:  # The request reports the error.
        return False
    return any(not ipaddress.ip_address(address).is_global for address in addresses)


def _request(parts: SplitResult, headers: Mapping[str, str]) -> tuple[http.client.HTTPConnection, _Response]:
    host = parts.hostname or ""
    context = ssl.create_default_context() if parts.scheme == "https" else None
    connection = http.client.HTTPConnection(host, parts.port)
    if context is not None:
        connection = http.client.HTTPSConnection(host, parts.port, context=context)
    connection.response_class = _Response
    path = parts.path or "/"
    try:
        connection.sock = _connected(host, connection.port, context, time.monotonic() + PATIENCE)
        connection.request(
            "GET",
            f"{path}?{parts.query}" if parts.query else path,
            headers={"Accept-Encoding": "identity", "User-Agent": "sardonyx", "Connection": "close", **headers},
        )
        response = connection.getresponse()
        assert isinstance(response, _Response)
        return connection, response
    except (OSError, http.client.HTTPException, ValueError) as error:
        connection.close()
        raise DownloadError(f"cannot be reached: {error}.", where=_shown(parts.geturl())) from error


def _connected(host: str, port: int, context: ssl.SSLContext | None, deadline: float) -> socket.socket:
    """Return a socket to the first address of a host that answers; a deadline holds for all of them and TLS.

    Raises:
        OSError: No address answers in time, or the certificate is not that of the host.
    """
    failure: OSError | None = None
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for index, (family, kind, protocol, _, address) in enumerate(entries):
        left = len(entries) - index
        sock: socket.socket | None = None
        try:
            seconds = _seconds_until(deadline, left)
            sock = socket.socket(family, kind, protocol)  # The system may lack the family, e.g. IPv6.
            sock.settimeout(seconds)
            sock.connect(address)
            _send_at_once(sock)
            if context is not None:
                sock.settimeout(_seconds_until(deadline, left))  # The time of the whole handshake.
                sock = context.wrap_socket(sock, server_hostname=host)
            sock.settimeout(_SOCKET_SECONDS)
            return sock
        except OSError as error:
            if sock is not None:
                sock.close()
            failure = error
            if isinstance(error, ssl.SSLError) or time.monotonic() >= deadline:
                break
    raise failure or OSError("the name has no address")


def _send_at_once(sock: socket.socket) -> None:
    """Let a socket send without waiting for more, where its protocol can, as http.client does."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise


def _seconds_until(deadline: float, addresses: int) -> float:
    """Return the share of one of the addresses that are left in the time until a deadline."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return min(left / addresses, _SOCKET_SECONDS)


def _shown(url: str) -> str:
    """Return an address for messages, without query, which may hold a token."""
    shown = url.split("?", 1)[0].split("#", 1)[0]
    return shown[:200] + ("…" if len(shown) > 200 else "")
