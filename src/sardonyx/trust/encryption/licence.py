"""Licences: claims about who may run a model, signed with Ed25519 and checked when the model is loaded.

A licence binds callers that use Sardonyx. A caller who can open the file has the model and can leave the check out:
docs/design/threat-model.md.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sardonyx.base.cpu_count import thread_count
from sardonyx.errors import LicenceError, OptionError
from sardonyx.trust.encryption.key_text import Key, parse_key

_SIGNED = b"sardonyx licence 1\n"
MACHINE_FILES = ("/etc/machine-id", "/var/lib/dbus/machine-id")
CLOCK_TOLERANCE = 3600.0
"""Seconds that a clock may be behind the latest time that was seen."""


@dataclass(frozen=True)
class Licence:
    """Claims; a claim that is None or empty restricts nothing.

    Attributes:
        holder: Name of the licensee, for reports.
        not_before: First moment of validity, in seconds since 1970.
        not_after: Last moment of validity, in seconds since 1970.
        machines: Machines that may run the model, by :func:`machine_id`.
        cores: Most processors that the process may use.
    """

    holder: str = ""
    not_before: int | None = None
    not_after: int | None = None
    machines: tuple[str, ...] = ()
    cores: int | None = None


def moment(text: str) -> int:
    """Return the seconds since 1970 of an ISO 8601 date or time; without an offset, UTC.

    Raises:
        OptionError: The text is not a date.
    """
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise OptionError(f"expected a date such as 2027-12-31, got {text!r}.", where="licence") from error
    return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp())


def machine_id() -> str:
    """Return the name of this machine in licences: a digest of the system's identifier.

    Raises:
        LicenceError: The system has no identifier.
    """
    for name in MACHINE_FILES:
        try:
            text = Path(name).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text:
            return hashlib.sha256(f"sardonyx machine {text}".encode()).hexdigest()[:32]
    raise LicenceError(
        "this machine has no identifier.", where=MACHINE_FILES[0], remedy="Create one: systemd-machine-id-setup."
    )


def sign_licence(licence: Licence, sha256: str, issuer: Key) -> dict[str, str]:
    """Return a licence for a model as stored in a file.

    Args:
        licence: The claims.
        sha256: Digest of the plain model file, the licence's subject.
        issuer: The Ed25519 secret key of the issuer.

    Raises:
        OptionError: The key is of another kind.
    """
    from sardonyx.trust.encryption.ciphers import Ed25519PrivateKey

    if issuer.kind != "ed25519-secret":
        raise OptionError(f"expected an Ed25519 secret key, got {issuer.kind}.", where="licence")
    claims = {"sha256": sha256, **{name: value for name, value in vars(licence).items() if value not in (None, "", ())}}
    text = json.dumps(claims, sort_keys=True)
    signature = Ed25519PrivateKey.from_private_bytes(issuer.value).sign(_SIGNED + text.encode())
    return {"claims": text, "signature": base64.b64encode(signature).decode()}


def check_licence(stored: Mapping[str, str] | None, sha256: str, issuer: str, where: str, seen: float = 0.0) -> Licence:
    """Return the claims of a licence that permits this process to use a model now.

    Args:
        stored: The licence of the file; None without one.
        sha256: Digest of the plain model.
        issuer: Text of the key that the file requires.
        where: The file, for messages.
        seen: The latest time seen before, in seconds since 1970, against clocks that were set back.

    Raises:
        LicenceError: The licence is missing, forged, for another model or machine, expired or not yet valid, or the
            process has more processors.
    """
    from sardonyx.trust.encryption.ciphers import Ed25519PublicKey, InvalidSignature

    if stored is None:
        raise LicenceError("requires a licence and has none.", where=where, remedy="Get one from the model's author.")
    key, text = parse_key(issuer, where), stored["claims"]
    try:
        signature = base64.b64decode(stored["signature"], validate=True)
        Ed25519PublicKey.from_public_bytes(key.value).verify(signature, _SIGNED + text.encode())
    except (InvalidSignature, binascii.Error, ValueError) as error:
        raise LicenceError(
            "the licence was not signed by the issuer that the file names.", where=where, remedy="Get a valid licence."
        ) from error
    claims = _parsed(text, where)
    if claims.pop("sha256", None) != sha256:
        raise LicenceError("the licence is for another model.", where=where)
    try:
        licence = Licence(**{**claims, "machines": tuple(claims.get("machines", ()))})
    except TypeError as error:
        raise LicenceError("the licence has claims that this version does not know.", where=where) from error
    _check_claims(licence, where, seen)
    return licence


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        claims = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LicenceError(f"the licence is malformed: {error}.", where=where) from error
    if not isinstance(claims, dict):
        raise LicenceError("the licence is malformed: expected an object.", where=where)
    return claims


def _check_claims(licence: Licence, where: str, seen: float) -> None:
    now = time.time()
    if now < seen - CLOCK_TOLERANCE:
        raise LicenceError(
            f"the clock was set back: the time is {_shown(now)}, and was {_shown(seen)} before.",
            where=where,
            remedy="Set the clock.",
        )
    if licence.not_before is not None and now < licence.not_before:
        raise LicenceError(f"the licence begins on {_shown(licence.not_before)}.", where=where)
    if licence.not_after is not None and now > licence.not_after:
        raise LicenceError(
            f"the licence ended on {_shown(licence.not_after)}.", where=where, remedy="Get a new one from the author."
        )
    if licence.machines and (machine := machine_id()) not in licence.machines:
        raise LicenceError(f"the licence is for other machines; this one is {machine}.", where=where)
    if licence.cores is not None and (count := thread_count(None)) > licence.cores:
        raise LicenceError(
            f"the licence allows {licence.cores} processors, the process has {count}.",
            where=where,
            remedy=f"Restrict the process: taskset -c 0-{max(0, licence.cores - 1)}.",
        )


def _shown(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "minutes")
    except (OverflowError, OSError, ValueError):
        return f"second {seconds}"
