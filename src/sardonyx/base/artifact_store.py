"""What was computed once, kept on disk for the next process: object code, whole programs, prepared weights.

Entries are named by a digest of everything that they were made from, so they never change and never go stale; the
folder may be deleted, or shared by processes, at any time. An entry is written beside its place and renamed into it;
its checksum is verified whenever it is read, and one that does not hold is deleted and counts as missing. A store that
cannot be written (read-only, full, no place for it) is noted once and does without.

The folder is ``~/.cache/sardonyx``, or what ``SARDONYX_CACHE`` says (``off``, or nothing: none). Whoever may write
there may have code run as you.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args, overload

import numpy as np

_log = logging.getLogger(__name__)

Kind = Literal["object", "program", "weights"]

LIMIT = 4 << 30
"""Bytes that a store may hold; beyond them what was not used for longest goes."""

_KEPT = 0.8
"""The part of the limit that is left after that, so that it is not done for every entry."""

_HEADER = struct.Struct("<8s32sQ16x")
_MAGIC = b"sardonyx"
_BLOCK = 64 << 10
_ABANDONED_SECONDS = 3600
_USED_SECONDS = 60
"""How coarse the time of last use may be: to write it costs as much as to read a small entry."""


def digest(*parts: str | bytes) -> str:
    """A name for what is made from these parts, as 40 hexadecimal digits."""
    sum = hashlib.blake2b(digest_size=20)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        sum.update(len(data).to_bytes(8, "little"))
        sum.update(data)
    return sum.hexdigest()


def store() -> Store:
    """The user's store."""
    return _store(os.environ.get("SARDONYX_CACHE"))


@functools.cache
def _store(setting: str | None) -> Store:
    if setting is not None:
        return Store(None if setting in ("", "off") else Path(setting))
    try:
        return Store(Path.home() / ".cache" / "sardonyx")
    except RuntimeError as error:
        _log.warning("compiled code is not kept between processes: %s", error)
        return Store(None)


class Store:
    """A folder of entries by kind and name.

    Args:
        folder: Where they are; it is made when there is something to keep. None: nothing is kept.
        limit: Bytes that all entries together may take.
    """

    def __init__(self, folder: Path | None, limit: int = LIMIT) -> None:
        self.folder = folder
        self._limit = limit
        self._writable = folder is not None
        self._readable = folder is not None
        self._total: int | None = None  # At the last count; others write too.
        self._added = 0  # Since then.

    @overload
    def get(self, kind: Literal["weights"], key: str) -> memoryview | None: ...
    @overload
    def get(self, kind: Literal["object", "program"], key: str) -> bytes | None: ...
    def get(self, kind: Kind, key: str) -> bytes | memoryview | None:
        """An entry, verified; None where there is none.

        Weights are mapped from the file: read-only, shared by all who ask for them, aligned to 64 bytes.
        """
        path = self._path(kind, key)
        if path is None or not self._readable:
            return None
        try:
            with path.open("rb") as file:
                found = _mapped(file.fileno()) if kind == "weights" else file.read()
                if os.fstat(file.fileno()).st_mtime < time.time() - _USED_SECONDS:
                    # Where the time of use cannot be written, the entry is as good.
                    with contextlib.suppress(OSError):
                        os.utime(file.fileno() if os.utime in os.supports_fd else path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._readable = False
            _log.warning("compiled code is not read from %s: %s", self.folder, error)
            return None
        data = memoryview(found)[_HEADER.size :]
        if bytes(found[: _HEADER.size]) != _header(kind, key, data):
            _log.warning("%s is damaged; it is made anew.", path)
            _delete(path)
            return None
        return data if kind == "weights" else bytes(data)

    def put(self, kind: Kind, key: str, data: bytes | memoryview) -> None:
        """Keep an entry, if that can be done.

        Args:
            kind: What it is.
            key: Its name (see :func:`digest`).
            data: Its bytes.
        """
        path = self._path(kind, key)
        size = _HEADER.size + len(data)
        if path is None or not self._writable or size > self._limit * _KEPT:
            return
        header = _header(kind, key, data)
        try:
            try:
                self._keep(path, header, data)
            except FileNotFoundError:  # The folder was deleted just now.
                self._keep(path, header, data)
        except OSError as error:
            self._writable = False
            _log.warning("compiled code is not kept in %s: %s", self.folder, error)

    def _keep(self, path: Path, header: bytes, data: bytes | memoryview) -> None:
        path.parents[1].mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        self._make_room(len(header) + len(data))
        write_whole(path, header, data)

    def _path(self, kind: Kind, key: str) -> Path | None:
        if not key.isalnum():
            raise ValueError(f"{key!r} is no digest")
        return self.folder / kind / key if self.folder else None

    def _make_room(self, size: int) -> None:
        """Count what there is, now and then, and delete what was not used for longest where it is too much."""
        self._added += size
        if self._total is not None and self._total + self._added <= self._limit and self._added <= self._limit // 16:
            return
        entries = sorted(self._entries())
        total = sum(bytes for _, bytes, _ in entries)
        if total + size > self._limit:
            for _, bytes, path in entries:
                if total + size <= self._limit * _KEPT:
                    break
                if path:
                    _delete(path)
                    total -= bytes
        self._total, self._added = total, size

    def _entries(self) -> Iterator[tuple[float, int, str]]:
        """Time of last use, size and place of each; no place where it is being written.

        What a writer that was killed left behind is deleted.
        """
        abandoned = time.time() - _ABANDONED_SECONDS
        for kind in get_args(Kind):
            folder = Path(self.folder or "", kind)
            if not folder.is_dir():
                continue
            with os.scandir(folder) as found:
                for each in found:
                    try:
                        state = each.stat()
                    except FileNotFoundError:
                        continue  # Another process deleted it.
                    unfinished = each.name.startswith(".")
                    if unfinished and state.st_mtime < abandoned:
                        _delete(each.path)
                    else:
                        yield state.st_mtime, state.st_size, "" if unfinished else each.path


def _mapped(file: int) -> mmap.mmap | bytes:
    return mmap.mmap(file, 0, access=mmap.ACCESS_READ) if os.fstat(file).st_size else b""


def write_whole(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file that is there as a whole or not at all."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(descriptor, "wb") as file:
            for part in parts:
                file.write(part)
        Path(temporary).replace(path)
    except BaseException:
        _delete(temporary)
        raise


def _delete(path: str | Path) -> None:
    # Another process may have done so; where it is not allowed, the entry is met again and refused again.
    with contextlib.suppress(OSError):
        Path(path).unlink()


def _header(kind: Kind, key: str, data: bytes | memoryview) -> bytes:
    return _HEADER.pack(_MAGIC, checksum(f"{kind} {key}", data), len(data))


def checksum(name: str, data: bytes | memoryview) -> bytes:
    """Tells data that were damaged, cut off, or are what has another name; made for speed, not against forgery.

    Blocks of 64 KiB are summed as 64-bit numbers, at the memory's speed; what is digested is the sums, and what
    does not fill a block.
    """
    whole = len(data) // _BLOCK
    sums = np.add.reduce(np.frombuffer(data, "<u8", whole * _BLOCK // 8).reshape(whole, _BLOCK // 8), axis=1)
    sum = hashlib.blake2b(name.encode(), digest_size=32)
    sum.update(sums.tobytes())
    sum.update(memoryview(data)[whole * _BLOCK :])
    return sum.digest()
