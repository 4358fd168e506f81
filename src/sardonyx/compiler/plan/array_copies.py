"""Copies of large arrays by all threads of a pool."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.executor.thread_pool import Pool
from sardonyx.compiler.llvm.elf_loader import Code, MappedCode, loaded
from sardonyx.compiler.llvm.object_code import LoadedCode, compiled, module_text
from sardonyx.compiler.target.description import Target

_PIECE = 1 << 19
"""Bytes that a thread copies at a time: enough for the C library to write past the cache."""

_SMALL_BYTES = 1 << 14
"""Bytes of an array below which the caller copies it: a row of the table takes longer to make."""

_FEW_BYTES = 1 << 20
"""Bytes up to which the caller copies alone: waking threads takes longer."""


def copy_arrays(pairs: Sequence[tuple[np.ndarray, np.ndarray]], pool: Pool, target: Target) -> None:
    """Copy arrays to others.

    Args:
        pairs: Arrays to write and to read, of equal types and shapes; those to write are contiguous.
        pool: The threads.
        target: The processor.
    """
    large, total = [], 0
    for to, array in pairs:
        size = array.nbytes
        if pool.threads > 1 and size >= _SMALL_BYTES and array.flags.c_contiguous:
            large.append((to, array, size))
            total += size
        else:
            np.copyto(to, array)
    if total <= _FEW_BYTES:
        for to, array, _ in large:
            np.copyto(to, array)
        return
    pieces = []
    for to, array, size in large:
        target_address, address = to.ctypes.data, array.ctypes.data
        pieces += [(target_address + at, address + at, min(size - at, _PIECE)) for at in range(0, size, _PIECE)]
    table = np.array(pieces, np.int64)
    copy = ctypes.cast(ctypes.CDLL(None).memcpy, ctypes.c_void_p).value
    arguments = np.array([table.ctypes.data, copy], np.int64)
    pool.parallel(_code(target).address("copy"), arguments.ctypes.data, len(table), 1)


@functools.cache
def _code(target: Target) -> MappedCode | LoadedCode:
    # Imported here: a program from the store copies only weights that change.
    from sardonyx.compiler.codegen.kernel_builder import Kernel

    kernel = Kernel(target)
    e = kernel.emitter
    table, copy = kernel.buffer(shared=True), kernel.buffer(shared=True)
    with e.loop("%first", "%last") as piece:
        to, array, size = (e.load("i64", e.address(table, "i64", e.add(e.mul(piece, 3), i)), 8) for i in range(3))
        pointers = [e.let(f"inttoptr i64 {address} to ptr") for address in (to, array)]
        e.line(f"call ptr {copy}(ptr {pointers[0]}, ptr {pointers[1]}, i64 {size})")
    text = module_text(target, [kernel.definition("copy")], e.declarations)
    return loaded(Code([compiled(text, target)]), target)
