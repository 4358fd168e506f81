"""Detection of a model file's form from its first bytes."""

from __future__ import annotations

import re
from typing import Final, Literal

from sardonyx.model.text.patterns import pattern

_CONTROL: Final = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_LEADING: Final = pattern(r"\ufeff?+(?:\s++|#[^\n]*+(?:\n|\Z))*+")
_FIELD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\s*[:{<]")

_BEGINNING: Final = re.compile(r'[A-Za-z_"<]')


def sniff(head: bytes | str) -> Literal["onnx-text", "textproto", "binary"]:
    """Return the form of a model, from the first bytes of its file.

    A binary model begins with a protobuf tag and has control characters near its beginning (the length of a name, a
    version number). Protobuf text begins with ``field:`` or ``field {``; the ONNX text syntax with ``<`` or with a
    graph's name and ``(``. Comments, white space and a byte order mark may precede either.

    Args:
        head: At least the first few hundred bytes or characters; a truncated last character is ignored.
    """
    if isinstance(head, bytes):
        try:
            text = head.decode()
        except UnicodeDecodeError as error:
            if len(head) - error.start > 3 or error.reason != "unexpected end of data":
                return "binary"
            text = head[: error.start].decode()
    else:
        text = head
    leading = _LEADING.match(text)
    start = leading.end() if leading else 0
    commented = "#" in text[:start]
    if _CONTROL.search(text) and not commented and not text.startswith("<", start):
        return "binary"
    if _FIELD.match(text, start):
        return "textproto"
    return "onnx-text" if commented or _BEGINNING.match(text, start) else "binary"
