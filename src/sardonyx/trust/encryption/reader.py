"""Opening of encrypted files, into memory (the hook ``open_encrypted`` of `sardonyx.model.external`) or by segments."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from sardonyx.base.artifact_store import guard
from sardonyx.errors import EncryptionError
from sardonyx.model.external import MappedFile
from sardonyx.trust.encryption import history
from sardonyx.trust.encryption.head import Access, Description, Head, Part, read_head
from sardonyx.trust.encryption.key_ring import find_data_key
from sardonyx.trust.encryption.licence import Licence, check_licence
from sardonyx.trust.encryption.plain_memory import allocate
from sardonyx.trust.encryption.segment_reader import SegmentReader
from sardonyx.trust.encryption.segments import decrypt_stream


@dataclass(frozen=True)
class AuthorizedFile:
    """An encrypted file whose head is authentic and permits the use; the contents are not read yet.

    Attributes:
        description: The fixed part of the head.
        access: The replaceable part of the head.
        data_key: The data key of the file.
        licence: The claims that permit the use; None if the file requires no licence.
    """

    description: Description
    access: Access
    data_key: bytes = field(repr=False)
    licence: Licence | None


@dataclass(frozen=True)
class OpenedFile(AuthorizedFile):
    """An encrypted file that a key of the process opened.

    Attributes:
        contents: The plain contents, read-only.
    """

    contents: memoryview = field(repr=False)


@dataclass(frozen=True)
class StreamedFile(AuthorizedFile):
    """An encrypted file that a key of the process opens segment by segment.

    Attributes:
        where: The file, for messages.
        reader: The plain contents.
    """

    where: str
    reader: SegmentReader = field(repr=False)

    def chunks(self) -> Iterator[bytearray]:
        """Return the plain contents in pieces.

        Raises:
            EncryptionError: A segment was changed.
        """
        try:
            yield from self.reader.chunks()
        except EncryptionError as error:
            raise EncryptionError(error.problem, where=self.where, remedy=error.remedy) from error


def open_encrypted(
    contents: memoryview,
    where: str,
    part: Part,
    location: str = "",
    model: AuthorizedFile | None = None,
    plain_model: memoryview | None = None,
) -> OpenedFile:
    """Decrypt a file into memory, after its head, licence and generation are checked.

    Args:
        contents: The encrypted file.
        where: The file, for messages.
        part: The kind of file that the caller expects.
        location: Location of a data file as the model names it.
        model: The encrypted model file to which a data file belongs.
        plain_model: The contents of the plain model file to which a data file belongs.

    Raises:
        EncryptionError: No key opens the file; the file was changed; it is of another kind, belongs to another model,
            or is an old copy.
        LicenceError: The licence does not permit the use.
    """
    head = read_head(contents, where)
    file = _authorized(head, where, part, location, model, plain_model)
    guard()
    target = allocate(head.description.bytes)
    try:
        decrypt_stream(file.data_key, head.context, contents[head.size :], target)
    except EncryptionError as error:
        raise EncryptionError(error.problem, where=where, remedy=error.remedy) from error
    return OpenedFile(head.description, head.access, file.data_key, file.licence, target.toreadonly())


def open_stream(
    file: MappedFile,
    part: Part,
    location: str = "",
    model: AuthorizedFile | None = None,
    plain_model: memoryview | None = None,
) -> StreamedFile:
    """Open a file to be decrypted in pieces, after the head, licence, generation and all of the stream are checked.

    Args:
        file: The encrypted file.
        part: The kind of file that the caller expects.
        location: Location of a data file as the model names it.
        model: The encrypted model file to which a data file belongs.
        plain_model: The contents of the plain model file to which a data file belongs.

    Raises:
        EncryptionError: As for :func:`open_encrypted`; or the plain contents have another digest than the head states.
        LicenceError: The licence does not permit the use.
    """
    where = str(file.path)
    head = read_head(file.view(), where)
    opened = _authorized(head, where, part, location, model, plain_model)
    guard()
    try:
        reader = SegmentReader(file, head.size, opened.data_key, head.context)
    except EncryptionError as error:
        raise EncryptionError(error.problem, where=where, remedy=error.remedy) from error
    streamed = StreamedFile(head.description, head.access, opened.data_key, opened.licence, where, reader)
    digest = hashlib.sha256()
    for chunk in streamed.chunks():
        digest.update(chunk)
    if digest.hexdigest() != head.description.sha256:
        raise EncryptionError("the plain contents have another digest than the head states.", where=where)
    return streamed


def _authorized(
    head: Head,
    where: str,
    part: Part,
    location: str,
    model: AuthorizedFile | None,
    plain_model: memoryview | None,
) -> AuthorizedFile:
    description = head.description
    data_key = _data_key_of_part(head, where, model)
    if description.part != part:
        raise EncryptionError(f"expected an encrypted {part} file, got {description.part}.", where=where)
    if part == "data":
        _check_data_file(description, where, location, model, plain_model)
    return AuthorizedFile(description, head.access, data_key, authorize(head, where))


def authorize(head: Head, where: str) -> Licence | None:
    """Check generation and licence of an authentic head; return the claims of the licence if one is required.

    Raises:
        EncryptionError: The file is an old copy.
        LicenceError: The licence does not permit the use.
    """
    description, access = head.description, head.access
    licence = None
    if description.issuer:
        seen = history.latest_time()
        licence = check_licence(access.licence, description.sha256, description.issuer, where, seen)
    history.remember(f"{description.set} {description.part}", access.generation, where, clock=licence is not None)
    return licence


def _data_key_of_part(head: Head, where: str, model: AuthorizedFile | None) -> bytes:
    """Return the data key of a file; a data file of an encrypted model must have the model's key."""
    if model is None:
        return find_data_key(head, where)
    if not head.is_of(model.data_key):
        raise EncryptionError(
            "belongs to another model or to another version of this model, or was changed.",
            where=where,
            remedy="Get the model and its data files together.",
        )
    return model.data_key


def _check_data_file(
    description: Description, where: str, location: str, model: AuthorizedFile | None, plain_model: memoryview | None
) -> None:
    if model is not None and description.set != model.description.set:
        raise EncryptionError("belongs to another version of this model.", where=where)
    if location != description.name:
        raise EncryptionError(f"is the data file '{description.name}', expected '{location}'.", where=where)
    if model is None:
        if not description.graph or plain_model is None:
            raise EncryptionError("belongs to an encrypted model.", where=where, remedy="Load the model by its path.")
        if hashlib.sha256(plain_model).hexdigest() != description.graph:
            raise EncryptionError(
                "belongs to another model file; the graph was changed.", where=where, remedy="Get the model file again."
            )
