"""Data keys wrapped for recipients: a passphrase, an X25519 key, a shared secret, or a key provider.

A *stanza* is the JSON object in the head of a file from which one recipient recovers the data key.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sardonyx.errors import EncryptionError, OptionError
from sardonyx.trust.encryption.key_text import Key, parse_key, read_key
from sardonyx.trust.encryption.segments import KEY_BYTES, derive_key

ENTRY_POINTS = "sardonyx.keys"
"""Group of entry points: each names a function of a text that returns a :class:`KeyProvider`."""

MAX_RECIPIENTS = 64
MAX_STANZA_BYTES = 1 << 14
_LOG_N, _R, _P = 17, 8, 1
_MAX_LOG_N = 18
"""Work factors above need more than 256 MiB and are refused: the head of a file is not trusted yet."""

_WRAPPED_BYTES = KEY_BYTES + 16
_NONCE = bytes(12)
"""Each wrapping key encrypts one data key, so that a fixed nonce is used once."""

Stanza = Mapping[str, Any]


class KeyProvider(Protocol):
    """A service that wraps data keys, e.g. a hardware module or a cloud's key store."""

    def wrap(self, data_key: bytes) -> bytes:
        """Return the data key in a form that only :meth:`unwrap` reads."""

    def unwrap(self, wrapped: bytes) -> bytes:
        """Return the data key."""


@dataclass(frozen=True)
class Passphrase:
    """A passphrase, from which scrypt derives a wrapping key.

    Attributes:
        text: The passphrase.
    """

    text: str = field(repr=False)


@dataclass(frozen=True)
class NamedProvider:
    """A key provider with the name that files state.

    Attributes:
        name: The name of the entry point.
        provider: The provider.
    """

    name: str
    provider: KeyProvider


Recipient = Key | Passphrase | NamedProvider
"""Who can open a file; the secret forms open it, the public form of an X25519 key only wraps."""


def recipient(spec: str | Recipient) -> Recipient:
    """Return the recipient that a text names.

    Args:
        spec: The text of a key; the path of a file with a key; ``env:NAME``, an environment variable with a key;
            ``passphrase:env:NAME`` or ``passphrase:file:PATH``; ``PROVIDER:REST``, a provider of the entry points
            ``sardonyx.keys`` with the text for the provider. A recipient is returned as it is.

    Raises:
        EncryptionError: A key cannot be read.
        OptionError: No provider has the name, or an environment variable is not set.
    """
    if not isinstance(spec, str):
        return spec
    if spec.startswith("sardonyx-"):
        return parse_key(spec)
    scheme, separator, rest = spec.partition(":")
    if scheme == "passphrase":
        return Passphrase(_passphrase(rest))
    if scheme == "env":
        return parse_key(_environment(rest), spec)
    if scheme == "file":
        return read_key(rest)
    if separator and re.fullmatch(r"[a-z][a-z0-9_]+", scheme):
        return provider(scheme, rest)
    return read_key(spec)


def provider(name: str, text: str) -> NamedProvider:
    """Return the key provider of an entry point.

    Raises:
        OptionError: No entry point has the name.
    """
    # Imported here: the import takes as long as opening a file, and few files have a provider.
    from importlib import metadata

    points = {point.name: point for point in metadata.entry_points(group=ENTRY_POINTS)}
    if name not in points:
        installed = ", ".join(sorted(points)) or "none is installed"
        raise OptionError(
            f"unknown key provider '{name}'; the entry points '{ENTRY_POINTS}': {installed}.",
            where=f"{name}:…",
            remedy="Install the package of the provider, or name a key file as file:PATH.",
        )
    return NamedProvider(name, points[name].load()(text))


def _environment(name: str) -> str:
    if not (text := os.environ.get(name)):
        raise OptionError(f"the environment variable {name} is not set.", where=f"env:{name}")
    return text


def _passphrase(spec: str) -> str:
    scheme, _, rest = spec.partition(":")
    if scheme == "env":
        return _environment(rest)
    if scheme == "file":
        try:
            with Path(rest).open(encoding="utf-8") as file:
                text = file.read(1 << 16).rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise EncryptionError(f"the passphrase cannot be read: {error}.", where=rest) from error
        if text:
            return text
        raise EncryptionError("the passphrase is empty.", where=rest)
    raise OptionError("expected passphrase:env:NAME or passphrase:file:PATH.", where="passphrase:…")


def wrap(data_key: bytes, target: Recipient) -> dict[str, Any]:
    """Return the stanza from which a recipient recovers a data key.

    Raises:
        OptionError: The key is one for licences.
        EncryptionError: The provider failed.
    """
    from sardonyx.trust.encryption.ciphers import X25519PrivateKey, X25519PublicKey

    if isinstance(target, Passphrase):
        salt = os.urandom(16)
        key = _stretch(target.text, salt, _LOG_N)
        return {"type": "scrypt", "salt": _text(salt), "log_n": _LOG_N, "wrapped": _wrapped(key, data_key)}
    if isinstance(target, NamedProvider):
        try:
            wrapped = target.provider.wrap(data_key)
        except Exception as error:
            raise EncryptionError(f"wrapping failed: {error!r}.", where=f"key provider {target.name}") from error
        return {"type": "provider", "name": target.name, "wrapped": _text(wrapped)}
    if target.kind == "aes256":
        salt = os.urandom(16)
        key = derive_key(target.value, salt, b"sardonyx wrap aes256")
        return {"type": "aes256", "salt": _text(salt), "wrapped": _wrapped(key, data_key)}
    if target.kind.startswith("ed25519"):
        raise OptionError("an Ed25519 key signs licences; expected an X25519 key.", where="recipient")
    public = target.public().value
    ephemeral = X25519PrivateKey.generate()
    share = ephemeral.public_key().public_bytes_raw()
    try:
        secret = ephemeral.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise EncryptionError("the X25519 key is a point of low order.", where="recipient") from error
    key = derive_key(secret, share + public, b"sardonyx wrap x25519")
    return {"type": "x25519", "share": _text(share), "wrapped": _wrapped(key, data_key)}


def unwrap(stanza: Stanza, secret: Recipient) -> bytes | None:
    """Return the data key of a stanza; None if the stanza is for another recipient.

    Raises:
        EncryptionError: The stanza is malformed, or the provider failed.
    """
    from sardonyx.trust.encryption.ciphers import X25519PrivateKey, X25519PublicKey

    kind = stanza.get("type")
    if isinstance(secret, Passphrase):
        if kind != "scrypt":
            return None
        log_n = stanza.get("log_n")
        if not isinstance(log_n, int) or not 10 <= log_n <= _MAX_LOG_N:
            raise EncryptionError(f"expected a work factor of 10 to {_MAX_LOG_N}, got {log_n!r}.", where="recipient")
        return _unwrapped(_stretch(secret.text, _bytes(stanza, "salt", 16), log_n), stanza)
    if isinstance(secret, NamedProvider):
        if kind != "provider" or stanza.get("name") != secret.name:
            return None
        try:
            data_key = secret.provider.unwrap(_bytes(stanza, "wrapped"))
        except EncryptionError:
            raise
        except Exception as error:
            raise EncryptionError(f"unwrapping failed: {error!r}.", where=f"key provider {secret.name}") from error
        return data_key if isinstance(data_key, bytes) and len(data_key) == KEY_BYTES else None
    if secret.kind == "aes256" and kind == "aes256":
        return _unwrapped(derive_key(secret.value, _bytes(stanza, "salt", 16), b"sardonyx wrap aes256"), stanza)
    if secret.kind == "x25519-secret" and kind == "x25519":
        share = _bytes(stanza, "share", KEY_BYTES)
        private = X25519PrivateKey.from_private_bytes(secret.value)
        try:
            shared = private.exchange(X25519PublicKey.from_public_bytes(share))
        except ValueError as error:
            raise EncryptionError("the share of an X25519 recipient is a point of low order.") from error
        public = private.public_key().public_bytes_raw()
        return _unwrapped(derive_key(shared, share + public, b"sardonyx wrap x25519"), stanza)
    return None


def _stretch(passphrase: str, salt: bytes, log_n: int) -> bytes:
    from sardonyx.trust.encryption.ciphers import Scrypt

    key: bytes = Scrypt(salt=salt, length=KEY_BYTES, n=1 << log_n, r=_R, p=_P).derive(passphrase.encode())
    return key


def _wrapped(key: bytes, data_key: bytes) -> str:
    from sardonyx.trust.encryption.ciphers import AESGCM

    return _text(AESGCM(key).encrypt(_NONCE, data_key, None))


def _unwrapped(key: bytes, stanza: Stanza) -> bytes | None:
    from sardonyx.trust.encryption.ciphers import AESGCM, InvalidTag

    try:
        data_key: bytes = AESGCM(key).decrypt(_NONCE, _bytes(stanza, "wrapped", _WRAPPED_BYTES), None)
    except InvalidTag:
        return None
    return data_key


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(stanza: Stanza, name: str, length: int | None = None) -> bytes:
    text = stanza.get(name)
    try:
        data = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        data = b""
    if not data or len(data) > MAX_STANZA_BYTES or (length is not None and len(data) != length):
        raise EncryptionError(f"the field '{name}' of a recipient is malformed.", remedy="Get the file again.")
    return data
