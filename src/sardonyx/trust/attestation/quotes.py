"""Quotes: statements of a processor about the software of its machine; who makes and who checks them."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Protocol

from sardonyx.errors import EncryptionError, OptionError

REPORT_BYTES = 64
"""Bytes of the caller that a quote contains, in Intel TDX and AMD SEV-SNP."""

MOST_QUOTE_BYTES = 1 << 16

QUOTES = "sardonyx.quotes"
"""Group of entry points: functions that return a :class:`Quotes`."""


@dataclass(frozen=True)
class Evidence:
    """The statement of a verified quote.

    Attributes:
        measurement: The digest of the attested software, in the form of the verifier.
        report_data: The bytes of the caller.
        is_debug: True if the machine's owner can read the attested memory.
    """

    measurement: str
    report_data: bytes
    is_debug: bool = False


class Quotes(Protocol):
    """Makes quotes of this machine."""

    def quote(self, report_data: bytes) -> bytes:
        """Return a quote that contains 64 bytes of the caller."""


class QuoteVerifier(Protocol):
    """Checks quotes: the signature, the chain of certificates, the state of the platform."""

    def verify(self, quote: bytes) -> Evidence:
        """Return the statement of a quote; raise any exception if the quote is not authentic."""


class TsmQuotes:
    """Quotes of the Linux interface for trusted security modules (TDX, SEV-SNP and Arm CCA), kernel 6.7 or later.

    Args:
        folder: The folder of reports.
    """

    def __init__(self, folder: Path = Path("/sys/kernel/config/tsm/report")) -> None:
        self._folder = folder

    def quote(self, report_data: bytes) -> bytes:
        """Return a quote that contains 64 bytes of the caller.

        Raises:
            EncryptionError: The machine has no such module, or the module fails.
        """
        report = self._folder / f"sardonyx-{secrets.token_hex(8)}"
        try:
            report.mkdir()
            try:
                (report / "inblob").write_bytes(report_data)
                return (report / "outblob").read_bytes()
            finally:
                report.rmdir()
        except OSError as error:
            raise EncryptionError(
                f"this machine makes no quotes: {error.strerror or error}.", where=str(self._folder),
                remedy="Run in a confidential virtual machine with a kernel of 6.7 or later.",
            ) from error  # fmt: skip


def quotes_of(name: str) -> Quotes:
    """Return the maker of quotes with a name: ``"tsm"``, or an entry point of the group ``sardonyx.quotes``.

    Raises:
        OptionError: No entry point has the name.
    """
    if name == "tsm":
        return TsmQuotes()
    points = {point.name: point for point in metadata.entry_points(group=QUOTES)}
    if name not in points:
        raise OptionError(
            f"unknown maker of quotes {name!r}; expected 'tsm', or one of {sorted(points)}.", where=QUOTES
        )
    maker: Callable[[], Quotes] = points[name].load()
    return maker()
