"""Measured peak rates of the machine: FMAs in registers, and bytes from memory."""

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
"""Independent FMAs in flight: enough to hide the latency, and all fit the registers."""

_ROUNDS = 20_000
"""Rounds of FMAs in a work item."""

_STREAM_BYTES = 256 << 20
"""Minimum bytes to read for the bandwidth; four times the last-level cache if larger."""

_MOST_STREAM_BYTES = 1 << 30
"""Maximum bytes to read: virtual machines report the host's caches, and own a small part of them."""

_ITEM_BYTES = 256 << 10
"""Bytes of a work item."""

_VECTORS = 8
"""Independent accumulators, so that no addition waits for another."""


@dataclass(frozen=True)
class Peak:
    """Peak rates, which bound every kernel.

    Attributes:
        operations: Float32 operations a second; an FMA is two.
        bytes: Bytes a second read from memory.
    """

    operations: float
    bytes: float


def measured_peak(target: Target, pool: Pool, times: int = 5) -> Peak:
    """Measure the rates of all threads of a pool together: the best of a few runs."""
    stream = MemoryStream(target, pool)
    stream()
    return Peak(_operations(target, pool, times), stream.bytes / min(_seconds(stream) for _ in range(times)))


def _operations(target: Target, pool: Pool, times: int) -> float:
    kernel, lanes = Kernel(target), target.lanes(32)
    e, room = kernel.emitter, kernel.buffer()
    type = f"<{lanes} x float>"
    sums = [e.variable(type, e.load(type, e.address(room, "float", i * lanes), 4)) for i in range(_SUMS)]
    factor = e.load(type, e.address(room, "float", _SUMS * lanes), 4)
    with e.loop("%first", "%last"), e.loop(0, _ROUNDS):
        for total in sums:
            total.set(e.multiply_add(type, factor, factor, total.get()))
    # The threads store equal values; an unused sum would not be computed.
    for i, total in enumerate(sums):
        e.store(type, total.get(), e.address(room, "float", i * lanes), 4)
    numbers = np.zeros((_SUMS + 1) * lanes, np.float32)
    items = 16 * pool.threads
    return 2 * _SUMS * lanes * _ROUNDS * items / _least_seconds(kernel, pool, numbers, items, times)


class MemoryStream:
    """A function that reads a large array from memory with all threads of a pool.

    Args:
        target: The processor.
        pool: The threads.

    Attributes:
        bytes: Bytes that a call reads.
    """

    def __init__(self, target: Target, pool: Pool) -> None:
        kernel, lanes = Kernel(target), target.lanes(32)
        e, stream = kernel.emitter, kernel.buffer(shared=True)
        type, step = f"<{lanes} x i32>", lanes * _VECTORS
        sums = [e.variable(type, "zeroinitializer") for _ in range(_VECTORS)]
        item_elements = _ITEM_BYTES // 4 // step * step
        begin, end = (e.mul(at, item_elements) for at in ("%first", "%last"))
        with e.loop(begin, end, step) as i:
            for number, total in enumerate(sums):
                loaded_vector = e.load(type, e.address(stream, "i32", e.add(i, number * lanes)), 4)
                total.set(e.let(f"xor {type} {total.get()}, {loaded_vector}"))
        merged = sums[0].get()
        for total in sums[1:]:
            merged = e.let(f"xor {type} {merged}, {total.get()}")
        # The stored value is zero, as before, but the compiler cannot know.
        e.store(type, merged, e.address(stream, "i32", begin), 4)
        items = min(max(_STREAM_BYTES, 4 * target.l3), _MOST_STREAM_BYTES) // _ITEM_BYTES
        # Filled explicitly: untouched zero pages are all one page.
        self._numbers = np.full(items * item_elements, 0, np.int32)
        self.bytes = self._numbers.nbytes
        self._run = _on_pool(kernel, pool, self._numbers, items)

    def __call__(self) -> None:
        """Read the array."""
        self._run()


def _least_seconds(kernel: Kernel, pool: Pool, data: np.ndarray, items: int, times: int) -> float:
    run = _on_pool(kernel, pool, data, items)
    run()
    return min(_seconds(run) for _ in range(times))


def _on_pool(kernel: Kernel, pool: Pool, data: np.ndarray, items: int) -> Callable[[], None]:
    """Return a function that runs the work items of a kernel on an array, which the caller keeps in memory."""
    text = module_text(kernel.target, [kernel.definition("peak")], kernel.emitter.declarations)
    code = loaded(Code([compiled(text, kernel.target)]), kernel.target)
    arguments = np.array([data.ctypes.data], np.int64)

    def run() -> None:
        pool.parallel(code.address("peak"), arguments.ctypes.data, items, max(1, items // (8 * pool.threads)))

    return run


def _seconds(call: Callable[[], None]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
