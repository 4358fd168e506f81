"""Opening of encrypted files into memory: the hook ``open_encrypted`` of `sardonyx.model.external`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from sardonyx.base.artifact_store import guard
from sardonyx.errors import EncryptionError
from sardonyx.trust.encryption import history
from sardonyx.trust.encryption.head import Access, Description, Head, Part, read_head
from sardonyx.trust.encryption.key_ring import find_data_key
from sardonyx.trust.encryption.licence import Licence, check_licence
from sardonyx.trust.encryption.plain_memory import allocate
from sardonyx.trust.encryption.segments import decrypt_stream


@dataclass(frozen=True)
class OpenedFile:
    """An encrypted file that a key of the process opened.

    Attributes:
        contents: The plain contents, read-only.
        description: The fixed part of the head.
        access: The replaceable part of the head.
        data_key: The data key of the file.
        licence: The claims that permit the use; None if the file requires no licence.
    """

    contents: memoryview = field(repr=False)
    description: Description
    access: Access
    data_key: bytes = field(repr=False)
    licence: Licence | None


def open_encrypted(
    contents: memoryview,
    where: str,
    part: Part,
    location: str = "",
    model: OpenedFile | None = None,
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
    description = head.description
    data_key = _data_key_of_part(head, where, model)
    if description.part != part:
        raise EncryptionError(f"expected an encrypted {part} file, got {description.part}.", where=where)
    if part == "data":
        _check_data_file(description, where, location, model, plain_model)
    licence = authorize(head, where)
    guard()
    target = allocate(description.bytes)
    try:
        decrypt_stream(data_key, head.context, contents[head.size :], target)
    except EncryptionError as error:
        raise EncryptionError(error.problem, where=where, remedy=error.remedy) from error
    return OpenedFile(target.toreadonly(), description, head.access, data_key, licence)


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


def _data_key_of_part(head: Head, where: str, model: OpenedFile | None) -> bytes:
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
    description: Description, where: str, location: str, model: OpenedFile | None, plain_model: memoryview | None
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
