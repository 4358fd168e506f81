"""Rules of a user's own, from a Python file."""

from __future__ import annotations

from pathlib import Path

from sardonyx.errors import RuleError
from sardonyx.ops.user_file import run_file
from sardonyx.rewrite.language import Rule


def load_rules(path: Path) -> list[Rule]:
    """The rules that a Python file defines (it is run: load only files that you trust).

    Raises:
        RuleError: the file cannot be run, or defines no rule.
    """
    found = [value for value in vars(run_file(path, RuleError)).values() if isinstance(value, Rule)]
    if not found:
        raise RuleError("defines no rule", where=str(path), remedy="Decorate a function with @sardonyx.rule(...).")
    return found
