"""Files next to others: signatures, public keys, lock files."""

from __future__ import annotations

import os
from pathlib import Path

from sardonyx.errors import OptionError


def neighbour(path: str | os.PathLike[str], suffix: str) -> Path:
    """Return the path of the file next to a file or folder, whose name has a suffix more.

    A path without a name, such as ``.`` and ``..``, is that of the folder with its name.

    Args:
        path: The file or folder.
        suffix: The suffix, e.g. ``".sig"``.

    Raises:
        OptionError: The root of the file system has no name.
    """
    named = Path(path)
    if not named.name or named.name == "..":
        named = named.resolve()
    if not named.name:
        raise OptionError("expected a file or folder with a name.", where=str(path))
    return named.with_name(named.name + suffix)
