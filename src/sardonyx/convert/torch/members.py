"""Members of the archives of torch, read only if torch's own reader sees the same ones.

Readers of ZIP disagree on archives that no writer of torch makes: of two members with one name each takes another, and
torch ignores the case of names. A check of the wrong member is none, so such archives are refused.
"""

from __future__ import annotations

import contextlib
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch

from sardonyx.errors import ModelFileError

MOST_BYTES = 256 << 20
"""Maximum size of the compressed members of an archive after decompression, and of a member that is checked."""

_END = struct.Struct("<4s4H2LH")
"""Last record of an archive: signature, four counts, size and offset of the directory, length of the comment."""

_UNREADABLE = (
    zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, RecursionError, RuntimeError, ValueError,
)  # fmt: skip
"""Exceptions of readers of damaged archives, encrypted ones included."""


class Members:
    """The members of an open archive.

    Attributes:
        names: The names, as in the archive.
    """

    def __init__(self, archive: zipfile.ZipFile, path: Path) -> None:
        self._archive = archive
        self._path = path
        self._entries = {entry.filename: entry for entry in archive.infolist()}
        self.names = list(self._entries)

    def require_unambiguous(self) -> None:
        """Refuse members that torch could read otherwise than this class, or that expand without bound.

        Raises:
            ModelFileError: The archive has such members.
        """
        entries = self._archive.infolist()
        folded: set[str] = set()
        for entry in entries:
            problem = _problem_of(entry)
            if not problem and entry.filename.lower() in folded:
                problem = "appears twice"
            if problem:
                raise self._damaged(f"the member '{entry.filename[:80]}' {problem}")
            folded.add(entry.filename.lower())
        if len({name.partition("/")[0] for name in self._entries}) != 1:
            raise self._damaged("expected one folder that contains all members")
        size = self._path.stat().st_size
        if sum(entry.compress_size for entry in entries) > size:
            raise self._damaged("members of the archive overlap")
        expanded = sum(entry.file_size for entry in entries if entry.compress_type == zipfile.ZIP_DEFLATED)
        if expanded > MOST_BYTES:
            raise self._damaged(f"compressed members expand to {expanded} bytes, more than {MOST_BYTES}")
        with self._path.open("rb") as file:
            file.seek(max(size - _END.size, 0))
            end = file.read(_END.size)
        if len(end) < _END.size or not end.startswith(b"PK\5\6") or _END.unpack(end)[-1]:
            raise self._damaged("bytes follow the directory of the archive")
        if min(entry.header_offset for entry in entries) != 0:
            raise self._damaged("bytes precede the archive")
        self._require_view_of_torch()

    def read(self, name: str) -> bytes:
        """Return the contents of a member.

        Raises:
            ModelFileError: It is damaged or larger than ``MOST_BYTES``.
        """
        entry = self._entries[name]
        if entry.file_size > MOST_BYTES:
            raise self._damaged(f"the member '{name[:80]}' has {entry.file_size} bytes, more than {MOST_BYTES}")
        with _naming(self._path), self._archive.open(entry) as member:
            data = member.read(entry.file_size + 1)
        if len(data) != entry.file_size:
            raise self._damaged(f"the member '{name[:80]}' has another size than the archive declares")
        return data

    def _require_view_of_torch(self) -> None:
        """Compare names, sizes and places with those of torch's reader."""
        with _naming(self._path):
            reader = torch._C.PyTorchFileReader(str(self._path))
            names = {f"/{name}" for name in reader.get_all_records()}
            is_same = names == {name[name.index("/") :] for name in self._entries} and all(
                reader.get_record_size(inner) == entry.file_size
                and reader.get_record_header_offset(inner) == entry.header_offset
                for inner, entry in ((name.partition("/")[2], entry) for name, entry in self._entries.items())
            )
        if not is_same:
            raise self._damaged("torch reads other members of the archive than its directory lists")

    def _damaged(self, problem: str) -> ModelFileError:
        return ModelFileError(problem, where=str(self._path), remedy="Save it again with this version of torch.")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Members]:
    """Open the members of an archive for the ``with`` statement.

    Raises:
        ModelFileError: The directory of the archive is damaged.
    """
    with _naming(path):
        archive = zipfile.ZipFile(path)
    with archive:
        yield Members(archive, path)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Raise exceptions of readers as errors that name the file."""
    try:
        yield
    except _UNREADABLE as error:
        problem = str(error).partition("\n")[0][:200] or type(error).__name__
        raise ModelFileError(
            f"the archive is damaged or encrypted: {problem}", where=str(path), remedy="Copy the whole file again."
        ) from error


def _problem_of(entry: zipfile.ZipInfo) -> str:
    """Return the reason why readers may disagree on a member; empty if they do not."""
    _, _, inner = entry.filename.partition("/")
    if (
        entry.orig_filename != entry.filename
        or not inner
        or not inner.isascii()
        or not entry.filename.isprintable()
        or "\\" in entry.filename
        or any(part in ("", ".", "..") for part in entry.filename.split("/"))
    ):
        return "has a name that no program of torch writes"
    if entry.flag_bits & 0x61:
        return "is encrypted or a patch"
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"has the unknown compression {entry.compress_type}"
    if entry.compress_type == zipfile.ZIP_STORED and entry.compress_size != entry.file_size:
        return "has two sizes"
    return ""
