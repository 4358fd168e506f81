"""Files that hold tensor contents: which ones a model may name, and how they are mapped into memory.

A model is input from strangers and its external-data entries are file paths. The rules that decide which file may be
opened are in docs/design/threat-model.md; `find_data_file` is their only implementation.
"""

from __future__ import annotations

import dataclasses
import errno
import mmap
import os
import stat
import weakref
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx

from sardonyx.errors import ExternalDataError, ModelFileError

_CHUNK = 1 << 22
_CANNOT_COPY_IN_KERNEL = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV})


def write_all(descriptor: int, content: bytes | bytearray | memoryview) -> None:
    """Writes all of ``content`` to an open file; ``os.write`` alone may write less.

    Raises:
        OSError: It cannot be written.
    """
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


class MappedFile:
    """A regular file, open and mapped into memory for reading.

    The mapping stays what it was when the path is given to another file (as `sardonyx.model.save` does). A file
    that is changed in place is noticed at the next access.

    Args:
        path: The file; symbolic links in it are followed, except in the last part when ``follow`` is False.
        follow: Whether the last part of the path may be a symbolic link.

    Raises:
        ModelFileError: The path is no regular file, or cannot be opened.
    """

    def __init__(self, path: Path, *, follow: bool = True) -> None:
        self.path = path
        # O_NONBLOCK: opening a named pipe would wait for a writer.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
        try:
            self.descriptor = os.open(path, flags)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ModelFileError(f"cannot be opened: {reason}.", where=str(path)) from error
        weakref.finalize(self, os.close, self.descriptor)
        status = os.fstat(self.descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError("is not a regular file.", where=str(path))
        self.size = status.st_size
        self._modified = status.st_mtime_ns
        self.links = status.st_nlink
        # Nothing can be mapped of an empty file.
        self._view = memoryview(mmap.mmap(self.descriptor, 0, access=mmap.ACCESS_READ) if self.size else b"")

    def view(self) -> memoryview:
        """The contents of the file.

        Raises:
            ModelFileError: The file was changed in place since it was opened.
        """
        self.check_unchanged()
        return self._view

    def chunks(self, start: int, length: int) -> Iterator[bytes]:
        """Reads a span in pieces of a few megabytes, without touching the mapping (and so the resident memory).

        Raises:
            ModelFileError: The file was changed in place, or cannot be read.
        """
        self.check_unchanged()
        end = start + length
        while start < end:
            chunk = os.pread(self.descriptor, min(_CHUNK, end - start), start)
            if not chunk:
                raise ModelFileError("became shorter while it was read.", where=str(self.path))
            yield chunk
            start += len(chunk)

    def copy_to(self, descriptor: int, start: int, length: int) -> None:
        """Appends a span to an open file at its current position; inside the kernel where the system can.

        Raises:
            ModelFileError: The file was changed in place.
            OSError: The span cannot be written.
        """
        self.check_unchanged()
        end = start + length
        while start < end and hasattr(os, "copy_file_range"):
            try:
                copied = os.copy_file_range(self.descriptor, descriptor, min(1 << 30, end - start), offset_src=start)
            except OSError as error:
                if error.errno not in _CANNOT_COPY_IN_KERNEL:
                    raise
                break
            if copied == 0:
                break
            start += copied
        for chunk in self.chunks(start, end - start):
            write_all(descriptor, chunk)

    def check_unchanged(self) -> None:
        """Raises `ModelFileError` where the file was changed in place since it was opened."""
        status = os.fstat(self.descriptor)
        if status.st_size != self.size or status.st_mtime_ns != self._modified:
            raise ModelFileError(
                "was changed by someone else while a model that is mapped from it was in use.",
                where=str(self.path),
                remedy="Load the model again; write to a new file and rename it, as sardonyx does.",
            )


class Folder:
    """The folder that a model was loaded from, and the data files in it that the model's tensors name.

    Args:
        model: The path of the model file, as the user gave it.
    """

    def __init__(self, model: Path) -> None:
        self.path = model.absolute().parent
        self._model = model.absolute()
        self._files: dict[str, MappedFile] = {}

    @cached_property
    def _roots(self) -> tuple[Path, ...]:
        # A hub cache keeps the model and its data as links from a snapshot folder to a folder of blobs.
        return tuple(dict.fromkeys((Path(os.path.realpath(self.path)), Path(os.path.realpath(self._model)).parent)))

    def open(self, location: str, tensor: str) -> MappedFile:
        """Opens a data file, once.

        Args:
            location: The path as the model names it, relative to the model's folder.
            tensor: The name of the tensor, for messages.

        Raises:
            ExternalDataError: The location leaves the folder, or is no readable regular file.
        """
        file = self._files.get(location)
        if file is None:
            file = self._files[location] = self._open(location, tensor)
        return file

    def _open(self, location: str, tensor: str) -> MappedFile:
        path = find_data_file(location, (self.path, *self._roots), self._roots, tensor)
        try:
            file = MappedFile(path, follow=False)
        except ModelFileError as error:
            raise ExternalDataError(error.problem, where=f"tensor '{tensor}', file '{path}'") from error
        if file.links > 1:
            raise ExternalDataError(
                "has other names (hard links), so that it may be a file from outside the model's folder.",
                where=f"tensor '{tensor}', file '{path}'",
                remedy=f"If you trust it, make it a file of its own: cp '{path}' new && mv new '{path}'.",
            )
        return file


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """An external-data reference as a tensor states it.

    Attributes:
        location: Path relative to the model's folder.
        offset: First byte of the contents in the file.
        length: Number of bytes; None where the tensor leaves it to its shape.
    """

    location: str
    offset: int
    length: int | None


def read_reference(entries: Iterable[onnx.StringStringEntryProto], tensor: str) -> Reference:
    """Reads the ``external_data`` entries of a tensor.

    Args:
        entries: The entries.
        tensor: The name of the tensor, for messages.

    Returns:
        The reference.

    Raises:
        ExternalDataError: A key occurs twice, or an offset or length is no non-negative 64-bit number.
    """
    found: dict[str, str] = {}
    for entry in entries:
        if entry.key in found:
            raise ExternalDataError(f"gives '{entry.key}' of its external data twice.", where=f"tensor '{tensor}'")
        found[entry.key] = entry.value
    length = found.get("length")
    return Reference(
        location=found.get("location", ""),
        offset=_number("offset", found.get("offset", "0"), tensor),
        length=None if length is None else _number("length", length, tensor),
    )


def _number(key: str, text: str, tensor: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        shown = text if len(text) <= 40 else text[:40] + "…"
        raise ExternalDataError(
            f"gives '{shown}' as {key} of its external data; it must be a number from 0 to 2⁶³ - 1.",
            where=f"tensor '{tensor}'",
        )
    return int(text)


def find_data_file(location: str, folders: Iterable[Path], roots: Iterable[Path], tensor: str) -> Path:
    """Decides which file an external-data location means, and whether it may be opened.

    Args:
        location: The path as the model names it.
        folders: Where it is looked for, in order.
        roots: Folders, without symbolic links in their paths; the file, with all links followed, must be in one.
        tensor: The name of the tensor, for messages.

    Returns:
        The path, without symbolic links.

    Raises:
        ExternalDataError: The location is empty, absolute, climbs with ``..``, leads out of the folders through a
            symbolic link, or does not exist.
    """
    where = f"tensor '{tensor}', external data '{location}'"
    trust = "Load the model only if you trust its source; then put the data file into the model's folder."
    parts = PurePosixPath(location).parts
    if not location or not parts:
        raise ExternalDataError("names no file.", where=where)
    if "\0" in location:
        raise ExternalDataError("holds a null character.", where=where)
    if parts[0].startswith("/") or PureWindowsPath(location).drive or location.startswith("\\"):
        raise ExternalDataError(
            "is an absolute path; only files in the model's folder are read.", where=where, remedy=trust
        )
    if ".." in parts or ".." in PureWindowsPath(location).parts:
        raise ExternalDataError("leaves the model's folder with '..'.", where=where, remedy=trust)
    looked = []
    for folder in dict.fromkeys(folders):
        candidate = folder / location
        try:
            real = Path(os.path.realpath(candidate, strict=True))
        except (OSError, ValueError):
            looked.append(str(candidate))
            continue
        if not any(real.is_relative_to(root) for root in roots):
            raise ExternalDataError(
                f"leads through a symbolic link to '{real}', outside the model's folder.", where=where, remedy=trust
            )
        return real
    raise ExternalDataError(
        f"does not exist (looked for {', '.join(looked)}).",
        where=where,
        remedy="Put the data file beside the model; it is downloaded apart from it on most hubs.",
    )
