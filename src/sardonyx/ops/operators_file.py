"""Operators of a user's own, from a Python file."""

from __future__ import annotations

from pathlib import Path

from sardonyx.errors import OptionError
from sardonyx.ops import registry
from sardonyx.ops.registry import Operator
from sardonyx.ops.user_file import run_file


def load_operators(path: Path) -> list[Operator]:
    """Define the operators of a Python file (it is run: load only files that you trust).

    Raises:
        OptionError: The file cannot be run, or defines no operator.
    """
    before = {each for versions in registry.defined_by_users().values() for each in versions}
    run_file(path, OptionError)
    found = [each for versions in registry.defined_by_users().values() for each in versions if each not in before]
    if not found:
        remedy = 'Decorate a function with @sardonyx.operator("Name", domain="my.domain", since=1).'
        raise OptionError("defines no operator", where=str(path), remedy=remedy)
    return found
