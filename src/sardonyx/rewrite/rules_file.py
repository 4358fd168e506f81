"""Rules of a user's own, from a Python file."""

from __future__ import annotations

import importlib.util
import traceback
from pathlib import Path

from sardonyx.errors import RuleError
from sardonyx.rewrite.language import Rule


def load_rules(path: Path) -> list[Rule]:
    """The rules that a Python file defines (it is run: load only files that you trust).

    Raises:
        RuleError: the file cannot be run, or defines no rule.
    """
    spec = importlib.util.spec_from_file_location(f"sardonyx_user_rules_{path.stem}", path)
    if spec is None or spec.loader is None or not path.exists():
        raise RuleError("is no Python file", where=str(path))
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except RuleError:
        raise
    except (Exception, SystemExit) as error:  # the file is anybody's code
        at = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f"{path}, line {at[-1]}" if at else str(path)
        raise RuleError(f"running it failed: {type(error).__name__}: {error}", where=where) from error
    found = [value for value in vars(module).values() if isinstance(value, Rule)]
    if not found:
        raise RuleError("defines no rule", where=str(path), remedy="Decorate a function with @sardonyx.rule(...).")
    return found
