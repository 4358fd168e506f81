"""The keys of this process, with which encrypted files are opened."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from types import TracebackType

from sardonyx.errors import EncryptionError
from sardonyx.trust.encryption.head import Head
from sardonyx.trust.encryption.key_text import Key
from sardonyx.trust.encryption.recipients import Recipient, recipient, unwrap

VARIABLE = "SARDONYX_KEYS"
"""Environment variable with the keys of every process: texts as for :func:`add_key`, separated by commas."""

_MOST_DATA_KEYS = 64

_lock = threading.Lock()
_keys: list[Recipient] = []
_data_keys: OrderedDict[bytes, bytes] = OrderedDict()
"""Data keys of opened heads, by digest of the head: a passphrase costs half a second."""


class AddedKey:
    """A key in the ring, which leaves the ring at the end of a ``with`` statement or by :meth:`remove`.

    Args:
        key: The key.
    """

    def __init__(self, key: Recipient) -> None:
        self._key = key

    def remove(self) -> None:
        """Remove the key; loaded models stay usable, and later loads need another key."""
        with _lock:
            for index, key in enumerate(_keys):
                if key is self._key:
                    del _keys[index]
                    _data_keys.clear()
                    break

    def __enter__(self) -> AddedKey:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def add_key(key: str | Recipient) -> AddedKey:
    """Add a key to the keys with which this process opens encrypted files.

    Args:
        key: A :class:`.Key` or :class:`.Passphrase`; the path of a key file; ``env:NAME``, an environment variable with
            a key; ``passphrase:env:NAME`` or ``passphrase:file:PATH``; or ``PROVIDER:TEXT``, a key provider of the
            entry points ``sardonyx.keys``.

    Returns:
        The key in the ring: a context manager that removes the key.

    Raises:
        EncryptionError: The key cannot be read.
        OptionError: Unknown provider, or an environment variable is not set.

    Example:
        >>> with add_key("owner.key"):
        ...     session = Session("model.onnxe")
    """
    added = recipient(key)
    with _lock:
        _keys.append(added)
    return AddedKey(added)


def _secrets(extra: Sequence[str | Recipient]) -> Iterator[Recipient]:
    yield from map(recipient, extra)
    with _lock:
        keys = list(_keys)
    yield from keys
    for text in os.environ.get(VARIABLE, "").split(","):
        if text.strip():
            yield recipient(text.strip())


def find_data_key(head: Head, where: str, keys: Sequence[str | Recipient] = ()) -> bytes:
    """Return the data key of a file, with which the head is authentic.

    Args:
        head: The head of the file.
        where: The file, for messages.
        keys: Keys to try before those of the process.

    Raises:
        EncryptionError: No key opens the file, or the head was changed.
    """
    name = hashlib.sha256(head.raw + head.code).digest()
    with _lock:
        known = _data_keys.get(name)
    if known is not None:
        return known
    tried = list(_secrets(keys))
    for secret in tried:
        for stanza in head.access.recipients:
            data_key = unwrap(stanza, secret)
            if data_key is None:
                continue
            if not head.is_of(data_key):
                raise EncryptionError(
                    "the head of the encrypted file was changed.", where=where, remedy="Get the file again."
                )
            with _lock:
                _data_keys[name] = data_key
                while len(_data_keys) > _MOST_DATA_KEYS:
                    _data_keys.popitem(last=False)
            return data_key
    if not tried:
        reason = "this process has no key"
    elif all(isinstance(secret, Key) and secret.is_public for secret in tried):
        reason = "public keys encrypt only"
    else:
        reason = "none of the keys of this process fits"
    raise EncryptionError(
        f"no key opens the encrypted file; it is for {head.summary()}, and {reason}.",
        where=where,
        remedy=f"Set {VARIABLE}=owner.key, give `decrypt` --key owner.key, or call sardonyx.add_key('owner.key').",
    )
