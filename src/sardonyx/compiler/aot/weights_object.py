"""Weights as an ELF object file: gigabytes are linked as binary data, without assembly text."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from sardonyx.compiler.target.alignment import ALIGNMENT

SYMBOL = "sardonyx_weights"
"""Symbol of the first array."""

_FILE = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_MACHINES = {"x86_64": 62, "aarch64": 183}

_RELOCATABLE, _PROGBITS, _SYMTAB, _STRTAB = 1, 1, 2, 3
_ALLOCATED = 2
_LARGE = 0x10000000
"""Flag of large sections (SHF_X86_64_LARGE), apart from code: its relocations reach two gigabytes."""
_GLOBAL_OBJECT, _HIDDEN = (1 << 4) | 1, 2


def padded_bytes(array: np.ndarray) -> int:
    """Return the bytes of an array up to the next array, which begins on a cache line."""
    return -(-array.nbytes // ALIGNMENT) * ALIGNMENT


def write_object(file: BinaryIO, arrays: Sequence[np.ndarray], architecture: str) -> None:
    """Write arrays as an ELF object: read-only data, and the symbol :data:`SYMBOL` at their beginning.

    Args:
        file: The file to write.
        arrays: Contiguous arrays; each is stored :func:`padded_bytes` after the one before.
        architecture: ``x86_64`` or ``aarch64``.

    Raises:
        OSError: The file cannot be written.
    """
    start = -(-_FILE.size // ALIGNMENT) * ALIGNMENT
    file.write(bytes(start))
    for array in arrays:
        file.write(array.reshape(-1).view(np.uint8).data)
        file.write(bytes(padded_bytes(array) - array.nbytes))
    size = file.tell() - start
    is_x86 = architecture == "x86_64"
    names = _StringTable()
    symbols = _StringTable()
    table = _SYMBOL.pack(0, 0, 0, 0, 0, 0) + _SYMBOL.pack(symbols.add(SYMBOL), _GLOBAL_OBJECT, _HIDDEN, 1, 0, size)
    flags = _ALLOCATED | (_LARGE if is_x86 else 0)
    sections = [_SECTION.pack(*[0] * 10)]

    def section(
        name: str, type: int, data: bytes, *, flags: int = 0, at: int = 0, size: int = 0, more: tuple[int, ...]
    ) -> None:
        offset = at or file.tell()
        file.write(data)
        sections.append(_SECTION.pack(names.add(name), type, flags, 0, offset, size or len(data), *more))

    section(
        ".lrodata" if is_x86 else ".rodata", _PROGBITS, b"", flags=flags, at=start, size=size, more=(0, 0, ALIGNMENT, 0)
    )
    section(".note.GNU-stack", _PROGBITS, b"", more=(0, 0, 1, 0))
    section(".symtab", _SYMTAB, table, more=(4, 1, 8, _SYMBOL.size))
    section(".strtab", _STRTAB, symbols.data, more=(0, 0, 1, 0))
    names.add(".shstrtab")
    section(".shstrtab", _STRTAB, names.data, more=(0, 0, 1, 0))
    file.write(bytes(-file.tell() % 8))
    table_at = file.tell()
    file.write(b"".join(sections))
    file.seek(0)
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    file.write(
        _FILE.pack(
            identity, _RELOCATABLE, _MACHINES[architecture], 1, 0, 0, table_at, 0,
            _FILE.size, 0, 0, _SECTION.size, len(sections), len(sections) - 1,
        )
    )  # fmt: skip


class _StringTable:
    """A string table without duplicates."""

    def __init__(self) -> None:
        self.data = b"\0"
        self._offsets: dict[str, int] = {}

    def add(self, text: str) -> int:
        """Return the offset of a text in the table."""
        if text not in self._offsets:
            self._offsets[text] = len(self.data)
            self.data += text.encode() + b"\0"
        return self._offsets[text]
