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

_FEW_BYTES = 1 << 20
"""Bytes up to which the caller copies alone: waking threads takes longer."""


def copy_arrays(pairs: Sequence[tuple[np.ndarray, np.ndarray]], pool: Pool, target: Target) -> None:
    """Copy arrays to others.

    Args:
        pairs: Arrays to write and to read, of equal types and shapes; those to write are contiguous.
        pool: The threads.
        target: The processor.
    """
    large = [(to, array) for to, array in pairs if array.flags.c_contiguous and array.nbytes]
    if pool.threads == 1 or sum(array.nbytes for _, array in large) <= _FEW_BYTES:
        large = []
    done = {id(to) for to, _ in large}
    for to, array in pairs:
        if id(to) not in done:
            np.copyto(to, array)
    if not large:
        return
    pieces = []
    for to, array in large:
        offsets = np.arange(0, array.nbytes, _PIECE)
        sizes = np.minimum(array.nbytes - offsets, _PIECE)
        pieces.append(np.stack([to.ctypes.data + offsets, array.ctypes.data + offsets, sizes], axis=1))
    table = np.ascontiguousarray(np.concatenate(pieces), np.int64)
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
