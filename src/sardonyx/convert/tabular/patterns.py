r"""Regular expressions of Python as those of the standard's operators, whose classes have ASCII members alone.

``\w`` of Python has the letters of all languages: classes become ranges of characters, which both read alike.
"""

from __future__ import annotations

import functools
import re
import sys

from sardonyx.errors import UnsupportedError

_PARTS = re.compile(r"\\[wWdDsS]|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_CLASS = re.compile(r"\\[wWdDsS]")
_SURROGATES = range(0xD800, 0xE000)

WORD_RUN = r"\w+"
"""A maximal run of letters, digits and underscores."""


def portable(pattern: str) -> str:
    """Return a pattern whose classes are ranges of characters.

    Raises:
        UnsupportedError: The pattern has groups, boundaries or other parts that RE2 reads in another way.
    """
    pattern = pattern.removeprefix("(?u)")
    if re.compile(pattern).groups or re.search(r"(?<!\\)(?:\\\\)*(?:\\[bBAZ1-9]|\(\?[=!<P(])", pattern):
        raise UnsupportedError(f"token_pattern {pattern!r}: groups, boundaries and looks around")
    return _PARTS.sub(lambda part: _ranges(part.group()) if _CLASS.search(part.group()) else part.group(), pattern)


def whole_run(pattern: str) -> str | None:
    r"""Return the inner pattern of ``\b...\b`` if its matches are maximal runs of word characters, else None."""
    matched = re.fullmatch(r"\\b(.+)\\b", pattern.removeprefix("(?u)"), re.DOTALL)
    if matched is None:
        return None
    inner = matched.group(1)
    rest = _PARTS.sub(lambda part: "a" if _is_of_words(part.group()) else "-", inner)
    is_of_words = re.fullmatch(r"(?:\w|\{\d+(?:,\d*)?\}|[+*?])+", rest) is not None
    return inner if is_of_words else None


def _is_of_words(part: str) -> bool:
    return not re.sub(r"\w", "", "".join(_members(part)))


@functools.lru_cache(maxsize=64)
def _members(part: str) -> tuple[str, ...]:
    """Return all characters that a class has."""
    return tuple(re.findall(part, _characters(), re.DOTALL))


@functools.cache
def _characters() -> str:
    return "".join(chr(code) for code in range(sys.maxunicode + 1) if code not in _SURROGATES)


@functools.lru_cache(maxsize=64)
def _ranges(part: str) -> str:
    members = {ord(character) for character in _members(part)}
    is_negated = 0 in members
    if is_negated:
        members = {ord(character) for character in _characters()} - members
    result: list[list[int]] = []
    for code in sorted(members):
        if result and result[-1][1] == code - 1:
            result[-1][1] = code
        else:
            result.append([code, code])
    text = "".join(_written(low) if low == high else f"{_written(low)}-{_written(high)}" for low, high in result)
    return f"[{'^' if is_negated else ''}{text}]"


def _written(code: int) -> str:
    character = chr(code)
    return character if character.isalnum() or code > 127 else f"\\x{code:02x}"
