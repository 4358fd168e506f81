"""Files beside a model in a repository: configurations, settings, labels, tensors of states and warm-ups."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from sardonyx.errors import ModelFileError


@dataclass(frozen=True)
class AuxiliaryFiles:
    """The files beside a model in its folder.

    Attributes:
        root: The repository, which holds every file, also where the file is reached by a link.
        folder: The folder of the model; None for a plain model file, beside which are the files of others.
    """

    root: Path
    folder: Path | None

    def read(self, name: str, most: int, where: str) -> bytes:
        """Return the bytes of a file in the folder of the model.

        Args:
            name: The path of the file in the folder, of names that are checked.
            most: Most bytes of the file.
            where: The name of the file, for messages.

        Raises:
            ModelFileError: The model has no folder, or :func:`_read` refuses the file.
        """
        if self.folder is None:
            raise ModelFileError(
                "a model without a folder has no files of labels or tensors.", where=where,
                remedy="Move the model and its files to a folder of their own.",
            )  # fmt: skip
        return _read(self.folder / name, self.root, most, where)


def _read(path: Path, folder: Path, most: int, where: str) -> bytes:
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
