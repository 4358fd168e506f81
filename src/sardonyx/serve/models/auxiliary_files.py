"""Files beside a model in a repository: configurations, settings, labels, tensors of states and warm-ups."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sardonyx.errors import ModelFileError


def read_auxiliary(path: Path, folder: Path, most: int, where: str) -> bytes:
    """Return the bytes of a regular file in a folder.

    Args:
        path: The file.
        folder: The folder that must hold the file, also where the path is a link.
        most: Most bytes of the file.
        where: The name of the file, for messages.

    Raises:
        ModelFileError: The file is missing, outside of the folder, too long, no regular file, or has several names.
    """
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    # Without O_NONBLOCK, a named pipe would wait for a writer.
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    try:
        target = path.resolve()
        if not target.is_relative_to(folder.resolve()):
            raise ModelFileError("expected a file in the repository, got a link to a file outside of it.", where=where)
        with os.fdopen(os.open(target, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ModelFileError("expected a regular file.", where=where)
            if status.st_nlink > 1:
                raise ModelFileError(
                    "has other names (hard links) and may therefore be a file from outside of the repository.",
                    where=where, remedy="If you trust the file, replace it by a copy.",
                )  # fmt: skip
            contents = file.read(most + 1) if status.st_size <= most else b""
    except (OSError, RuntimeError, ValueError) as error:  # A circle of links; a null character.
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelFileError(f"the file cannot be read: {reason}.", where=where) from error
    if max(status.st_size, len(contents)) > most:
        raise ModelFileError(f"expected at most {most:,} bytes.", where=where)
    return contents
