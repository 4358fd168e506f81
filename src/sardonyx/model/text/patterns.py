"""Regular expressions with possessive quantifiers, on every Python."""

from __future__ import annotations

import re
import sys
from typing import Final

_POSSESSIVE_GROUP: Final = re.compile(r"\)([*?]|\{\d+,\})\+")


def pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """Compile a regular expression.

    Python before 3.11.5 continues at a wrong position if the last iteration of a possessive group (``(…)*+``) fails
    midway. There, such groups become greedy: a text without a match takes longer, and the matches of our grammars stay
    the same, since no two alternatives in a group have a common prefix.
    """
    if sys.version_info < (3, 11, 5):
        text = _POSSESSIVE_GROUP.sub(r")\1", text)
    return re.compile(text, flags)
