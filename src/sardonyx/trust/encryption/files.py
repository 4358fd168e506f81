"""Encrypted files, written: models with their data files, compiled files, and new recipients for a file."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from sardonyx.base.artifact_store import write_stream
from sardonyx.base.encrypted_files import is_encrypted
from sardonyx.errors import EncryptionError, OptionError
from sardonyx.model.external import ENCRYPTED_SUFFIX, Folder, MappedFile
from sardonyx.model.load import DECRYPTED, data_file_locations, load
from sardonyx.model.wire import Contents
from sardonyx.trust.encryption import history
from sardonyx.trust.encryption.head import Access, Description, Part, read_head, write_head
from sardonyx.trust.encryption.key_ring import AddedKey, add_key, find_data_key
from sardonyx.trust.encryption.key_text import Key
from sardonyx.trust.encryption.licence import Licence, sign_licence
from sardonyx.trust.encryption.reader import OpenedFile, StreamedFile, open_stream
from sardonyx.trust.encryption.recipients import MAX_RECIPIENTS, Recipient, recipient, wrap
from sardonyx.trust.encryption.segments import KEY_BYTES, encrypt_stream

_COMPILED_SUFFIX = ".sdx"


def encrypt(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    to: Sequence[str | Recipient],
    weights_only: bool = False,
    licence: Licence | None = None,
    issuer: str | Key | None = None,
) -> list[Path]:
    """Encrypt a model, with its files of external data, or a compiled file (``.sdx``).

    Sessions and `sardonyx.load` open the result as the model itself, with a key of :func:`add_key`.

    Args:
        model: The file.
        output: The file to write. Data files are written beside it: ``LOCATION.onnxe``, or with ``weights_only`` under
            their own names.
        to: The recipients, each of whom can open the file: texts as for :func:`add_key`, or the text of a public key.
        weights_only: Encrypt the files of external data alone; the graph stays readable.
        licence: Claims that a session checks when it loads the model.
        issuer: The Ed25519 secret key that signs the licence, or its file.

    Returns:
        The files that were written.

    Raises:
        OptionError: No recipient; a licence without an issuer; ``weights_only`` without external data.
        ModelFileError: The model is not valid, or a file cannot be read or written.
    """
    source, target = Path(model), Path(output)
    if is_encrypted(source):
        raise OptionError("is encrypted already.", where=str(source), remedy="Use rewrap for other recipients.")
    writer = _Writer(_recipients(to), licence, _issuer(licence, issuer))
    if source.suffix.lower() == _COMPILED_SUFFIX:
        if weights_only or target.suffix.lower() != _COMPILED_SUFFIX:
            raise OptionError(
                f"a compiled file is encrypted whole, to a file that ends in {_COMPILED_SUFFIX}.",
                where=str(target),
            )
        return [writer.write(MappedFile(source), target, "compiled", source.name)]
    file = MappedFile(source)
    data_files = _data_files(source, file)
    if weights_only:
        return _encrypt_weights(writer, file, data_files, target)
    unlicensed = replace(writer, licence=None, issuer=None)
    written = [
        unlicensed.write(data, _beside(target, name + ENCRYPTED_SUFFIX, source.parent), "data", name)
        for name, data in data_files.items()
    ]
    return [writer.write(file, target, "model", source.name), *written]


def decrypt(
    path: str | os.PathLike[str], output: str | os.PathLike[str], *, keys: Sequence[str | Recipient] = ()
) -> list[Path]:
    """Decrypt a file that :func:`encrypt` wrote, with its data files, into plain files.

    Args:
        path: The encrypted file, or the plain model file with encrypted data files.
        output: The file to write; data files are written beside it under the names that the model states.
        keys: Keys to use beside those of the process; see :func:`add_key`.

    Returns:
        The files that were written.

    Raises:
        EncryptionError: No key opens the file, a file was changed, or nothing is encrypted.
        LicenceError: The licence does not permit the use.
    """
    source, target = Path(path), Path(output)
    added = [add_key(key) for key in keys]
    try:
        return _decrypt(source, target)
    finally:
        for key in added:
            key.remove()


def _decrypt(source: Path, target: Path) -> list[Path]:
    file = MappedFile(source)
    encrypted = is_encrypted(source)
    if encrypted and (part := read_head(file.view(), str(source)).description.part) != "model":
        if part == "data":
            raise EncryptionError("is a data file.", where=str(source), remedy="Decrypt its model file.")
        return _write_plain({target: open_stream(file, part)})
    model = open_stream(file, "model") if encrypted else None
    contents: Contents = file.view() if model is None else model.reader
    stored: dict[str, StreamedFile | MappedFile] = {}
    folder = Folder(source)
    for location, tensor in data_file_locations(contents, file).items():
        data = folder.open_stored(location, tensor, encrypted=model is not None)
        if model is None and not is_encrypted(data.path):
            stored[location] = data
        else:
            plain = None if model is not None else file.view()
            stored[location] = open_stream(data, "data", location, model, plain)
    if model is None and not any(isinstance(data, StreamedFile) for data in stored.values()):
        raise EncryptionError("expected an encrypted file.", where=str(source))
    beside = {_beside(target, name, source.parent): data for name, data in stored.items()}
    return _write_plain({target: model or file, **beside})


def _write_plain(files: Mapping[Path, StreamedFile | MappedFile]) -> list[Path]:
    for target, file in files.items():
        _write(target, file.chunks() if isinstance(file, StreamedFile) else file.chunks(0, file.size))
    return list(files)


def rewrap(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    to: Sequence[str | Recipient],
    keys: Sequence[str | Recipient] = (),
    licence: Licence | None = None,
    issuer: str | Key | None = None,
) -> Path:
    """Replace the recipients of one encrypted file, and its licence if one is passed; the contents stay as they are.

    A former recipient who stored the data key, or an old copy, can still open that copy. Readers that saw the new file
    refuse the old one.

    Args:
        path: The encrypted file.
        output: The file to write; None replaces the file.
        to: All recipients from now on.
        keys: Keys to use beside those of the process; see :func:`add_key`.
        licence: The new licence; None keeps the licence.
        issuer: The issuer's key, equal to that of the first licence.

    Raises:
        EncryptionError: No key opens the file, or the file was changed.
        OptionError: No recipient, or another issuer.
    """
    source = Path(path)
    file = MappedFile(source)
    contents = file.view()
    head = read_head(contents, str(source))
    data_key = find_data_key(head, str(source), keys)
    signed = head.access.licence
    key = _issuer(licence, issuer)
    if licence is not None and key is not None:
        if key.public().text() != head.description.issuer:
            raise OptionError("expected the issuer that the file names.", where="issuer")
        signed = sign_licence(licence, head.description.sha256, key)
    access = Access([wrap(data_key, target) for target in _recipients(to)], head.access.generation + 1, signed)
    raw, context = write_head(data_key, head.description, access)
    if context != head.context:
        raise EncryptionError("was written by another program; encrypt the model anew.", where=str(source))

    def parts() -> Iterator[bytes]:
        yield raw
        yield from file.chunks(head.size, len(contents) - head.size)

    target = source if output is None else Path(output)
    _write(target, parts())
    history.remember(f"{head.description.set} {head.description.part}", access.generation, str(target), clock=False)
    return target


def encrypt_compiled(model: ir.Model, parts: Sequence[bytes | memoryview]) -> Iterator[bytes]:
    """Encrypt the parts of a compiled file with the data key and for the recipients of the model.

    Args:
        model: The model, loaded from an encrypted file.
        parts: The consecutive parts of the compiled file.
    """
    opened: OpenedFile = model.meta[DECRYPTED]
    if opened.description.issuer:
        raise EncryptionError(
            "the model requires a licence, which is for the model file alone.",
            remedy="Encrypt a compiled file of the plain model, with a licence of its own.",
        )
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    size = sum(map(len, parts))
    description = Description("compiled", opened.description.set, "", size, digest.hexdigest())
    raw, context = write_head(opened.data_key, description, opened.access)
    yield raw
    yield from encrypt_stream(opened.data_key, context, parts, size)


@dataclass(frozen=True)
class _Writer:
    """A writer of the files of one set: one data key, the same recipients."""

    recipients: Sequence[Recipient]
    licence: Licence | None
    issuer: Key | None
    data_key: bytes = b""
    set: str = ""
    graph: str = ""

    def __post_init__(self) -> None:
        if not self.data_key:
            object.__setattr__(self, "data_key", secrets.token_bytes(KEY_BYTES))
            object.__setattr__(self, "set", secrets.token_hex(16))

    def write(self, file: MappedFile, target: Path, part: Part, name: str) -> Path:
        digest = hashlib.sha256()
        for chunk in file.chunks(0, file.size):
            digest.update(chunk)
        issuer = "" if self.issuer is None else self.issuer.public().text()
        description = Description(part, self.set, name, file.size, digest.hexdigest(), self.graph, issuer)
        licence = None
        if self.licence is not None and self.issuer is not None:
            licence = sign_licence(self.licence, description.sha256, self.issuer)
        access = Access([wrap(self.data_key, target) for target in self.recipients], licence=licence)
        raw, context = write_head(self.data_key, description, access)
        chunks = file.chunks(0, file.size)

        def parts() -> Iterator[bytes]:
            yield raw
            yield from encrypt_stream(self.data_key, context, chunks, file.size)

        _write(target, parts())
        return target


def _encrypt_weights(writer: _Writer, file: MappedFile, data_files: dict[str, MappedFile], target: Path) -> list[Path]:
    if not data_files:
        raise OptionError(
            "the model has no external data, so that its weights are part of the graph's file.",
            where=str(file.path),
            remedy="Write one that has: sardonyx convert model.onnx -o out.onnx --external-data.",
        )
    if target.resolve().parent == file.path.resolve().parent:
        raise OptionError("expected another folder: data files keep their names.", where=str(target))
    writer = replace(writer, graph=hashlib.sha256(file.view()).hexdigest())
    written = [
        writer.write(data, _beside(target, name, file.path.parent), "data", name) for name, data in data_files.items()
    ]
    _write(target, file.chunks(0, file.size))
    return [target, *written]


def _recipients(to: Sequence[str | Recipient]) -> list[Recipient]:
    recipients = [recipient(spec) for spec in to]
    if not 1 <= len(recipients) <= MAX_RECIPIENTS:
        raise OptionError(
            f"expected 1 to {MAX_RECIPIENTS} recipients, got {len(recipients)}.",
            where="to",
            remedy="Name the public key of a recipient; `sardonyx keygen` makes one.",
        )
    return recipients


def _issuer(licence: Licence | None, issuer: str | Key | None) -> Key | None:
    if (licence is None) != (issuer is None):
        raise OptionError("a licence and the key of its issuer are passed together.", where="licence, issuer")
    key = recipient(issuer) if isinstance(issuer, str) else issuer
    if key is not None and (not isinstance(key, Key) or key.kind != "ed25519-secret"):
        raise OptionError("expected an Ed25519 secret key.", where="issuer", remedy="sardonyx keygen --kind ed25519")
    return key


def _data_files(path: Path, file: MappedFile) -> dict[str, MappedFile]:
    """Return the data files of a model by the location that the model names; the model is checked on the way."""
    locations: dict[str, str] = {}

    def is_skipped(tensor: str, location: str) -> bool:
        locations.setdefault(location, tensor)
        return False

    load(path, skip_external=is_skipped)
    folder = Folder(path, file)
    return {location: folder.open(location, tensor) for location, tensor in locations.items()}


def _beside(target: Path, location: str, source: Path) -> Path:
    path = target.parent / location
    if path.resolve().parent == source.resolve() and path.exists() and target.parent.resolve() == source.resolve():
        raise OptionError("exists; expected another folder for the files.", where=str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _write(target: Path, parts: Iterator[bytes] | Iterator[bytearray]) -> None:
    try:
        write_stream(target, parts)
    except OSError as error:
        raise EncryptionError(f"cannot be written: {error.strerror}.", where=str(target)) from error


__all__ = ["AddedKey", "decrypt", "encrypt", "encrypt_compiled", "rewrap"]
