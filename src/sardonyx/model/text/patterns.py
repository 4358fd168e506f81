"""Regular expressions whose repetitions keep what they matched, on every Python."""

from __future__ import annotations

import re
import sys
from typing import Final

_KEEPING_GROUP: Final = re.compile(r"\)([*?]|\{\d+,\})\+")


def pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """A compiled regular expression.

    Python before 3.11.5 goes on at the wrong place where the last round of a group that keeps what it matched
    (``(…)*+``) fails in its midst. There such groups may give back what they matched: a text that does not match takes
    longer, and those of our grammars match as before, since no two ways through a group begin alike.
    """
    if sys.version_info < (3, 11, 5):
        text = _KEEPING_GROUP.sub(r")\1", text)
    return re.compile(text, flags)
