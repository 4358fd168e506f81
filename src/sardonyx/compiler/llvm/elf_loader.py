"""Linking: object code as one piece of memory that runs wherever it is put, so that loading it needs no LLVM.

Sections are laid one behind the other and what they say of each other is filled in, which in position-independent code
is distances only. Functions of the C library are called through a table, filled when the piece is loaded. What is
understood is ELF for x86-64 with the relocations that LLVM emits for kernels; other object code is left to LLVM.
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
"""Tables for exceptions, of which kernels have none."""

_ALLOCATED = 2
_WRITABLE = 1
_UNDEFINED = 0
_RESERVED = 0xFF00
_PC32, _PLT32 = 2, 4
_KIND, _FUNCTION = 0xF, 2
_JUMP = b"\xff\x25"
"""A jump to the address that stands at a distance from its end."""

_ENTRY = 64
"""What every section begins at a multiple of, as the constants of the widest vectors do."""


@dataclass(frozen=True)
class Code:
    """Object code.

    Attributes:
        parts: One linked piece, or objects as LLVM gives them where ``functions`` is empty.
        functions: Where the functions are in the piece, by name.
        imports: Where the addresses of functions of the C library are put, by name.
    """

    parts: list[bytes]
    functions: dict[str, int] = field(default_factory=dict)
    imports: dict[str, int] = field(default_factory=dict)


class NotLinkable(Exception):
    """Object code of another kind than is understood."""


def linked(objects: Sequence[bytes]) -> Code:
    """Objects as one piece, or as they are where they are of another kind."""
    if not objects:
        return Code([])
    try:
        linker = _Linker()
        for each in objects:
            linker.add(each)
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
        """Lay the sections of an object behind what there is."""
        sections = _sections(data)
        places: dict[int, int] = {}
        for number, section in enumerate(sections):
            if section.flags & _ALLOCATED and section.type != _UNWINDING:
                if section.type != _PROGBITS or section.flags & _WRITABLE or section.alignment > _ENTRY:
                    raise NotLinkable
                places[number] = self._append(data[section.offset : section.offset + section.size])
        names, symbols = _symbols(data, sections)
        for name, kind, _, number, value, _ in symbols:
            if number in places and name and kind & _KIND == _FUNCTION:
                self.functions[names(name)] = places[number] + value
        for section in sections:
            if section.type == _RELA and section.info in places:
                for offset, info, addend in _RELOCATION.iter_unpack(_bytes(data, section)):
                    target = self._target(symbols[info >> 32], names, places)
                    self._relocate(info & 0xFFFFFFFF, places[section.info] + offset, target + addend)

    def finished(self) -> bytes:
        """The piece, the table of addresses at its end."""
        for name, stub in self._stubs.items():
            self.slots[name] = slot = self._append(bytes(8), 8)
            _DISTANCE.pack_into(self._memory, stub + len(_JUMP), slot - (stub + len(_JUMP) + _DISTANCE.size))
        return bytes(self._memory)

    def _append(self, data: bytes, alignment: int = _ENTRY) -> int:
        self._memory += bytes(-len(self._memory) % alignment)
        start = len(self._memory)
        self._memory += data
        return start

    def _target(self, symbol: tuple[int, ...], names: _Names, places: dict[int, int]) -> int:
        name, _, _, number, value, _ = symbol
        if number == _UNDEFINED and name:
            called = names(name)
            if called not in self._stubs:
                self._stubs[called] = self._append(_JUMP + bytes(_DISTANCE.size), 16)
            return self._stubs[called]
        if number >= _RESERVED or number not in places:
            raise NotLinkable
        return places[number] + value

    def _relocate(self, kind: int, at: int, target: int) -> None:
        if kind not in (_PC32, _PLT32):
            raise NotLinkable
        _DISTANCE.pack_into(self._memory, at, target - at)


class _Names:
    """The texts of a table of texts, by where they begin."""

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
    """A linked piece in memory, ready to be called; it stays as long as this lives.

    Args:
        code: The piece.

    Raises:
        OSError: The system does not let memory that was written be run.
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
            raise OSError(ctypes.get_errno(), "generated code may not be run")

    def address(self, name: str) -> int:
        """The address of a function."""
        return self._start + self._functions[name]


def is_linked(code: Code) -> bool:
    """Whether the code is a piece that this machine can run without LLVM."""
    return bool(code.functions) and platform.machine() in ("x86_64", "AMD64") and hasattr(mmap, "MAP_ANONYMOUS")


def loaded(code: Code, target: Target) -> MappedCode | LoadedCode:
    """Object code in memory: as one piece where that is understood, else by LLVM.

    LLVM takes memory for each section by itself. In a process that has mapped much these may come to lie further apart
    than code can reach, at which LLVM ends the process; in one piece nothing is far.

    Args:
        code: The object code, which is linked if it is not yet.
        target: What it is for.

    Raises:
        OSError: The system does not let memory that was written be run.
    """
    piece = code if code.functions else linked(code.parts)
    return MappedCode(piece) if is_linked(piece) else LoadedCode(piece.parts, target)
