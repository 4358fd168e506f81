"""Names and strings in the ONNX text syntax."""

from __future__ import annotations

from sardonyx.model.text.annotation import not_utf8
from sardonyx.model.text.vocabulary import IDENTIFIER, TYPE_WORDS


def quoted(value: str) -> str:
    """Return a string in quotes.

    Raises:
        TextFormatError: The string is not UTF-8: protobuf then returns bytes.
    """
    if not isinstance(value, str):
        raise not_utf8("a string", value)
    if "\0" in value:
        return quoted_bytes(value.encode())
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def quoted_bytes(value: bytes) -> str:
    r"""Return bytes in quotes, or as ``b"…"`` with ``\xHH`` escapes if not UTF-8 or if containing NUL."""
    text = value.decode("utf-8", "surrogateescape")
    if "\0" not in text and len(text.encode("utf-8", "ignore")) == len(value):
        return quoted(text)
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\0", "\\0")
    escaped = (f"\\x{ord(char) - 0xDC00:02x}" if "\udc80" <= char <= "\udcff" else char for char in text)
    return f'b"{"".join(escaped)}"'


def is_identifier(name: str) -> bool:
    """Return True if a name needs no quotes at positions that exclude types.

    Raises:
        TextFormatError: The name is not UTF-8: protobuf then returns bytes.
    """
    if not isinstance(name, str):
        raise not_utf8("a name", name)
    return IDENTIFIER.fullmatch(name) is not None


def named(name: str) -> str:
    """Return a name for a position that excludes types: in quotes unless an identifier."""
    return name if is_identifier(name) else quoted(name)


def quote(name: str) -> str:
    """Return a name, in quotes unless an identifier that does not begin a type."""
    return name if is_identifier(name) and name not in TYPE_WORDS else quoted(name)
