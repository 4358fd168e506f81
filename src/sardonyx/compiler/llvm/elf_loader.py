"""A linker and loader for object code: one position-independent piece of memory that is loaded without LLVM.

Sections are concatenated and relocations resolved, which are relative distances in position-independent code. Functions
of the C library are called through a table that is filled at load. Supported is ELF for x86-64 with the relocations
that LLVM emits for kernels; LLVM loads other object code.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sardonyx.compiler.llvm.object_code import LoadedCode
from sardonyx.compiler.target.description import Target

_FILE = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_DISTANCE = struct.Struct("<i")

_MAGIC = b"\x7fELF\x02\x01"
_X86_64 = 62
_PROGBITS, _SYMTAB, _RELA = 1, 2, 4
_UNWINDING = 0x70000001
"""Section type of exception tables; kernels do not raise exceptions."""

_ALLOCATED = 2
_WRITABLE = 1
_UNDEFINED = 0
_RESERVED = 0xFF00
_PC32, _PLT32 = 2, 4
_KIND, _FUNCTION = 0xF, 2
_JUMP = b"\xff\x25"
"""An indirect jump to the address stored at a distance from the instruction's end."""

_ENTRY = 64
"""Alignment of sections: that of constants of the widest vectors."""


@dataclass(frozen=True)
class Code:
    """Object code.

    Attributes:
        parts: One linked piece; or objects as emitted by LLVM if ``functions`` is empty.
        functions: Offsets of the functions in the piece, by name.
        imports: Offsets of the addresses of C library functions in the piece, by name.
    """

    parts: list[bytes]
    functions: dict[str, int] = field(default_factory=dict)
    imports: dict[str, int] = field(default_factory=dict)


class NotLinkable(Exception):
    """Object code of an unsupported kind."""


def linked(objects: Sequence[bytes]) -> Code:
    """Link objects to one piece; objects of an unsupported kind are returned unchanged."""
    if not objects:
        return Code([])
    try:
        linker = _Linker()
        for data in objects:
            linker.add(data)
        return Code([linker.finished()], linker.functions, linker.slots)
    except NotLinkable:
        return Code(list(objects))


class _Section(NamedTuple):
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class _Linker:
    def __init__(self) -> None:
        self._memory = bytearray()
        self.functions: dict[str, int] = {}
        self.slots: dict[str, int] = {}
        self._stubs: dict[str, int] = {}

    def add(self, data: bytes) -> None:
        """Append the sections of an object."""
        sections = _sections(data)
        offsets: dict[int, int] = {}
        for number, section in enumerate(sections):
            if section.flags & _ALLOCATED and section.type != _UNWINDING:
                if section.type != _PROGBITS or section.flags & _WRITABLE or section.alignment > _ENTRY:
                    raise NotLinkable
                offsets[number] = self._append(data[section.offset : section.offset + section.size])
        names, symbols = _symbols(data, sections)
        for name, kind, _, number, value, _ in symbols:
            if number in offsets and name and kind & _KIND == _FUNCTION:
                self.functions[names(name)] = offsets[number] + value
        for section in sections:
            if section.type == _RELA and section.info in offsets:
                for location, info, addend in _RELOCATION.iter_unpack(_bytes(data, section)):
                    target = self._target(symbols[info >> 32], names, offsets)
                    self._relocate(info & 0xFFFFFFFF, offsets[section.info] + location, target + addend)

    def finished(self) -> bytes:
        """Return the piece, with the table of addresses at the end."""
        for name, stub in self._stubs.items():
            self.slots[name] = slot = self._append(bytes(8), 8)
            _DISTANCE.pack_into(self._memory, stub + len(_JUMP), slot - (stub + len(_JUMP) + _DISTANCE.size))
        return bytes(self._memory)

    def _append(self, data: bytes, alignment: int = _ENTRY) -> int:
        self._memory += bytes(-len(self._memory) % alignment)
        start = len(self._memory)
        self._memory += data
        return start

    def _target(self, symbol: tuple[int, ...], names: _Names, offsets: dict[int, int]) -> int:
        name, _, _, number, value, _ = symbol
        if number == _UNDEFINED and name:
            called = names(name)
            if called not in self._stubs:
                self._stubs[called] = self._append(_JUMP + bytes(_DISTANCE.size), 16)
            return self._stubs[called]
        if number >= _RESERVED or number not in offsets:
            raise NotLinkable
        return offsets[number] + value

    def _relocate(self, kind: int, at: int, target: int) -> None:
        if kind not in (_PC32, _PLT32):
            raise NotLinkable
        _DISTANCE.pack_into(self._memory, at, target - at)


class _Names:
    """Names in a string table, by offset."""

    def __init__(self, table: bytes) -> None:
        self._table = table

    def __call__(self, start: int) -> str:
        return self._table[start : self._table.index(b"\0", start)].decode()


def _sections(data: bytes) -> list[_Section]:
    if not data.startswith(_MAGIC):
        raise NotLinkable
    header = _FILE.unpack_from(data)
    if header[2] != _X86_64:
        raise NotLinkable
    start, size, count = header[6], header[11], header[12]
    return [_Section(*_SECTION.unpack_from(data, start + size * number)) for number in range(count)]


def _bytes(data: bytes, section: _Section) -> bytes:
    return data[section.offset : section.offset + section.size]


def _symbols(data: bytes, sections: list[_Section]) -> tuple[_Names, list[tuple[int, ...]]]:
    tables: Iterator[_Section] = (section for section in sections if section.type == _SYMTAB)
    table = next(tables, None)
    if table is None:
        raise NotLinkable
    return _Names(_bytes(data, sections[table.link])), list(_SYMBOL.iter_unpack(_bytes(data, table)))


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


class MappedCode:
    """A linked piece in executable memory, callable while this object lives.

    Args:
        code: The piece.

    Raises:
        OSError: The system does not allow written memory to be executed.
    """

    def __init__(self, code: Code) -> None:
        (piece,) = code.parts
        library = _library()
        self._functions = code.functions
        self._memory = mmap.mmap(-1, len(piece), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory[: len(piece)] = piece
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        for name, slot in code.imports.items():
            address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
            ctypes.c_void_p.from_address(self._start + slot).value = address
        flags = mmap.PROT_READ | mmap.PROT_EXEC
        if library.mprotect(ctypes.c_void_p(self._start), ctypes.c_size_t(len(piece)), flags):
            raise OSError(ctypes.get_errno(), "the system does not allow generated code to be executed")

    def address(self, name: str) -> int:
        """Return the address of a function."""
        return self._start + self._functions[name]


def is_linked(code: Code) -> bool:
    """Return True if the code is a piece that this machine can run without LLVM."""
    return bool(code.functions) and platform.machine() in ("x86_64", "AMD64") and hasattr(mmap, "MAP_ANONYMOUS")


def loaded(code: Code, target: Target) -> MappedCode | LoadedCode:
    """Load object code: as one piece if supported, otherwise by LLVM.

    LLVM allocates memory for each section separately. In a process with many mappings, these allocations may be further
    apart than relative calls reach, and LLVM then aborts the process; inside one piece all distances are short.

    Args:
        code: The object code, linked if necessary.
        target: The target of the code.

    Raises:
        OSError: The system does not allow written memory to be executed.
    """
    piece = code if code.functions else linked(code.parts)
    return MappedCode(piece) if is_linked(piece) else LoadedCode(piece.parts, target)
