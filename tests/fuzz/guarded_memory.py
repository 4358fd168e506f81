"""Guarded memory: arrays and buffers that begin or end at a page without access, so that one byte too far is a fault.

Every array that numpy allocates while :func:`guarded` is active is guarded: feeds, results, constants and temporaries
of the interpreter. The buffers of compiled code (intermediate values, scratch memory) have pages of their own each.
New memory holds :data:`GARBAGE`, NaN as floats, so that a read before the first write shows in a result.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import llvmlite.binding as llvm
import numpy as np
from numpy._core import _multiarray_umath  # type: ignore[attr-defined]

from sardonyx.compiler.call import call_context
from sardonyx.compiler.executor.tape_planner import PlanWord
from sardonyx.compiler.target.alignment import ALIGNMENT

Edge = Literal["start", "end"]
"""The edge of a buffer that touches a page without access."""

GARBAGE = 0xFF
PAGE = mmap.PAGESIZE

_READ_WRITE, _NO_ACCESS = 3, 0
_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_SET_HANDLER = 304
"""The index of ``PyDataMem_SetHandler`` in numpy's table of C functions."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def reserve(pages: int) -> int:
    """Return the address of new pages without access.

    Raises:
        MemoryError: The system has too little address space.
    """
    address = _libc.mmap(None, pages * PAGE, _NO_ACCESS, _ANONYMOUS, -1, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise MemoryError
    return int(address)


def allow(address: int, pages: int) -> None:
    """Permit access to some of the pages of :func:`reserve`.

    Raises:
        MemoryError: The system has too little memory.
    """
    if pages and _libc.mprotect(address, pages * PAGE, _READ_WRITE):
        raise MemoryError


def release(address: int, pages: int) -> None:
    """Return pages to the system."""
    _libc.munmap(address, pages * PAGE)


def pages_of(nbytes: int) -> int:
    """Return the number of pages that hold ``nbytes``, at least 1."""
    return max(-(-nbytes // PAGE), 1)


_ALLOCATOR = f"""
declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @mprotect(ptr, i64, i32)
declare i32 @munmap(ptr, i64)
declare ptr @memset(ptr, i32, i64)
declare ptr @memcpy(ptr, ptr, i64)

; A page with the number of bytes, a page without access, the pages of the array, a page without access.
define i64 @whole(i64 %bytes) {{
  %up = add i64 %bytes, {PAGE - 1}
  %whole = and i64 %up, -{PAGE}
  ret i64 %whole
}}

define ptr @header(ptr %array) {{
  %number = ptrtoint ptr %array to i64
  %page = and i64 %number, -{PAGE}
  %start = sub i64 %page, {2 * PAGE}
  %header = inttoptr i64 %start to ptr
  ret ptr %header
}}

define ptr @allocate(ptr %context, i64 %wanted) {{
  %bytes = call i64 @llvm.umax.i64(i64 %wanted, i64 1)
  %whole = call i64 @whole(i64 %bytes)
  %total = add i64 %whole, {3 * PAGE}
  %region = call ptr @mmap(ptr null, i64 %total, i32 {_NO_ACCESS}, i32 {_ANONYMOUS}, i32 -1, i64 0)
  %failed = icmp eq ptr %region, inttoptr (i64 -1 to ptr)
  br i1 %failed, label %none, label %mapped
mapped:
  %first = getelementptr i8, ptr %region, i64 {2 * PAGE}
  %a = call i32 @mprotect(ptr %region, i64 {PAGE}, i32 {_READ_WRITE})
  %b = call i32 @mprotect(ptr %first, i64 %whole, i32 {_READ_WRITE})
  %both = or i32 %a, %b
  %refused = icmp ne i32 %both, 0
  br i1 %refused, label %undo, label %ready
undo:
  %c = call i32 @munmap(ptr %region, i64 %total)
  br label %none
ready:
  store i64 %bytes, ptr %region
  %slack = sub i64 %whole, %bytes
  %at_end = icmp eq ptr %context, null
  %offset = select i1 %at_end, i64 %slack, i64 0
  %array = getelementptr i8, ptr %first, i64 %offset
  %d = call ptr @memset(ptr %array, i32 {GARBAGE}, i64 %bytes)
  ret ptr %array
none:
  ret ptr null
}}

define ptr @zeros(ptr %context, i64 %count, i64 %size) {{
  %bytes = mul i64 %count, %size
  %array = call ptr @allocate(ptr %context, i64 %bytes)
  %failed = icmp eq ptr %array, null
  br i1 %failed, label %done, label %fill
fill:
  %a = call ptr @memset(ptr %array, i32 0, i64 %bytes)
  br label %done
done:
  ret ptr %array
}}

define void @release(ptr %context, ptr %array, i64 %unused) {{
  %nothing = icmp eq ptr %array, null
  br i1 %nothing, label %done, label %unmap
unmap:
  %header = call ptr @header(ptr %array)
  %bytes = load i64, ptr %header
  %whole = call i64 @whole(i64 %bytes)
  %total = add i64 %whole, {3 * PAGE}
  %a = call i32 @munmap(ptr %header, i64 %total)
  br label %done
done:
  ret void
}}

define ptr @reallocate(ptr %context, ptr %array, i64 %wanted) {{
  %moved = call ptr @allocate(ptr %context, i64 %wanted)
  %failed = icmp eq ptr %moved, null
  %nothing = icmp eq ptr %array, null
  %skip = or i1 %failed, %nothing
  br i1 %skip, label %done, label %copy
copy:
  %header = call ptr @header(ptr %array)
  %bytes = load i64, ptr %header
  %least = call i64 @llvm.umin.i64(i64 %bytes, i64 %wanted)
  %a = call ptr @memcpy(ptr %moved, ptr %array, i64 %least)
  call void @release(ptr %context, ptr %array, i64 0)
  br label %done
done:
  ret ptr %moved
}}

declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)
"""
"""numpy's allocation functions, as machine code: numpy calls them with and without a pending Python exception."""


class _Handler(ctypes.Structure):
    """``PyDataMem_Handler``, version 1; the context is null for the edge ``end``."""

    _fields_ = (
        ("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("context", ctypes.c_void_p),
        ("malloc", ctypes.c_void_p), ("calloc", ctypes.c_void_p), ("realloc", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
    )  # fmt: skip


@functools.cache
def _capsule(edge: Edge) -> Any:
    """Return a ``mem_handler`` of numpy; its code and its name live as long as the process."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_ALLOCATOR), machine)
    engine.finalize_object()
    address = engine.get_function_address
    handler = _Handler(
        b"guarded", 1, None if edge == "end" else 1,
        address("allocate"), address("zeros"), address("reallocate"), address("release"),
    )  # fmt: skip
    name = ctypes.c_char_p(b"mem_handler")
    _alive.extend((engine, handler, name))
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(handler), name, None)


_alive: list[object] = []


@functools.cache
def _setter() -> Any:
    """Return ``PyDataMem_SetHandler``."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = pointer(vars(_multiarray_umath)["_ARRAY_API"], None)
    function = ctypes.c_void_p.from_address(table + 8 * _SET_HANDLER).value
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(function)


def _set_handler(capsule: Any) -> Any:
    """Set numpy's allocator for this thread; return the former one."""
    return _setter()(capsule)


class GuardedContext(call_context.Context):
    """The context of a call of compiled code whose buffers have pages of their own each.

    Sizes are measured, then every buffer gets another address; nothing else differs from a context of production.
    """

    edge: Edge = "end"
    _region = 0, 0

    def take(self) -> None:
        """Place each buffer between pages without access."""
        release(*self._region)
        sizes = [max(int(self.registers[register]), 0) for register in self.plan.buffers[:, 0]]
        whole = [-(-nbytes // ALIGNMENT) * ALIGNMENT for nbytes in sizes]
        pages = [pages_of(nbytes) for nbytes in whole]
        total = sum(pages) + len(pages) + 1
        self._region = (0, 0)
        self._region = base, _ = reserve(total), total
        at = base + PAGE
        for buffer, (nbytes, count) in enumerate(zip(whole, pages, strict=True)):
            allow(at, count)
            start = at if self.edge == "start" else at + count * PAGE - nbytes
            ctypes.memset(start, GARBAGE, nbytes)
            self.offsets[buffer] = start - base
            at += (count + 1) * PAGE
        self.table[PlanWord.ARENA] = base
        # Other sizes are placed anew.
        self.table[PlanWord.CAPACITY] = 0

    def __del__(self) -> None:
        release(*self._region)


class _StartContext(GuardedContext):
    edge = "start"


_CONTEXTS: Mapping[Edge, type[GuardedContext]] = {"start": _StartContext, "end": GuardedContext}


@contextmanager
def guarded(edge: Edge) -> Iterator[None]:
    """Guard the memory of arrays and programs that are created inside, at the start or at the end of each buffer."""
    former, context = _set_handler(_capsule(edge)), call_context.Context
    try:
        call_context.Context = _CONTEXTS[edge]  # type: ignore[misc]
        yield
    finally:
        call_context.Context = context  # type: ignore[misc]
        _set_handler(former)


def copied(x: Any) -> Any:
    """Return a copy of an array, or of a list of arrays, in memory of the current allocator."""
    if isinstance(x, list):
        return [copied(one) for one in x]
    return np.array(x, order="C", copy=True)
