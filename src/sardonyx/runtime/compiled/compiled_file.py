"""Compiled files (``.sdx``): a model compiled ahead of time, with its weights, that is mapped and not compiled again.

The header holds the format version of program images (:data:`sardonyx.compiler.program_image.image.FORMAT`): a file of
another version is refused, also one of the same package version. The file holds machine code: who loads one
runs what its author wrote. Its checksum tells damage, not forgery.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sardonyx.base.artifact_store import checksum, write_stream
from sardonyx.base.encrypted_files import ENCRYPTED_MAGIC
from sardonyx.base.hooks import hook
from sardonyx.compiler.target.description import NAMED, Target, host
from sardonyx.errors import ModelFileError, UnsupportedError

if TYPE_CHECKING:
    from sardonyx.compiler.program_image.image import Image

SUFFIX = ".sdx"

_HEADER = struct.Struct("<7sB32sQQ8x")
_MAGIC = b"sdx\0\0\0\0"
_PAGE = 4096


def is_compiled_file(source: object) -> bool:
    """Return True if a session's source is the path of a compiled file."""
    return isinstance(source, (str, os.PathLike)) and Path(source).suffix.lower() == SUFFIX


def write_compiled(
    path: str | os.PathLike[str],
    image: Image,
    target: Target,
    encrypt: Callable[[Sequence[bytes | memoryview]], Iterable[bytes]] | None = None,
) -> None:
    """Write a compiled file atomically.

    Args:
        path: Path of the file.
        image: The program.
        target: The target of the code.
        encrypt: Encrypts the parts of the file; None for a file in plain text.

    Raises:
        ModelFileError: The file cannot be written.
    """
    from sardonyx.compiler.program_image.image import FORMAT

    image.head["target"] = [target.triple, target.name]
    image.head["version"] = _version()
    texts = image.texts()
    body = [texts, bytes(-(_HEADER.size + len(texts)) % _PAGE), *image.weights()]
    header = _HEADER.pack(_MAGIC, FORMAT, checksum("", *body), len(texts), sum(map(len, body)))
    try:
        write_stream(Path(path), [header, *body] if encrypt is None else encrypt([header, *body]))
    except OSError as error:
        raise ModelFileError(f"cannot be written: {error.strerror}.", where=str(path)) from error


def read_compiled(path: str | os.PathLike[str]) -> Image:
    """Return the program image in a compiled file; weights stay in the mapped file.

    Raises:
        ModelFileError: The file does not exist or is damaged.
        EncryptionError: The file is encrypted, and no key of this process opens the file.
        UnsupportedError: The file was written by another version, or for another processor.
    """
    from sardonyx.compiler.program_image.image import FORMAT, Image, OtherFormatError

    where = str(path)
    try:
        with Path(path).open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise ModelFileError("is empty.", where=where, remedy="Make it anew with `sardonyx compile`.")
            contents = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise ModelFileError(f"cannot be read: {error}.", where=where) from error
    if contents[: len(ENCRYPTED_MAGIC)] == ENCRYPTED_MAGIC:
        contents = hook("open_encrypted")(contents, where, "compiled").contents
    if len(contents) < _HEADER.size:
        raise ModelFileError("is too short for a compiled file.", where=where)
    magic, version, sum, length, size = _HEADER.unpack_from(contents)
    if magic != _MAGIC:
        raise ModelFileError("not a compiled file.", where=where, remedy="Make one with `sardonyx compile`.")
    if version != FORMAT:
        raise UnsupportedError(
            f"expected a compiled file of format {FORMAT}, got format {version}.",
            where=where,
            remedy="Make it anew with `sardonyx compile`.",
        )
    body = contents[_HEADER.size :]
    if len(body) != size or checksum("", body) != sum:
        raise ModelFileError("is damaged.", where=where, remedy="Make it anew with `sardonyx compile`.")
    weights = np.frombuffer(body, np.uint8)[length + -(_HEADER.size + length) % _PAGE :]
    try:
        image = Image.read(bytes(body[:length]), weights)
    except OtherFormatError as error:
        raise ModelFileError(
            f"is damaged: {error}.", where=where, remedy="Make it anew with `sardonyx compile`."
        ) from error
    _check(image, where)
    return image


def _check(image: Image, where: str) -> None:
    if image.head["version"] != _version():
        raise UnsupportedError(
            f"was made by version {image.head['version']}, and this is {_version()}.",
            where=where,
            remedy="Make it anew with `sardonyx compile`.",
        )
    triple, name = image.head["target"]
    here, order = host(), list(NAMED)
    if triple != here.triple or order.index(name) > order.index(here.name):
        raise UnsupportedError(
            f"is compiled for {name} ({triple}), and this machine has {here.name} ({here.triple}).",
            where=where,
            remedy="Compile with SARDONYX_TARGET set to what it has.",
        )


def _version() -> str:
    return str(sys.modules["sardonyx"].__version__)
