"""TLS with the standard library: certificates of the server and of clients, and addresses that need protection."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from sardonyx.errors import OptionError


@dataclass(frozen=True)
class Tls:
    """The certificates of a server.

    Attributes:
        certificate: The certificate chain, in PEM.
        key: The private key, in PEM.
        client_ca: Authorities of client certificates, which are then required; None if clients need none.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Return the settings of a server: TLS 1.2 or newer.

        Raises:
            OptionError: A file cannot be read, or key and certificate do not match.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            raise OptionError(f"the certificates cannot be read: {error}", where="--tls-cert") from error
        return context

    def texts(self) -> tuple[bytes, bytes, bytes | None]:
        """Return the contents of the files: key, certificate, authorities of clients.

        Raises:
            OptionError: A file cannot be read.
        """
        try:
            authorities = None if self.client_ca is None else self.client_ca.read_bytes()
            return self.key.read_bytes(), self.certificate.read_bytes(), authorities
        except OSError as error:
            raise OptionError(f"the certificates cannot be read: {error}", where="--tls-cert") from error


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def require_protection(host: str, is_protected: bool, insecure: bool) -> None:
    """Refuse an address that other machines reach, without tokens and client certificates.

    Raises:
        OptionError: The address is open to everybody.
    """
    if not (is_loopback(host) or is_protected or insecure):
        raise OptionError(
            f"other machines reach {host} without a token.", where="--http",
            remedy="Add --token-file or --tls-client-ca, or --insecure if a network policy protects the server.",
        )  # fmt: skip
