"""Files that hold tensor contents: the rules for their paths, and their mapping into memory.

A model is untrusted input and its external-data entries are file paths. The rules for opening files are in
docs/design/threat-model.md; `find_data_file` is their only implementation.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import stat
import weakref
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Protocol

import onnx

from sardonyx.base.encrypted_files import ENCRYPTED_MAGIC
from sardonyx.base.hooks import hook
from sardonyx.base.mapped_files import map_file
from sardonyx.errors import EncryptionError, ExternalDataError, ModelFileError

ENCRYPTED_SUFFIX = ".onnxe"
"""Suffix of encrypted models and of the data files of an encrypted model."""

_CHUNK = 1 << 22
_CANNOT_COPY_IN_KERNEL = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV})


def write_all(descriptor: int, content: bytes | bytearray | memoryview) -> None:
    """Write all of ``content`` to an open file; a single ``os.write`` may write less.

    Raises:
        OSError: The content cannot be written.
    """
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


class MappedFile:
    """A regular file, open and mapped into memory for reading.

    The mapping keeps its contents if the path is replaced by another file (as `sardonyx.model.save` does). A change in
    place is detected at the next access.

    Args:
        path: The file; symbolic links in the path are followed, except in the last part if ``follow`` is False.
        follow: True if the last part of the path may be a symbolic link.

    Raises:
        ModelFileError: The path does not name a regular file, or the file cannot be opened.
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
        # mmap refuses an empty file.
        self._view = memoryview(map_file(self.descriptor) if self.size else b"")

    def view(self) -> memoryview:
        """Return the contents of the file.

        Raises:
            ModelFileError: The file was changed in place after opening.
        """
        self.check_unchanged()
        return self._view

    def chunks(self, start: int, length: int) -> Iterator[bytes]:
        """Read a span in pieces of a few megabytes, without touching the mapping (and so the resident memory).

        Raises:
            ModelFileError: The file was changed in place, or cannot be read.
        """
        self.check_unchanged()
        end = start + length
        while start < end:
            chunk = os.pread(self.descriptor, min(_CHUNK, end - start), start)
            if not chunk:
                raise ModelFileError("was truncated while being read.", where=str(self.path))
            yield chunk
            start += len(chunk)

    def read(self, start: int, length: int) -> bytes:
        """Read a span without touching the mapping; see `chunks`."""
        return b"".join(self.chunks(start, length))

    def copy_to(self, descriptor: int, start: int, length: int) -> None:
        """Append a span to an open file at its current position, inside the kernel if supported.

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
        """Raise `ModelFileError` if the file was changed in place after opening."""
        status = os.fstat(self.descriptor)
        if status.st_size != self.size or status.st_mtime_ns != self._modified:
            raise ModelFileError(
                "was changed by another program while a model mapped from the file was in use.",
                where=str(self.path),
                remedy="Load the model again; write to a new file and rename it, as sardonyx does.",
            )


class Decrypted(Protocol):
    """An opened encrypted file, made by the hook ``open_encrypted``.

    Attributes:
        contents: The plain contents, read-only, in memory that no file backs.
    """

    contents: memoryview


class DecryptedFile(MappedFile):
    """An encrypted file, with its plain contents in memory.

    Args:
        file: The encrypted file.
        opened: The opened file.
    """

    def __init__(self, file: MappedFile, opened: Decrypted) -> None:
        self.path, self.links, self.size = file.path, file.links, len(opened.contents)
        self.opened = opened
        self._view = opened.contents

    def chunks(self, start: int, length: int) -> Iterator[bytes]:
        """Refuse to read pieces: the readers of pieces write files.

        Raises:
            EncryptionError: Always.
        """
        raise self.refusal()

    def copy_to(self, descriptor: int, start: int, length: int) -> None:
        """Refuse to write a span.

        Raises:
            EncryptionError: Always.
        """
        raise self.refusal()

    def refusal(self) -> EncryptionError:
        """Return the error for writing plain contents to a file."""
        return plain_text_refusal(str(self.path))

    def check_unchanged(self) -> None:
        """Do nothing: the contents are in memory."""


def plain_text_refusal(where: str) -> EncryptionError:
    """Return the error for writing the plain contents of an encrypted file."""
    return EncryptionError(
        "is encrypted, and its contents are not written in plain text.",
        where=where,
        remedy="Decrypt the file first, with `sardonyx decrypt`.",
    )


def open_file(path: Path) -> MappedFile:
    """Open the file of a model; an encrypted file is decrypted into memory with the keys of this process.

    Raises:
        ModelFileError: The file cannot be opened.
        EncryptionError: No key opens the file, or it was changed.
        LicenceError: The file requires a licence that this process does not have.
    """
    file = MappedFile(path)
    contents = file.view()
    if contents[: len(ENCRYPTED_MAGIC)] != ENCRYPTED_MAGIC:
        return file
    return DecryptedFile(file, hook("open_encrypted")(contents, str(path), "model"))


class Folder:
    """The folder of a loaded model, and the data files in the folder named by the model's tensors.

    Args:
        model: The path of the model file, in the user's form.
        file: The opened model file, if data files may be encrypted; an encrypted model has encrypted data alone.
    """

    def __init__(self, model: Path, file: MappedFile | None = None) -> None:
        self.path = model.absolute().parent
        self._model = model.absolute()
        self._model_file = file
        self._files: dict[str, MappedFile] = {}

    @property
    def decrypted(self) -> Decrypted | None:
        """An opened file of the model, if one is encrypted: the model file or a data file."""
        files = [*([] if self._model_file is None else [self._model_file]), *self._files.values()]
        return next((file.opened for file in files if isinstance(file, DecryptedFile)), None)

    @cached_property
    def _roots(self) -> tuple[Path, ...]:
        # A hub cache stores the model and its data as links from a snapshot folder to a folder of blobs.
        return tuple(dict.fromkeys((Path(os.path.realpath(self.path)), Path(os.path.realpath(self._model)).parent)))

    def open(self, location: str, tensor: str) -> MappedFile:
        """Open a data file, once per location.

        Args:
            location: The path as the model names it, relative to the model's folder.
            tensor: The name of the tensor, for messages.

        Raises:
            ExternalDataError: The location leaves the folder, or does not name a readable regular file.
        """
        file = self._files.get(location)
        if file is None:
            file = self._files[location] = self._open(location, tensor)
        return file

    def open_stored(self, location: str, tensor: str, *, encrypted: bool) -> MappedFile:
        """Open a data file as stored, without decryption.

        Args:
            location: The path as the model names it, relative to the model's folder.
            tensor: The name of the tensor, for messages.
            encrypted: True if the model file is encrypted, so that its data files have a suffix.

        Raises:
            ExternalDataError: The location leaves the folder, or does not name a readable regular file.
        """
        suffix = ENCRYPTED_SUFFIX if encrypted else ""
        return self._open_path(
            find_data_file(location + suffix, (self.path, *self._roots), self._roots, tensor), tensor
        )

    def _open(self, location: str, tensor: str) -> MappedFile:
        model = self._model_file.opened if isinstance(self._model_file, DecryptedFile) else None
        file = self.open_stored(location, tensor, encrypted=model is not None)
        contents = file.view()
        if model is None and contents[: len(ENCRYPTED_MAGIC)] != ENCRYPTED_MAGIC:
            return file
        plain = None if model is not None or self._model_file is None else self._model_file.view()
        return DecryptedFile(file, hook("open_encrypted")(contents, str(file.path), "data", location, model, plain))

    def _open_path(self, path: Path, tensor: str) -> MappedFile:
        try:
            file = MappedFile(path, follow=False)
        except ModelFileError as error:
            raise ExternalDataError(error.problem, where=f"tensor '{tensor}', file '{path}'") from error
        if file.links > 1:
            raise ExternalDataError(
                "has other names (hard links) and may therefore be a file from outside the model's folder.",
                where=f"tensor '{tensor}', file '{path}'",
                remedy=f"If you trust the file, replace it by a copy: cp '{path}' new && mv new '{path}'.",
            )
        return file


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """An external-data reference as stated by a tensor.

    Attributes:
        location: Path relative to the model's folder.
        offset: First byte of the contents in the file.
        length: Number of bytes; None if the length follows from the tensor's shape.
    """

    location: str
    offset: int
    length: int | None


def read_reference(entries: Iterable[onnx.StringStringEntryProto], tensor: str) -> Reference:
    """Parse the ``external_data`` entries of a tensor.

    Args:
        entries: The entries.
        tensor: The name of the tensor, for messages.

    Returns:
        The reference.

    Raises:
        ExternalDataError: A key occurs twice, or an offset or length is not a non-negative 64-bit number.
    """
    fields: dict[str, str] = {}
    for entry in entries:
        if entry.key in fields:
            raise ExternalDataError(f"external data states '{entry.key}' twice.", where=f"tensor '{tensor}'")
        fields[entry.key] = entry.value
    length = fields.get("length")
    return Reference(
        location=fields.get("location", ""),
        offset=_number("offset", fields.get("offset", "0"), tensor),
        length=None if length is None else _number("length", length, tensor),
    )


def _number(key: str, text: str, tensor: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        shown = text if len(text) <= 40 else text[:40] + "…"
        raise ExternalDataError(
            f"external data has the {key} '{shown}'; expected a number from 0 to 2⁶³ - 1.",
            where=f"tensor '{tensor}'",
        )
    return int(text)


def find_data_file(location: str, folders: Iterable[Path], roots: Iterable[Path], tensor: str) -> Path:
    """Return the file that an external-data location names, if the file may be opened.

    Args:
        location: The path as the model names it.
        folders: Folders to search, in order.
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
        raise ExternalDataError("expected the path of a data file, got an empty path.", where=where)
    if "\0" in location:
        raise ExternalDataError("contains a null character.", where=where)
    if parts[0].startswith("/") or PureWindowsPath(location).drive or location.startswith("\\"):
        raise ExternalDataError(
            "is an absolute path; expected a path relative to the model's folder.", where=where, remedy=trust
        )
    if ".." in parts or ".." in PureWindowsPath(location).parts:
        raise ExternalDataError("leaves the model's folder with '..'.", where=where, remedy=trust)
    searched = []
    for folder in dict.fromkeys(folders):
        candidate = folder / location
        try:
            real = Path(os.path.realpath(candidate, strict=True))
        except (OSError, ValueError):
            searched.append(str(candidate))
            continue
        if not any(real.is_relative_to(root) for root in roots):
            raise ExternalDataError(
                f"leads through a symbolic link to '{real}', outside the model's folder.", where=where, remedy=trust
            )
        return real
    raise ExternalDataError(
        f"does not exist (searched {', '.join(searched)}).",
        where=where,
        remedy="Put the data file into the model's folder; most hubs offer the data file as a separate download.",
    )
