"""A store on disk for artifacts of compilation: object code, lowered kernels, program images, packed weights.

An entry is named by a digest of everything that the artifact depends on, so an entry never changes and never becomes
stale; the folder may be deleted, or shared by processes, at any time. An entry is written to a temporary file and
renamed; the checksum is verified on every read, and a damaged entry is deleted and counts as missing. If the folder
cannot be written (read-only, disk full), one warning is logged and nothing is stored.

The folder is ``~/.cache/sardonyx``, or the value of ``SARDONYX_CACHE`` (``off`` or empty: no store). Any user with
write access to the folder can have code run as the user of the store.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import mmap
import os
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, get_args, overload

import numpy as np

from sardonyx.base.blake import blake2b

_log = logging.getLogger(__name__)

Kind = Literal["object", "kernel", "program", "weights", "fact"]

LIMIT = 4 << 30
"""Bytes that a store may hold; beyond the limit, least recently used entries are deleted."""

_FILL_AFTER_EVICTION = 0.8
"""Share of the limit that remains filled after an eviction, so that evictions are rare."""

_HEADER = struct.Struct("<8s32sQ16x")
_MAGIC = b"sardonyx"
_BLOCK = 64 << 10
_ABANDONED_SECONDS = 3600
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_USED_SECONDS = 60
"""Resolution of the time of last use: updating the time costs as much as reading a small entry."""


def digest(*parts: str | bytes | memoryview) -> str:
    """Return a name for an artifact with these dependencies, as 40 hexadecimal digits."""
    sum = blake2b(digest_size=20)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        sum.update(len(data).to_bytes(8, "little"))
        sum.update(data)
    return sum.hexdigest()


_scoped: contextvars.ContextVar[Store | None] = contextvars.ContextVar("sardonyx-store", default=None)
_guarded = threading.Event()


def store() -> Store:
    """Return the store of the enclosing :func:`using`, else the user's store.

    After :func:`guard`, nothing is written to the user's store outside of :func:`using`.
    """
    scoped = _scoped.get()
    if scoped is not None:
        return scoped
    setting = os.environ.get("SARDONYX_CACHE")
    return _read_only_store(setting) if _guarded.is_set() else _store(setting)


def user_store() -> Store:
    """Return the user's store, for artifacts of models that are not encrypted."""
    return _store(os.environ.get("SARDONYX_CACHE"))


@contextlib.contextmanager
def using(chosen: Store) -> Iterator[None]:
    """Let :func:`store` return ``chosen`` inside of the ``with`` statement, in this thread."""
    token = _scoped.set(chosen)
    try:
        yield
    finally:
        _scoped.reset(token)


def guard() -> None:
    """Record that the process holds an encrypted model: artifacts of unknown origin are no longer stored."""
    _guarded.set()


def is_guarded() -> bool:
    """Return True after :func:`guard`."""
    return _guarded.is_set()


@functools.cache
def _read_only_store(setting: str | None) -> Store:
    return Store(_store(setting).folder, writable=False)


@functools.cache
def _store(setting: str | None) -> Store:
    if setting is not None:
        return Store(None if setting in ("", "off") else Path(setting))
    try:
        return Store(Path.home() / ".cache" / "sardonyx")
    except RuntimeError as error:
        _log.warning("compiled code is not stored for later processes: %s", error)
        return Store(None)


class Store:
    """A folder of entries, by kind and name.

    Args:
        folder: The folder; created for the first entry. None: nothing is stored.
        limit: Bytes that all entries together may take.
        writable: False for a store that only reads.
    """

    def __init__(self, folder: Path | None, limit: int = LIMIT, writable: bool = True) -> None:
        self.folder = folder
        self._limit = limit
        self._writable = writable and folder is not None
        self._readable = folder is not None
        self._total: int | None = None  # At the last count; other processes write too.
        self._added = 0  # Since then.

    @overload
    def get(self, kind: Literal["weights"], key: str) -> memoryview | None: ...
    @overload
    def get(self, kind: Literal["object", "kernel", "program", "fact"], key: str) -> bytes | None: ...
    def get(self, kind: Kind, key: str) -> bytes | memoryview | None:
        """Return an entry, verified; None if missing.

        Weights are mapped from the file: read-only, shared by all readers, aligned to 64 bytes.
        """
        path = self._path(kind, key)
        if path is None or not self._readable:
            return None
        try:
            with path.open("rb") as file:
                contents = _mapped(file.fileno()) if kind == "weights" else file.read()
                if os.fstat(file.fileno()).st_mtime < time.time() - _USED_SECONDS:
                    # The entry is valid even if the time of use cannot be written.
                    with contextlib.suppress(OSError):
                        os.utime(file.fileno() if os.utime in os.supports_fd else path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._readable = False
            _log.warning("compiled code is not read from %s: %s", self.folder, error)
            return None
        data = memoryview(contents)[_HEADER.size :]
        if bytes(contents[: _HEADER.size]) != _header(kind, key, data):
            _log.warning("%s is damaged and is replaced.", path)
            _delete(path)
            return None
        return data if kind == "weights" else bytes(data)

    def put(self, kind: Kind, key: str, *parts: bytes | memoryview) -> None:
        """Store an entry; a failure is logged once.

        Args:
            kind: Kind of the artifact.
            key: Name of the entry (see :func:`digest`).
            parts: Contents of the entry, consecutive bytes.
        """
        path = self._path(kind, key)
        size = _HEADER.size + sum(map(len, parts))
        if path is None or not self._writable or size > self._limit * _FILL_AFTER_EVICTION:
            return
        header = _header(kind, key, *parts)
        try:
            try:
                self._write(path, header, *parts)
            except FileNotFoundError:  # The folder was deleted just now.
                self._write(path, header, *parts)
        except OSError as error:
            self._writable = False
            _log.warning("compiled code is not stored in %s: %s", self.folder, error)

    def _write(self, path: Path, *parts: bytes | memoryview) -> None:
        path.parents[1].mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        self._make_room(sum(map(len, parts)))
        write_whole(path, *parts)

    def _path(self, kind: Kind, key: str) -> Path | None:
        if not key.isalnum():
            raise ValueError(f"expected a digest of hexadecimal digits, got {key!r}")
        return self.folder / kind / key if self.folder else None

    def _make_room(self, size: int) -> None:
        """Count the entries now and then, and delete the least recently used ones if they exceed the limit."""
        self._added += size
        if self._total is not None and self._total + self._added <= self._limit and self._added <= self._limit // 16:
            return
        entries = sorted(self._entries())
        total = sum(bytes for _, bytes, _ in entries)
        if total + size > self._limit:
            for _, bytes, path in entries:
                if total + size <= self._limit * _FILL_AFTER_EVICTION:
                    break
                if path:
                    _delete(path)
                    total -= bytes
        self._total, self._added = total, size

    def _entries(self) -> Iterator[tuple[float, int, str]]:
        """Yield time of last use, size and path of each entry; the path is empty for files being written.

        Temporary files of writers that were killed are deleted.
        """
        abandoned = time.time() - _ABANDONED_SECONDS
        for kind in get_args(Kind):
            folder = Path(self.folder or "", kind)
            if not folder.is_dir():
                continue
            with os.scandir(folder) as files:
                for file in files:
                    try:
                        state = file.stat()
                    except FileNotFoundError:
                        continue  # Another process deleted it.
                    unfinished = file.name.startswith(".")
                    if unfinished and state.st_mtime < abandoned:
                        _delete(file.path)
                    else:
                        yield state.st_mtime, state.st_size, "" if unfinished else file.path


def _mapped(file: int) -> mmap.mmap | bytes:
    return mmap.mmap(file, 0, access=mmap.ACCESS_READ) if os.fstat(file).st_size else b""


def write_whole(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file atomically: afterwards the file is complete, or as before."""
    write_stream(path, parts)


def write_stream(path: Path, parts: Iterable[bytes | bytearray | memoryview]) -> None:
    """Write a file atomically from parts that are computed one by one; an error leaves the file as before."""
    temporary = path.with_name(f".{os.urandom(8).hex()}")
    try:
        with os.fdopen(os.open(temporary, _NEW_FILE, 0o600), "wb") as file:
            for part in parts:
                file.write(part)
        temporary.replace(path)
    except BaseException:
        _delete(temporary)
        raise


def _delete(path: str | Path) -> None:
    # Another process may have deleted the file. Without permission, the damaged entry is refused at every read.
    with contextlib.suppress(OSError):
        Path(path).unlink()


def _header(kind: Kind, key: str, *parts: bytes | memoryview) -> bytes:
    return _HEADER.pack(_MAGIC, checksum(f"{kind} {key}", *parts), sum(map(len, parts)))


def checksum(name: str, *parts: bytes | memoryview) -> bytes:
    """Return a checksum of a name and consecutive bytes, against damage and truncation but not against forgery.

    Blocks of 64 KiB are summed as 64-bit numbers, at memory speed; the digest covers these sums and the incomplete last
    block.
    """
    sums, rest = [], bytearray()
    for part in parts:
        data = memoryview(part)
        if rest:
            missing = min(_BLOCK - len(rest), len(data))
            rest += data[:missing]
            data = data[missing:]
            if len(rest) == _BLOCK:
                sums.append(_block_sums(memoryview(bytes(rest))))
                rest.clear()
        whole = len(data) // _BLOCK * _BLOCK
        if whole:
            sums.append(_block_sums(data[:whole]))
        rest += data[whole:]
    sum = blake2b(name.encode(), digest_size=32)
    for block_sums in sums:
        sum.update(block_sums)
    sum.update(rest)
    return sum.digest()


def _block_sums(blocks: memoryview) -> bytes:
    words = np.frombuffer(blocks, "<u8").reshape(-1, _BLOCK // 8)
    return bytes(np.add.reduce(words, axis=1).tobytes())
