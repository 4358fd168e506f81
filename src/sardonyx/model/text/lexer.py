"""Tokens of the ONNX text syntax, scanned on demand, and errors with line and column."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from sardonyx.errors import TextFormatError
from sardonyx.model.text.decimals import split_plain
from sardonyx.model.text.patterns import pattern
from sardonyx.model.text.vocabulary import IDENTIFIER, MAX_DEPTH

_SPACE: Final = pattern(r"(?:[ \t\n\v\f\r]++|#(?!@)[^\n]*+)*+")
_STRING: Final = pattern(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_BYTES: Final = pattern(r'b"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_BASE64: Final = re.compile(r'base64"([A-Za-z0-9+/=\s]*+)"')
_NUMBER: Final = pattern(
    r"-?+(?:[0-9]++(?:\.[0-9]*+)?+(?:[eE][+-]?+[0-9]++)?+|(?:[iI][nN][fF](?:[iI][nN][iI][tT][yY])?+|[nN][aA][nN])(?![A-Za-z0-9_]))"
)
_INTEGER: Final = re.compile(r"-?+[0-9]++")
_ANY_TOKEN: Final = re.compile(r'[A-Za-z0-9_.+-]+|"[^"\n]*"?|=>|#@|@\{|.', re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_BYTE_ESCAPE: Final = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_BYTE_ESCAPES: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"0": b"\0", b"\\": b"\\", b'"': b'"'}
_BLOCK_TOKEN: Final = pattern(r'"(?:[^"\\\n]++|\\.)*+"|\'(?:[^\'\\\n]++|\\.)*+\'|#[^\n]*+|[{}]')

_PREFIXES: Final = ("b", "base64")

MAX_DIGITS: Final = 1100
"""Length limit of a number: the exact decimal form of the smallest double has 1,074 digits."""


class Scanner:
    """A cursor over the text of a model.

    Args:
        text: The whole text.
        source: Name of the text in errors, usually a path.
    """

    def __init__(self, text: str, source: str) -> None:
        self.text = text
        self.source = source
        self.position = 1 if text.startswith("\ufeff") else 0
        self.depth = 0

    def fail(self, expected: str, *, at: int | None = None) -> NoReturn:
        """Raise the error that ``expected`` is missing at the next token, or at offset ``at``."""
        raise self.unexpected(expected, at=at)

    def unexpected(self, expected: str, *, at: int | None = None) -> TextFormatError:
        """Return the error that ``expected`` is missing at the next token, or at offset ``at``."""
        if at is None:
            self.skip_space()
            at = self.position
        token = _ANY_TOKEN.match(self.text, at)
        actual = "the end of the text" if token is None else repr(token.group()[:40])
        return self.error(f"expected {expected}, got {actual}", at=at)

    def error(self, problem: str, *, at: int, remedy: str = "") -> TextFormatError:
        """Return an error at an offset of the text, with line and column (both from 1)."""
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        return TextFormatError(problem, where=f"{self.source}:{line}:{column}", remedy=remedy)

    @contextmanager
    def nested(self, levels: int) -> Iterator[None]:
        """Count ``levels`` more nested messages during the block.

        Raises:
            TextFormatError: The nesting exceeds protobuf's limit.
        """
        self.depth += levels
        if self.depth > MAX_DEPTH:
            raise self.error("nested too deeply: protobuf reads at most 100 levels of messages", at=self.position)
        yield
        self.depth -= levels

    def skip_space(self) -> None:
        """Skip white space and comments, but not ``#@`` annotations."""
        space = _SPACE.match(self.text, self.position)
        if space is not None:
            self.position = space.end()

    def peek(self) -> str:
        """Return the next character after white space, or an empty string at the end."""
        self.skip_space()
        return self.text[self.position : self.position + 1]

    def accept(self, symbol: str) -> bool:
        """Consume ``symbol`` and return True if next."""
        self.skip_space()
        if self.text.startswith(symbol, self.position):
            self.position += len(symbol)
            return True
        return False

    def expect(self, symbol: str, *, where: str) -> None:
        """Consume ``symbol``, which must be next."""
        if not self.accept(symbol):
            self.fail(f"{symbol!r} {where}")

    def peek_word(self) -> str:
        """Return the next identifier, or an empty string."""
        self.skip_space()
        word = IDENTIFIER.match(self.text, self.position)
        if word is None or (word.group() in _PREFIXES and self.text.startswith('"', word.end())):
            return ""
        return word.group()

    def word(self) -> str:
        """Consume the next identifier; empty if there is none."""
        word = self.peek_word()
        self.position += len(word)
        return word

    def peek_literal(self) -> bool:
        """Return True if a string is next: quoted, or with escaped bytes."""
        return self.peek() == '"' or self.text.startswith('b"', self.position)

    def string(self, expected: str) -> str:
        """Consume a string that must be valid UTF-8."""
        start = self.position
        data = self.literal(expected)
        if isinstance(data, str):
            return data
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.error(f"{expected} is not valid UTF-8", at=start) from None

    def literal(self, expected: str) -> str | bytes:
        r"""Consume ``"…"``, with a backslash quoting the next character, or ``b"…"`` with ``\xHH`` escapes."""
        self.skip_space()
        match = _STRING.match(self.text, self.position)
        if match is not None:
            self.position = match.end()
            body = match.group(1)
            return _ESCAPE.sub(r"\1", body) if "\\" in body else body
        match = _BYTES.match(self.text, self.position)
        if match is not None:
            data = _BYTE_ESCAPE.sub(self._unescape, match.group(1).encode())
            self.position = match.end()
            return data
        if self.text.startswith(('"', 'b"'), self.position):
            raise self.error("unterminated string", at=self.position)
        raise self.unexpected(expected)

    def _unescape(self, match: re.Match[bytes]) -> bytes:
        code = match.group(1)
        if len(code) == 3:
            return bytes([int(code[1:], 16)])
        if code not in _BYTE_ESCAPES:
            raise self.error(f"unknown escape {match.group().decode(errors='replace')!r}", at=self.position)
        return _BYTE_ESCAPES[code]

    def name(self, expected: str) -> str:
        """Consume an identifier or a quoted name."""
        if self.peek_literal():
            return self.string(expected)
        word = self.word()
        if not word:
            self.fail(expected)
        return word

    def integer(self, expected: str, low: int = -(2**63), high: int = 2**63 - 1) -> int:
        """Consume an integer between ``low`` and ``high``."""
        self.skip_space()
        start = self.position
        match = _INTEGER.match(self.text, start)
        if match is None:
            self.fail(expected)
        self.position = match.end()
        if self.text[self.position : self.position + 1] in (".", "e", "E"):
            self.fail(expected, at=start)
        if match.end() - start > MAX_DIGITS or not low <= int(match.group()) <= high:
            raise self.error(f"{expected}: {match.group()[:40]} is not between {low} and {high}", at=start)
        return int(match.group())

    def number(self, expected: str) -> str:
        """Consume a number and return its text."""
        self.skip_space()
        match = _NUMBER.match(self.text, self.position)
        if match is None:
            self.fail(expected)
        if match.end() - match.start() > MAX_DIGITS:
            raise self.error(f"a number of {match.end() - match.start()} characters is too long", at=self.position)
        self.position = match.end()
        return match.group()

    def peek_number(self) -> bool:
        """Return True if a number is next; ``inf`` and ``nan`` are numbers."""
        self.skip_space()
        return _NUMBER.match(self.text, self.position) is not None

    def plain_numbers(self, close: str, *, integers: bool) -> list[str] | None:
        """Consume a whole list of numbers and its closing bracket; None, consuming nothing, for other lists."""
        end = self.text.find(close, self.position)
        numbers = split_plain(self.text[self.position : max(end, self.position)], integers=integers)
        if numbers is not None:
            self.position = end + len(close)
        return numbers

    def peek_base64(self) -> bool:
        """Return True if a base64 block is next."""
        self.skip_space()
        return self.text.startswith('base64"', self.position)

    def base64(self) -> bytes:
        """Consume ``base64"…"``; white space inside is ignored."""
        match = _BASE64.match(self.text, self.position)
        if match is None:
            raise self.error("unterminated base64 block, or a character outside base64", at=self.position)
        digits = match.group(1).encode("ascii", "replace").translate(None, b" \t\n\v\f\r")
        try:
            data = base64.b64decode(digits, validate=True)
        except binascii.Error as error:
            raise self.error(f"invalid base64: {error}", at=self.position) from None
        self.position = match.end()
        return data

    def annotation(self) -> tuple[str, int] | None:
        """Consume ``#@ …`` to the end of its line, or ``@{ … }``; return the body and its offset, or None."""
        self.skip_space()
        start = self.position
        if self.text.startswith("#@", start):
            end = self.text.find("\n", start)
            self.position = len(self.text) if end < 0 else end
            return self.text[start + 2 : self.position], start + 2
        if not self.text.startswith("@{", start):
            return None
        depth = 0
        for token in _BLOCK_TOKEN.finditer(self.text, start + 1):
            depth += {"{": 1, "}": -1}.get(token.group(), 0)
            if depth == 0 and token.group() == "}":
                self.position = token.end()
                return self.text[start + 2 : token.start()], start + 2
        raise self.error("unterminated block", at=start)
