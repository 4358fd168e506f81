"""User-defined operators loaded from a Python file."""

from __future__ import annotations

from pathlib import Path

from sardonyx.errors import OptionError
from sardonyx.ops import registry
from sardonyx.ops.registry import Operator
from sardonyx.ops.user_file import run_file


def load_operators(path: Path) -> list[Operator]:
    """Run a Python file and return the operators defined there; load only trusted files.

    Raises:
        OptionError: Running the file fails, or the file defines no operator.
    """
    before = {operator for versions in registry.user_operators().values() for operator in versions}
    run_file(path, OptionError)
    operators = [
        operator for versions in registry.user_operators().values() for operator in versions if operator not in before
    ]
    if not operators:
        remedy = 'Decorate a function with @sardonyx.operator("Name", domain="my.domain", since=1).'
        raise OptionError("defines no operator", where=str(path), remedy=remedy)
    return operators
