"""The local cache of downloaded files: blobs by digest, and folders of links by model and revision."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sardonyx.base.artifact_store import write_whole
from sardonyx.errors import DownloadError
from sardonyx.hub.file_lock import hold, is_of_another

FOLDER = "SARDONYX_HUB"
"""Environment variable with the folder; default ``~/.cache/sardonyx-hub``."""

QUOTA = "SARDONYX_HUB_QUOTA"
"""Environment variable with the most bytes of all blobs."""

_DEFAULT_QUOTA = 100 << 30
_NOTE_SUFFIX = ".json"
"""Of the note about a model, beside its folder: files of a source have any name inside of the folder."""


@dataclass(frozen=True)
class Stored:
    """A model in the cache.

    Attributes:
        name: The name for :func:`.get`.
        revision: The exact revision.
        path: The model file.
        files: SHA-256 digest and size by file name.
    """

    name: str
    revision: str
    path: Path
    files: dict[str, tuple[str, int]]


class Cache:
    """The cache in a folder.

    Args:
        folder: The folder; None for that of the environment.
        quota: Most bytes of all blobs; None for that of the environment.
    """

    def __init__(self, folder: Path | None = None, quota: int | None = None) -> None:
        self.folder = folder or Path(os.environ.get(FOLDER) or Path.home() / ".cache" / "sardonyx-hub")
        self.quota = quota if quota is not None else _quota()
        self.blobs = self.folder / "blobs"

    def used(self) -> int:
        """Return the bytes of all blobs, incomplete ones included."""
        if not self.blobs.is_dir():
            return 0
        return sum(entry.stat().st_size for entry in os.scandir(self.blobs) if entry.is_file(follow_symlinks=False))

    def room(self) -> int:
        """Return the bytes that may be added.

        Raises:
            DownloadError: None.
        """
        room = self.quota - self.used()
        if room <= 0:
            raise self.excess()
        return room

    def excess(self) -> DownloadError:
        """Return the error of a full cache."""
        return DownloadError(
            f"the cache holds {self.used():,} bytes, its quota is {self.quota:,}.",
            where=str(self.folder),
            remedy=f"Delete models there, or raise {QUOTA}.",
        )

    def blob(self, sha256: str) -> Path:
        """Return the path of a blob."""
        return self.blobs / sha256

    @contextlib.contextmanager
    def incomplete(self, key: str) -> Iterator[Path]:
        """Yield the path of an incomplete download, which one process at a time may write.

        Raises:
            DownloadError: Another process downloads the file, or the folder cannot be written or locked.
        """
        name = hashlib.sha256(key.encode()).hexdigest()[:32]
        try:
            self.blobs.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
            descriptor = os.open(self.blobs / f"{name}.lock", flags, 0o600)
        except OSError as error:
            raise DownloadError(f"cannot be written: {error.strerror}.", where=str(self.blobs)) from error
        try:
            try:
                hold(descriptor, wait=False)
            except OSError as error:
                reason = "another process downloads the file"
                if not is_of_another(error):  # E.g. a network file system without locks.
                    reason = f"cannot be locked: {error.strerror}"
                raise DownloadError(f"{reason}.", where=str(self.blobs)) from error
            yield self.blobs / f"{name}.part"
        finally:
            os.close(descriptor)

    def adopt(self, part: Path, sha256: str) -> None:
        """Make a complete, verified download a blob."""
        part.replace(self.blob(sha256))

    def link_files(self, name: str, revision: str, model: str, files: dict[str, tuple[str, int]]) -> Stored:
        """Make the folder of a model, which has links to blobs, and a note about the model beside the folder.

        Args:
            name: The name of the model.
            revision: Its revision.
            model: Name of the model file among the files.
            files: SHA-256 digest and size by file name; the blobs exist.

        Raises:
            DownloadError: A file cannot be written, e.g. because one file has the name of the folder of another.
        """
        folder = self._folder(name, revision)
        note = {"name": name, "revision": revision, "model": model, "files": {f: list(row) for f, row in files.items()}}
        try:
            for file, (sum, _) in files.items():
                self._link(folder / file, self.blob(sum))
            write_whole(_note_of(folder), json.dumps(note).encode())
        except OSError as error:
            # Errors of shutil have no number.
            where = str(error.filename2 or error.filename or folder)
            raise DownloadError(f"cannot be written: {error.strerror or error}.", where=where) from error
        return Stored(name, revision, folder / model, files)

    def _link(self, link: Path, blob: Path) -> None:
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A name of its own, then one replacement: other threads and processes make the same link.
        fresh = link.with_name(f".{os.urandom(8).hex()}")
        try:
            try:
                fresh.symlink_to(blob.absolute())
            except OSError as error:
                if not _has_no_links(error):
                    raise
                shutil.copy(blob, fresh)
            fresh.replace(link)
        finally:
            fresh.unlink(missing_ok=True)

    def find(self, name: str, revision: str) -> Stored | None:
        """Return a model of which all files are here, with their digests verified; None otherwise."""
        folder = self._folder(name, revision)
        stored = _read_note(_note_of(folder))
        if stored is None or (stored.name, stored.revision) != (name, revision):
            return None
        for file, (sum, size) in stored.files.items():
            blob = self.blob(sum)
            if not blob.is_file() or blob.stat().st_size != size or _sha256(blob) != sum:
                return None
            if not _is_copy(folder / file, blob, sum):
                return None
        return stored

    def models(self) -> list[Stored]:
        """Return all models of the cache, sorted by name."""
        notes = (self.folder / "models").glob(f"*{_NOTE_SUFFIX}")
        stored = [entry for note in notes if (entry := _read_note(note)) is not None]
        return sorted(stored, key=lambda entry: (entry.name, entry.revision))

    def _folder(self, name: str, revision: str) -> Path:
        return self.folder / "models" / hashlib.sha256(f"{name}\0{revision}".encode()).hexdigest()[:40]


def _has_no_links(error: OSError) -> bool:
    """Return True if a file system has no symbolic links, or the user no privilege to make them (Windows)."""
    return getattr(error, "winerror", None) == 1314 or error.errno in (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)


def _note_of(folder: Path) -> Path:
    return folder.with_name(folder.name + _NOTE_SUFFIX)


def _is_copy(path: Path, blob: Path, sha256: str) -> bool:
    """Return True if a file of a model's folder is a blob, or a copy of one."""
    try:
        return path.samefile(blob) or _sha256(path) == sha256
    except OSError:
        return False


def _read_note(path: Path) -> Stored | None:
    try:
        note = json.loads(path.read_bytes())
        files = {str(name): (str(sum), int(size)) for name, (sum, size) in note["files"].items()}
        model = path.with_suffix("") / note["model"]
        return Stored(str(note["name"]), str(note["revision"]), model, files) if note["model"] in files else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _quota() -> int:
    text = os.environ.get(QUOTA, "")
    if text and not (text.isascii() and text.isdigit()):
        raise DownloadError(f"expected a number of bytes, got {text[:40]!r}.", where=QUOTA)
    return int(text) if text else _DEFAULT_QUOTA
