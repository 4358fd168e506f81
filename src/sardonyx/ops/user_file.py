"""Python files of users, which define operators or rules when they are run."""

from __future__ import annotations

import importlib.util
import traceback
from pathlib import Path
from types import ModuleType

from sardonyx.errors import OptionError, SardonyxError


def run_file(path: Path, refusal: type[SardonyxError]) -> ModuleType:
    """Run a Python file and return its module; run only trusted files.

    Args:
        path: The file.
        refusal: The class of the error if running fails.

    Raises:
        OptionError: The path is not that of a Python file.
        SardonyxError: The code of the file raises; the message names the file and the line.
    """
    spec = importlib.util.spec_from_file_location(f"sardonyx_user_{path.stem}", path)
    if spec is None or spec.loader is None or not path.exists():
        raise OptionError("expected an existing Python file.", where=str(path), remedy="Its name ends in .py.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SardonyxError:
        raise
    except (Exception, SystemExit) as error:  # User code may raise anything.
        at = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f"{path}, line {at[-1]}" if at else str(path)
        raise refusal(f"running it failed: {type(error).__name__}: {error}", where=where) from error
    return module
