"""Bearer tokens: a file of hashes with scopes."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sardonyx.errors import OptionError, RequestError

SCOPES = ("infer", "read", "admin")
"""Inference; metadata, statistics and metrics; loading, edits and settings."""

_LINE = re.compile(r"([0-9a-f]{64})\s+([a-z]+(?:,[a-z]+)*)(?:\s+\S.*)?")
_LONGEST = 256


@dataclass(frozen=True)
class _Token:
    digest: bytes
    scopes: frozenset[str]


class Tokens:
    """The accepted tokens.

    Args:
        tokens: Hexadecimal SHA-256 digests with the scopes of each; none means that nobody needs a token.
    """

    def __init__(self, tokens: Iterable[tuple[str, Iterable[str]]] = ()) -> None:
        self._tokens = [_Token(bytes.fromhex(digest), frozenset(scopes)) for digest, scopes in tokens]

    @property
    def is_required(self) -> bool:
        """True if requests need a token."""
        return bool(self._tokens)

    def require(self, authorization: str, scope: str) -> str:
        """Check the ``Authorization`` field of a request; return a name of the token, empty if none is necessary.

        Raises:
            RequestError: The token is missing, unknown, or lacks the scope.
        """
        if not self._tokens or not scope:
            return ""
        kind, _, token = authorization.partition(" ")
        if kind.lower() != "bearer" or not 0 < len(token) <= _LONGEST:
            raise RequestError("expected a bearer token.", kind="unauthenticated")
        digest = hashlib.sha256(token.strip().encode()).digest()
        # Every digest is compared, in constant time: the duration tells nothing about the file.
        matches = [entry for entry in self._tokens if hmac.compare_digest(entry.digest, digest)]
        if not matches:
            raise RequestError("unknown token.", kind="unauthenticated")
        if not any(scope in entry.scopes for entry in matches):
            raise RequestError(f"the token lacks the scope {scope!r}.", kind="forbidden")
        return f"token {digest.hex()[:32]}"


def read_tokens(path: Path) -> Tokens:
    """Read a file of tokens: lines of a SHA-256 digest, scopes separated by commas, and a comment.

    Raises:
        OptionError: The file cannot be read, is readable by other users, or has a malformed line.
    """
    try:
        if path.stat().st_mode & 0o002:
            raise OptionError("other users can write the file.", where=str(path), remedy=f"chmod 600 {path}")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"the tokens cannot be read: {error}", where=str(path)) from error
    tokens = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        scopes = match[2].split(",") if match else []
        if match is None or not set(scopes) <= set(SCOPES):
            raise OptionError(
                "expected a SHA-256 digest and scopes.", where=f"{path}:{number}",
                remedy=f"Write a line such as: sardonyx serve --new-token. Scopes: {', '.join(SCOPES)}.",
            )  # fmt: skip
        tokens.append((match[1], scopes))
    if not tokens:
        raise OptionError("expected at least one token.", where=str(path))
    return Tokens(tokens)


def new_token(scopes: Iterable[str]) -> tuple[str, str]:
    """Return a new token of 256 bits, and its line for the file of tokens."""
    token = secrets.token_urlsafe(32)
    return token, f"{hashlib.sha256(token.encode()).hexdigest()} {','.join(scopes)}"
