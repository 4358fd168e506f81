"""Operators of a user's own, from a Python file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from sardonyx.errors import OptionError, SardonyxError
from sardonyx.ops import registry
from sardonyx.ops.registry import Operator


def load_operators(path: Path) -> list[Operator]:
    """Define the operators of a Python file (it is run: load only files that you trust).

    Raises:
        OptionError: The file cannot be run, or defines no operator.
    """
    spec = importlib.util.spec_from_file_location(f"sardonyx_user_operators_{path.stem}", path)
    if spec is None or spec.loader is None or not path.exists():
        raise OptionError("is no Python file", where=str(path))
    before = {each for versions in registry.defined_by_users().values() for each in versions}
    try:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    except SardonyxError:
        raise
    except (Exception, SystemExit) as error:  # the file is anybody's code
        raise OptionError(f"running it failed: {type(error).__name__}: {error}", where=str(path)) from error
    found = [each for versions in registry.defined_by_users().values() for each in versions if each not in before]
    if not found:
        remedy = 'Decorate a function with @sardonyx.operator("Name", domain="my.domain", since=1).'
        raise OptionError("defines no operator", where=str(path), remedy=remedy)
    return found
