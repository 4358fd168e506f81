"""User-defined rules, loaded from a Python file."""

from __future__ import annotations

from pathlib import Path

from sardonyx.errors import RuleError
from sardonyx.ops.user_file import run_file
from sardonyx.rewrite.language import Rule


def load_rules(path: Path) -> list[Rule]:
    """Return the rules defined by a Python file, which is executed: load only trusted files.

    Raises:
        OptionError: The path is not that of a Python file.
        RuleError: The code of the file raises, or defines no rule.
    """
    rules = [value for value in vars(run_file(path, RuleError)).values() if isinstance(value, Rule)]
    if not rules:
        raise RuleError(
            "expected at least one rule, got none",
            where=str(path),
            remedy="Decorate a function with @sardonyx.rule(...).",
        )
    return rules
