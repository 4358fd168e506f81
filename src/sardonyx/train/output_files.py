"""Files that a training writes at its end, checked at its beginning."""

from __future__ import annotations

import os

from sardonyx.errors import ModelFileError, OptionError
from sardonyx.model import require_writable


def require_file(path: str | os.PathLike[str], where: str) -> None:
    """Check that a file can be written or replaced, before a training.

    Args:
        path: The file.
        where: The name of the option.

    Raises:
        OptionError: No file can be written at the path.
    """
    try:
        require_writable(path)
    except ModelFileError as error:
        raise OptionError(f"{error.where!r} {error.problem}", where=where, remedy=error.remedy) from error
