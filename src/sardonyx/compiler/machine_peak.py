"""What the machine can do, measured: multiply-adds in registers, and bytes from memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sardonyx.compiler.codegen.kernel_builder import Kernel
from sardonyx.compiler.executor.thread_pool import Pool
from sardonyx.compiler.llvm.elf_loader import Code, loaded
from sardonyx.compiler.llvm.object_code import compiled, module_text
from sardonyx.compiler.target.description import Target

_SUMS = 12
"""Multiply-adds under way at a time: enough to hide how long one takes, and all fit the registers."""

_ROUNDS = 20_000
"""Of so many multiply-adds in an item."""

_STREAM_BYTES = 256 << 20
"""What is read for the bandwidth, unless four times the last-level cache is more."""

_MOST_STREAM_BYTES = 1 << 30
"""What is read at most: virtual machines are told of their host's caches, of which little is their own."""

_ITEM_BYTES = 256 << 10
_VECTORS = 8
"""Vectors that are added up apart, so that no addition waits for another."""


@dataclass(frozen=True)
class Peak:
    """Rates that no kernel passes.

    Attributes:
        operations: Operations a second on float32, a multiply-add being two.
        bytes: Bytes a second that are read from memory.
    """

    operations: float
    bytes: float


def measured_peak(target: Target, pool: Pool, times: int = 5) -> Peak:
    """The rates of all threads of a pool together: the best of a few runs."""
    return Peak(_operations(target, pool, times), _bytes(target, pool, times))


def _operations(target: Target, pool: Pool, times: int) -> float:
    kernel, lanes = Kernel(target), target.lanes(32)
    e, room = kernel.emitter, kernel.buffer()
    type = f"<{lanes} x float>"
    sums = [e.variable(type, e.load(type, e.address(room, "float", i * lanes), 4)) for i in range(_SUMS)]
    factor = e.load(type, e.address(room, "float", _SUMS * lanes), 4)
    with e.loop("%first", "%last"), e.loop(0, _ROUNDS):
        for each in sums:
            each.set(e.multiply_add(type, factor, factor, each.get()))
    # The threads write the same: what is not used is not computed.
    for i, each in enumerate(sums):
        e.store(type, each.get(), e.address(room, "float", i * lanes), 4)
    numbers = np.zeros((_SUMS + 1) * lanes, np.float32)
    items = 16 * pool.threads
    return 2 * _SUMS * lanes * _ROUNDS * items / _least_seconds(kernel, pool, numbers, items, times)


def _bytes(target: Target, pool: Pool, times: int) -> float:
    kernel, lanes = Kernel(target), target.lanes(32)
    e, stream = kernel.emitter, kernel.buffer(shared=True)
    type, step = f"<{lanes} x i32>", lanes * _VECTORS
    sums = [e.variable(type, "zeroinitializer") for _ in range(_VECTORS)]
    each_item = _ITEM_BYTES // 4 // step * step
    begin, end = (e.mul(at, each_item) for at in ("%first", "%last"))
    with e.loop(begin, end, step) as i:
        for number, total in enumerate(sums):
            found = e.load(type, e.address(stream, "i32", e.add(i, number * lanes)), 4)
            total.set(e.let(f"xor {type} {total.get()}, {found}"))
    merged = sums[0].get()
    for total in sums[1:]:
        merged = e.let(f"xor {type} {merged}, {total.get()}")
    # All of it is zero, so that nothing is changed; only the code cannot know.
    e.store(type, merged, e.address(stream, "i32", begin), 4)
    items = min(max(_STREAM_BYTES, 4 * target.l3), _MOST_STREAM_BYTES) // _ITEM_BYTES
    # Filled, since pages of zeros that nobody wrote are one page.
    numbers = np.full(items * each_item, 0, np.int32)
    return 4.0 * numbers.size / _least_seconds(kernel, pool, numbers, items, times)


def _least_seconds(kernel: Kernel, pool: Pool, data: np.ndarray, items: int, times: int) -> float:
    text = module_text(kernel.target, [kernel.definition("peak")], kernel.emitter.declarations)
    code = loaded(Code([compiled(text, kernel.target)]), kernel.target)
    arguments = np.array([data.ctypes.data], np.int64)
    address = code.address("peak")

    def run() -> None:
        pool.parallel(address, arguments.ctypes.data, items, max(1, items // (8 * pool.threads)))

    run()
    return min(_seconds(run) for _ in range(times))


def _seconds(call: Callable[[], None]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
