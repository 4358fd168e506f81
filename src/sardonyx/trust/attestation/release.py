"""The service that releases data keys to attested machines."""

from __future__ import annotations

import base64
import http.server
import logging
import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from sardonyx.errors import EncryptionError, OptionError
from sardonyx.trust.attestation.messages import CONTEXT, MOST_BYTES, NONCE_BYTES, decoded, encoded, report_data
from sardonyx.trust.attestation.quotes import MOST_QUOTE_BYTES, QuoteVerifier
from sardonyx.trust.encryption.key_text import Key
from sardonyx.trust.encryption.recipients import unwrap
from sardonyx.trust.encryption.segments import KEY_BYTES, derive_key

_log = logging.getLogger(__name__)

_NONCES = 4096
_NONCE_SECONDS = 60.0


@dataclass(frozen=True)
class Policy:
    """The machines that receive keys.

    Attributes:
        measurements: The accepted measurements, in the form of the verifier.
        verifier: Checks quotes.
        allow_debug: True to accept machines whose owner can read the memory; for tests.

    Raises:
        OptionError: There are no measurements.
    """

    measurements: frozenset[str]
    verifier: QuoteVerifier
    allow_debug: bool = False

    def __post_init__(self) -> None:
        if not self.measurements:
            raise OptionError("expected at least one measurement.", where="policy")


class ReleaseService:
    """Releases data keys that are wrapped for its key, to machines whose quotes fit the policy.

    Args:
        key: The secret X25519 key of the service.
        policy: The policy.

    Raises:
        OptionError: The key is of another kind.
    """

    def __init__(self, key: Key, policy: Policy) -> None:
        if key.kind != "x25519-secret":
            raise OptionError(f"expected a secret X25519 key, got {key.kind}.", where="key")
        self._key = key
        self._policy = policy
        self._lock = threading.Lock()
        self._nonces: OrderedDict[bytes, float] = OrderedDict()

    def nonce(self) -> bytes:
        """Return a new nonce, valid for one request within a minute."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        with self._lock:
            self._nonces[nonce] = time.monotonic() + _NONCE_SECONDS
            while len(self._nonces) > _NONCES:
                self._nonces.popitem(last=False)
        return nonce

    def release(self, message: bytes) -> bytes:
        """Return a data key, encrypted for the attested machine that requests it.

        Args:
            message: The request: nonce, share, wrapped data key, quote.

        Raises:
            EncryptionError: The request is malformed or old, the quote is not authentic or of another machine or
                software, or the data key is wrapped for another service.
        """
        nonce, share, wrapped, quote = decoded(message, ("nonce", "share", "wrapped", "quote"))
        with self._lock:
            if self._nonces.pop(nonce, 0.0) < time.monotonic():
                raise EncryptionError("the nonce is unknown, used or old.", where="attestation")
        if len(quote) > MOST_QUOTE_BYTES:
            raise EncryptionError(f"expected a quote of at most {MOST_QUOTE_BYTES} bytes.", where="attestation")
        try:
            evidence = self._policy.verifier.verify(quote)
        except Exception as error:
            # The verifier's words, e.g. addresses of its collateral, are for the log of the service alone.
            raise EncryptionError("the quote is not authentic.", where="attestation") from error
        if not secrets.compare_digest(evidence.report_data, report_data(nonce, share, wrapped)):
            raise EncryptionError("the quote belongs to another request.", where="attestation")
        if evidence.is_debug and not self._policy.allow_debug:
            raise EncryptionError("the machine is in debug mode: its owner reads the memory.", where="attestation")
        if evidence.measurement not in self._policy.measurements:
            raise EncryptionError(
                f"the measurement {evidence.measurement[:128]!r} is not accepted.", where="attestation"
            )
        return self._sealed(share, nonce, self._data_key(wrapped))

    def _data_key(self, wrapped: bytes) -> bytes:
        share, text = decoded(wrapped, ("share", "wrapped"))
        stanza = {"type": "x25519", "share": _text(share), "wrapped": _text(text)}
        data_key = unwrap(stanza, self._key)
        if data_key is None or len(data_key) != KEY_BYTES:
            raise EncryptionError("the data key is wrapped for another service.", where="attestation")
        return data_key

    def _sealed(self, share: bytes, nonce: bytes, data_key: bytes) -> bytes:
        from sardonyx.trust.encryption.ciphers import AESGCM, X25519PrivateKey, X25519PublicKey

        private = X25519PrivateKey.from_private_bytes(self._key.value)
        try:
            secret = private.exchange(X25519PublicKey.from_public_bytes(share))
        except ValueError as error:
            raise EncryptionError("the share is a point of low order.", where="attestation") from error
        key = derive_key(secret, nonce + share, CONTEXT)
        return encoded({"sealed": AESGCM(key).encrypt(bytes(12), data_key, None)})


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def serve_keys(service: ReleaseService, host: str = "127.0.0.1", port: int = 0) -> http.server.ThreadingHTTPServer:
    """Return a server of HTTP for a service; the caller runs ``serve_forever`` and ``shutdown``.

    Answers are encrypted for the attested machine and authentic by the service's key, over any transport. A proxy must
    limit the rate of requests.

    Args:
        service: The service.
        host: The address to listen on.
        port: The port; 0 for any free one.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            if self.path == "/nonce":
                self._reply(200, encoded({"nonce": service.nonce()}))
            else:
                self._reply(404, b"")

        def do_POST(self) -> None:
            length = self.headers.get("content-length", "")
            if self.path != "/release" or not length.isdecimal() or int(length) > MOST_BYTES:
                self.close_connection = True
                self._reply(404 if self.path != "/release" else 413, b"")
                return
            try:
                self._reply(200, service.release(self.rfile.read(int(length))))
            except EncryptionError as error:
                _log.warning("a key was refused: %s (%r)", error, error.__cause__)
                self._reply(403, error.problem.encode())

        def _reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *values: Any) -> None:
            _log.debug(format, *values)

    return http.server.ThreadingHTTPServer((host, port), Handler)
