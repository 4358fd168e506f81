"""Names and strings as the ONNX text syntax writes them."""

from __future__ import annotations

from sardonyx.model.text.annotation import not_utf8
from sardonyx.model.text.vocabulary import IDENTIFIER, TYPE_WORDS


def quoted(value: str | bytes) -> str:
    r"""A string in quotes, or as ``b"…"`` with ``\xHH`` escapes when it holds NUL or bytes that are not UTF-8."""
    text = value
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError:
            return _escaped(text)
    if "\0" in text:
        return _escaped(text.encode())
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escaped(value: bytes) -> str:
    text = value.decode("utf-8", "surrogateescape").replace("\\", "\\\\").replace('"', '\\"').replace("\0", "\\0")
    return (
        'b"' + "".join(f"\\x{ord(char) - 0xDC00:02x}" if "\udc80" <= char <= "\udcff" else char for char in text) + '"'
    )


def quote(name: str | bytes) -> str:
    """A name, in quotes unless it is an identifier that begins no type.

    Raises:
        TextFormatError: The name is not UTF-8.
    """
    if isinstance(name, bytes):
        raise not_utf8("a name", name)
    return name if IDENTIFIER.fullmatch(name) and name not in TYPE_WORDS else quoted(name)
