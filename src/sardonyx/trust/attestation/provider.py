"""The key provider of a machine that proves its software to a service before it receives a data key."""

from __future__ import annotations

import base64
import http.client
import re
import urllib.parse

from sardonyx.errors import EncryptionError, OptionError
from sardonyx.trust.attestation.messages import CONTEXT, MOST_BYTES, decoded, encoded, report_data
from sardonyx.trust.attestation.quotes import Quotes, quotes_of
from sardonyx.trust.encryption.key_text import Key, parse_key
from sardonyx.trust.encryption.recipients import wrap
from sardonyx.trust.encryption.segments import KEY_BYTES, derive_key

_SECONDS = 20.0


class AttestedProvider:
    """Wraps data keys for a release service, and requests them with a quote of this machine.

    Wrapping needs the public key of the service alone: no network, and no special machine.

    Args:
        url: The address of the service: http or https.
        key: The public X25519 key of the service.
        quotes: Makes quotes.
    """

    def __init__(self, url: str, key: Key, quotes: Quotes) -> None:
        self._url = urllib.parse.urlsplit(url)
        if self._url.scheme not in ("http", "https") or not self._url.hostname:
            raise OptionError(f"expected http://host:port or https://host:port, got {url!r}.", where="attested:…")
        if key.kind not in ("x25519-public", "x25519-secret"):
            raise OptionError(f"expected an X25519 key of the service, got {key.kind}.", where="attested:…")
        self._key = key.public()
        self._quotes = quotes

    def wrap(self, data_key: bytes) -> bytes:
        """Return the data key, readable by the service alone."""
        stanza = wrap(data_key, self._key)
        return encoded({name: base64.b64decode(stanza[name]) for name in ("share", "wrapped")})

    def unwrap(self, wrapped: bytes) -> bytes:
        """Return a data key that the service releases to this machine.

        Raises:
            EncryptionError: The service refuses, cannot be reached, or its answer is not authentic.
        """
        from sardonyx.trust.encryption.ciphers import AESGCM, InvalidTag, X25519PrivateKey, X25519PublicKey

        (nonce,) = decoded(self._request("GET", "/nonce", b""), ("nonce",))
        private = X25519PrivateKey.generate()
        share = private.public_key().public_bytes_raw()
        quote = self._quotes.quote(report_data(nonce, share, wrapped))
        message = encoded({"nonce": nonce, "share": share, "wrapped": wrapped, "quote": quote})
        (sealed,) = decoded(self._request("POST", "/release", message), ("sealed",))
        secret = private.exchange(X25519PublicKey.from_public_bytes(self._key.value))
        try:
            data_key: bytes = AESGCM(derive_key(secret, nonce + share, CONTEXT)).decrypt(bytes(12), sealed, None)
        except InvalidTag as error:
            raise EncryptionError("the answer is not from the service with this key.", where=self._where) from error
        if len(data_key) != KEY_BYTES:
            raise EncryptionError(f"expected a key of {KEY_BYTES} bytes, got {len(data_key)}.", where=self._where)
        return data_key

    @property
    def _where(self) -> str:
        return f"{self._url.scheme}://{self._url.netloc}"

    def _request(self, method: str, path: str, body: bytes) -> bytes:
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._url.netloc, timeout=_SECONDS)
        try:
            connection.request(method, self._url.path.rstrip("/") + path, body or None)
            reply = connection.getresponse()
            text = reply.read(MOST_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise EncryptionError(f"the release service cannot be reached: {error}.", where=self._where) from error
        finally:
            connection.close()
        if reply.status != 200:
            raise EncryptionError(
                f"the release service refuses ({reply.status}): {text[:300].decode(errors='replace')}",
                where=self._where,
            )
        return text


def attested(text: str) -> AttestedProvider:
    """Return the provider of a text ``[MAKER@]URL#KEY``: the entry point ``attested`` of ``sardonyx.keys``.

    Args:
        text: The maker of quotes (``tsm`` by default, or an entry point of ``sardonyx.quotes``), the address of the
            service, and its public X25519 key.

    Raises:
        OptionError: The text has another form, or the maker is unknown.
        EncryptionError: The key is malformed.
    """
    match = re.fullmatch(r"(?:([a-z][a-z0-9_]*)@)?(https?://[^#]+)#(\S+)", text)
    if match is None:
        raise OptionError(f"expected [MAKER@]URL#KEY, got {text!r}.", where="attested:…")
    return AttestedProvider(match[2], parse_key(match[3]), quotes_of(match[1] or "tsm"))
