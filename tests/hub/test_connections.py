"""Connections of downloads share one deadline; locks wait, or name what the file system lacks."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sardonyx.errors import DownloadError
from sardonyx.hub.cache import Cache
from sardonyx.hub.download import download
from sardonyx.hub.file_lock import hold
from sardonyx.hub.lock import Lock, LockedModel
from tests.hub.conftest import Hub

DIGEST = hashlib.sha256(b"model").hexdigest()


@pytest.mark.parametrize("addresses", [1, 50])
def test_a_server_that_does_not_begin_tls_is_left(
    addresses: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sardonyx.hub.download.PATIENCE", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        entry = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
        monkeypatch.setattr("sardonyx.hub.download.socket.getaddrinfo", lambda *_, **__: [entry] * addresses)
        begin = time.monotonic()
        with pytest.raises(DownloadError, match=r"cannot be reached: .*timed out"):
            download(f"https://127.0.0.1:{port}/a", tmp_path / "a.part", None, None, 1 << 20)
        assert time.monotonic() < begin + 20


def test_the_next_address_of_a_host_is_tried(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        refusing = closed.getsockname()
    families = [(250, refusing), (socket.AF_INET, refusing), (socket.AF_INET, hub.server.server_address)]
    entries = [(family, socket.SOCK_STREAM, 6, "", address) for family, address in families]  # No system has the first.
    hub.files["/a"] = b"model"
    monkeypatch.setattr("sardonyx.hub.download.socket.getaddrinfo", lambda *_, **__: entries)
    assert download(f"{hub.url}/a", tmp_path / "a.part", None, None, 1 << 20) == (
        hashlib.sha256(b"model").hexdigest(),
        5,
    )


def test_addresses_share_the_time_of_a_host(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Addressed(socket.socket):
        def connect(self, address: Any) -> None:
            if address[0] != "127.0.0.1":  # Dead.
                time.sleep(self.gettimeout() or 0)
                raise TimeoutError("timed out")
            super().connect(address)

    hosts = ["192.0.2.1"] * 3 + ["127.0.0.1"]
    entries = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, hub.server.server_port)) for host in hosts]
    hub.files["/a"] = b"model"
    monkeypatch.setattr("sardonyx.hub.download.PATIENCE", 0.6)
    monkeypatch.setattr("sardonyx.hub.download.socket.getaddrinfo", lambda *_, **__: entries)
    monkeypatch.setattr("sardonyx.hub.download.socket.socket", Addressed)
    assert download(f"{hub.url}/a", tmp_path / "a.part", None, None, 1 << 20) == (
        hashlib.sha256(b"model").hexdigest(),
        5,
    )


class LockedBytes:
    """The part of `msvcrt` that locks files, for the processes of Windows; a file is locked by one descriptor."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        self.tries = 0
        self.free_at = 3
        self.error = errno.EACCES

    def locking(self, descriptor: int, mode: int, count: int) -> None:
        assert (mode, count, os.lseek(descriptor, 0, os.SEEK_CUR)) == (self.LK_NBLCK, 1, 0)
        self.tries += 1
        if self.tries < self.free_at:
            raise OSError(self.error, os.strerror(self.error))


def test_locks_of_windows_wait_or_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = LockedBytes()
    monkeypatch.setitem(sys.modules, "msvcrt", locked)
    monkeypatch.setattr("sardonyx.hub.file_lock.IS_POSIX", False)
    with (tmp_path / "a").open("wb") as file:
        with pytest.raises(OSError, match="Permission denied"):
            hold(file.fileno(), wait=False)
        hold(file.fileno(), wait=True)
        assert locked.tries == locked.free_at
        locked.free_at, locked.error = 9, errno.EINVAL  # A file system without locks.
        with pytest.raises(OSError, match="Invalid argument"):
            hold(file.fileno(), wait=True)


@pytest.mark.skipif(os.name != "posix", reason="the system has no flock")
def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", fail)
    with pytest.raises(DownloadError, match="cannot be locked: No locks available"):
        Lock.add(tmp_path / "models.lock", "a", LockedModel("1", {}))
    with pytest.raises(DownloadError, match="cannot be locked: No locks"), Cache(tmp_path, 1 << 20).incomplete("a"):
        pass
