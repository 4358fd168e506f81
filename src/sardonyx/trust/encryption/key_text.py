"""Keys as text: ``sardonyx-<kind>-<base64>`` with a checksum, so that a typing error is not a wrong key."""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from sardonyx.errors import EncryptionError, OptionError

Kind = Literal["x25519-secret", "x25519-public", "ed25519-secret", "ed25519-public", "aes256"]
"""Kinds of keys: both halves of an encryption pair, both halves of a licence issuer's pair, a shared secret."""

_START = "sardonyx-"
_BYTES = 32
_CHECK_BYTES = 4
MAX_FILE_BYTES = 1 << 16


@dataclass(frozen=True)
class Key:
    """A key of 32 bytes; the representation does not show a secret.

    Attributes:
        kind: The kind of the key.
        value: The bytes of the key.
    """

    kind: Kind
    value: bytes

    def __repr__(self) -> str:
        return f"Key({self.text()})" if self.is_public else f"Key({self.kind}, secret)"

    @property
    def is_public(self) -> bool:
        """True for the public half of a pair."""
        return self.kind.endswith("-public")

    def text(self) -> str:
        """Return the key as text; see :func:`parse_key`."""
        check = hashlib.sha256(f"{self.kind} ".encode() + self.value).digest()[:_CHECK_BYTES]
        return f"{_START}{self.kind}-{base64.urlsafe_b64encode(self.value + check).decode()}"

    def public(self) -> Key:
        """Return the public half of a pair; a public key is returned as it is.

        Raises:
            OptionError: The key is a shared secret.
        """
        from sardonyx.trust.encryption.ciphers import Ed25519PrivateKey, X25519PrivateKey

        match self.kind:
            case "x25519-secret":
                return Key(
                    "x25519-public", X25519PrivateKey.from_private_bytes(self.value).public_key().public_bytes_raw()
                )
            case "ed25519-secret":
                private = Ed25519PrivateKey.from_private_bytes(self.value)
                return Key("ed25519-public", private.public_key().public_bytes_raw())
            case "aes256":
                raise OptionError("a shared secret (aes256) has no public half.", where="key")
        return self


def generate_key(kind: Literal["x25519", "ed25519", "aes256"] = "x25519") -> Key:
    """Return a new secret key.

    Args:
        kind: ``"x25519"``, a pair for encryption; ``"ed25519"``, a pair for licences; ``"aes256"``, a shared secret.

    Raises:
        OptionError: Unknown kind.
    """
    from sardonyx.trust.encryption.ciphers import Ed25519PrivateKey, X25519PrivateKey

    match kind:
        case "x25519":
            return Key("x25519-secret", X25519PrivateKey.generate().private_bytes_raw())
        case "ed25519":
            return Key("ed25519-secret", Ed25519PrivateKey.generate().private_bytes_raw())
        case "aes256":
            return Key("aes256", os.urandom(_BYTES))
    raise OptionError(f"expected 'x25519', 'ed25519' or 'aes256', got {kind!r}.", where="kind")


def parse_key(text: str, where: str = "key") -> Key:
    """Return the key that a text holds; lines that begin with ``#`` are comments.

    Args:
        text: The text of one key.
        where: The origin, for messages; the text itself never enters a message.

    Raises:
        EncryptionError: The text is not a key, or its checksum differs.
    """
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    line = lines[0] if len(lines) == 1 else ""
    for kind in get_args(Kind):
        if line.startswith(start := f"{_START}{kind}-"):
            try:
                raw = base64.b64decode(line.removeprefix(start), altchars=b"-_", validate=True)
            except ValueError:  # No base64; binascii.Error is one, and characters beyond ASCII are another.
                raw = b""
            key = Key(kind, raw[:_BYTES])
            if len(raw) == _BYTES + _CHECK_BYTES and key.text() == line:
                return key
            raise EncryptionError(
                f"the {kind} key is damaged: its length or checksum differs.",
                where=where,
                remedy="Copy the whole text of the key again.",
            )
    raise EncryptionError(
        f"expected one key, a line that begins with '{_START}', got {len(lines)} lines.",
        where=where,
        remedy="Make a key with `sardonyx keygen`.",
    )


def read_key(path: str | os.PathLike[str]) -> Key:
    """Read a key from a file.

    Raises:
        EncryptionError: The file cannot be read, or does not hold one key.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise EncryptionError(f"cannot be read: {error.strerror}.", where=str(path)) from error
    if len(content) > MAX_FILE_BYTES:
        raise EncryptionError(f"expected a key, got a file of more than {MAX_FILE_BYTES:,} bytes.", where=str(path))
    return parse_key(content.decode("utf-8", "replace"), str(path))


def write_key(key: Key, path: str | os.PathLike[str]) -> None:
    """Write a key to a new file; a secret is readable by its owner alone.

    Raises:
        OptionError: The file exists: a key is never overwritten.
        EncryptionError: The file cannot be written.
    """
    mode = 0o644 if key.is_public else stat.S_IRUSR | stat.S_IWUSR
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError as error:
        raise OptionError("exists; a key is not overwritten.", where=str(path), remedy="Name another file.") from error
    except OSError as error:
        raise EncryptionError(f"cannot be written: {error.strerror}.", where=str(path)) from error
    with os.fdopen(descriptor, "w") as file:
        file.write(key.text() + "\n")
