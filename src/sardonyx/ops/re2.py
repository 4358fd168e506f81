"""Translation of patterns from the RE2 syntax of the standard to Python's ``re``.

Source: https://github.com/google/re2/wiki/Syntax. Constructs with another meaning in ``re`` are rewritten;
constructs missing in RE2 or in ``re`` are refused. Letters, digits and spaces of classes are ASCII, as in RE2.
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
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile an RE2 pattern.

    Raises:
        InvalidModelError: The pattern is not valid RE2.
        UnsupportedError: Python's ``re`` cannot express the pattern.
    """
    parts: list[str] = []
    inside, first = False, False
    for token in _TOKEN.finditer(pattern):
        char = token["char"]
        opened = char == "[" and not inside
        closed = char == "]" and inside and not first
        parts.append(_rewrite_token(token, inside))
        first = opened or (first and char == "^" and parts[-2] == "[")
        inside = (inside or opened) and not closed
    try:
        return re.compile("".join(parts), re.ASCII)
    except re.error as error:
        raise UnsupportedError(f"the pattern {pattern!r} cannot be compiled: {error}.") from error


def _rewrite_token(token: re.Match[str], inside: bool) -> str:
    """Return one token of a pattern in ``re``'s syntax; ``inside`` is True within a character class."""
    if token["back"]:
        raise InvalidModelError(f"RE2 has no backreferences and no lookaround, got {token['back']!r} in a pattern.")
    if token["unicode"]:
        raise UnsupportedError(f"{token['unicode']!r} in a pattern has no equivalent in Python's `re`.")
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
        members = _POSIX.get(token["posix"])
        if members is None or not inside:
            raise UnsupportedError(f"unknown or misplaced class [:{token['posix']}:] in a pattern.")
        return members
    if token["escape"]:
        spaces = {"s": _SPACE, "S": r"\S\v"} if inside else {"s": f"[{_SPACE}]", "S": f"[^{_SPACE}]"}
        return {"z": r"\Z", **spaces}.get(token["escape"], token[0])
    return f"\\{token['char']}" if inside and token["char"] in "[&~|" else str(token["char"])
