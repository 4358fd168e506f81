"""Python files of a user's own, which define operators or rules when they are run."""

from __future__ import annotations

import importlib.util
import traceback
from pathlib import Path
from types import ModuleType

from sardonyx.errors import SardonyxError


def run_file(path: Path, refusal: type[SardonyxError]) -> ModuleType:
    """Run a Python file: load only files that you trust.

    Args:
        path: The file.
        refusal: The class of the error where it cannot be run.

    Raises:
        SardonyxError: It is no Python file, or what it raises, which names the file and the line.
    """
    spec = importlib.util.spec_from_file_location(f"sardonyx_user_{path.stem}", path)
    if spec is None or spec.loader is None or not path.exists():
        raise refusal("is no Python file", where=str(path))
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SardonyxError:
        raise
    except (Exception, SystemExit) as error:  # The file is anybody's code.
        at = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f"{path}, line {at[-1]}" if at else str(path)
        raise refusal(f"running it failed: {type(error).__name__}: {error}", where=where) from error
    return module
