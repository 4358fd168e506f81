"""The lock file: the exact revision and digests of each model that a project uses, e.g. for builds."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sardonyx.base.artifact_store import write_whole
from sardonyx.base.neighbour_files import neighbour
from sardonyx.errors import DownloadError
from sardonyx.hub.file_lock import hold

_MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class LockedModel:
    """A model of a lock file.

    Attributes:
        revision: The exact revision of its source.
        files: SHA-256 digest and size by file name.
    """

    revision: str
    files: dict[str, tuple[str, int]]


@dataclass
class Lock:
    """A lock file.

    Attributes:
        path: The file.
        models: The locked models, by name.
    """

    path: Path
    models: dict[str, LockedModel] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Lock:
        """Read a lock file; a missing file locks nothing.

        Raises:
            DownloadError: The file is malformed.
        """
        source = Path(path)
        try:
            with source.open("rb") as file:
                content = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return cls(source)
        except OSError as error:
            raise DownloadError(f"cannot be read: {error.strerror}.", where=str(source)) from error
        try:
            data = json.loads(content)
            if not isinstance(data, dict) or data.get("version") != 1:
                raise ValueError('expected an object with "version": 1')
            models = {name: _locked(row) for name, row in data["models"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DownloadError(f"the lock file is malformed: {error}.", where=str(source)) from error
        return cls(source, models)

    @classmethod
    def add(cls, path: str | os.PathLike[str], name: str, model: LockedModel) -> None:
        """Add a model to a lock file, one thread and process after the other: they wait at ``PATH.lock``.

        Raises:
            DownloadError: The file is malformed or cannot be written, or locks other files of the model.
        """
        with _exclusive(Path(path)):
            current = cls.read(path)
            if current.models.setdefault(name, model) != model:
                raise DownloadError("another process locks other files of the model.", where=name, remedy="Try again.")
            current.write()

    def write(self) -> None:
        """Write the file, sorted by name.

        Raises:
            DownloadError: The file cannot be written.
        """
        models = {
            name: {"revision": model.revision, "files": {file: list(row) for file, row in sorted(model.files.items())}}
            for name, model in sorted(self.models.items())
        }
        try:
            write_whole(self.path, (json.dumps({"version": 1, "models": models}, indent=2) + "\n").encode())
        except OSError as error:
            raise DownloadError(f"cannot be written: {error.strerror}.", where=str(self.path)) from error


def _locked(row: dict[str, Any]) -> LockedModel:
    """Return the model of a row of a lock file; raises the errors of malformed files."""
    revision, files = row["revision"], {name: (digest, size) for name, (digest, size) in row["files"].items()}
    for text in (revision, *(digest for digest, _ in files.values())):
        if not isinstance(text, str):
            raise TypeError(f"expected a text, got {text!r}")
    for _, size in files.values():
        if type(size) is not int or size < 0:
            raise TypeError(f"expected a number of bytes, got {size!r}")
    return LockedModel(revision, files)


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Wait until no other thread or process writes to a lock file."""
    guard = neighbour(path, ".lock")
    try:
        descriptor = os.open(guard, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
    except OSError as error:
        raise DownloadError(f"cannot be written: {error.strerror}.", where=str(guard)) from error
    try:
        try:
            hold(descriptor, wait=True)
        except OSError as error:  # E.g. a network file system without locks.
            raise DownloadError(f"cannot be locked: {error.strerror}.", where=str(guard)) from error
        yield
    finally:
        os.close(descriptor)
