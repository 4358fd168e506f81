"""Recognition of encrypted files, without the libraries that open them."""

from __future__ import annotations

import os

ENCRYPTED_MAGIC = b"sdxcrypt"
"""First bytes of an encrypted file; no ONNX file, compiled file or data file of another tool begins with these."""


def is_encrypted(source: object) -> bool:
    """Return True if a source of a model is the path of an encrypted file."""
    if not isinstance(source, (str, os.PathLike)):
        return False
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):  # The load reports the error.
        return False
    try:
        return os.read(descriptor, len(ENCRYPTED_MAGIC)) == ENCRYPTED_MAGIC
    except OSError:  # A folder; the load reports the error.
        return False
    finally:
        os.close(descriptor)
