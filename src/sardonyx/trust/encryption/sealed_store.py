"""The store of an encrypted model's artifacts: entries are encrypted with a key derived from the model's data key."""

from __future__ import annotations

import hmac
import logging
import os
from pathlib import Path
from typing import Literal, overload

from sardonyx.base.artifact_store import Kind, Store, guard, user_store
from sardonyx.base.mapped_files import map_file
from sardonyx.errors import EncryptionError
from sardonyx.trust.encryption.head import read_head
from sardonyx.trust.encryption.key_ring import find_data_key
from sardonyx.trust.encryption.plain_memory import allocate
from sardonyx.trust.encryption.reader import OpenedFile, authorize
from sardonyx.trust.encryption.segments import decrypt_stream, derive_key, encrypt_stream, plain_size

_log = logging.getLogger(__name__)


class SealedStore(Store):
    """A store whose entries only the holders of one key can read, or recognize by name.

    Args:
        folder: The folder of the user's store; None: nothing is stored.
        key: The key of the entries.
    """

    def __init__(self, folder: Path | None, key: bytes) -> None:
        super().__init__(folder)
        self._key = key

    @overload
    def get(self, kind: Literal["weights"], key: str) -> memoryview | None: ...
    @overload
    def get(self, kind: Literal["object", "kernel", "program", "fact"], key: str) -> bytes | None: ...
    def get(self, kind: Kind, key: str) -> bytes | memoryview | None:
        """Return an entry, decrypted into memory; None if missing or not authentic."""
        stored = super().get(kind, self._name(kind, key))
        if stored is None:
            return None
        stream = memoryview(stored)
        try:
            target = allocate(plain_size(len(stream)))
            decrypt_stream(self._key, _context(kind, key), stream, target)
        except EncryptionError as error:
            _log.warning("an encrypted entry of the store is ignored: %s", error)
            return None
        return target.toreadonly() if kind == "weights" else bytes(target)

    def put(self, kind: Kind, key: str, *parts: bytes | memoryview) -> None:
        """Encrypt and store an entry; a failure is logged once."""
        if self.folder is None:
            return
        size = sum(map(len, parts))
        super().put(kind, self._name(kind, key), *encrypt_stream(self._key, _context(kind, key), parts, size))

    def _name(self, kind: Kind, key: str) -> str:
        """Return the name of an entry on disk, which does not tell the digest of the plain contents."""
        return hmac.digest(self._key, _context(kind, key), "sha256").hex()[: len(key)]


def sealed_store(source: str | os.PathLike[str] | OpenedFile) -> SealedStore:
    """Return the store of an encrypted model, after licence and generation are checked.

    Args:
        source: The path of the encrypted model, or the opened file.

    Raises:
        EncryptionError: The file cannot be read, no key of the process opens the model, or the model is an old copy.
        LicenceError: The licence does not permit the use.
    """
    if isinstance(source, OpenedFile):
        data_key = source.data_key
    else:
        where = os.fspath(source)
        head = read_head(_contents(Path(source)), where)
        data_key = find_data_key(head, where)
        authorize(head, where)
    guard()
    return SealedStore(user_store().folder, derive_key(data_key, b"", b"sardonyx store 1"))


def _contents(path: Path) -> memoryview:
    try:
        with path.open("rb") as file:
            return memoryview(map_file(file.fileno()) if os.fstat(file.fileno()).st_size else b"")
    except OSError as error:
        raise EncryptionError(f"cannot be read: {error.strerror}.", where=str(path)) from error


def _context(kind: Kind, key: str) -> bytes:
    return f"{kind} {key}".encode()
