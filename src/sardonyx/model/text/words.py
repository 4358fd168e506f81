"""Names and strings as the ONNX text syntax writes them."""

from __future__ import annotations

from sardonyx.model.text.annotation import not_utf8
from sardonyx.model.text.vocabulary import IDENTIFIER, TYPE_WORDS


def quoted(value: str) -> str:
    """A string in quotes.

    Raises:
        TextFormatError: The string is not UTF-8: protobuf then gives bytes.
    """
    if not isinstance(value, str):
        raise not_utf8("a string", value)
    if "\0" in value:
        return quoted_bytes(value.encode())
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def quoted_bytes(value: bytes) -> str:
    r"""Bytes in quotes, or as ``b"…"`` with ``\xHH`` escapes when they are not UTF-8 or hold NUL."""
    text = value.decode("utf-8", "surrogateescape")
    if "\0" not in text and len(text.encode("utf-8", "ignore")) == len(value):
        return quoted(text)
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\0", "\\0")
    escaped = (f"\\x{ord(char) - 0xDC00:02x}" if "\udc80" <= char <= "\udcff" else char for char in text)
    return f'b"{"".join(escaped)}"'


def is_identifier(name: str) -> bool:
    """Whether a name can stand without quotes wherever no type can.

    Raises:
        TextFormatError: The name is not UTF-8: protobuf then gives bytes.
    """
    if not isinstance(name, str):
        raise not_utf8("a name", name)
    return IDENTIFIER.fullmatch(name) is not None


def named(name: str) -> str:
    """A name where no type can stand: in quotes unless it is an identifier."""
    return name if is_identifier(name) else quoted(name)


def quote(name: str) -> str:
    """A name, in quotes unless it is an identifier that begins no type."""
    return name if is_identifier(name) and name not in TYPE_WORDS else quoted(name)
