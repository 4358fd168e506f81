"""The head of an encrypted file: what the file is, who can open it, and a code that authenticates both.

The parts, in order:

- 8 bytes ``sdxcrypt``, and three little-endian numbers of 32 bits: version 1, length of the description, length of the
  access part.
- The description, JSON. Its digest is the context of the stream, so that no other description fits the stream.
- The access part, JSON: recipients, generation and licence. `rewrap` replaces this part without touching the stream.
- 32 bytes HMAC-SHA256 of everything before, by a key derived from the data key.
- The stream of :mod:`.segments`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from sardonyx.base.encrypted_files import ENCRYPTED_MAGIC
from sardonyx.errors import EncryptionError
from sardonyx.trust.encryption.recipients import MAX_RECIPIENTS
from sardonyx.trust.encryption.segments import derive_key, plain_size

ALGORITHM = "AES256-GCM-HKDF-SHA256-1MB"
VERSION = 1
_FRONT = struct.Struct("<8sIII")
_MAC_BYTES = 32
_MAX_DESCRIPTION = 1 << 16
_MAX_ACCESS = 1 << 20
MAX_PASSPHRASES = 8
"""Passphrases among the recipients of a file: trying one costs half a second."""

Part = Literal["model", "data", "compiled"]
"""Kinds of encrypted files: a model, a file of external data, a compiled file (``.sdx``)."""

_HEX32 = re.compile(r"[0-9a-f]{32}")
_HEX64 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Description:
    """The fixed part of a head.

    Attributes:
        part: The kind of the file.
        set: Random name of the files that were encrypted together, as 32 hexadecimal digits.
        name: Location of a data file as the model names it; the file's name for other kinds.
        bytes: Number of plain bytes.
        sha256: Digest of the plain bytes.
        graph: Digest of the model file to which a data file belongs, if the model file is not encrypted; else empty.
        issuer: Text of the Ed25519 key whose licence the file requires; empty if none is required.
        algorithm: The algorithm of the stream.
    """

    part: Part
    set: str
    name: str
    bytes: int
    sha256: str
    graph: str = ""
    issuer: str = ""
    algorithm: str = ALGORITHM


@dataclass(frozen=True)
class Access:
    """The replaceable part of a head.

    Attributes:
        recipients: The stanzas, see :mod:`.recipients`.
        generation: Number of rewraps; a file with a lower number than one seen before is refused.
        licence: ``claims`` (JSON as text) and ``signature`` of a licence; empty without a licence.
    """

    recipients: Sequence[Mapping[str, Any]]
    generation: int = 0
    licence: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Head:
    """A parsed head; nothing in the head is authentic before :meth:`authenticate`.

    Attributes:
        description: The fixed part.
        access: The replaceable part.
        raw: The bytes that the code covers.
        code: The code.
        context: The context of the stream.
        size: Bytes of the head with its code.
    """

    description: Description
    access: Access
    raw: bytes
    code: bytes
    context: bytes
    size: int

    def is_of(self, data_key: bytes) -> bool:
        """Return True if the head was written with a data key and not changed."""
        return hmac.compare_digest(self.code, _code(data_key, self.raw))

    def summary(self) -> str:
        """Return the recipients by kind, for messages."""
        kinds = [str(stanza.get("name") or stanza.get("type"))[:40] for stanza in self.access.recipients]
        return ", ".join(f"{kind} × {kinds.count(kind)}" for kind in dict.fromkeys(kinds))


def write_head(data_key: bytes, description: Description, access: Access) -> tuple[bytes, bytes]:
    """Return the bytes of a head, and the context of its stream."""
    fixed = _json(asdict(description))
    replaceable = _json({"recipients": access.recipients, "generation": access.generation, "licence": access.licence})
    raw = _FRONT.pack(ENCRYPTED_MAGIC, VERSION, len(fixed), len(replaceable)) + fixed + replaceable
    return raw + _code(data_key, raw), _context(fixed)


def read_head(contents: memoryview, where: str = "") -> Head:
    """Parse the head of an encrypted file; every length is checked against the file first.

    Args:
        contents: The contents of the file.
        where: The name of the file, for messages.

    Raises:
        EncryptionError: The head is malformed, or the file has a newer version.
    """
    try:
        return _head(contents)
    except EncryptionError as error:
        raise EncryptionError(error.problem, where=where, remedy=error.remedy) from error


def _head(contents: memoryview) -> Head:
    if len(contents) < _FRONT.size:
        raise _malformed("the file is too short")
    magic, version, fixed, replaceable = _FRONT.unpack_from(contents)
    if magic != ENCRYPTED_MAGIC:
        raise EncryptionError("expected an encrypted file.", remedy="Encrypt it with `sardonyx encrypt`.")
    if version != VERSION:
        raise EncryptionError(f"expected version {VERSION} of encrypted files, got {version}.")
    end = _FRONT.size + fixed + replaceable
    if fixed > _MAX_DESCRIPTION or replaceable > _MAX_ACCESS or end + _MAC_BYTES > len(contents):
        raise _malformed("its parts are longer than allowed")
    raw = bytes(contents[:end])
    description = _description(_parsed(raw[_FRONT.size : _FRONT.size + fixed]))
    access = _access(_parsed(raw[_FRONT.size + fixed :]))
    size = end + _MAC_BYTES
    if plain_size(len(contents) - size) != description.bytes:
        raise EncryptionError(
            f"the head states {description.bytes:,} plain bytes; the file holds"
            f" {plain_size(len(contents) - size):,}: truncated or extended.",
            remedy="Get the file again from its author.",
        )
    context = _context(raw[_FRONT.size : _FRONT.size + fixed])
    return Head(description, access, raw, bytes(contents[end:size]), context, size)


def _context(fixed: bytes) -> bytes:
    return hashlib.sha256(b"sardonyx stream 1" + fixed).digest()


def _code(data_key: bytes, raw: bytes) -> bytes:
    return hmac.digest(derive_key(data_key, b"", b"sardonyx head 1"), raw, "sha256")


def _json(data: Any) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        data = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _malformed(f"invalid JSON: {error}") from error
    if not isinstance(data, dict):
        raise _malformed("expected an object")
    return data


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a name occurs twice")
    return dict(pairs)


def _description(data: dict[str, Any]) -> Description:
    expected = {"part", "set", "name", "bytes", "sha256", "graph", "issuer", "algorithm"}
    if data.keys() != expected or not all(isinstance(data[name], str) for name in expected - {"bytes"}):
        raise _malformed("the description has other fields")
    size = data["bytes"]
    if type(size) is not int or size < 0 or data["part"] not in get_args(Part) or not _HEX32.fullmatch(data["set"]):
        raise _malformed("a field of the description has an invalid value")
    if not _HEX64.fullmatch(data["sha256"]) or (data["graph"] and not _HEX64.fullmatch(data["graph"])):
        raise _malformed("a digest of the description is malformed")
    if data["algorithm"] != ALGORITHM:
        raise EncryptionError(f"expected the algorithm {ALGORITHM}, got {data['algorithm'][:60]!r}.")
    return Description(**data)


def _access(data: dict[str, Any]) -> Access:
    if data.keys() != {"recipients", "generation", "licence"}:
        raise _malformed("the access part has other fields")
    recipients, generation, licence = data["recipients"], data["generation"], data["licence"]
    if not isinstance(recipients, list) or not all(isinstance(stanza, dict) for stanza in recipients):
        raise _malformed("expected a list of recipients")
    if not 1 <= len(recipients) <= MAX_RECIPIENTS:
        raise _malformed(f"expected 1 to {MAX_RECIPIENTS} recipients, got {len(recipients)}")
    if sum(stanza.get("type") == "scrypt" for stanza in recipients) > MAX_PASSPHRASES:
        raise _malformed(f"more than {MAX_PASSPHRASES} passphrases")
    if type(generation) is not int or not 0 <= generation < 1 << 63:
        raise _malformed("the generation is not a number")
    if licence is not None and (
        not isinstance(licence, dict)
        or licence.keys() != {"claims", "signature"}
        or not all(isinstance(text, str) for text in licence.values())
    ):
        raise _malformed("the licence has other fields")
    return Access(recipients, generation, licence)


def _malformed(reason: str) -> EncryptionError:
    return EncryptionError(f"the head of the encrypted file is damaged: {reason}.", remedy="Get the file again.")
