"""Patterns in RE2's syntax, as the standard has them, for Python's ``re``.

Source: https://github.com/google/re2/wiki/Syntax. What ``re`` reads otherwise is rewritten; what RE2 does not have, and
what ``re`` cannot say, is refused. Letters, digits and spaces of classes are those of ASCII, as RE2's are.
"""

from __future__ import annotations

import functools
import re

from sardonyx.errors import InvalidModelError, UnsupportedError

_TOKEN = re.compile(
    r"""\\Q(?P<quoted>.*?)(?:\\E|\Z)
    |\\x\{(?P<code>[0-9A-Fa-f]+)\}
    |(?P<back>\\[1-9](?![0-7]{2})|\\Z|\\k|\(\?(?:[=!>\#(]|<[=!]|P=|P>))
    |(?P<unicode>\\[pPCX])
    |\\(?P<escape>.)
    |\(\?<(?P<name>\w+)>
    |\(\?(?P<flags>[imsU]*(?:-[imsU]+)?)(?P<end>[:)])
    |\[:(?P<posix>\^?\w+):\]
    |(?P<char>.)""",
    re.VERBOSE | re.DOTALL,
)

_SPACE = r"\t\n\f\r "

_POSIX = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "ascii": r"\x00-\x7f", "blank": r"\t ", "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9", "graph": "!-~", "lower": "a-z", "print": " -~", "punct": r"!-/:-@\[-`{-~", "space": r"\t\n\v\f\r ",
    "upper": "A-Z", "word": "0-9A-Za-z_", "xdigit": "0-9A-Fa-f",
}  # fmt: skip


@functools.lru_cache(maxsize=256)
def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern, ready to be matched.

    Raises:
        InvalidModelError: It is no RE2 pattern.
        UnsupportedError: It uses what Python's ``re`` does not have.
    """
    parts: list[str] = []
    inside, first = False, False
    for token in _TOKEN.finditer(pattern):
        char = token["char"]
        opened = char == "[" and not inside
        closed = char == "]" and inside and not first
        parts.append(_rewritten(token, inside))
        first = opened or (first and char == "^" and parts[-2] == "[")
        inside = (inside or opened) and not closed
    try:
        return re.compile("".join(parts), re.ASCII)
    except re.error as error:
        raise UnsupportedError(f"the pattern {pattern!r} cannot be used: {error}.") from error


def _rewritten(token: re.Match[str], inside: bool) -> str:
    """One part of a pattern, in ``re``'s syntax; ``inside`` a class or not."""
    if token["back"]:
        raise InvalidModelError(f"{token['back']!r} is no part of an RE2 pattern: it looks back or around.")
    if token["unicode"]:
        raise UnsupportedError(f"{token['unicode']!r} in a pattern has no equal in Python's `re`.")
    if token["quoted"] is not None:
        return re.escape(token["quoted"])
    if token["code"]:
        return f"\\U{int(token['code'], 16):08x}"
    if token["name"]:
        return f"(?P<{token['name']}>"
    if token["end"]:
        flags = token["flags"].replace("U", "").removesuffix("-")  # Greed makes no difference to a full match.
        return "" if not flags and token["end"] == ")" else f"(?{flags}{token['end']}"
    if token["posix"]:
        found = _POSIX.get(token["posix"])
        if found is None or not inside:
            raise UnsupportedError(f"the class [:{token['posix']}:] in a pattern cannot be used here.")
        return found
    if token["escape"]:
        spaces = {"s": _SPACE, "S": r"\S\v"} if inside else {"s": f"[{_SPACE}]", "S": f"[^{_SPACE}]"}
        return {"z": r"\Z", **spaces}.get(token["escape"], token[0])
    return f"\\{token['char']}" if inside and token["char"] in "[&~|" else str(token["char"])
