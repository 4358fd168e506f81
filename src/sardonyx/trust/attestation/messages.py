"""The messages between an attested machine and the service that releases keys, and the bytes that a quote binds."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence

from sardonyx.errors import EncryptionError

MOST_BYTES = 1 << 18
NONCE_BYTES = 32
CONTEXT = b"sardonyx attested release 1"


def report_data(nonce: bytes, share: bytes, wrapped: bytes) -> bytes:
    """Return the bytes that a quote must contain: a digest of the request.

    Args:
        nonce: The nonce of the service, which makes an old quote useless.
        share: The public X25519 key that receives the answer, which makes a quote useless for others.
        wrapped: The wrapped data key.
    """
    parts = (CONTEXT, nonce, share, hashlib.sha256(wrapped).digest())
    return hashlib.sha512(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()


def encoded(fields: Mapping[str, bytes]) -> bytes:
    """Return a message."""
    return json.dumps({name: base64.b64encode(value).decode() for name, value in fields.items()}).encode()


def decoded(message: bytes, names: Sequence[str]) -> list[bytes]:
    """Return the fields of a message.

    Args:
        message: The message.
        names: The names of the fields.

    Raises:
        EncryptionError: The message is malformed.
    """
    try:
        value = json.loads(message) if len(message) <= MOST_BYTES else None
        if isinstance(value, dict) and set(value) == set(names):
            return [base64.b64decode(value[name], validate=True) for name in names]
    except (ValueError, TypeError, RecursionError, binascii.Error):
        pass
    raise EncryptionError(f"expected a message with {', '.join(names)}.", where="attestation")
