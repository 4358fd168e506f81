"""TLS with the standard library: certificates of the server and of clients, and addresses that need protection."""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path

from sardonyx.errors import OptionError


def server_context(certificate: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """Return the TLS settings of a server: TLS 1.2 or newer.

    Args:
        certificate: The certificate chain, in PEM.
        key: The private key.
        client_ca: Authorities of client certificates, which are then required.

    Raises:
        OptionError: A file cannot be read, or key and certificate do not match.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise OptionError(f"the certificates cannot be read: {error}", where="--tls-cert") from error
    return context


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
