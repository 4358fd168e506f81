"""The program image as data, and its binary form."""

from __future__ import annotations

import functools
import json
import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.compiler.llvm.elf_loader import Code
from sardonyx.compiler.target.alignment import ALIGNMENT
from sardonyx.core.ir import types as t

FORMAT = 4
"""The version of images, in the cache and in compiled files.

Every change of a field of the head, of the arguments of kernels or of the meaning of prepared weights increments the
version; an image of another version is refused.
"""

_MAGIC = b"sdxi"
_HEADER = struct.Struct("<4sIQ")


class UnserializableError(Exception):
    """The program cannot be serialized; the message contains the reason."""


class OtherFormatError(Exception):
    """The bytes are not an image, or an image of another format version."""


@dataclass
class Image:
    """A serialized program.

    Attributes:
        head: JSON data: values, launches, and further entries of the program's owner.
        code: Object code, with one function for each kernel.
        arrays: Prepared constants.
    """

    head: dict[str, Any]
    code: Code
    arrays: list[np.ndarray]

    def texts(self) -> bytes:
        """Return the head and the object code as bytes."""
        lengths = [len(part) for part in self.code.parts]
        code = {"lengths": lengths, "functions": self.code.functions, "imports": self.code.imports}
        head = json.dumps({**self.head, "code": code}).encode()
        return b"".join([_HEADER.pack(_MAGIC, FORMAT, len(head)), head, *self.code.parts])

    def weights(self) -> list[bytes | memoryview]:
        """Return the arrays as consecutive bytes, each aligned to a cache line, in the order of the head's table."""
        parts: list[bytes | memoryview] = []
        for array in self.arrays:
            parts += [array.reshape(-1).view(np.uint8).data, bytes(-array.nbytes % ALIGNMENT)]
        return parts

    @staticmethod
    def read(texts: bytes, weights: np.ndarray) -> Image:
        """Return the image from the results of :meth:`texts` and :meth:`weights`.

        Args:
            texts: The head and the object code.
            weights: The arrays, as bytes aligned to a cache line; the image refers to this memory.

        Raises:
            OtherFormatError: The texts have another format version.
            ValueError: The weights are not aligned to a cache line.
        """
        magic, version, length = _HEADER.unpack_from(texts) if len(texts) >= _HEADER.size else (b"", 0, 0)
        if (magic, version) != (_MAGIC, FORMAT):
            raise OtherFormatError(f"expected format {FORMAT}, got {version if magic == _MAGIC else 'other data'}")
        if weights.size and weights.ctypes.data % ALIGNMENT:
            raise ValueError(f"expected weights aligned to {ALIGNMENT} bytes, got address {weights.ctypes.data:#x}")
        at = _HEADER.size + length
        head = json.loads(texts[_HEADER.size : at])
        code = head.pop("code")
        parts = []
        for size in code["lengths"]:
            parts.append(texts[at : at + size])
            at += size
        arrays, at = [], 0
        for table in head["arrays"]:
            dtype = t.numpy_dtype(dtype_named(table["dtype"]))
            count = math.prod(table["shape"]) * dtype.itemsize
            arrays.append(weights[at : at + count].view(dtype).reshape(table["shape"]))
            at += -(-count // ALIGNMENT) * ALIGNMENT
        return Image(head, Code(parts, code["functions"], code["imports"]), arrays)


@functools.cache
def dtype_named(name: str) -> t.DType:
    """Return the element type of a name."""
    return t.element_type(name)
